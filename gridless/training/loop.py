"""The training loop: set up, make a step for each batch of each epoch, validate, save.

The number of steps made, `state.step`, alone decides epoch, position in the epoch, learning rate and checkpoints.
"""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from gridless.backends import existing
from gridless.data.files import locked, sweep, write_whole
from gridless.pictures.report import report_run
from gridless.training.checkpoints import (
    FORMAT,
    check_folder,
    digest_of,
    last_checkpoint,
    read_checkpoint,
    share,
    write_checkpoint,
)
from gridless.training.examples import TrainingSet
from gridless.training.interrupt import Interrupt
from gridless.training.logs import EpochBar, Log
from gridless.training.normalisation import update_statistics
from gridless.training.recipe import Recipe
from gridless.training.setup import Options, Run, check_settings, make_fabric, tf32
from gridless.training.step import autocast, begin_step
from gridless.training.words import gap
from gridless.weights import save

# Examples from which the statistics of normalisations are estimated, or all of an epoch if it has fewer.
ESTIMATED = 4096
# Default number of epochs between checkpoints.
CHECKPOINT_EPOCHS = 10


def train(
    recipe: Recipe,
    task: Any,
    data: TrainingSet,
    valid: TrainingSet | None,
    out: Path,
    options: Options | None = None,
    model: Any = None,
) -> dict[str, Any] | None:
    """Train by a recipe, write `out`/weights.* and `out`/results.json, and return the results.

    Ctrl-C ends the run after the current step: it writes a checkpoint for `resume`, and raises KeyboardInterrupt.

    Args:
        recipe: everything that decides the weights.
        task: defines the loss of a batch, the scores of answers, and the figures of scores.
        data: the training examples, on the CPU.
        valid: held-out examples that are evaluated during training, or None.
        out: the folder of logs, checkpoints, weights and results; an error if it holds a run already.
        options: device, processes, checkpoints, progress.
        model: the network of the recipe, if it is already built.

    Returns:
        The figures of the written weights; `history` has those of each epoch: train_loss, train_accuracy,
        learning_rate, and the figures of validation. None in all processes but the first.
    """
    options = options or Options()
    device, alone = existing(options.device), options.devices * options.nodes == 1
    last, about = last_checkpoint(out), {"format": FORMAT, "recipe": recipe.to_dict(), "examples": digest_of(data)}
    check_folder(out, options.resume)
    saved = read_checkpoint(last, recipe, about["examples"]) if options.resume else None
    check_settings(recipe, device, alone)
    model = recipe.make_model() if model is None else model
    for part in (data, *([] if valid is None else [valid])):
        task.check_data(model, part)
    out.mkdir(parents=True, exist_ok=True)
    # Several processes share the folder, so none of them locks it.
    with locked(out / ".lock", out) if alone else nullcontext(), Interrupt(last) as interrupt, tf32(device):
        check_folder(out, options.resume)
        if options.held_out:
            write_whole(out / "split.txt", "".join(f"{file}\n" for file in options.held_out).encode())
        write_whole(out / "recipe.yaml", yaml.safe_dump(recipe.to_dict(), sort_keys=False).encode())
        sweep(last.parent)
        with make_fabric(device, options) as fabric:
            run, began = Run(fabric, recipe, task, model, data, valid, options), time.perf_counter()
            if saved is not None:
                run.state.restore(saved)
                run.step.totals.copy_(share(saved["totals"], fabric.world_size)[fabric.global_rank])
            _fit(run, out, about, interrupt)
            # Every process must take part: normalisations use the statistics of all of them.
            _refresh(run)
            return _finish(run, out, time.perf_counter() - began) if fabric.is_global_zero else None


