"""The values that flow through gridless: ragged, frozen, and made of plain tensors.

A batch of B examples is the concatenation of their rows, with `splits` (B + 1) marking where each begins.
Every field says what it is (rows, splits, an index into something, a size), so that moving, collating and
padding are written once for all structures.
"""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gridless.ragged import (
    Ragged,
    Structure,
    _as_splits,
    _check_splits,
    _kinds,
    index,
    rows,
    same,
    size,
    splits_field,
)

MAX_EDGES = 2**31 - 1


@dataclass(frozen=True, eq=False, repr=False)
class Cloud(Ragged):
    """Points of a batch of examples: coords (S, D) float32 or float64, splits (B + 1).

    A cloud that was sampled from another knows where its points came from: `parent_index` (S), rows of a cloud of
    `num_parent` points. `distance` (num_parent), on request, is how far each of those is from its closest sample.
    """

    coords: Tensor = rows()
    splits: Tensor = splits_field("coords")
    parent_index: Tensor | None = index("num_parent", holes=False, default=None)
    num_parent: int = size(default=0)
    distance: Tensor | None = rows(default=None)
    padding: int = same(default=0)

    _length: ClassVar[str] = "coords"

    def __post_init__(self) -> None:
        coords = self.coords
        if not isinstance(coords, Tensor):
            raise TypeError(f"Cloud: coords must be a tensor, not {type(coords).__name__}: use Cloud.of(...)")
        if coords.ndim != 2 or not 1 <= coords.shape[1] <= 8:
            raise ValueError(f"Cloud: coords must be (points, 1 to 8 dimensions), not {tuple(coords.shape)}")
        if coords.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"Cloud: coords must be float32 or float64, not {coords.dtype}: convert with .float()")
        object.__setattr__(self, "coords", coords.detach().contiguous() if not coords.requires_grad else coords)
        object.__setattr__(self, "splits", _as_splits(self.splits, coords.device, "Cloud"))
        for name, length in (("parent_index", len(coords)), ("distance", self.num_parent)):
            value = getattr(self, name)
            if value is not None and (value.shape != (length,) or value.device != coords.device):
                raise ValueError(f"Cloud: {name} must be ({length},) on {coords.device}, not {tuple(value.shape)}")
        if coords.device.type == "cpu":
            self.check_splits("Cloud")

    @classmethod
    def of(cls, x: Any) -> Cloud:
        """One example from an (S, D) tensor or array, or a batch from a sequence of them."""
        if isinstance(x, Cloud):
            return x
        if isinstance(x, (list, tuple)):
            clouds = [_as_coords(c) for c in x]
            if not clouds:
                raise ValueError("Cloud.of: an empty list has no dimension: pass at least one (S, D) array")
            sizes = torch.tensor([0] + [len(c) for c in clouds], device=clouds[0].device)
            return cls(torch.cat(clouds), sizes.cumsum(0))
        coords = _as_coords(x)
        return cls(coords, torch.tensor([0, len(coords)], device=coords.device))

    @property
    def dim(self) -> int:
        return self.coords.shape[1]

    def __getitem__(self, i: int) -> Cloud:
        """Example i, alone."""
        if not -self.num_examples <= i < self.num_examples:
            raise IndexError(f"example {i} of a cloud with {self.num_examples} examples")
        a, b = self.splits[i % self.num_examples :][:2].tolist()
        return Cloud.of(self.coords[a:b])

    def check(self, what: str = "cloud") -> None:
        """Refuse splits that do not fit and coordinates that are not finite, naming example and row.

        Reads values, once: a synchronisation on the GPU.
        """
        self.cached("checked", lambda: self._check(what))

    def _check(self, what: str) -> bool:
        self.check_splits(what)
        # A sum is finite only if all its terms are; where it is not, huge coordinates may have overflowed.
        if self.coords.sum().isfinite():
            return True
        bad = (~self.coords.isfinite()).any(1).nonzero()
        if len(bad):
            row = int(bad[0])
            example = int(self.example[row])
            inside = row - int(self.splits[example]) if example < self.num_examples else row
            raise ValueError(
                f"{what}: {len(bad)} points are not finite, the first at row {inside} of example {example} "
                f"({self.coords[row].tolist()}): remove them first, e.g. x[x.isfinite().all(1)]"
            )
        return True


