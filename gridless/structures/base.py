"""The base of all structures. Fields declare their kind, so that moving, cutting, collating and padding are written
once, for all of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from html import escape
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from gridless.structures.rows import NO_ROWS, Rows, shape_of

# The kinds of fields.


def per_row(of: str | None = None, **kwargs: Any) -> Any:
    """A tensor with one row per point, event or edge; or, with `of`, for each of as many as the field `of` says."""
    return field(metadata={"kind": "rows", "of": of}, **kwargs)


def named_rows() -> Any:
    """Further values of each point or event: `Rows`, none by default."""
    return field(default=NO_ROWS, metadata={"kind": "named rows"})


def splits_of(of: str, **kwargs: Any) -> Any:
    """Cumulative counts: entry i to entry i + 1 of `of` belong to i."""
    return field(metadata={"kind": "splits", "of": of}, **kwargs)


def index(into: str, holes: bool = True, **kwargs: Any) -> Any:
    """Positions in something that has as many rows as the field `into` says; with holes, -1 is none."""
    return field(metadata={"kind": "index" if holes else "full index", "of": into}, **kwargs)


def tap_index(into: str, **kwargs: Any) -> Any:
    """A row of positions, as of `index`, one for each tap; negative where there is none, and throughout padding."""
    return field(metadata={"kind": "tap index", "of": into}, **kwargs)


def size(**kwargs: Any) -> Any:
    """A count of rows: the counts of a batch add up."""
    return field(metadata={"kind": "size"}, **kwargs)


def same(**kwargs: Any) -> Any:
    """A setting that every example of a batch shares."""
    return field(metadata={"kind": "same"}, **kwargs)


@cache
def kinds(cls: type) -> tuple[tuple[str, str, str | None], ...]:
    """(field name, kind, what it refers to) for each field of a structure."""
    return tuple((f.name, f.metadata["kind"], f.metadata.get("of")) for f in dataclasses.fields(cls))


class Structure:
    """The base of all structures. Subclasses are frozen dataclasses whose fields declare their kind."""

    # Named after the field whose rows carry the data: its length is the length of the structure.
    _length: ClassVar[str]
    padding: int

    @property
    def device(self) -> torch.device:
        return getattr(self, self._length).device

    def __len__(self) -> int:
        return getattr(self, self._length).shape[0]

    @property
    def _end(self) -> int:
        """The number of rows before the padding; refused where a graph would keep that of its first batch."""
        if self.padding and _capturing(self.device):
            mask = "cloud.example < cloud.num_examples or edges.target < edges.num_target"
            raise RuntimeError(
                f"{type(self).__name__}: a captured step cannot cut off the padding, whose start differs in each "
                f"batch. Use a mask: {mask}"
            )
        return len(self) - self.padding

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """(kind, tensor) of every field that has one, and of all rows, one by one."""
        for name, kind, _ in kinds(type(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                yield kind, value
            elif isinstance(value, Rows):
                yield from (("rows", rows) for rows in value.values())

    def with_parts(self, tensors: Iterable[Tensor], into: int | None = None, padding: int | None = None) -> Self:
        """The same structure of other tensors, which are known to be right, in the order of `parts`.

        Args:
            tensors: one for each of `parts`.
            into: how many rows indices point into; as many as before when left out.
            padding: how many rows are padding; as many as before when left out.
        """
        left, changes = iter(tensors), {}
        for name, kind, _ in kinds(type(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                changes[name] = next(left)
            elif isinstance(value, Rows):
                changes[name] = value.map(lambda _: next(left))
            elif kind == "size" and into is not None:
                changes[name] = into
        return self._changed(**changes, **({} if padding is None else {"padding": padding}))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return self.with_parts(function(tensor) for _, tensor in self.parts())

    def _changed(self, **changes: Any) -> Self:
        """The same structure with some fields replaced by values that are known to be right."""
        new = self.made(**self._fields() | changes)
        return new.trusted() if self.is_checked else new

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, *_ in kinds(type(self))}

    @classmethod
    def made(cls, **values: Any) -> Self:
        """A structure from values that our own code made: nothing is checked or converted."""
        new = object.__new__(cls)
        # Fields left out are found in the class, where dataclasses keep defaults.
        new.__dict__.update(values)
        return new

    def leaves(self) -> dict[str, Any]:
        """Every tensor and setting by name, those of rows as `rows.rgb`: what `of_leaves` needs to make it again."""
        leaves = {}
        for name, *_ in kinds(type(self)):
            value = getattr(self, name)
            leaves |= {f"{name}.{n}": v for n, v in value.items()} if isinstance(value, Rows) else {name: value}
        return leaves

    @classmethod
    def of_leaves(cls, leaves: Mapping[str, Any]) -> Self:
        """A structure from the `leaves` of one; they are not checked."""
        fields: dict[str, Any] = {name: value for name, value in leaves.items() if "." not in name}
        rows = {name.removeprefix("rows."): value for name, value in leaves.items() if name.startswith("rows.")}
        return cls.made(**fields, **({"rows": Rows(rows)} if rows else {})).trusted()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same structure on another device."""
        if isinstance(device, torch.dtype):
            name = type(self).__name__
            raise TypeError(f"{name}.to takes a device, not {device}. Make a {name} of tensors that were converted.")
        if self.device == torch.device(device):
            return self
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def cpu(self) -> Self:
        return self.to("cpu")

    def cuda(self) -> Self:
        return self.to("cuda")

    def pin_memory(self) -> Self:
        """A copy in page-locked memory, from which transfers to the GPU overlap with work."""
        return self._map(Tensor.pin_memory)

    def cached(self, name: str, make: Any) -> Any:
        """A value derived once and kept beside the structure; never copied, compared or pickled."""
        cache = self.__dict__.get("_kept", {})
        if name in cache:
            return cache[name]
        # A graph that torch traces, and a transform of torch.func, whose tensors end with it, keep nothing.
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return make()
        if torch.is_inference_mode_enabled():
            # Training, which may follow, takes no tensors of inference.
            with torch.inference_mode(False), torch.no_grad():
                value = make()
        else:
            value = make()
        self.__dict__.setdefault("_kept", {})[name] = value
        return value

    def keeps(self, name: str) -> bool:
        """True if a value of this name was derived and is kept (see `cached`)."""
        return name in self.__dict__.get("_kept", ())

    def trusted(self) -> Self:
        """The same structure, marked as checked: for values that our own searches and samplers made."""
        self.__dict__["_checked"] = True
        return self

    @property
    def is_checked(self) -> bool:
        return "_checked" in self.__dict__

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, those included that were derived from others and are kept beside them."""
        waiting: list[Any] = [self]
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, Structure):
                waiting += [*value.__dict__.values()]
            elif isinstance(value, Mapping | list | tuple):
                waiting += [*(value.values() if isinstance(value, Mapping) else value)]

    def __getstate__(self) -> dict:
        state = {k: v for k, v in self.__dict__.items() if k not in ("_kept", "_checked", "_alone")}
        # A tensor is pickled with all of its storage: one that has only a part of it, as what plans make, is copied.
        for name, value in state.items():
            if isinstance(value, Tensor) and value.untyped_storage().nbytes() > value.nbytes:
                state[name] = value.clone()
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)

    def _facts(self) -> list[str]:
        """The parts of its `repr`: sizes, types and ranges."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = self._facts()
        rows = getattr(self, "rows", None)
        if rows:
            facts.append(f"rows {rows}")
        return self._in_words(facts)

    def _in_words(self, facts: list[str]) -> str:
        padding = [f"{self.padding:,} rows of padding"] if self.padding else []
        return f"{type(self).__name__}({', '.join([*facts, *padding])}, {self.device})"

    def _repr_html_(self) -> str:
        """A notebook shows one line of facts, and a table of the rows."""
        rows = getattr(self, "rows", None)
        return f"<pre>{escape(self._in_words(self._facts()))}</pre>" + (rows._repr_html_() if rows else "")

    def _readable(self) -> bool:
        """True if there are values, and looking at them does not wait for a GPU."""
        tensor = getattr(self, self._length)
        return self.device.type == "cpu" and type(tensor) is Tensor and len(tensor) > 0


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Ragged(Structure):
    """A batch of examples with different numbers of rows.

    Its length, slices, masks and positions are of rows: `cloud[a:b]`, `cloud[mask]`, `cloud[order]`. Whole examples are
    `cloud.examples[i]`. A part has the rows of what it kept, and forgets what that was sampled from or fired by.
    """

    splits: Tensor

    # The words for a row and for an example.
    _row: ClassVar[str]
    _example: ClassVar[str]

    @property
    def num_examples(self) -> int:
        return self.splits.shape[0] - 1

    @property
    def examples(self) -> ExamplesOf[Self]:
        """The examples of the batch, each alone: a sequence."""
        return ExamplesOf(self)

    @property
    def sizes(self) -> Tensor:
        """Rows of each example (B)."""
        return self.splits.diff()

    @property
    def example(self) -> Tensor:
        """The example each row belongs to (S); padding rows have num_examples."""

        def make() -> Tensor:
            at = torch.arange(len(self), device=self.device)
            return torch.searchsorted(self.splits[1:].contiguous(), at, right=True)

        return self.cached("example", make)

    def __getitem__(self, at: slice | Tensor | np.ndarray | Sequence[int]) -> Self:
        """The rows of a slice, under a mask (S) bool, or at positions (N), in the examples they are in."""
        name, end = type(self).__name__, self._end
        if isinstance(at, slice):
            a, b, step = at.indices(end)
            if step == 1:
                b = max(a, b)
                return self._part(slice(a, b), self.splits.clamp(a, b) - a)
            at = torch.from_numpy(np.arange(a, b, step))
        if hasattr(at, "plan"):
            raise TypeError(f"expected a Geometry, not {name}. Call model(model.plan(x)).")
        if isinstance(at, str):
            raise TypeError(f"{name} has no columns: x[{at!r}]. The rows of its {self._row}s are in x.rows[{at!r}].")
        if not isinstance(at, Tensor | np.ndarray | Sequence) or isinstance(at, tuple):
            raise TypeError(
                f"{name}: x[...] takes slices, masks and positions of {self._row}s, such as x[a:b], not {at!r}. Use "
                f"x.examples[i] for one {self._example} of a batch, x.{self._length}[i] for one {self._row}."
            )
        rows = torch.as_tensor(at, device=self.device)
        if rows.ndim != 1 or (rows.dtype not in (torch.bool, torch.int64, torch.int32) and len(rows)):
            raise TypeError(f"{name}: a mask or positions are 1-D, bool or whole numbers, not {shape_of(rows)}")
        if rows.dtype == torch.bool:
            if len(rows) != len(self):
                raise IndexError(f"{name}: the mask has {len(rows)} entries for {len(self)} {self._row}s")
            return self._masked(
                rows if not self.padding else rows & (torch.arange(len(self), device=self.device) < end)
            )
        rows = rows.long()
        if len(rows):
            low, high = (int(v) for v in rows.aminmax())
            if low < -end or high >= end:
                raise IndexError(f"{name}: positions {low} to {high} are outside {end} {self._row}s")
        rows = torch.where(rows < 0, rows + end, rows)
        splits = torch.tensor([0, len(rows)], device=self.device)
        if self.num_examples != 1:
            example = self.example[rows]
            if bool((example.diff() < 0).any()):
                raise ValueError(f"{name}: positions mix the examples of the batch. Sort them by example.")
            splits = torch.searchsorted(example, torch.arange(self.num_examples + 1, device=self.device))
        part = self._part(rows, splits)
        # Events at any positions may no longer be in order: they are looked at again.
        part.__dict__.pop("_checked", None)
        return part

    def _masked(self, keep: Tensor) -> Self:
        """The rows where `keep` is True, which padding is not."""
        before = torch.cat([self.splits.new_zeros(1), keep.cumsum(0)])
        return self._part(keep, before[self.splits])

    def _part(self, at: slice | Tensor, splits: Tensor) -> Self:
        """Some of the rows, with splits that are known to be right."""
        changes: dict[str, Any] = {"splits": splits, "padding": 0}
        for name, kind, refers in kinds(type(self)):
            value = getattr(self, name)
            if kind == "rows":
                changes[name] = None if value is None or refers else value[at]
            elif kind == "named rows":
                changes[name] = value.taken(at)
            elif kind.endswith("index"):
                changes[name] = None
            elif kind == "size":
                changes[name] = 0
        return self._changed(**changes)

    def check_splits(self, what: str) -> None:
        """Refuse splits that do not describe the rows. Reads values: a synchronisation on the GPU."""
        check_splits(self.splits, len(self) - self.padding, what)


