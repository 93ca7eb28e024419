"""Tasks: the purposes of networks. Each is one file with the same functions; `base.Task` is the contract.

`registry.py` lists them, and finds the task of a recipe or of weights.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridless.tasks.registry import data_names, find, load_task, task_name, task_of

__all__ = ["FilePrediction", "Loss", "Task", "data_names", "find", "load_task", "task_name", "task_of"]

if TYPE_CHECKING:
    from gridless.tasks.base import FilePrediction, Loss, Task


def __getattr__(name: str) -> Any:
    if name in ("FilePrediction", "Loss", "Task"):
        return getattr(import_module("gridless.tasks.base"), name)
    raise AttributeError(f"module 'gridless.tasks' has no attribute {name!r}")
