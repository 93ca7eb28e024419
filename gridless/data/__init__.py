"""Examples: data sets, readers of users' own files, and geometry computed ahead of time.

Names are imported when first used, so that a reader's dependencies are needed only by those who use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# name -> module
_LAZY: dict[str, str] = {
    "ASLDVS": "gridless.data.event_sets",
    "CIFAR10DVS": "gridless.data.event_sets",
    "CloudFolder": "gridless.data.folder",
    "EventFolder": "gridless.data.folder",
    "Examples": "gridless.data.base",
    "FormatError": "gridless.data.formats",
    "MNISTDVS": "gridless.data.event_sets",
    "ModelNet40": "gridless.data.modelnet",
    "MovingGlyphs": "gridless.data.glyphs",
    "NCaltech101": "gridless.data.event_sets",
    "NCars": "gridless.data.event_sets",
    "NMNIST": "gridless.data.event_sets",
    "Precomputed": "gridless.data.precompute",
    "read_cloud": "gridless.data.clouds",
    "read_events": "gridless.data.formats",
    "SemanticKITTI": "gridless.data.semantickitti",
    "ShapeNetPart": "gridless.data.shapenet",
    "Shapes": "gridless.data.shapes",
    "sample_mesh": "gridless.data.meshes",
    "write_events": "gridless.data.formats",
}

__all__ = sorted(_LAZY)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from gridless.data.base import Examples
    from gridless.data.clouds import read_cloud
    from gridless.data.event_sets import ASLDVS, CIFAR10DVS, MNISTDVS, NMNIST, NCaltech101, NCars
    from gridless.data.folder import CloudFolder, EventFolder
    from gridless.data.formats import FormatError, read_events, write_events
    from gridless.data.glyphs import MovingGlyphs
    from gridless.data.meshes import sample_mesh
    from gridless.data.modelnet import ModelNet40
    from gridless.data.precompute import Precomputed
    from gridless.data.semantickitti import SemanticKITTI
    from gridless.data.shapenet import ShapeNetPart
    from gridless.data.shapes import Shapes


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