R = TypeVar("R", bound=Ragged)


class ExamplesOf(Sequence, Generic[R]):
    """The examples of a batch: `len`, `examples[i]`, `for example in examples`; a slice is a list."""

    def __init__(self, batch: R) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.num_examples

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        if not hasattr(i, "__index__"):
            remedy = "For several, use gl.collate([x.examples[i] for i in ...])."
            raise TypeError(f"examples[i] takes a number or a slice, not a {type(i).__name__}. {remedy}")
        if not -len(self) <= i < len(self):
            raise IndexError(f"{self._batch._example} {i} is out of range: the batch has {len(self)}")
        return self._alone(*self._batch.splits[i % len(self) :][:2].tolist())

    def __iter__(self) -> Iterator[R]:
        # One read for all: on a GPU each is a synchronisation.
        return itertools.starmap(self._alone, itertools.pairwise(self._batch.splits.tolist()))

    def _alone(self, a: int, b: int) -> R:
        return self._batch._part(slice(a, b), torch.tensor([0, b - a], device=self._batch.device))


def check_splits(splits: Tensor, end: int, what: str) -> None:
    host = splits.detach().cpu().numpy()
    if host[0] != 0:
        raise ValueError(f"{what}: splits must start at 0, not {host[0]}")
    down = host[1:] < host[:-1]
    if down.any():
        i = int(down.argmax())
        raise ValueError(f"{what}: splits must ascend. Entry {i + 1} is {host[i + 1]} after {host[i]}.")
    if host[-1] != end:
        raise ValueError(f"{what}: splits end at {host[-1]}, not at the {end} rows")


def as_splits(splits: Any, device: torch.device, what: str) -> Tensor:
    splits = splits if isinstance(splits, Tensor) else torch.as_tensor(splits, device=device)
    if splits.dtype not in (torch.int64, torch.int32) or splits.ndim != 1 or splits.shape[0] < 1:
        raise ValueError(
            f"{what}: splits are {splits.dtype} of shape {tuple(splits.shape)}. "
            "Give a 1-D integer tensor with one entry more than there are groups."
        )
    if splits.device != device:
        raise ValueError(f"{what}: splits are on {splits.device}, the rows on {device}. Move both to one device.")
    # A copy: what was checked is what kernels read.
    return splits.to(torch.int64, copy=True, memory_format=torch.contiguous_format)
