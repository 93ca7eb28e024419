"""Checkpoints and the folder of a run: saving, checks, and resuming."""

from __future__ import annotations

import hashlib
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gridless.data.files import check_writable, write_whole
from gridless.training.recipe import Recipe
from gridless.training.step import Average

# Version of the checkpoint's layout; other versions are rejected.
FORMAT = 3


@dataclass
class State:
    """Everything that a step changes. `step`, the number of steps made, decides epoch, rate and checkpoints."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    schedule: Any
    average: Average | None = None
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def best(self) -> nn.Module:
        """The network to evaluate and ship: the average, if there is one."""
        return self.model if self.average is None else self.average.model

    def to_dict(self) -> dict[str, Any]:
        average = None if self.average is None else self.average.model.state_dict()
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": average,
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "history": self.history,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.step, self.history = saved["step"], saved["history"]
        self.model.load_state_dict(saved["model"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.schedule.load_state_dict(saved["schedule"])
        if self.average is not None:
            self.average.model.load_state_dict(saved["average"])


def last_checkpoint(out: Path) -> Path:
    return out / "checkpoints" / "last.ckpt"


def write_checkpoint(path: Path, saved: dict[str, Any]) -> None:
    """Write a checkpoint atomically. It is serialised in memory, because torch does not report a full disk."""
    content = io.BytesIO()
    torch.save(saved, content)
    write_whole(path, content.getbuffer())


def read_checkpoint(path: Path, recipe: Recipe, examples: str) -> dict[str, Any]:
    """Read a checkpoint to the CPU. Damaged ones, and those of another recipe or other examples, are rejected."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if not _is_foreign(saved):
            before = Recipe.from_dict(saved["recipe"]).to_dict()
            count, digest = saved["examples"].split()
    except Exception as error:
        remedy = "Remove it and start again, without --resume."
        raise ValueError(f"{path}: truncated, or no checkpoint of gridless train ({error}). {remedy}") from None
    if _is_foreign(saved):
        remedy = "Finish the run with that version, or start again in another folder (--out)."
        raise ValueError(f"{path}: written by another version of gridless. {remedy}")
    changes = [f"{name} is {a!r}, was {b!r}" for name, a, b in differences(recipe.to_dict(), before)]
    if examples != f"{count} {digest}":
        changes.append(f"the training examples differ ({examples.split()[0]} of them, was {count})")
    if changes:
        remedy = "Give the same recipe and data, or choose another folder (--out)."
        raise ValueError(f"{path}: from another run, {'; '.join(changes)}. {remedy}")
    return saved


def _is_foreign(saved: dict[str, Any]) -> bool:
    """True if a checkpoint has another layout: another version, or that of Lightning's Trainer."""
    return "pytorch-lightning_version" in saved or saved.get("format", FORMAT) != FORMAT


def differences(now: Any, before: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, value now, value before) of every entry that differs."""
    if isinstance(now, dict) and isinstance(before, dict):
        for key in {**now, **before}:
            yield from differences(now.get(key), before.get(key), f"{name}.{key}" if name else key)
    elif now != before:
        yield name, now, before


def digest_of(data: Any) -> str:
    """The number of training examples, and a digest of their content."""
    names = [list(getattr(data, name, ())) for name in ("class_names", "rows", "features", "parts", "values")]
    digest = hashlib.blake2b(repr(names).encode(), digest_size=16)
    for tensor in data.tensors():
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy())  # type: ignore[arg-type]
    return f"{len(data)} {digest.hexdigest()}"


def share(totals: Tensor, world: int) -> Tensor:
    """The totals (processes, 4) of a checkpoint for `world` processes; if the number differs, the first gets all."""
    if len(totals) == world:
        return totals
    shares = totals.new_zeros(world, totals.shape[1])
    shares[0] = totals.sum(0)
    return shares


def check_folder(out: Path, resume: bool) -> None:
    """Reject a folder that is a file, that cannot be written, or that holds another run.

    With `resume`, reject a run that has ended or has no checkpoint.
    """
    last = last_checkpoint(out)
    check_writable(out, "--out")
    # The results are written last.
    if (out / "weights.safetensors").exists() and not (last.is_file() and not (out / "results.json").exists()):
        start = shlex.quote(f"start={out / 'weights'}")
        remedy = f"Choose another folder (--out). To start from its weights, add --set {start}."
        raise FileExistsError(f"{out} holds a finished run. {remedy}")
    if last.is_file() and not resume:
        remedy = "Continue it (--resume), or choose another folder (--out)."
        raise FileExistsError(f"{out} already holds a run. {remedy}")
    if resume and not last.is_file():
        raise FileNotFoundError(f"--resume: there is no file {last}. Start the run without --resume.")
