"""Edges: which sources each target sees."""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gridless import backends
from gridless.structures.base import Structure, as_splits, check_splits, index, same, size, splits_of
from gridless.structures.interchange import package
from gridless.structures.transpose import reference

MAX_EDGES = 2**31 - 1


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Structure):
    """Neighbourhoods in CSR form: the sources of target i are source[splits[i]:splits[i + 1]], ascending.

    splits (S' + 1) int64, source (E) int32, num_source = S. `limit` is set when the search was told to keep only so
    many neighbours. `symmetric` marks a neighbourhood that is its own transpose (a ball of a cloud with itself).
    The last `padding` edges belong to no target.
    """

    splits: Tensor = splits_of("source")
    source: Tensor = index("num_source", holes=False)
    num_source: int = size()
    limit: int | None = same(default=None)
    symmetric: bool = same(default=False)
    padding: int = same(default=0)

    _length: ClassVar[str] = "source"

    def __post_init__(self) -> None:
        source = self.source
        if not isinstance(source, Tensor) or source.ndim != 1 or source.dtype not in (torch.int32, torch.int64):
            actual = f"{tuple(source.shape)} {source.dtype}" if isinstance(source, Tensor) else type(source).__name__
            raise TypeError(f"Edges: source must be a 1-D int32 or int64 tensor, not {actual}")
        if len(source) > MAX_EDGES or self.num_source > MAX_EDGES:
            raise ValueError(
                f"Edges: {len(source)} edges of {self.num_source} sources are more than {MAX_EDGES}. Use small batches."
            )
        object.__setattr__(self, "splits", as_splits(self.splits, source.device, "Edges"))
        if source.device.type == "cpu":
            self.check("Edges")
        elif source.dtype == torch.int64:
            # Numbers beyond 32 bits stay out of range, and the check finds them.
            source = source.clamp(-1, MAX_EDGES)
        # On the CPU, where numbers out of range would end the process, a copy: what was checked is what kernels read.
        object.__setattr__(self, "source", source.to(torch.int32, copy=source.is_cpu).contiguous())

    @property
    def num_target(self) -> int:
        return self.splits.shape[0] - 1

    @property
    def target(self) -> Tensor:
        """The target of each edge (E) int32, cached; padding edges have num_target."""

        def make() -> Tensor:
            at = torch.arange(len(self), device=self.device)
            return torch.searchsorted(self.splits[1:].contiguous(), at, right=True, out_int32=True)

        return self.cached("target", make)

    @property
    def counts(self) -> Tensor:
        """Neighbours of each target (S')."""
        return self.splits.diff()

    def _facts(self) -> list[str]:
        count = len(self) - self.padding
        facts = [f"{count:,} edges from {self.num_source:,} sources to {self.num_target:,} targets"]
        if self._readable() and self.num_target:
            # Padding has no edges, and comes last.
            targets = int((self.splits < count).sum()) if self.padding else self.num_target
            facts.append(f"{count / max(targets, 1):.1f} each, {int(self.counts.max()):,} at most")
        facts += [f"limit {self.limit}"] if self.limit is not None else []
        return facts + (["symmetric"] if self.symmetric else [])

    def check(self, what: str = "edges") -> None:
        """Refuse splits or sources out of range. Reads values, once: a synchronisation on the GPU."""
        if not self.is_checked:
            self._check(what)
            self.trusted()

    def _check(self, what: str) -> None:
        check_splits(self.splits, len(self) - self.padding, what)
        if len(self):
            low, high = (int(v) for v in self.source.aminmax())
            if low < 0 or high >= self.num_source:
                raise ValueError(f"{what}: sources {low} to {high} are out of range: num_source is {self.num_source}")

    def transpose(self) -> Edges:
        """The same edges seen from the sources, those of each source by ascending target; cached both ways."""
        if self.symmetric:
            return self

        def make() -> Edges:
            # Edges that come from others may know a shorter way.
            back = self.cached("transposed by", lambda: transpose)(self)
            back.cached("transpose", lambda: self)
            return back

        return self.cached("transpose", make)

    # Exchange with other libraries. PyG writes an edge (source, target); so do we.

    def to_edge_index(self) -> Tensor:
        """PyG's edge_index (2, E) int64: sources above, targets below."""
        return torch.stack([self.source.long(), self.target.long()])[:, : self._end]

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_source: int, num_target: int) -> Edges:
        """From PyG's edge_index, in any order; repeated edges are kept."""
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must be (2, E), not {tuple(edge_index.shape)}")
        if edge_index.is_floating_point() and edge_index.numel():
            raise TypeError(f"edge_index must hold integers, not {edge_index.dtype}. Convert with .long().")
        source, target = edge_index.long()
        if len(target) and not (int(target.min()) >= 0 and int(target.max()) < num_target):
            raise ValueError(
                f"edge_index: targets {target.min()} to {target.max()} are out of range: num_target is {num_target}"
            )
        order = torch.argsort(target * num_source + source)
        counts = torch.bincount(target, minlength=num_target)
        splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        edges = cls(splits, source[order], num_source)
        edges.check("edge_index")
        return edges

    def to_scipy(self, values: Any = None) -> Any:
        """A SciPy CSR matrix (num_target, num_source), of ones unless values (E) are given."""
        csr_array = package("scipy.sparse", "to_scipy", "scipy").csr_array
        end = self._end
        values = np.ones(end, np.float32) if values is None else self._of_edges("to_scipy", np.asarray(values))
        return csr_array(
            (values, self.source[:end].cpu().numpy(), self.splits.cpu().numpy()), (self.num_target, self.num_source)
        )

    @classmethod
    def from_scipy(cls, matrix: Any) -> Edges:
        """The sparsity pattern of a SciPy sparse matrix whose rows are targets."""
        csr = matrix.tocsr().sorted_indices()
        return cls(torch.from_numpy(csr.indptr.astype(np.int64)), torch.from_numpy(csr.indices), csr.shape[1])

    def to_torch_csr(self, values: Tensor | None = None) -> Tensor:
        """A torch.sparse_csr tensor (num_target, num_source), of ones unless values (E) are given."""
        end = self._end
        weights = torch.ones(end, device=self.device) if values is None else self._of_edges("to_torch_csr", values)
        shape = (self.num_target, self.num_source)
        with warnings.catch_warnings():
            # PyTorch says of every such tensor that they are in beta, and 2.11 that checks are off, although we say so.
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
            return torch.sparse_csr_tensor(
                self.splits, self.source[:end].long(), weights, shape, check_invariants=False
            )

    def _of_edges(self, what: str, values: Any) -> Any:
        """Values of all edges, or of all but padding: without those of padding."""
        end = self._end
        if len(values) not in (end, len(self)):
            raise ValueError(f"{what}: {len(values)} values for {end} edges. Give one for each.")
        return values[:end]

    @classmethod
    def from_torch_csr(cls, matrix: Tensor) -> Edges:
        """The sparsity pattern of a torch.sparse_csr tensor whose rows are targets."""
        splits, source = matrix.crow_indices().long(), matrix.col_indices()
        row = torch.repeat_interleave(splits.diff())
        order = torch.argsort(row * matrix.shape[1] + source)
        return cls(splits, source[order], matrix.shape[1])


