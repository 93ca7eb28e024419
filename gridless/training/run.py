"""A whole training run: trainer, logs, checkpoints, and the weights at the end."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import math
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from gridless.backends import existing
from gridless.data.files import check_below, locked, sweep, write_whole
from gridless.tasks import find
from gridless.training.callbacks import EpochBar, Interrupt, WholeCheckpoints
from gridless.training.examples import TrainingSet
from gridless.training.module import Classifier
from gridless.training.recipe import Recipe
from gridless.weights import save


def run(
    recipe: Recipe,
    data: TrainingSet,
    valid: TrainingSet | None,
    out: Path,
    device: torch.device | str = "cpu",
    devices: int = 1,
    nodes: int = 1,
    resume: bool = False,
    checkpoint_steps: int | None = None,
    progress: bool = True,
    workers: int | None = None,
    cache: Path = Path("cache"),
    callbacks: list[Callback] | None = None,
    held_out: Sequence[str] = (),
    task: Any = None,
    model: Any = None,
) -> dict[str, Any] | None:
    """Train by a recipe, write `out`/weights.* and `out`/results.json, and return the results.

    Ctrl-C ends the run after the step at hand, with a checkpoint from which `resume` goes on, by a KeyboardInterrupt.

    Args:
        recipe: everything that decides the run.
        data: the training examples, on the CPU.
        valid: held-out examples that are evaluated as training goes on, or None.
        out: the folder of logs, checkpoints, weights and results; one that holds a run is refused.
        device: cpu, cuda or cuda:N.
        devices: processes on this machine, each with a device.
        nodes: machines.
        resume: go on from the last checkpoint in `out`; that of another recipe or of other examples is refused.
        checkpoint_steps: steps between checkpoints; None: every ten epochs.
        progress: show epochs on standard error.
        workers: processes that make geometry where it is not made online; None: as many as there are threads.
        cache: the folder of geometry that is made offline.
        callbacks: further callbacks of Lightning's.
        held_out: the files that were held out, for the list `out`/split.txt.
        task: the task; that of the recipe if left out.
        model: the network of the recipe, if it is made already.

    Returns:
        The figures of the weights that were written; `history` has those of each epoch: train_loss, train_accuracy,
        learning_rate, and what was validated. None in processes but the first.
    """
    device, task = existing(device), find(recipe.task_name) if task is None else task
    last = out / "checkpoints" / "last.ckpt"
    check_folder(out, resume)
    examples = _examples(data)
    done = _check_same(last, recipe, examples) if resume else 0
    if recipe.precision == "bf16" and device.type == "cpu":
        raise ValueError("recipe: precision: bf16 is for a GPU, and the CPU computes in 32 bits: --set precision=32")
    about = {"recipe": recipe.to_dict(), "examples": examples}
    module = Classifier(recipe, task, data, valid, workers, cache, about, model)
    for part in (data, *([] if valid is None else [valid])):
        task.check_data(module.model, part)
    out.mkdir(parents=True, exist_ok=True)
    # Of several processes, which share a folder, none holds it.
    with locked(out / ".lock", out) if devices * nodes == 1 else nullcontext():
        check_folder(out, resume)
        if held_out:
            write_whole(out / "split.txt", "".join(f"{file}\n" for file in held_out).encode())
        write_whole(out / "recipe.yaml", yaml.safe_dump(recipe.to_dict(), sort_keys=False).encode())
        sweep(last.parent)
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        every: Any = {"every_n_train_steps": checkpoint_steps} if checkpoint_steps else {"every_n_epochs": 10}
        keep = ModelCheckpoint(last.parent, filename="last", save_top_k=1, enable_version_counter=False, **every)
        interrupt = Interrupt(last, alone=devices * nodes == 1)
        trainer = lightning.Trainer(
            accelerator="gpu" if device.type == "cuda" else "cpu",
            devices=[device.index] if device.index is not None and devices == 1 else devices,
            num_nodes=nodes,
            strategy="ddp" if devices * nodes > 1 else "auto",
            max_epochs=recipe.epochs,
            check_val_every_n_epoch=recipe.validate_every,
            num_sanity_val_steps=0,
            logger=_loggers(out, done),
            callbacks=[keep, interrupt, *([EpochBar()] if progress else []), *(callbacks or [])],
            plugins=[WholeCheckpoints()],
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=10**9,
            use_distributed_sampler=False,
        )
        began = time.perf_counter()
        with interrupt.caught(), warnings.catch_warnings(), _tf32(device):
            # Lightning's own advice, on loaders with workers, hooks in two places and the like: it does not apply here.
            warnings.filterwarnings("ignore", module="lightning.*")
            trainer.fit(module, ckpt_path=last if resume else None)
            if not trainer.is_global_zero:
                return None
            end, place = module.history[-1], None if valid is None else valid.to(module.device)
            module.complete()
            results: dict[str, Any] = {name: value for name, value in end.items() if name != "epoch"}
            results |= {"epochs": recipe.epochs, "examples": len(data), "seconds": time.perf_counter() - began}
            if place is not None and recipe.votes > 1:
                results["valid_accuracy_by_votes"] = task.evaluate(module.best, place, recipe)["accuracy"]
        results = _plain(results)
        split = "train" if valid is None else "fit"
        about = {"task": task.name, **task.about(data), "split": split, "recipe": recipe.to_dict(), "results": results}
        save(module.best, out / "weights", **about)
        results["history"] = _plain(module.history)
        write_whole(out / "results.json", (json.dumps(results, indent=2) + "\n").encode())
        return results


def _plain(value: Any) -> Any:
    """With None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _tf32(device: torch.device) -> Iterator[None]:
    """Dense products of float32 as TF32 on a GPU; afterwards torch's setting is as it was."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _examples(data: TrainingSet) -> str:
    """How many training examples there are, and a digest of everything that is learned from."""
    names = [list(getattr(data, name, ())) for name in ("class_names", "rows", "features", "parts", "values")]
    digest = hashlib.blake2b(repr(names).encode(), digest_size=16)
    for tensor in data.tensors():
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy())  # type: ignore[arg-type]
    return f"{len(data)} {digest.hexdigest()}"


def check_folder(out: Path, resume: bool) -> None:
    """Refuse to write over a file or another run, where nothing can be written, and to go on where a run has ended or
    has no checkpoint."""
    last = out / "checkpoints" / "last.ckpt"
    check_below(out)
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"nothing can be written in {there}: choose another folder (--out)")
    # The results are written last.
    if (out / "weights.safetensors").exists() and not (last.is_file() and not (out / "results.json").exists()):
        start = shlex.quote(f"start={out / 'weights'}")
        remedy = f"choose another folder (--out), where its weights may begin: --set {start}"
        raise FileExistsError(f"{out} holds a run that has ended: {remedy}")
    if last.is_file() and not resume:
        remedy = "go on with it (--resume), or choose another folder (--out)"
        raise FileExistsError(f"{out} holds a run already: {remedy}")
    if resume and not last.is_file():
        raise FileNotFoundError(f"nothing to resume: there is no {last}")


def _check_same(last: Path, recipe: Recipe, examples: str) -> int:
    """Refuse to go on from a damaged checkpoint, or one of another recipe or of other examples; returns its steps."""
    try:
        whole = torch.load(last, map_location="cpu", weights_only=True)
        about, done = whole["gridless"], int(whole["global_step"])
        before = Recipe.from_dict(about["recipe"]).to_dict()
        count, digest = about["examples"].split()
    except Exception as error:
        remedy = "remove it and begin anew, without --resume"
        raise ValueError(f"{last} is truncated, or no checkpoint of gridless train: {remedy} ({error})") from None
    now = recipe.to_dict()
    found = [f"{name} is {a!r}, was {b!r}" for name, a, b in _differences(now, before)]
    if examples != f"{count} {digest}":
        found.append(f"the training examples are others, {examples.split()[0]} of them, was {count}")
    if found:
        remedy = "give the same recipe and data, or choose another folder (--out)"
        raise ValueError(f"{last} is of another run: {'; '.join(found)}: {remedy}")
    return done


def _differences(now: Any, before: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(now, dict) and isinstance(before, dict):
        for key in {**now, **before}:
            yield from _differences(now.get(key), before.get(key), f"{name}.{key}" if name else key)
    elif now != before:
        yield name, now, before


class _Log(CSVLogger):
    """Lightning's OUT/logs/metrics.csv, with what was logged in the `done` steps before a run was resumed."""

    def __init__(self, out: Path, done: int) -> None:
        super().__init__(out, name="", version="logs", flush_logs_every_n_steps=1)
        file, rows = out / "logs" / "metrics.csv", list[dict[str, str]]()
        if file.is_file():
            with open(file, newline="", encoding="utf-8") as lines:
                rows = [{name: text for name, text in row.items() if text} for row in csv.DictReader(lines)]
        self.before: list[Any] = [row for row in rows if row.get("step", "").isdigit() and int(row["step"]) < done]
        self.known: set[Any] = {(int(row["step"]), frozenset(row) - {"step"}) for row in self.before}

    @property
    def experiment(self) -> Any:
        found: Any = super().experiment
        if self.before and self._experiment is not None:
            found.metrics, self.before = self.before, []
            found.save()
        return found

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        # What comes after the last step of an epoch may be logged again.
        if (step, frozenset(metrics)) not in self.known:
            self.known.add((step, frozenset(metrics)))
            super().log_metrics(metrics, step)


class _Board(TensorBoardLogger):
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        try:
            super().log_metrics(metrics, step)
        except ValueError as error:
            # Whatever goes wrong, Lightning says that the value is of no kind that can be logged.
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise


def _loggers(out: Path, done: int) -> list[Logger]:
    loggers: list[Logger] = [_Log(out, done)]
    if find_spec("tensorboard") or find_spec("tensorboardX"):
        loggers.append(_Board(out, name="", version="tensorboard", purge_step=done or None))
    else:
        words = "gridless: tensorboard is not installed: logs go to CSV only (pip install tensorboard)"
        print(words, file=sys.stderr)
    return loggers