def _as_coords(x: Any) -> Tensor:
    coords = torch.as_tensor(x) if not isinstance(x, np.ndarray) else torch.from_numpy(np.ascontiguousarray(x))
    if coords.ndim != 2:
        raise ValueError(f"a cloud is an (S, D) array of coordinates, not {tuple(coords.shape)}")
    return coords


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Structure):
    """Neighbourhoods in CSR form: the sources of target i are source[splits[i]:splits[i + 1]], ascending.

    splits (S' + 1) int64, source (E) int32, num_source = S. `limit` is set when the search was told to keep only so
    many neighbours. `symmetric` marks a neighbourhood that is its own transpose (a ball of a cloud with itself).
    """

    splits: Tensor = splits_field("source")
    source: Tensor = index("num_source", holes=False)
    num_source: int = size()
    limit: int | None = same(default=None)
    symmetric: bool = same(default=False)
    padding: int = same(default=0)

    _length: ClassVar[str] = "source"

    def __post_init__(self) -> None:
        source = self.source
        if not isinstance(source, Tensor) or source.ndim != 1 or source.dtype not in (torch.int32, torch.int64):
            raise TypeError("Edges: source must be a 1-D int32 or int64 tensor of row numbers")
        if len(source) > MAX_EDGES or self.num_source > MAX_EDGES:
            raise ValueError(f"Edges: {len(source)} edges are more than {MAX_EDGES}: search smaller batches")
        object.__setattr__(self, "source", source.to(torch.int32).contiguous())
        object.__setattr__(self, "splits", _as_splits(self.splits, source.device, "Edges"))
        if source.device.type == "cpu":
            self.check("Edges")

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

    def check(self, what: str = "edges") -> None:
        """Refuse splits or sources out of range. Reads values, once: a synchronisation on the GPU."""
        self.cached("checked", lambda: self._check(what))

    def _check(self, what: str) -> bool:
        _check_splits(self.splits, len(self) - self.padding, what)
        if len(self):
            low, high = (int(v) for v in self.source.aminmax())
            if low < 0 or high >= self.num_source:
                raise ValueError(f"{what}: sources run from {low} to {high}, but num_source is {self.num_source}")
        return True

    def transpose(self) -> Edges:
        """The same edges seen from the sources: CSR to CSR, cached both ways."""
        if self.symmetric:
            return self

        def make() -> Edges:
            from gridless.geometry.transpose import transpose

            back = transpose(self)
            back.cached("transpose", lambda: self)
            return back

        return self.cached("transpose", make)

    # Exchange with other libraries. PyG writes an edge (source, target); so do we.

    def to_edge_index(self) -> Tensor:
        """PyG's edge_index (2, E) int64: sources above, targets below."""
        return torch.stack([self.source.long(), self.target.long()])[:, : len(self) - self.padding]

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_source: int, num_target: int) -> Edges:
        """From PyG's edge_index, in any order; repeated edges are kept."""
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must be (2, E), not {tuple(edge_index.shape)}")
        source, target = edge_index.long()
        if len(target) and not (int(target.min()) >= 0 and int(target.max()) < num_target):
            raise ValueError(f"edge_index: targets run from {target.min()} to {target.max()} of {num_target}")
        order = torch.argsort(target * num_source + source, stable=True)
        counts = torch.bincount(target, minlength=num_target)
        splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        edges = cls(splits, source[order].int(), num_source)
        edges.check("edge_index")
        return edges

    def to_scipy(self, values: Any = None) -> Any:
        """A SciPy CSR matrix (num_target, num_source), of ones unless values (E) are given."""
        from scipy.sparse import csr_array

        end = len(self) - self.padding
        values = np.ones(end, np.float32) if values is None else np.asarray(values)
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
        end = len(self) - self.padding
        values = torch.ones(end, device=self.device) if values is None else values
        return torch.sparse_csr_tensor(
            self.splits, self.source[:end].long(), values, (self.num_target, self.num_source), check_invariants=False
        )

    @classmethod
    def from_torch_csr(cls, matrix: Tensor) -> Edges:
        """The sparsity pattern of a torch.sparse_csr tensor whose rows are targets."""
        splits, source = matrix.crow_indices().long(), matrix.col_indices()
        row = torch.repeat_interleave(splits.diff())
        order = torch.argsort(row * matrix.shape[1] + source, stable=True)
        return cls(splits, source[order].int(), matrix.shape[1])


