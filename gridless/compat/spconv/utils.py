"""`Point2VoxelCPU3d` and its relatives, as OpenPCDet calls them: points (N, features) in, voxels out.

`point_to_voxel` takes a NumPy array, a torch tensor or what `cumm.tensorview.from_numpy` returns, and returns torch
tensors, which have `.numpy()` and `.numpy_view()` as cumm's have.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.compat.spconv.constants import CPU_ONLY_BUILD
from gridless.compat.spconv.pytorch.core import by_axes
from gridless.compat.spconv.pytorch.utils import PointToVoxel

__all__ = [
    "CPU_ONLY_BUILD",
    "Point2VoxelCPU1d",
    "Point2VoxelCPU2d",
    "Point2VoxelCPU3d",
    "Point2VoxelCPU4d",
    "Point2VoxelGPU1d",
    "Point2VoxelGPU2d",
    "Point2VoxelGPU3d",
    "Point2VoxelGPU4d",
    "nullcontext",
]


class _Array(Tensor):
    """A tensor with the methods of cumm's; what is computed of it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def numpy_view(self) -> np.ndarray:
        return self.numpy()


Voxels = tuple[_Array, _Array, _Array]


class _Point2Voxel(PointToVoxel):
    """`PointToVoxel` with a fixed number of dimensions and a fixed device."""

    axes: int
    kind = "cpu"

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
    ) -> None:
        if len(vsize_xyz) != self.axes:
            raise AssertionError(f"{type(self).__name__}: vsize_xyz has {len(vsize_xyz)} entries. Pass {self.axes}.")
        size = (num_point_features, max_num_voxels, max_num_points_per_voxel)
        super().__init__(vsize_xyz, coors_range_xyz, *size, device=torch.device(self.kind))

    def point_to_voxel(self, pc: Any, clear_voxels: bool = True) -> Voxels:
        """Voxels (V, points, features), indices (V, axes) zyx, and points per voxel (V)."""
        return self._arrays(pc, clear_voxels, False)

    def point_to_voxel_empty_mean(self, pc: Any, clear_voxels: bool = True) -> Voxels:
        """The same, with the mean of a voxel's points in its free places."""
        return self._arrays(pc, clear_voxels, True)

    def _arrays(self, pc: Any, clear_voxels: bool, empty_mean: bool) -> Voxels:
        voxels, indices, count = self(torch.as_tensor(pc, device=self.device), clear_voxels, empty_mean)
        return voxels.as_subclass(_Array), indices.as_subclass(_Array), count.as_subclass(_Array)


class _OnGPU(_Point2Voxel):
    kind = "cuda"

    def point_to_voxel_hash(self, pc: Any, clear_voxels: bool = True, empty_mean: bool = False) -> Voxels:
        """spconv's name of `point_to_voxel` on a GPU."""
        return self._arrays(pc, clear_voxels, empty_mean)


Point2VoxelCPU1d, Point2VoxelCPU2d, Point2VoxelCPU3d, Point2VoxelCPU4d = by_axes(_Point2Voxel, "Point2VoxelCPU")
Point2VoxelGPU1d, Point2VoxelGPU2d, Point2VoxelGPU3d, Point2VoxelGPU4d = by_axes(_OnGPU, "Point2VoxelGPU")
