"""Points to voxels and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gridless.compat.rows import take_rows
from gridless.compat.torch_scatter import scatter_min


class PointToVoxel:
    """Puts points into voxels: `voxels, indices, num_per_voxel = PointToVoxel(...)(points)`.

    Sizes and ranges are in the order xyz; indices come back in the order zyx. A voxel is numbered by its first point,
    its points are in their own order, and what is too much is dropped: voxels after `max_num_voxels`, points after
    `max_num_points_per_voxel`. Points outside the range belong to no voxel.

    Args:
        vsize_xyz: the sides of a voxel.
        coors_range_xyz: the least coordinates, then the largest.
        num_point_features: columns of the points, of which the first are the coordinates.
        max_num_voxels, max_num_points_per_voxel: limits.
        device: where the points are.
    """

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.ndim = len(vsize_xyz)
        self.device = torch.device(device)
        self.num_point_features, self.max_num_voxels = num_point_features, max_num_voxels
        self.max_num_points_per_voxel = max_num_points_per_voxel
        # spconv computes in float32 and rounds halves up: 2.5 cells are 3.
        size, bounds = torch.tensor(list(vsize_xyz)).float(), torch.tensor(list(coors_range_xyz)).float()
        least, most = bounds[: self.ndim], bounds[self.ndim :]
        self._size_xyz, self._least_xyz = size.tolist(), least.tolist()
        self._cells_xyz = [math.floor(cells + 0.5) for cells in ((most - least) / size).tolist()]
        # spconv's attributes are in the order zyx.
        self.vsize, self.grid_size = self._size_xyz[::-1], self._cells_xyz[::-1]
        self.coors_range = self._least_xyz[::-1] + most.tolist()[::-1]

    def __call__(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Voxels (V, points, features), indices (V, axes) int32 zyx, and points per voxel (V) int32."""
        return self.generate_voxel_with_id(pc, clear_voxels, empty_mean)[:3]

    @torch.no_grad()
    def generate_voxel_with_id(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, and the voxel of each point (N) int64, -1 for none.

        Args:
            pc: points (N, features).
            clear_voxels: without effect: free places are always 0.
            empty_mean: put the mean of a voxel's points into its free places.
        """
        if pc.device.type != self.device.type:
            raise AssertionError(f"PointToVoxel: points are on {pc.device}, the voxels on {self.device}.")
        if pc.ndim != 2 or pc.shape[1] != self.num_point_features:
            shape = tuple(pc.shape)
            raise ValueError(f"PointToVoxel: points are {shape}, not (points, {self.num_point_features}).")
        cell, inside = self._cells(pc)
        row = inside.nonzero().flatten()
        sites, voxel = _by_first_point(cell[row])
        sites = sites[: self.max_num_voxels]
        known = voxel < len(sites)
        row, voxel = row[known], voxel[known]
        voxel_of_point = torch.full((len(pc),), -1, dtype=torch.int64, device=pc.device)
        voxel_of_point[row] = voxel
        order = voxel.argsort(stable=True)
        row, voxel = row[order], voxel[order]
        place = torch.arange(len(row), device=pc.device) - torch.searchsorted(voxel, voxel)
        fits = place < self.max_num_points_per_voxel
        shape = (len(sites), self.max_num_points_per_voxel, self.num_point_features)
        voxels = torch.zeros(shape, dtype=torch.float32, device=pc.device)
        voxels[voxel[fits], place[fits]] = pc[row[fits]].float()
        count = torch.bincount(voxel, minlength=len(sites)).clamp(max=self.max_num_points_per_voxel)
        if empty_mean:
            free = torch.arange(shape[1], device=pc.device) >= count[:, None]
            mean = voxels.sum(1, keepdim=True) / count.clamp(min=1)[:, None, None]
            voxels = torch.where(free[..., None], mean, voxels)
        return voxels, sites.flip(1).int().contiguous(), count.int(), voxel_of_point

    def _cells(self, pc: Tensor) -> tuple[Tensor, Tensor]:
        """The cell of each point (N, axes) int64, xyz, and whether it is in the range."""
        least, size = (pc.new_tensor(values) for values in (self._least_xyz, self._size_xyz))
        cell = ((pc[:, : self.ndim] - least) / size).floor()
        inside = ((cell >= 0) & (cell < cell.new_tensor(self._cells_xyz))).all(1)
        return torch.where(inside[:, None], cell, 0).long(), inside


def _by_first_point(cell: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows in the order in which they first occur, and the number of each row's."""
    sites, voxel = cell.unique(dim=0, return_inverse=True)
    if not len(sites):
        return sites, voxel
    first = scatter_min(torch.arange(len(cell), device=cell.device), voxel, dim_size=len(sites))[0]
    order = first.argsort()
    number = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=cell.device))
    return sites[order], number[voxel]


def gather_features_by_pc_voxel_id(seg_res_features: Tensor, pc_voxel_id: Tensor, invalid_value: float = 0) -> Tensor:
    """The features of each point's voxel; `invalid_value` for points without one."""
    voxel = pc_voxel_id.to(seg_res_features.device)
    shape = (len(voxel), *seg_res_features.shape[1:])
    out = seg_res_features.new_full(shape, invalid_value)
    exists = (voxel != -1).nonzero().flatten()
    return out.index_put((exists,), take_rows(seg_res_features, voxel[exists]))
