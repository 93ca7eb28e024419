"""The small products of the live engine: blocks of rows with weights that lie in panels."""

# pyright: reportCallIssue=false

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gridless.kernels.compile import njit
from gridless.kernels.products import BLOCK, add_product, lanes

# ARM multiplies a vector by one element of another in one instruction, and to spread an element from memory costs as
# much: there four steps at a time are read as a vector. Measured on a Neoverse N1: 1.03 to 1.13 times as many events/s.
BY_ELEMENT = platform.machine() in ("aarch64", "arm64") and lanes(np.float32) == 4
WIDEST = 8 if BY_ELEMENT else BLOCK
HALF = WIDEST // 2

_VECTOR, _I32, _I64 = ir.VectorType(ir.FloatType(), 4), ir.IntType(32), ir.IntType(64)


@intrinsic(prefer_literal=True)
def add_fours(
    typingctx: Any, rows: Any, width: Any, c: Any, c_at: Any, c_row: Any, a: Any, a_at: Any, a_row: Any, b: Any,
    b_at: Any, fours: Any,
) -> Any:  # fmt: skip
    """`add_product` over four times `fours` steps, with vectors of 4 float32: rows and width are literal numbers."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n, w = signature.args[0].literal_value, signature.args[1].literal_value

        def place(index: int, at: Any) -> Any:
            data = context.make_array(signature.args[index])(context, builder, args[index]).data
            return builder.bitcast(builder.gep(data, [at], inbounds=True), _VECTOR.as_pointer())

        def row(begin: Any, step: Any, k: int) -> Any:
            return builder.add(begin, builder.mul(step, _I64(k)))

        def vector(pointer: Any, k: Any) -> Any:
            return builder.gep(pointer, [k], inbounds=True)

        firsts = [place(2, row(args[3], args[4], k)) for k in range(n)]
        places = [vector(first, _I64(m)) for first in firsts for m in range(w)]
        before = [builder.load(pointer, align=4) for pointer in places]
        of = [place(5, row(args[6], args[7], k)) for k in range(n)]
        panel, entry = place(8, args[9]), builder.block
        body, done = builder.append_basic_block("body"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed(">", args[10], _I64(0)), body, done)

        builder.position_at_end(body)
        step, sums = builder.phi(_I64), [builder.phi(_VECTOR) for _ in places]
        step.add_incoming(_I64(0), entry)
        values = [builder.load(vector(pointer, step), align=4) for pointer in of]
        after: list[Any] = list(sums)
        for k in range(4):
            lane = ir.Constant(ir.VectorType(_I32, 4), [k] * 4)
            at = builder.mul(builder.add(builder.mul(step, _I64(4)), _I64(k)), _I64(w))
            weights = [builder.load(vector(panel, builder.add(at, _I64(m))), align=4) for m in range(w)]
            for j in range(n):
                one = builder.shuffle_vector(values[j], ir.Constant(_VECTOR, ir.Undefined), lane)
                for m in range(w):
                    product = builder.fmul(one, weights[m], flags=("contract",))
                    after[j * w + m] = builder.fadd(after[j * w + m], product, flags=("contract",))
        following = builder.add(step, _I64(1))
        step.add_incoming(following, body)
        for total, first, last in zip(sums, before, after, strict=True):
            total.add_incoming(first, entry)
            total.add_incoming(last, body)
        builder.cbranch(builder.icmp_signed("<", following, args[10]), body, done)

        builder.position_at_end(done)
        results = [builder.phi(_VECTOR) for _ in places]
        for pointer, result, first, last in zip(places, results, before, after, strict=True):
            result.add_incoming(first, entry)
            result.add_incoming(last, body)
            builder.store(result, pointer, align=4)
        return context.get_dummy_value()

    at = types.int64
    return types.none(rows, width, c, at, at, a, at, at, b, at, at), emit


@njit(nogil=True, cache=True, error_model="numpy")
def product(c, c_at, columns, a, a_at, a_row, b, b_at, rows, steps, lane):
    """c (rows, columns) += a (rows, steps) b (steps, columns), columns a whole number of vectors.

    b lies in panels of two vectors (the last may be of one): all steps of the first panel, then those of the next. So
    that weights are read once, in order, from whichever cache they are in.
    """
    fours = steps // 4 if BY_ELEMENT else 0
    done, rest = 4 * fours, steps - 4 * fours
    at = 0
    while at < columns:
        panel = b_at + at * steps
        i = 0
        if at + 2 * lane <= columns:
            skip = 2 * done * lane
            while i < rows:
                to, of = c_at + i * columns + at, a_at + i * a_row
                # A block is cheaper than more than half as many rows: its spare rows are computed and never read.
                if rows - i > HALF:
                    if BY_ELEMENT:
                        add_fours(WIDEST, 2, c, to, columns, a, of, a_row, b, panel, fours)
                    if rest:
                        add_product(WIDEST, 2, c, to, columns, a, of + done, a_row, 1, b, panel + skip, 2 * lane, rest)
                    i += WIDEST
                elif rows - i > 1:
                    if BY_ELEMENT:
                        add_fours(HALF, 2, c, to, columns, a, of, a_row, b, panel, fours)
                    if rest:
                        add_product(HALF, 2, c, to, columns, a, of + done, a_row, 1, b, panel + skip, 2 * lane, rest)
                    i += HALF
                else:
                    if BY_ELEMENT:
                        add_fours(1, 2, c, to, columns, a, of, a_row, b, panel, fours)
                    if rest:
                        add_product(1, 2, c, to, columns, a, of + done, a_row, 1, b, panel + skip, 2 * lane, rest)
                    i += 1
            at += 2 * lane
        else:
            skip = done * lane
            while i < rows:
                to, of = c_at + i * columns + at, a_at + i * a_row
                if rows - i > 1:
                    if BY_ELEMENT:
                        add_fours(BLOCK, 1, c, to, columns, a, of, a_row, b, panel, fours)
                    if rest:
                        add_product(BLOCK, 1, c, to, columns, a, of + done, a_row, 1, b, panel + skip, lane, rest)
                    i += BLOCK
                else:
                    if BY_ELEMENT:
                        add_fours(1, 1, c, to, columns, a, of, a_row, b, panel, fours)
                    if rest:
                        add_product(1, 1, c, to, columns, a, of + done, a_row, 1, b, panel + skip, lane, rest)
                    i += 1
            at += lane


@njit(nogil=True, cache=True, error_model="numpy")
def spread(weight, bias, work, to, rows, columns):
    """Every row a copy of the bias."""
    for i in range(rows):
        for k in range(columns):
            work[to + i * columns + k] = weight[bias + k]
