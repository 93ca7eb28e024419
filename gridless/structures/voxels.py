"""Voxels: the occupied cells of a grid, as points that know the numbers of their cells."""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gridless.structures.base import per_row, same
from gridless.structures.cloud import Cloud


@dataclass(frozen=True, eq=False, repr=False)
class Voxels(Cloud):
    """A cloud with one point for each occupied cell of a grid: cell (S, D) int64 numbers the cells, no two alike.

    `coords` are the points that stand for the cells, so that balls are searched among voxels as among any points.
    `side` is the length of a cell in the units of the coordinates.
    """

    cell: Tensor = per_row(kw_only=True)
    side: float = same(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        cell = self.cell
        if not isinstance(cell, Tensor) or cell.dtype not in (torch.int32, torch.int64):
            raise TypeError("Voxels: cell must be an int32 or int64 tensor (voxels, dimensions) of cell numbers")
        if cell.shape != self.coords.shape or cell.device != self.coords.device:
            raise ValueError(f"Voxels: cell must be {tuple(self.coords.shape)} on {self.coords.device}, as coords are")
        object.__setattr__(self, "cell", cell.to(torch.int64).contiguous())

    @property
    def sites(self) -> Tensor:
        """Input of searches, (S, 1 + D) int64: the number of the example, then the cell; cached."""
        return self.cached("sites", lambda: torch.cat([self.example[:, None], self.cell], 1))
