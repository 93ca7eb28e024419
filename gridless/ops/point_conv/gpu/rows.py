"""Rows of neighbours, as kernels are told of them, and launches of a kernel over them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from gridless.backends import interpreting
from gridless.kernels.launch import Launch, Launcher, cdiv
from gridless.ops.point_conv.contract import Neighbours
from gridless.ops.point_conv.edge_function import EdgeFunction, compute_dtype
from gridless.ops.point_conv.gpu.arguments import scale, terms, widest
from gridless.ops.point_conv.gpu.tiles import BLOCK, GROUP

TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}
# True if kernels are compiled for CUDA, False if they are interpreted.
_COMPILED = torch.version.cuda is not None and not interpreting()


class RowKind:
    """Cache key of kernels over rows, without sizes. Rows that are alike share one object, as a comparison of its
    numbers would take as long as a launch."""

    def __init__(self, function: EdgeFunction, flip: bool, coords: torch.dtype) -> None:
        self.function, self.flip, self.coords = function, flip, coords


_kind = lru_cache(4096)(RowKind)


class Choice(NamedTuple):
    """Cache key of a kernel that multiplies sums by matrices: kind of rows, types, channels and sizes."""

    kind: RowKind
    dtype: torch.dtype
    terms: int
    channels: int
    width: int
    count: int
    edges: int
    index: Any
    device: torch.device
    precision: str

    @property
    def rounds(self) -> bool:
        """True if factors of products have at most 11 bits."""
        return self.dtype.itemsize == 2 or self.precision == "tf32"


class EdgeRows:
    """Targets with their sources, or with `flip` sources with their targets."""

    def __init__(self, near: Neighbours, flip: bool) -> None:
        ends = (near.target_coords, near.source_coords)
        row_coords, column_coords = reversed(ends) if flip else ends
        splits, columns = near.back if flip else (near.splits, near.source)
        self.tensors = (row_coords, column_coords, splits, columns)
        self.kind = _kind(near.function, flip, row_coords.dtype)
        self.scale = scale(near.function.radius)
        self.count, self.columns, self.edges = row_coords.shape[0], column_coords.shape[0], columns.shape[0]
        # Sizes as kernels are chosen by them: in a training they are then the same again and again.
        self.blocks = cdiv(self.count, BLOCK)
        self.degree = cdiv(self.edges, max(self.count, 1))
        self._widest = widest(self.count, self.columns, self.edges)

    def index(self, width: int) -> Any:
        """The integer type in which `width` numbers per row or column, and their coordinates, can be addressed."""
        return tl.int32 if max(width, self.kind.function.dim) <= self._widest else tl.int64

    def groups(self) -> list[tuple[int, int]]:
        """First term and number of terms of each group."""
        size = self.kind.function.size
        return [(base, min(GROUP, size - base)) for base in range(0, size, GROUP)]

    def launch(
        self, launcher: Launcher, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], sizes: tuple[int, ...],
        dtype: torch.dtype, warps: int, width: int, base: int = 0, size: int | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """A kernel for features of this dtype, that addresses `width` numbers per row; otherwise as `prepared`."""
        arguments = self.kind, dtype, tensors[0].device, self.index(width), warps, None, base, size
        prepared(launcher, *arguments, **more)(grid, tensors, (*sizes, *self.scale))


def rows_of(near: Neighbours, flip: bool) -> EdgeRows:
    """The rows of the neighbours, made once for all layers over the same edges."""
    rows = near.cache.get(flip)
    if rows is None:
        rows = near.cache[flip] = EdgeRows(near, flip)
    return rows


@lru_cache(4096)
def prepared(
    launcher: Launcher, kind: RowKind, dtype: torch.dtype, device: torch.device, index: Any, warps: int,
    registers: int | None = None, base: int = 0, size: int | None = None, **more: Any,
) -> Launch:  # fmt: skip
    """A kernel for features of this dtype, with all of its constants: it sums `size` terms (all) from `base` on, and
    `more` are the constants that the rows do not know. The types of all tensors follow from these."""
    function, sums_type = kind.function, TYPES[compute_dtype(dtype)]
    size = function.size if size is None else size
    # W beside the sums takes a line of PTX, which is written for float32.
    constants = {"D": function.dim, "DTYPE": sums_type, "TOTAL": _COMPILED and sums_type is tl.float32, "INDEX": index}
    constants |= {"FALLOFF": function.falloff, "NORMALISE": function.normalise, "FLIP": kind.flip}
    constants |= {"TERMS": function.size, "BASE": base} | more | terms(function, base, size)
    return launcher.of((device, dtype, kind.coords), launcher.ordered(constants), warps, registers)
