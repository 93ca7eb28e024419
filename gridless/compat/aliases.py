"""Modules under other names: `import gridless.streaming` gives `gridless.live`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Former name -> name. Modules below a former name are found below the name.
MOVED = {
    "gridless.data.clouds": "gridless.data.readers.clouds",
    "gridless.data.formats": "gridless.data.readers.events",
    "gridless.data.meshes": "gridless.data.readers.meshes",
    "gridless.images": "gridless.data.images",
    "gridless.pyg": "gridless.compat.pyg",
    "gridless.streaming": "gridless.live",
    "gridless.torch_cluster": "gridless.compat.torch_cluster",
}


class Aliases(MetaPathFinder, Loader):
    """Imports modules under other names: both names give the same module object.

    It stands before the finders of files, which would load a second copy of a module below an alias. A name that
    another finder knows is left to that one, unless it is in `forced`.
    """

    def __init__(self, names: Mapping[str, str], forced: Collection[str] = ()) -> None:
        self.names, self.forced = dict(names), frozenset(forced)

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        prefix = self.prefix_of(fullname)
        if prefix is None:
            return None
        if fullname == prefix:
            hidden = fullname not in self.forced and self.is_known_elsewhere(fullname, path)
        else:
            # Below a name that another package answers to, nothing is ours.
            hidden = sys.modules.get(prefix) is not sys.modules.get(self.names[prefix])
        if hidden or find_spec(self.names[prefix] + fullname.removeprefix(prefix)) is None:
            return None
        return ModuleSpec(fullname, self)

    def prefix_of(self, alias: str) -> str | None:
        """The name among ours that is `alias` or a package above it."""
        return next((prefix for prefix in self.names if alias == prefix or alias.startswith(f"{prefix}.")), None)

    def is_known_elsewhere(self, name: str, path: Any = None) -> bool:
        others = (finder for finder in sys.meta_path if not isinstance(finder, Aliases))
        specs = (finder.find_spec(name, path) for finder in others)
        # A folder without modules, such as one with a stale cache, is a namespace package without an origin.
        return any(spec is not None and spec.origin is not None for spec in specs)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        prefix = self.prefix_of(spec.name)
        assert prefix is not None
        module = import_module(self.names[prefix] + spec.name.removeprefix(prefix))
        # The import system replaces the module's own spec; `exec_module` puts it back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install(names: Mapping[str, str], forced: Collection[str] = ()) -> Aliases:
    """Make `names` importable where no installed package answers to them, and those in `forced` always."""
    aliases = Aliases(names, forced)
    sys.meta_path.insert(0, aliases)
    return aliases
