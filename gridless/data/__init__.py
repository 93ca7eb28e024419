"""Examples: data sets, readers of users' own files, and geometry computed ahead of time.

Names are imported when first used, so that a reader's dependencies are needed only by those who use it.
"""

from importlib import import_module
from typing import Any

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


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
