"""Sparse tensors, and what layers with one `indice_key` share."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gridless.compat.spconv.core import ConvAlgo
from gridless.structures import TapEdges

# The `grid` of a tensor that was made without one.
_NO_GRID = torch.empty(0)


class Repeats(NamedTuple):
    """Rows of a tensor that has sites more than once."""

    first: Tensor  # the first row of each distinct site
    site: Tensor  # the distinct site of each row


class IndiceData:
    """The neighbourhoods of one layer, from `indices` to `out_indices`, kept under its `indice_key`.

    `taps` holds the neighbourhoods; the tables of spconv are made from it when they are asked for, with -1 where there
    is no pair. If `indices` has repeated sites, `taps` and tables number the distinct sites, and `repeats` tells their
    rows.

    Args:
        indice_pairs, indice_pair_num: the tables of `ops.get_indice_pairs`; or the edges, and None.
    """

    def __init__(
        self,
        out_indices: Tensor,
        indices: Tensor,
        indice_pairs: Tensor | TapEdges,
        indice_pair_num: Tensor | None,
        spatial_shape: list[int],
        out_spatial_shape: list[int],
        is_subm: bool,
        algo: ConvAlgo,
        ksize: list[int],
        stride: list[int],
        dilation: list[int],
        padding: list[int],
        voxel_num: Any = None,
    ) -> None:
        if not isinstance(indice_pairs, TapEdges):
            assert indice_pair_num is not None
            indice_pairs = taps_of_pairs(indice_pairs, indice_pair_num, len(indices), len(out_indices), is_subm)
        self.out_indices, self.indices, self.taps = out_indices, indices, indice_pairs
        self.spatial_shape, self.out_spatial_shape = spatial_shape, out_spatial_shape
        self.is_subm, self.algo, self.ksize, self.stride = is_subm, algo, ksize, stride
        self.dilation, self.padding, self.voxel_num = dilation, padding, voxel_num
        self.repeats: Repeats | None = None

    @cached_property
    def pair_fwd(self) -> Tensor:
        """The input row of each output at each tap: (taps, outputs) int32."""
        return self.taps.table.t().clamp(min=-1).contiguous()

    @cached_property
    def pair_bwd(self) -> Tensor:
        """The output row of each input at each tap: (taps, inputs) int32."""
        return self.taps.transpose().table.t().clamp(min=-1).contiguous()

    @cached_property
    def indice_pair_num(self) -> Tensor:
        """Pairs of each tap: (taps) int32."""
        return (self.taps.table >= 0).sum(0).int()

    @cached_property
    def indice_pairs(self) -> Tensor:
        """Input rows and output rows of each tap, by ascending output: (2, taps, inputs) int32."""
        table = self.taps.table.t()
        tap, target = (table >= 0).nonzero(as_tuple=True)
        place = torch.arange(len(tap), device=tap.device) - torch.searchsorted(tap, tap)
        width = max(len(self.indices), int(self.indice_pair_num.max()) if len(self.indice_pair_num) else 0)
        pairs = torch.full((2, len(table), width), -1, dtype=torch.int32, device=tap.device)
        pairs[0, tap, place] = table[tap, target].int()
        pairs[1, tap, place] = target.int()
        return pairs


def taps_of_pairs(
    indice_pairs: Tensor, indice_pair_num: Tensor, num_in: int, num_out: int, is_subm: bool = False
) -> TapEdges:
    """Pairs (2, taps, width), of which the first indice_pair_num (taps) of each tap count, as edges.

    Of submanifold layers spconv lists the first half of the taps: the middle one is the site itself, and the others
    mirror the first.
    """
    exists = torch.arange(indice_pairs.shape[2], device=indice_pairs.device) < indice_pair_num[:, None]
    source, target = (pairs[exists].long() for pairs in indice_pairs)
    tap, middle = exists.nonzero()[:, 0], len(indice_pair_num) // 2
    table = indice_pairs.new_full((num_out, len(indice_pair_num)), -1, dtype=torch.int32)
    table[target, tap] = source.int()
    if is_subm and not bool(indice_pair_num[middle:].any()):
        table[source, len(indice_pair_num) - 1 - tap] = target.int()
        table[:, middle] = torch.arange(num_out, dtype=torch.int32, device=table.device)
    return TapEdges(table=table, num_source=num_in)


# spconv has one class for each algorithm; ours holds what both have.
ImplicitGemmIndiceData = IndiceData


class SparseConvTensor:
    """Features of voxels, with their indices.

    Args:
        features: (N, C).
        indices: (N, 1 + axes) int32, the batch in column 0.
        spatial_shape: the extent of the grid, one number for each axis.
        batch_size: the number of examples.
        indice_dict: what layers keep under their `indice_key`.
        grid, voxel_num, benchmark, permanent_thrust_allocator, enable_timer, force_algo: without effect.
    """

    def __init__(
        self,
        features: Tensor,
        indices: Tensor,
        spatial_shape: Sequence[int],
        batch_size: int,
        grid: Tensor | None = None,
        voxel_num: Tensor | None = None,
        indice_dict: dict[str, IndiceData] | None = None,
        benchmark: bool = False,
        permanent_thrust_allocator: bool = False,
        enable_timer: bool = False,
        force_algo: ConvAlgo | None = None,
    ) -> None:
        _check(features, indices, spatial_shape, batch_size)
        self._features = features
        self.indices = indices
        self.spatial_shape = [int(side) for side in spatial_shape]
        self.batch_size = batch_size
        self.indice_dict: dict[str, IndiceData] = {} if indice_dict is None else indice_dict
        self.grid: Tensor | None = _NO_GRID if grid is None else grid
        self.voxel_num = voxel_num
        self.benchmark, self.benchmark_record = benchmark, {}
        self.thrust_allocator = None
        self._timer = Timer()
        self.force_algo = force_algo
        self.int8_scale = None

    def __repr__(self) -> str:
        return f"SparseConvTensor[shape={self._features.shape}]"

    @property
    def features(self) -> Tensor:
        return self._features

    @features.setter
    def features(self, value: Tensor) -> None:
        raise ValueError("SparseConvTensor: features cannot be set. Use x = x.replace_feature(features).")

    @property
    def is_quantized(self) -> bool:
        return False

    @property
    def spatial_size(self) -> int:
        return math.prod(self.spatial_shape)

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseConvTensor:
        """The cells of x (B, axes..., C) in which any channel is not 0, in lexicographic order."""
        sites = (x != 0).any(-1).nonzero()
        return cls(x[sites.unbind(1)], sites.int(), list(x.shape[1:-1]), x.shape[0])

    def replace_feature(self, feature: Tensor) -> SparseConvTensor:
        """The same sites with other features."""
        tensor = self.shadow_copy()
        tensor._features = feature
        return tensor

    def shadow_copy(self) -> SparseConvTensor:
        """A new tensor that shares all members with this one."""
        tensor = object.__new__(type(self))
        tensor.__dict__.update(self.__dict__)
        return tensor

    def select_by_index(self, valid_indices: Tensor) -> SparseConvTensor:
        """The sites in these rows, or where this mask is true; neighbourhoods are forgotten."""
        tensor = self.replace_feature(self.features[valid_indices])
        tensor.indices, tensor.indice_dict = self.indices[valid_indices], {}
        return tensor

    def find_indice_pair(self, key: str | None) -> IndiceData | None:
        """The indices that a layer stored under its `indice_key`, or None."""
        return None if key is None else self.indice_dict.get(key)

    def dense(self, channels_first: bool = True) -> Tensor:
        """(B, C, axes...), or (B, axes..., C), with 0 where there is no site."""
        shape = [self.batch_size, *self.spatial_shape, self.features.shape[1]]
        out = scatter_nd(self.indices.to(self.features.device).long(), self.features, shape)
        return out.movedim(-1, 1).contiguous() if channels_first else out

    def minus(self) -> SparseConvTensor:
        return self.replace_feature(-self.features)

    def __add__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        return self.replace_feature(self.features + (other if isinstance(other, Tensor) else other.features))

    __radd__ = __iadd__ = __add__


class Timer:
    """Times nothing."""

    @contextlib.contextmanager
    def namespace(self, name: str) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def record(self, name: str, stream: int = 0) -> Iterator[None]:
        yield

    def get_all_pair_time(self) -> dict[str, float]:
        return {}


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros of `shape` with updates[i] at position indices[i]."""
    out = torch.zeros(tuple(shape), dtype=updates.dtype, device=updates.device)
    return out.index_put(tuple(indices.unbind(-1)), updates)


