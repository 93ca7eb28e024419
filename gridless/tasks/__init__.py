"""Tasks: the purposes of networks. Each is one file with the same functions; `base.Task` is the contract.

`registry.py` lists them, and finds the task of a recipe or of weights; `own.py` reads tasks of the user's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridless.tasks.registry import data_names, find, task_name, task_of

__all__ = ["FilePrediction", "Loss", "Task", "data_names", "find", "load_task", "task_name", "task_of"]

if TYPE_CHECKING:
    from gridless.tasks.base import FilePrediction, Loss, Task
    from gridless.tasks.own import load_task

# Name -> its module, which is imported on first use: it needs the training code.
_LATER = dict.fromkeys(("FilePrediction", "Loss", "Task"), "gridless.tasks.base") | {"load_task": "gridless.tasks.own"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'gridless.tasks' has no attribute {name!r}")
