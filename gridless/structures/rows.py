"""Rows: further values of each point or event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor


def shape_in_words(features: Tensor) -> str:
    """The shape of features that are not (S, channels), and what to do about it."""
    hint = ". Flatten stacked examples with flatten(0, 1)." if features.ndim == 3 else ""
    return f"{tuple(features.shape)}{hint}"


class Rows(Mapping[str, Tensor]):
    """Further values of each point or event, by name: `cloud.rows["rgb"]` (S, 3). Read-only."""

    def __init__(self, values: Mapping[str, Tensor] | None = None) -> None:
        self._values = dict(values or {})

    @classmethod
    def of(cls, values: Mapping[str, Any], like: Tensor, what: str) -> Rows:
        """Checked: one row for each row of `like`, on its device."""
        rows = {}
        for name, value in values.items():
            try:
                value = tensor_of(value).contiguous()
            except (TypeError, ValueError, RuntimeError) as error:
                raise TypeError(f"{what}: {name} must be a tensor or an array of numbers: {error}") from None
            if not value.ndim or len(value) != len(like):
                raise ValueError(
                    f"{what}: {name} has shape {tuple(value.shape)} for {len(like)} rows. Give one entry for each."
                )
            if value.device != like.device:
                raise ValueError(f"{what}: {name} is on {value.device}, the rest on {like.device}. Use one device.")
            rows[name] = value
        return cls(rows) if rows else NO_ROWS

    @staticmethod
    def joined(parts: Sequence[Rows], what: str) -> Rows:
        """The rows of all parts, one after the other."""
        first = parts[0]
        if not any(parts):
            return NO_ROWS
        for part in parts:
            if set(part) != set(first):
                raise ValueError(
                    f"{what}: some examples have the rows {_listed(first)}, some {_listed(part)}. Give all the same."
                )
            for name, value in part.items():
                if value.dtype != first[name].dtype or value.shape[1:] != first[name].shape[1:]:
                    raise ValueError(
                        f"{what}: the rows {name!r} are {shape_of(first[name])} in one example, {shape_of(value)} in "
                        "another. Give all the same shape and type."
                    )
        return Rows({name: torch.cat([part[name] for part in parts]) for name in first})

    def map(self, function: Callable[[Tensor], Tensor]) -> Rows:
        return Rows({name: function(value) for name, value in self._values.items()}) if self._values else self

    def taken(self, at: Any) -> Rows:
        """The rows at the positions, in the slice or under the mask `at`."""
        return self.map(lambda value: value[at])

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(f"no rows {name!r}, only {_listed(self)}. Add them with .of(..., {name}=...).") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name}: {shape_of(value)}" for name, value in self._values.items()) + "}"

    def _repr_html_(self) -> str:
        """A table for notebooks: a line for each row, with its shape, type and range."""
        lines = [(name, *shape_of(value).rsplit(" ", 1), _range(value)) for name, value in self._values.items()]
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        return f"<table><tr><th>row</th><th>shape</th><th>type</th><th>range</th></tr>{body}</table>"

    def __reduce__(self) -> tuple:
        # A tensor is pickled with all of its storage: the rows of a slice are copied.
        whole = {n: v.clone() if v.untyped_storage().nbytes() > v.nbytes else v for n, v in self._values.items()}
        return _rows_again, (whole,)

    # Rows are not compared: the truth of a tensor is not one number.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


NO_ROWS = Rows()


def tensor_of(x: Any) -> Tensor:
    """A tensor that shares the memory of an array, unless that may not be written to or lies otherwise."""
    if isinstance(x, np.ndarray):
        # torch has no types of another byte order.
        is_plain = x.flags.carray and x.dtype.isnative
        return torch.from_numpy(x if is_plain else np.array(x, x.dtype.newbyteorder("="), order="C"))
    # A tensor stays where it is, whatever `torch.set_default_device` says.
    return x if isinstance(x, Tensor) else torch.as_tensor(x)


def _rows_again(values: dict[str, Tensor]) -> Rows:
    return Rows(values) if values else NO_ROWS


def _listed(rows: Rows) -> str:
    return ", ".join(rows) or "none"


def _range(value: Tensor) -> str:
    """Lowest and highest value, where they can be looked at without waiting for a GPU."""
    if value.device.type != "cpu" or type(value) is not Tensor or not value.numel() or value.is_complex():
        return ""
    # torch finds no ends of unsigned numbers of two bytes and more.
    known = value.detach().numpy() if value.dtype != torch.bfloat16 else value.detach().float().numpy()
    low, high = known.min(), known.max()
    return str(low) if low == high else f"{low:.6g} to {high:.6g}" if known.dtype.kind == "f" else f"{low} to {high}"


def shape_of(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
