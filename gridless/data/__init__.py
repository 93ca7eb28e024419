"""Examples: data sets, readers of users' own files, and geometry computed ahead of time.

Names are imported when first used, so that a reader's dependencies are needed only by those who use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# name -> module
_LAZY: dict[str, str] = {
    "ASLDVS": "gridless.data.sets.event_sets",
    "CIFAR10DVS": "gridless.data.sets.event_sets",
    "CloudFolder": "gridless.data.folder",
    "EventFolder": "gridless.data.folder",
    "Examples": "gridless.data.base",
    "FormatError": "gridless.data.readers.events",
    "MNISTDVS": "gridless.data.sets.event_sets",
    "ModelNet40": "gridless.data.sets.modelnet",
    "MovingBlobs": "gridless.data.sets.blobs",
    "MovingGlyphs": "gridless.data.sets.glyphs",
    "NCaltech101": "gridless.data.sets.event_sets",
    "NCars": "gridless.data.sets.event_sets",
    "NMNIST": "gridless.data.sets.event_sets",
    "Pack": "gridless.data.packing",
    "Precomputed": "gridless.data.precompute",
    "pack": "gridless.data.packing",
    "read_cloud": "gridless.data.readers.clouds",
    "read_events": "gridless.data.readers.events",
    "SemanticKITTI": "gridless.data.sets.semantickitti",
    "ShapeNetPart": "gridless.data.sets.shapenet",
    "Shapes": "gridless.data.sets.shapes",
    "Spots": "gridless.data.sets.spots",
    "TrackFolder": "gridless.data.sets.spots",
    "sample_mesh": "gridless.data.readers.meshes",
    "sample": "gridless.data.samples",
    "sample_path": "gridless.data.samples",
    "write_cloud": "gridless.data.readers.clouds.write",
    "write_events": "gridless.data.readers.events",
}

__all__ = sorted(_LAZY)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from gridless.data.base import Examples
    from gridless.data.folder import CloudFolder, EventFolder
    from gridless.data.packing import Pack, pack
    from gridless.data.precompute import Precomputed
    from gridless.data.readers.clouds import read_cloud
    from gridless.data.readers.clouds.write import write_cloud
    from gridless.data.readers.events import FormatError, read_events, write_events
    from gridless.data.readers.meshes import sample_mesh
    from gridless.data.samples import sample, sample_path
    from gridless.data.sets.blobs import MovingBlobs
    from gridless.data.sets.event_sets import ASLDVS, CIFAR10DVS, MNISTDVS, NMNIST, NCaltech101, NCars
    from gridless.data.sets.glyphs import MovingGlyphs
    from gridless.data.sets.modelnet import ModelNet40
    from gridless.data.sets.semantickitti import SemanticKITTI
    from gridless.data.sets.shapenet import ShapeNetPart
    from gridless.data.sets.shapes import Shapes
    from gridless.data.sets.spots import Spots, TrackFolder


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
