"""Tasks: what a network is for. One file each, with the same functions; `base.Task` is the contract.

Training, evaluation, prediction, saved weights and the commands ask the task of a recipe or of weights, which is found
here. Modules of tasks are imported when they are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

# name -> module:class
TASKS: dict[str, str] = {
    "classify": "gridless.tasks.classify:Classify",
    "recordings": "gridless.tasks.recordings:ClassifyRecordings",
    "parts": "gridless.tasks.segment:LabelParts",
    "scenes": "gridless.tasks.segment:LabelScenes",
    "track": "gridless.tasks.track:Track",
}
_LAZY = {"Loss": "gridless.tasks.base", "Prediction": "gridless.tasks.base", "Task": "gridless.tasks.base"}

__all__ = ["Loss", "Prediction", "Task", "data_names", "find", "load_task", "task_name", "task_of"]  # pyright: ignore


def find(name: str) -> Any:
    """A task of gridless by its name. Nothing else is ever imported, so that the name may come from a file."""
    if name not in TASKS:
        remedy = f"one of gridless is {', '.join(TASKS)}; give one of yours yourself, --task FILE.py:CLASS"
        raise ValueError(f"unknown task {name!r}: {remedy}")
    module, _, kind = TASKS[name].partition(":")
    return getattr(import_module(module), kind)()


def load_task(name: str) -> Any:
    """A task by its name, or FILE.py:CLASS, which runs that file: only for names that the user gave."""
    file, _, kind = name.rpartition(":")
    if not file.endswith(".py"):
        return find(name)
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"task {name!r}: there is no file {path}")
    spec = spec_from_file_location(f"gridless_task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Workers find the classes of the file under this name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    task = getattr(module, kind, None)
    if not isinstance(task, type) or not issubclass(task, __getattr__("Task")):
        raise ValueError(f"task {name!r}: {kind!r} in {path} is no class of a task: derive it from gridless.tasks.Task")
    made = task()
    made.name = name
    return made


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.tasks' has no attribute {name!r}")


def task_name(model: Mapping[str, Any], data: str | None = None, task: str | None = None) -> str:
    """The name of the task of a recipe or of weights: `task` where it says so, else what its network is for.

    Args:
        model: the config of the network.
        data: the data set of a recipe; one that the network's task does not have decides before the network.
        task: what a recipe or a weights file says.
    """
    if task is not None:
        return task
    from gridless.models import task_of

    own = task_of(model) or "classify"
    if data is None or data in find(own).data:
        return own
    return next((name for name in TASKS if data in find(name).data), own)


def data_names() -> list[str]:
    """The data sets that recipes of tasks of gridless can name."""
    return sorted({data for name in TASKS for data in find(name).data})


def task_of(model: Any) -> Any:
    """The task of a network from `gl.load` or `gridless.models`: what its weights file says, else what it is for."""
    about = getattr(model, "about", {})
    return find(task_name(getattr(model, "config", {}), task=about.get("task")))