def expand_nd(ndim: int, val: Any) -> list[int]:
    """One whole number for each axis, from one for all or from a sequence."""
    sides = [int(val)] * ndim if isinstance(val, int) else [int(side) for side in val]
    if len(sides) != ndim:
        raise AssertionError(f"spconv: {val!r} has {len(sides)} numbers. Pass {ndim}, or one for all axes.")
    return sides


T = TypeVar("T")


def by_axes(base: type[T], name: str) -> tuple[type[T], type[T], type[T], type[T]]:
    """`base` for 1, 2, 3 and 4 axes, as its attribute `axes`: classes `name`1d to `name`4d in the module of `base`."""

    def of(axes: int) -> Any:
        body = {"axes": axes, "__module__": base.__module__, "__doc__": base.__doc__}
        return type(f"{name}{axes}d", (base,), body)

    return of(1), of(2), of(3), of(4)


def _check(features: Tensor, indices: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
    if features.ndim != 2 or indices.ndim != 2:
        shapes = f"{tuple(features.shape)} and {tuple(indices.shape)}"
        raise AssertionError(f"SparseConvTensor: features and indices have shapes {shapes}. Both must be 2-D.")
    if len(spatial_shape) != indices.shape[1] - 1:
        axes = indices.shape[1] - 1
        raise AssertionError(f"SparseConvTensor: spatial_shape {list(spatial_shape)} must have {axes} entries.")
    if indices.dtype != torch.int32:
        raise AssertionError(f"SparseConvTensor: indices are {indices.dtype}. Convert them with .int().")
    if batch_size <= 0:
        raise AssertionError(f"SparseConvTensor: batch_size is {batch_size}. It must be at least 1.")
