"""The list of tasks, and the task of a recipe or of weights. The module of a task is imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

# name -> module:class
TASKS: dict[str, str] = {
    "classify": "gridless.tasks.classify:Classify",
    "recordings": "gridless.tasks.recordings:ClassifyRecordings",
    "parts": "gridless.tasks.segment:LabelParts",
    "scenes": "gridless.tasks.segment:LabelScenes",
    "track": "gridless.tasks.track:Track",
}


def find(name: str) -> Any:
    """A task of gridless by its name. It imports nothing else, so the name may come from an untrusted file."""
    if name not in TASKS:
        remedy = f"Choose from {', '.join(TASKS)}, or name a class of yours: --task FILE.py:CLASS."
        raise ValueError(f"unknown task {name!r}. {remedy}")
    module, _, kind = TASKS[name].partition(":")
    return getattr(import_module(module), kind)()


def task_name(model: Mapping[str, Any], data: str | None = None, task: str | None = None) -> str:
    """The name of the task of a recipe or of weights: `task` if given, else the task of the data or of the network.

    Args:
        model: the config of the network.
        data: the data set of a recipe; if the task of the network does not have it, the data set decides.
        task: the entry `task` of a recipe or a weights file.
    """
    if task is not None:
        return task
    from gridless.models.networks import task_of

    own = task_of(model) or "classify"
    if data is None or data in find(own).data:
        return own
    return next((name for name in TASKS if data in find(name).data), own)


def data_names() -> list[str]:
    """The data sets that recipes can name, over all tasks of gridless."""
    return sorted({data for name in TASKS for data in find(name).data})


def task_of(model: Any) -> Any:
    """The task of a network from `gl.load` or `gridless.models`: that of its weights file, else that of its class."""
    about = getattr(model, "about", {})
    return find(task_name(getattr(model, "config", {}), task=about.get("task")))
