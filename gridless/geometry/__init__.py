"""Geometry without gradients: searches find edges, samplers thin clouds, events fire events.

Each folder holds one of them: the contract and its checks, a reference in torch, and a kernel for CPU and GPU.
"""

from gridless.geometry.ball import ball
from gridless.geometry.causal import causal
from gridless.geometry.farthest import farthest_sample, random_sample
from gridless.geometry.grid import grid_sample
from gridless.geometry.lif import LIFMemory, lif, lif_step
from gridless.geometry.nearest import nearest
from gridless.geometry.rejection import rejection_sample
from gridless.geometry.self_edges import without_self
from gridless.geometry.voxels import coarsen, strided_taps, submanifold_taps, tap_search, transposed_taps, voxelise

__all__ = [
    "LIFMemory",
    "ball",
    "causal",
    "coarsen",
    "farthest_sample",
    "grid_sample",
    "lif",
    "lif_step",
    "nearest",
    "random_sample",
    "rejection_sample",
    "strided_taps",
    "submanifold_taps",
    "tap_search",
    "transposed_taps",
    "voxelise",
    "without_self",
]
