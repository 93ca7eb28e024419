"""Modules under other names: `import gridless.streaming` gives `gridless.live`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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
    """Imports modules under other names: both names give the same module object."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return None if self.name_of(fullname) is None else ModuleSpec(fullname, self)

    def name_of(self, alias: str) -> str | None:
        """The real name of a module, or None if `alias` is none of ours."""
        for prefix, name in self.names.items():
            if alias == prefix or alias.startswith(f"{prefix}."):
                return name + alias.removeprefix(prefix)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = self.name_of(spec.name)
        assert name is not None
        module = import_module(name)
        # The import system replaces the module's own spec; `exec_module` puts it back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install(names: Mapping[str, str]) -> None:
    """Make `names` importable where no installed package answers to them."""
    if not any(isinstance(finder, Aliases) and finder.names == names for finder in sys.meta_path):
        sys.meta_path.append(Aliases(names))
