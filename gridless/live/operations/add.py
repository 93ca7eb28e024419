"""The sum of two values; that of a value and constants is `affine`. Pixels that become an index are added, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless.live import simd
from gridless.live.operation import Operation
from gridless.live.operations.affine import affine
from gridless.live.operations.dense import dense
from gridless.live.panels import places
from gridless.live.rows import Row
from gridless.live.table import PITCH
from gridless.live.values import PixelIndex, Unknown, array_of


def whole(r: Any, number: Any) -> int:
    """The number as an integer, by which a pixel can be moved; fractions are refused."""
    if number != int(number):
        raise Unknown(f"{r.name} (a pixel with the fraction {number})")
    return int(number)


def both(r: Any, operation: str, a: Any, b: Any) -> Row:
    """Add the row of a sum or product: of two values, or of a value and constants."""
    if not isinstance(a, Row):
        a, b = b, a
    a = r.value(a)
    if isinstance(b, Row):
        # One channel goes with all of the other's.
        a, b = (wide(r, x, other) for x, other in ((a, b), (b, a)))
        if a.shape != b.shape:
            raise Unknown(f"{r.name} ({operation}) of {a.shape} and {b.shape}")
        return r.joined(operation, (a, b), a.shape)
    constant = array_of(b) if isinstance(b, Tensor) else float(b)
    return affine(r, a, 1, constant) if operation == "add" else affine(r, a, constant, 0)


def wide(r: Any, x: Row, other: Row) -> Row:
    """A value of one channel, repeated for all channels of another one."""
    return dense(r, x, torch.ones(other.channels, 1)) if x.channels == 1 < other.channels else x


def add(r: Any, a: Any, b: Any) -> Any:
    if isinstance(a, PixelIndex) or isinstance(b, PixelIndex):
        a, b = (a, b) if isinstance(a, PixelIndex) else (b, a)
        if isinstance(b, PixelIndex):
            return PixelIndex(a.stream, a.columns + b.columns, a.rows + b.rows, a.constant + b.constant)
        return PixelIndex(a.stream, a.columns, a.rows, a.constant + whole(r, b))
    return both(r, "add", a, b)


def subtract(r: Any, a: Any, b: Any) -> Row:
    return both(r, "add", a, affine(r, b, -1, 0) if isinstance(b, Row) else -b)


class Add(Operation):
    name = "add"
    functions = {"add": add, "iadd": add, "add_": add, "sub": subtract, "isub": subtract, "sub_": subtract}
    over_input = over_input_in_c = True

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        to, a, b = places(i, r, first)
        for k in range(0, n * i[r + PITCH], 8):
            simd.add(f, to + k, a + k, b + k)

    def c(self, writer, row, n):
        (a, b), out = (writer.at[name] for name in row.inputs), writer.buffer(row)
        return [f"for (k = 0; k < {n} * {row.channels}; k++) {out}[k] = {a}[k] + {b}[k];"]

    def example(self, net):
        return lambda x, geometry, memory: x + x.tanh() - x.sigmoid()
