"""Tap edges: which source each target sees at each tap of a kernel."""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gridless import backends
from gridless.structures.base import Structure, same, size, tap_index
from gridless.structures.edges import MAX_EDGES, Edges


class Pairs(NamedTuple):
    """Tap edges in tap order: those of tap k are entries splits[k] to splits[k + 1], by ascending target."""

    splits: Tensor  # (T + 1) int64
    target: Tensor  # (E) int32
    source: Tensor  # (E) int32


@dataclass(frozen=True, eq=False, repr=False)
class TapEdges(Structure):
    """Edges that carry the number of their tap, as a table: target i sees source table[i, k] at tap k.

    table (S', T) int32, negative where target i has no source at tap k; num_source = S. A tap of a target has one
    source at most, and a source is seen by one target at most through a given tap. `symmetric` marks a neighbourhood
    of sites in themselves whose taps come in opposite pairs: table[i, k] = j means table[j, T - 1 - k] = i.
    The last `padding` targets have no source.
    """

    table: Tensor = tap_index("num_source")
    num_source: int = size()
    symmetric: bool = same(default=False)
    padding: int = same(default=0)

    _length: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        table = self.table
        if not isinstance(table, Tensor) or table.ndim != 2 or table.dtype not in (torch.int32, torch.int64):
            raise TypeError("TapEdges: table must be an int32 or int64 tensor (targets, taps) of row numbers")
        if max(len(table), self.num_source) > MAX_EDGES:
            rows = max(len(table), self.num_source)
            raise ValueError(f"TapEdges: {rows} rows are more than {MAX_EDGES}. Use smaller batches.")
        if table.dtype == torch.int64:
            table = table.clamp(-1, MAX_EDGES)
        object.__setattr__(self, "table", table.to(torch.int32, copy=table.is_cpu).contiguous())
        if table.device.type == "cpu":
            self.check("TapEdges")

    @property
    def num_target(self) -> int:
        return self.table.shape[0]

    @property
    def num_taps(self) -> int:
        return self.table.shape[1]

    def check(self, what: str = "tap edges") -> None:
        """Refuse sources out of range. Reads values, once: a synchronisation on the GPU."""
        if not self.is_checked:
            if self.table.numel() and (high := int(self.table.max())) >= self.num_source:
                raise ValueError(f"{what}: source {high} is out of range: num_source is {self.num_source}")
            self.trusted()

    def transpose(self) -> TapEdges:
        """The same edges with source and target exchanged, each with its tap; cached both ways."""

        def make() -> TapEdges:
            if self.symmetric:
                table = self.table.flip(1)
            else:
                table = _transposed(self.table, self.num_source)
            back = self.made(table=table, num_source=self.num_target, symmetric=self.symmetric)
            back.cached("transpose", lambda: self)
            return back.trusted() if self.is_checked else back

        return self.cached("transpose", make)

    @property
    def pairs(self) -> Pairs:
        """The edges in tap order, cached. Their number is read: a synchronisation on the GPU."""
        return self.cached("pairs", lambda: _pairs(self.table))

    @property
    def edges(self) -> Edges:
        """The same neighbourhoods without taps, those of a target in tap order; cached. For pooling and maxima."""

        def make() -> Edges:
            has_source = self.table >= 0
            splits = torch.cat([self.table.new_zeros(1, dtype=torch.int64), has_source.sum(1).cumsum(0)])
            edges = Edges.made(splits=splits, source=self.table[has_source], num_source=self.num_source)
            return edges.trusted() if self.is_checked else edges

        return self.cached("edges", make)

    def _facts(self) -> list[str]:
        facts = [f"{self.num_taps} taps from {self.num_source:,} sources to {self.num_target - self.padding:,} targets"]
        if self._readable():
            facts.append(f"{int((self.table >= 0).sum()):,} edges")
        return facts + (["symmetric"] if self.symmetric else [])


def _pairs(table: Tensor) -> Pairs:
    if _in_loops(table):
        from gridless.structures.kernels import count_pairs, fill_pairs

        splits = torch.empty(table.shape[1] + 1, dtype=torch.int64)
        count_pairs(table.numpy(), splits.numpy())
        target, source = (torch.empty(int(splits[-1]), dtype=torch.int32) for _ in range(2))
        fill_pairs(table.numpy(), splits.numpy(), target.numpy(), source.numpy())
        return Pairs(splits, target, source)
    by_tap = table.t().contiguous()
    has_source = by_tap >= 0
    target = has_source.nonzero()[:, 1].int()
    splits = torch.cat([table.new_zeros(1, dtype=torch.int64), has_source.sum(1).cumsum(0)])
    return Pairs(splits, target, by_tap[has_source])


@backends.uncompiled
def _transposed(table: Tensor, num_source: int) -> Tensor:
    """The table (S, T) of who sees each source at each tap. No two edges meet in an entry: deterministic."""
    rows, taps = table.shape
    if _in_loops(table):
        from gridless.structures.kernels import transpose_table

        back = torch.empty(num_source, taps, dtype=torch.int32)
        transpose_table(table.numpy(), back.numpy())
        return back
    # Entries without a source go to one more row, which is cut off.
    source = torch.where(table < 0, num_source, table).long()
    back = table.new_full((num_source + 1, taps), -1)
    target = torch.arange(rows, dtype=torch.int32, device=table.device)[:, None].expand(rows, taps)
    back.scatter_(0, source, target)
    return back[:-1]


def _in_loops(table: Tensor) -> bool:
    """Whether compiled loops do the work, instead of torch."""
    return backends.backend_for(table.device) == "cpu"