@backends.uncompiled
def transpose(edges: Edges) -> Edges:
    """`Edges.transpose` without its memory: the same edges with source and target exchanged."""
    if not isinstance(edges, Edges):
        raise TypeError(f"transpose: expected Edges, not {type(edges).__name__}")
    module = backends.implementation(reference, edges.device)
    splits, target = module.transpose(edges.splits, edges.source, edges.num_source, edges.padding)
    # `limit` is of the targets, and does not hold for the other side.
    back = Edges.made(
        splits=splits, source=target, num_source=edges.num_target, symmetric=edges.symmetric, padding=edges.padding
    )
    return back.trusted() if edges.is_checked else back


def transposed(edges: Edges) -> tuple[Tensor, Tensor]:
    """Splits and sources of `edges.transpose()`, also in a graph that is compiled before anyone has asked for them."""
    if torch.compiler.is_compiling() and not edges.symmetric and not edges.keeps("transpose"):
        return _traced_transpose(edges.splits, edges.source, edges.num_source, edges.padding)
    back = edges.transpose()
    return back.splits, back.source


@torch.library.custom_op("gridless::transpose_edges", mutates_args=())
def _traced_transpose(splits: Tensor, source: Tensor, num_source: int, padding: int) -> tuple[Tensor, Tensor]:
    back = transpose(Edges(splits, source, num_source, padding=padding))
    return back.splits, back.source


@_traced_transpose.register_fake
def _(splits, source, num_source, padding):  # type: ignore[no-untyped-def]
    return splits.new_empty(num_source + 1), torch.empty_like(source)
