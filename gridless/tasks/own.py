"""Tasks by the names that users type: those of gridless, and FILE.py:CLASS, which runs that file."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from gridless.tasks.base import Task
from gridless.tasks.registry import TASKS, find


def load_task(name: str) -> Any:
    """A task by its name, or by FILE.py:CLASS, which runs that file. Call it only with names that the user typed."""
    file, _, kind = name.rpartition(":")
    if not file.endswith(".py"):
        return find(name)
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"task {name!r}: there is no file {path}. Check the path.")
    spec = spec_from_file_location(f"gridless_task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Worker processes unpickle the classes of the file under this name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    task = getattr(module, kind, None)
    if not isinstance(task, type) or not issubclass(task, Task):
        raise ValueError(f"task {name!r}: {path} has no task class {kind!r}. Derive it from gridless.tasks.Task.")
    new_task: Any = task()
    new_task.name = name
    return new_task


def task_for(recipe: Any) -> Any:
    """The task of a recipe that the user named; an error if it rejects the recipe."""
    task = load_task(recipe.task_name)
    if task.name not in TASKS:
        # A recipe checks itself only against tasks of gridless: it runs no code.
        task.check_recipe(recipe)
    return task
