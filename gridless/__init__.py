"""gridless: convolutions for data that does not live on a grid, point clouds and event streams."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridless.compat import aliases as _aliases
from gridless.kernels import openmp as _openmp

__version__ = "0.2.0"

_aliases.install(_aliases.MOVED)

# Imported when first touched, torch with them, so that `import gridless` and what the command line refuses are quick:
# name -> module.
_LAZY: dict[str, str] = {
    "Cloud": "gridless.structures",
    "Edges": "gridless.structures",
    "Events": "gridless.structures",
    "Geometry": "gridless.structures",
    "Plan": "gridless.plan",
    "Precomputed": "gridless.data.precompute",
    "ball": "gridless.geometry",
    "capture": "gridless.training.captured",
    "causal": "gridless.geometry",
    "collate": "gridless.structures",
    "event_conv": "gridless.ops.event_conv",
    "export": "gridless.live.export",
    "farthest_sample": "gridless.geometry",
    "featureless_conv": "gridless.ops.point_conv",
    "frames": "gridless.data.images",
    "grid_sample": "gridless.geometry",
    "lif": "gridless.geometry",
    "load": "gridless.weights",
    "nearest": "gridless.geometry",
    "point_conv": "gridless.ops.point_conv",
    "random_sample": "gridless.geometry",
    "read_cloud": "gridless.data.readers.clouds",
    "read_events": "gridless.data.readers.events",
    "rejection_sample": "gridless.geometry",
    "save": "gridless.weights",
    "show": "gridless.pictures",
    "stream": "gridless.live",
    "tiles": "gridless.scenes",
    "time_surface": "gridless.data.images",
    "use_backend": "gridless.backends",
    "voxel_grid": "gridless.data.images",
    "write_events": "gridless.data.readers.events",
}
_MODULES = (
    "augment", "compat", "data", "geometry", "live", "models", "nn", "ops", "pictures", "scenes", "tasks",
    "training",
    # Former names of modules, which still work.
    "pyg", "streaming", "torch_cluster",
)  # fmt: skip
# Those whose public names are names of gridless.
_INNER = ("backends", "images", "plan", "structures", "weights")

__all__ = [
    "Cloud",
    "Edges",
    "Events",
    "Geometry",
    "Plan",
    "Precomputed",
    "ball",
    "capture",
    "causal",
    "collate",
    "event_conv",
    "export",
    "farthest_sample",
    "featureless_conv",
    "frames",
    "grid_sample",
    "lif",
    "load",
    "nearest",
    "point_conv",
    "random_sample",
    "read_cloud",
    "read_events",
    "rejection_sample",
    "save",
    "show",
    "stream",
    "tiles",
    "time_surface",
    "use_backend",
    "voxel_grid",
    "write_events",
]

if TYPE_CHECKING:
    from gridless import (
        augment,
        backends,
        compat,
        data,
        geometry,
        live,
        models,
        nn,
        ops,
        pictures,
        plan,
        scenes,
        structures,
        tasks,
        training,
        weights,
    )
    from gridless import live as streaming
    from gridless.backends import use_backend
    from gridless.compat import pyg, torch_cluster
    from gridless.data import images
    from gridless.data.images import frames, time_surface, voxel_grid
    from gridless.data.precompute import Precomputed
    from gridless.data.readers.clouds import read_cloud
    from gridless.data.readers.events import read_events, write_events
    from gridless.geometry import (
        ball,
        causal,
        farthest_sample,
        grid_sample,
        lif,
        nearest,
        random_sample,
        rejection_sample,
    )
    from gridless.live import stream
    from gridless.live.export import export
    from gridless.ops.event_conv import event_conv
    from gridless.ops.point_conv import featureless_conv, point_conv
    from gridless.pictures import show
    from gridless.plan import Plan
    from gridless.scenes import tiles
    from gridless.structures import Cloud, Edges, Events, Geometry, collate
    from gridless.training.captured import capture
    from gridless.weights import load, save


def __getattr__(name: str) -> Any:
    if name in (*_MODULES, *_INNER):
        return import_module(f"gridless.{name}")
    if name in _LAZY:
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module 'gridless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, *_INNER, "__version__"])
