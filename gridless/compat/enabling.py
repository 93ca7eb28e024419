"""`gl.compat.enable()`: other libraries' names answer with ours where those libraries are not installed."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import ModuleType

from gridless.compat import aliases

# Library -> module that answers to its name.
LIBRARIES = {
    "cumm": "gridless.compat.cumm",
    "flash_attn": "gridless.compat.flash_attn",
    "pointops": "gridless.compat.pointops",
    "spconv": "gridless.compat.spconv",
    "torch_cluster": "gridless.compat.torch_cluster",
    "torch_scatter": "gridless.compat.torch_scatter",
}

_installed: list[aliases.Aliases] = []
# Modules of other packages that a forced name replaced.
_replaced: dict[str, ModuleType] = {}


def enable(*names: str, force: Collection[str] = ()) -> tuple[str, ...]:
    """Makes `import spconv.pytorch`, `import torch_scatter` and others find ours, and returns the names that do.

    Installed packages keep their names. Modules that were imported before this call are not changed. Further calls add
    names. A spawned process has none of them: call it in a module that the process imports.

    >>> gl.compat.enable()
    ('cumm', 'flash_attn', 'pointops', 'spconv', 'torch_cluster', 'torch_scatter')

    Args:
        names: libraries to answer for; all of `LIBRARIES` by default.
        force: libraries to answer for although they are installed.
    """
    force = (force,) if isinstance(force, str) else tuple(force)
    wanted = dict.fromkeys((*names, *force) if names else (*LIBRARIES, *force))
    for name in wanted:
        if name not in LIBRARIES:
            raise ValueError(f"compat.enable: {name!r} is not covered. Choose among {', '.join(LIBRARIES)}.")
    for name, module in [each for each in sys.modules.items() if each[0].partition(".")[0] in force]:
        if not _is_ours(module):
            _replaced[name] = sys.modules.pop(name)
    finder = aliases.install({name: LIBRARIES[name] for name in wanted}, force)
    _installed.append(finder)
    return tuple(sorted(name for name in wanted if name in force or not finder.is_known_elsewhere(name)))


def disable() -> None:
    """Undoes `enable`: later imports find installed packages only. Names imported before stay."""
    names = {name for finder in _installed for name in finder.names}
    while _installed:
        sys.meta_path.remove(_installed.pop())
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and _is_ours(module):
            del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()


def _is_ours(module: ModuleType) -> bool:
    return module.__name__.startswith("gridless.compat.")
