"""PyG without compiled packages: `gl.pyg.enable()`, and its searches, samplers and voxel grids are ours."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch


def enable() -> None:
    """Make PyG use our functions for radius, radius_graph, knn, knn_graph, fps, nearest and voxel_grid.

    PyG's own functions are called as before, with or without pyg-lib or torch-cluster beside them, whether they were
    imported before this call or after it. Without torch-cluster, `import torch_cluster` finds ours, too.

    >>> gl.pyg.enable()
    >>> edge_index = torch_geometric.nn.knn_graph(x, k=16, batch=batch)
    """
    from gridless.compat import torch_cluster

    try:
        typing: Any = import_module("torch_geometric.typing")
        import_module("torch_geometric.nn")
    except ImportError as error:
        raise ImportError("gl.pyg.enable: PyG is not installed. Run pip install torch-geometric.") from error
    sys.modules.setdefault("torch_cluster", torch_cluster)
    # PyG 2.8 and later call operators of pyg-lib.
    operators: dict[str, Any] = {
        "FPS": ("fps", torch_cluster.fps_by_splits),
        "KNN": ("knn", torch_cluster.knn_by_splits),
        "RADIUS": ("radius", torch_cluster.radius_by_splits),
        "NEAREST": ("nearest", torch_cluster.nearest_by_splits),
        "GRID_CLUSTER": ("grid_cluster", torch_cluster.grid_cluster),
    }
    for flag, (name, function) in operators.items():
        setattr(torch.ops.pyg, name, function)
        setattr(typing, f"WITH_{flag}", True)
    # PyG's own ends the process on examples out of range, and takes a batch vector that is not sorted for a sorted one.
    for name in ("pool", "conv.edge_conv", "conv.gravnet_conv", "conv.x_conv"):
        module: Any = import_module(f"torch_geometric.nn.{name}")
        if hasattr(module, "index2ptr"):
            module.index2ptr = torch_cluster.splits_of
    # Before: the module torch_cluster, and functions of it that are None where it could not be imported.
    typing.WITH_TORCH_CLUSTER = typing.WITH_TORCH_CLUSTER_BATCH_SIZE = True
    for module in [m for n, m in sys.modules.items() if n.startswith("torch_geometric.")]:
        for name in {"torch_cluster", *torch_cluster.__all__} & vars(module).keys():
            if name == "torch_cluster" or getattr(module, name) is None:
                setattr(module, name, torch_cluster if name == "torch_cluster" else getattr(torch_cluster, name))