def _fit(run: Run, out: Path, about: dict[str, Any], interrupt: Interrupt) -> None:
    """Make the remaining steps."""
    state, fabric, steps, epochs = run.state, run.fabric, run.steps, run.recipe.epochs
    log = Log(out, state.step) if fabric.is_global_zero else None
    bar = None
    if fabric.is_global_zero and run.options.progress:
        print(
            f"done to each training example: {run.task.describe_augmentation(run.recipe)}", file=sys.stderr, flush=True
        )
        bar = EpochBar(epochs, state.step / steps)
    try:
        fabric.call("on_train_start", state)
        for epoch in range(state.step // steps, epochs):
            state.model.train()
            run.loader.epoch, run.loader.start = epoch, state.step % steps
            for batch in run.loader:
                interrupt.stepping = fabric.world_size == 1
                fabric.call("on_step_start", state, batch)
                begin_step(run.recipe, state.schedule, state.optimiser, epoch, state.step % steps, steps)
                run.step(batch)
                state.step += 1
                fabric.call("on_step_end", state, batch)
                if bar is not None:
                    bar.step(len(batch.labels) * fabric.world_size, state.step / steps)
                # At the end of an epoch the checkpoint follows the validation, below.
                if state.step % steps:
                    _keep(run, out, about, interrupt)
            _end_epoch(run, epoch)
            if log is not None:
                log.epoch(state.history, state.step)
            if bar is not None:
                bar.epoch(state.history[-1])
            fabric.call("on_epoch_end", state)
            _keep(run, out, about, interrupt)
    finally:
        for each in (bar, log):
            if each is not None:
                each.close()


def _end_epoch(run: Run, epoch: int) -> None:
    """Record the figures of an epoch, and validate if it is due; it always is after the last epoch."""
    state, recipe, totals = run.state, run.recipe, run.totals
    _check_finite(run, totals)
    run.step.totals.zero_()
    loss, right, counted, examples = totals.sum(0).tolist()
    entry = {"epoch": epoch + 1, "train_loss": loss / examples}
    if counted:
        entry["train_accuracy"] = right / counted
    entry["learning_rate"] = float(state.optimiser.param_groups[0]["lr"])
    # Without an accuracy, the schedule watches the negative loss.
    state.schedule.epoch_ended(entry.get("train_accuracy", -entry["train_loss"]))
    if run.valid is not None and ((epoch + 1) % recipe.validate_every == 0 or epoch + 1 == recipe.epochs):
        run.fabric.call("on_validation_start", state)
        _refresh(run)
        figures = run.task.judge(run.judged, run.valid, recipe)
        entry |= {f"valid_{name}": value for name, value in figures.items() if isinstance(value, float)}
        run.details = {name: figures[name] for name in ("confusion", "by_category") if name in figures}
    state.history.append(entry)


def _refresh(run: Run) -> None:
    """Copy the current weights to the evaluated network, and estimate its statistics from batches of this epoch.

    The network in training is unchanged, so the times of validation do not affect training.
    """
    state, recipe = run.state, run.recipe
    if run.judged_at == state.step:
        return
    run.judged.load_state_dict(state.best.state_dict())
    epoch = (state.step - 1) // run.steps
    estimate_statistics(recipe, run.task, run.judged, run.loader, run.examples, epoch)
    run.judged_at = state.step


def estimate_statistics(recipe: Recipe, task: Any, model: Any, loader: Any, examples: int, epoch: int) -> None:
    """Estimate the statistics of a network from the first batches of an epoch, as every run of `train` ends.

    Args:
        recipe: defines the size of a batch, the precision, and the parts that stay as they are.
        task: defines the loss, which is computed once per batch.
        model: the network to evaluate.
        loader: the batches of training.
        examples: number of examples of an epoch, over all processes.
        epoch: the epoch whose batches are taken.
    """
    # Use full batches only: the last one of an epoch may have a single example.
    count = min(max(1, examples // recipe.batch_size), -(-ESTIMATED // recipe.batch_size))

    def forward(model: Any, batch: Any) -> None:
        with autocast(batch.labels.device, recipe.precision):
            task.loss(model, batch)

    update_statistics(model, loader.first(epoch, count), forward, recipe.frozen)


def _keep(run: Run, out: Path, about: dict[str, Any], interrupt: Interrupt) -> None:
    """Write a checkpoint if it is due or Ctrl-C was pressed; Ctrl-C then ends the run."""
    state, every = run.state, run.options.checkpoint_steps or CHECKPOINT_EPOCHS * run.steps
    if state.step % every == 0 or interrupt.asked:
        totals = run.totals
        _check_finite(run, totals)
        if run.fabric.is_global_zero:
            write_checkpoint(last_checkpoint(out), about | {"totals": totals.cpu()} | state.to_dict())
    if interrupt.asked:
        interrupt.stop()


def _check_finite(run: Run, totals: Tensor) -> None:
    """Raise an error if the loss or a weight is not finite, before a checkpoint is overwritten."""
    state, rate = run.state, run.recipe.learning_rate
    finite = [tensor.isfinite().all() for tensor in (totals, *state.model.state_dict().values())]
    if not bool(torch.stack(finite).all()):
        remedy = f"Give a smaller learning_rate (now {rate:g}), or clip gradients (clip=1)."
        raise FloatingPointError(f"training diverged in epoch {(state.step - 1) // run.steps + 1}. {remedy}")


def _finish(run: Run, out: Path, seconds: float) -> dict[str, Any]:
    """Write the weights and the results; explain a large gap between accuracies."""
    state, recipe, valid = run.state, run.recipe, run.valid
    results: dict[str, Any] = {name: value for name, value in state.history[-1].items() if name != "epoch"}
    results |= {"epochs": recipe.epochs, "examples": run.examples, "seconds": seconds}
    if valid is not None and recipe.votes > 1:
        results["valid_accuracy_by_votes"] = run.task.evaluate(run.judged, valid, recipe)["accuracy"]
    results = _plain(results | run.details)
    split = "train" if valid is None else "fit"
    about = {"task": run.task.name, **run.about, "split": split, "recipe": recipe.to_dict(), "results": results}
    save(run.judged, out / "weights", **about)
    results["history"] = _plain(state.history)
    write_whole(out / "results.json", (json.dumps(results, indent=2) + "\n").encode())
    report_run(out, show=run.options.progress)
    explanation = gap(state.history, state.step, sessions=recipe.data == "folder")
    if explanation and run.options.progress:
        print(explanation, file=sys.stderr, flush=True)
    return results


def _plain(value: Any) -> Any:
    """Replace numbers that JSON does not have (NaN, infinity) by None."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