class Geometry(Mapping[str, Structure]):
    """What a plan computed, by name: `geometry["X1"]` is a cloud, `geometry["N01"]` its edges."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(
                f"this geometry has no {name!r}, only {', '.join(self._values)}: was it made by another plan?"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        lines = "\n".join(f"  {name}: {value!r}" for name, value in self._values.items())
        return f"Geometry(\n{lines}\n)"

    @property
    def device(self) -> torch.device:
        return next(iter(self._values.values())).device

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Geometry:
        return Geometry({n: v.to(device, non_blocking=non_blocking) for n, v in self._values.items()})

    def pin_memory(self) -> Geometry:
        return Geometry({n: v.pin_memory() for n, v in self._values.items()})


def collate(examples: Sequence[Any], bucket: str | Sequence[int] | None = None) -> Any:
    """One ragged batch from a list of examples: the `collate_fn` of a DataLoader.

    Structures and geometries become block-diagonal; tuples and dicts are collated part by part; numbers, arrays and
    tensors are stacked. With `bucket` ("power_of_two", or a list of allowed sizes) every structure is padded to the
    next bucket, so that compiled and captured graphs meet few shapes; the padding belongs to no example and no edge.
    """
    if not examples:
        raise ValueError("collate: an empty list of examples")
    first = examples[0]
    if isinstance(first, Geometry):
        return Geometry({n: collate([e[n] for e in examples], bucket) for n in first})
    if isinstance(first, Structure):
        from gridless.padding import pad

        merged = _merge(examples)
        return merged if bucket is None else pad(merged, bucket)
    if isinstance(first, tuple | list):
        parts = [collate(list(part), bucket) for part in zip(*examples, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, Mapping):
        return {k: collate([e[k] for e in examples], bucket) for k in first}
    return torch.utils.data.default_collate(list(examples))


def _merge(parts: Sequence[Structure]) -> Structure:
    """Concatenate structures; indices and splits are shifted by what came before them."""
    cls = type(parts[0])
    others = set(map(type, parts)) - {cls}
    if others:
        names = ", ".join(sorted(other.__name__ for other in others))
        raise TypeError(f"collate: {cls.__name__} and {names} cannot share a batch")
    kinds = _kinds(cls)
    # Batches of hundreds: one pass over each example, and as little Python for each of its fields as there can be.
    names = [name for name, *_ in kinds]
    columns: dict[str, tuple] = dict(zip(names, zip(*map(attrgetter(*names), parts), strict=True), strict=True))
    devices = {t.device for t in columns[cls._length]}
    if len(devices) > 1:
        raise ValueError(f"collate: {cls.__name__}s are on different devices: {', '.join(map(str, devices))}")
    values: dict[str, Any] = {}
    for name, kind, refers in kinds:
        column = columns[name]
        if kind == "same":
            if column.count(column[0]) != len(column):
                raise ValueError(f"collate: {cls.__name__}s with different {name} cannot share a batch")
            if name == "padding" and column[0]:
                raise ValueError("collate: padded batches cannot be collated again")
            values[name] = column[0]
        elif kind == "size":
            values[name] = sum(column)
        elif any(v is None for v in column):
            if any(v is not None for v in column):
                raise ValueError(f"collate: some {cls.__name__}s have {name} and some have none")
            values[name] = None
        elif kind == "rows":
            values[name] = torch.cat(column)
        elif kind == "splits":
            values[name] = _joined(column, [t.shape[0] for t in columns[refers or ""]])
        else:
            values[name] = _shifted(column, columns[refers or ""], holes=kind == "index")
    if issubclass(cls, Edges) and (len(values["source"]) > MAX_EDGES or values["num_source"] > MAX_EDGES):
        raise ValueError(f"collate: {len(values['source'])} edges are more than {MAX_EDGES}: take smaller batches")
    batch = cls.made(**values)
    return batch.trusted() if all(p.is_checked for p in parts) else batch


def _shifted(parts: tuple[Tensor, ...] | list[Tensor], sizes: Sequence[int], holes: bool = False) -> Tensor:
    """One tensor of all parts, each raised by the sizes of those before it, except where a hole points at nothing."""
    merged = torch.cat(parts)
    nothing = merged < 0 if holes else None
    lengths = torch.tensor([p.numel() for p in parts])
    before = torch.tensor([*accumulate(sizes[:-1], initial=0)], dtype=merged.dtype)
    if merged.device.type == "cpu":
        from gridless.joining import raise_pieces

        raise_pieces(merged.view(-1).numpy(), lengths.numpy(), before.numpy())
    else:
        there = before.to(merged.device), lengths.to(merged.device)
        merged += torch.repeat_interleave(*there, output_size=merged.numel()).view_as(merged)
    return merged if nothing is None else merged.masked_fill_(nothing, -1)


def _joined(parts: tuple[Tensor, ...], sizes: Sequence[int]) -> Tensor:
    """The splits of all parts as one: each raised by the sizes of those before it; only the first keeps its 0."""
    if parts[0].device.type != "cpu":
        return _shifted([parts[0], *(p[1:] for p in parts[1:])], sizes)
    from gridless.joining import drop_firsts

    # Hundreds of slices take longer than leaving their first elements out afterwards.
    merged = _shifted(parts, sizes)
    return merged[: drop_firsts(merged.numpy(), np.array([p.shape[0] for p in parts]))]


# At the end: the module it is defined in builds on this one.
from gridless.events import Events  # noqa: E402, F401
