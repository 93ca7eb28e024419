"""`Point2VoxelCPU3d` and its relatives, as OpenPCDet calls them: points (N, features) in, voxels out.

`point_to_voxel` takes a NumPy array, a torch tensor or what `cumm.tensorview.from_numpy` returns, and returns torch
tensors, which have `.numpy()` as cumm's have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gridless.compat.spconv.pytorch.core import by_axes
from gridless.compat.spconv.pytorch.utils import PointToVoxel


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

    def point_to_voxel(self, pc: Any, clear_voxels: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Voxels (V, points, features), indices (V, axes) zyx, and points per voxel (V)."""
        return self(torch.as_tensor(pc, device=self.device), clear_voxels)

    def point_to_voxel_empty_mean(self, pc: Any, clear_voxels: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """The same, with the mean of a voxel's points in its free places."""
        return self(torch.as_tensor(pc, device=self.device), clear_voxels, True)


class _OnGPU(_Point2Voxel):
    kind = "cuda"


Point2VoxelCPU1d, Point2VoxelCPU2d, Point2VoxelCPU3d, Point2VoxelCPU4d = by_axes(_Point2Voxel, "Point2VoxelCPU")
Point2VoxelGPU1d, Point2VoxelGPU2d, Point2VoxelGPU3d, Point2VoxelGPU4d = by_axes(_OnGPU, "Point2VoxelGPU")
