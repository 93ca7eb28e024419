"""What all structures are made of: fields that say what they hold, so that moving, collating and padding are written
once, for all of them."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from functools import cache
from typing import Any, ClassVar, Self

import torch
from torch import Tensor


def per_row(**kwargs: Any) -> Any:
    """A tensor with one row per point, event or edge."""
    return field(metadata={"kind": "rows"}, **kwargs)


def splits_of(of: str, **kwargs: Any) -> Any:
    """Cumulative counts: entry i to entry i + 1 of `of` belong to i."""
    return field(metadata={"kind": "splits", "of": of}, **kwargs)


def index(into: str, holes: bool = True, **kwargs: Any) -> Any:
    """Positions in something that has as many rows as the field `into` says; with holes, -1 is none."""
    return field(metadata={"kind": "index" if holes else "full index", "into": into}, **kwargs)


def size(**kwargs: Any) -> Any:
    """A count of rows: the counts of a batch add up."""
    return field(metadata={"kind": "size"}, **kwargs)


def same(**kwargs: Any) -> Any:
    """A setting that every example of a batch shares."""
    return field(metadata={"kind": "same"}, **kwargs)


@cache
def kinds(cls: type) -> tuple[tuple[str, str, str | None], ...]:
    """(field name, kind, what it refers to) for each field of a structure."""
    return tuple(
        (f.name, f.metadata["kind"], f.metadata.get("of") or f.metadata.get("into")) for f in dataclasses.fields(cls)
    )


@cache
def _defaults(cls: type) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


class Structure:
    """What all structures share. Subclasses are frozen dataclasses whose fields declare their kind."""

    # Named after the field whose rows carry the data: its length is the length of the structure.
    _length: ClassVar[str]

    @property
    def device(self) -> torch.device:
        return getattr(self, self._length).device

    def __len__(self) -> int:
        return getattr(self, self._length).shape[0]

    def _map(self, function: Any) -> Self:
        changes = {n: function(v) for n, *_ in kinds(type(self)) if isinstance(v := getattr(self, n), Tensor)}
        return self._changed(**changes)

    def _changed(self, **changes: Any) -> Self:
        """The same structure with some fields replaced by values that are known to be right."""
        new = self.made(**{n: getattr(self, n) for n, *_ in kinds(type(self))} | changes)
        return new.trusted() if self.is_checked else new

    @classmethod
    def made(cls, **values: Any) -> Self:
        """A structure from values that our own code made: nothing is checked or converted."""
        new = object.__new__(cls)
        new.__dict__.update(_defaults(cls))
        new.__dict__.update(values)
        return new

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same structure on another device."""
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
        kept = self.__dict__.setdefault("_kept", {})
        if name not in kept:
            kept[name] = make()
        return kept[name]

    def trusted(self) -> Self:
        """The same structure, marked as checked: for values that our own searches and samplers made."""
        self.__dict__.setdefault("_kept", {})["checked"] = True
        return self

    @property
    def is_checked(self) -> bool:
        return "checked" in self.__dict__.get("_kept", ())

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k != "_kept"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        parts = []
        for name, *_ in kinds(type(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                parts.append(f"{name}={tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}")
            elif value:
                parts.append(f"{name}={value}")
        return f"{type(self).__name__}({', '.join(parts)}, {self.device})"


class Ragged(Structure):
    """A batch of examples with different numbers of rows."""

    splits: Tensor
    padding: int

    @property
    def num_examples(self) -> int:
        return self.splits.shape[0] - 1

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

    def check_splits(self, what: str) -> None:
        """Refuse splits that do not describe the rows. Reads values: a synchronisation on the GPU."""
        check_splits(self.splits, len(self) - self.padding, what)


def check_splits(splits: Tensor, end: int, what: str) -> None:
    host = splits.detach().cpu().numpy()
    if host[0] != 0:
        raise ValueError(f"{what}: splits must begin with 0, not {host[0]}")
    down = host[1:] < host[:-1]
    if down.any():
        i = int(down.argmax())
        raise ValueError(f"{what}: splits must ascend, but entry {i + 1} is {host[i + 1]} after {host[i]}")
    if host[-1] != end:
        raise ValueError(f"{what}: splits end at {host[-1]}, but there are {end} rows")


def as_splits(splits: Any, device: torch.device, what: str) -> Tensor:
    splits = torch.as_tensor(splits)
    if splits.dtype not in (torch.int64, torch.int32) or splits.ndim != 1 or splits.shape[0] < 1:
        raise ValueError(
            f"{what}: splits must be a 1-D integer tensor with one entry more than there are groups, "
            f"not {splits.dtype} of shape {tuple(splits.shape)}"
        )
    if splits.device != device:
        raise ValueError(f"{what}: splits are on {splits.device}, the rows on {device}: move both to one device")
    return splits.long()
