"""The small products of the live engine: lists of rows times weights that lie in panels."""

# pyright: reportCallIssue=false

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gridless.kernels.compile import njit
from gridless.kernels.llvm import I32, I64, element, splat
from gridless.kernels.products import BLOCK, lanes
from gridless.live.simd import copy
from gridless.live.table import A_KEPT, A_PITCH, B_KEPT, KEPT, PITCH, VALUE, A, B

# ARM multiplies a vector by one element of another in one instruction, which costs as much as spreading an element
# from memory. The kernel therefore reads four steps as one vector: 4 rows of 4 vectors reach 95 % of the peak of a
# Neoverse N1 (20 G multiply-adds/s).
BY_ELEMENT = platform.machine() in ("aarch64", "arm64") and lanes(np.float32) == 4
# Vectors of a panel, and of the last one where columns are left over.
PANEL = 4 if BY_ELEMENT else 2
HALF = PANEL // 2


@intrinsic(prefer_literal=True)
def _add(
    typingctx: Any, width: Any, f: Any, c_at: Any, c_row: Any, i: Any, list_at: Any, a_at: Any, a_row: Any, b_at: Any,
    rows: Any, steps: Any,
) -> Any:  # fmt: skip
    """f[c_at + i[list_at + k] c_row:] += sum over steps of a(k) b, for k < rows <= BLOCK: `width` vectors of each.

    a(k) lies at a_at + k a_row, b at b_at, all in f. Steps are a multiple of 4, above 0; `width` is a literal number.
    """
    vector = ir.VectorType(ir.FloatType(), lanes(np.float32))

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w = signature.args[0].literal_value
        _, f, c_at, c_row, i, list_at, a_at, a_row, b_at, rows, steps = args

        def floats(at: Any, kind: ir.Type = vector) -> Any:
            return builder.bitcast(element(context, builder, signature.args[1], f, at), kind.as_pointer())

        def kernel(n: int) -> None:
            lists = [element(context, builder, signature.args[4], i, builder.add(list_at, I64(k))) for k in range(n)]
            firsts = [floats(builder.add(c_at, builder.mul(builder.load(row), c_row))) for row in lists]
            places = [builder.gep(first, [I64(m)], inbounds=True) for first in firsts for m in range(w)]
            before = [builder.load(place, align=4) for place in places]
            kind = vector if BY_ELEMENT else ir.FloatType()
            of = [floats(builder.add(a_at, builder.mul(a_row, I64(k))), kind) for k in range(n)]
            panel, entry = floats(b_at), builder.block
            body, out = builder.append_basic_block("body"), builder.append_basic_block("out")
            builder.branch(body)

            builder.position_at_end(body)
            step, sums = builder.phi(I64), [builder.phi(vector) for _ in places]
            step.add_incoming(I64(0), entry)
            if BY_ELEMENT:
                fours = [builder.load(builder.gep(row, [builder.lshr(step, I64(2))]), align=4) for row in of]
            after: list[Any] = list(sums)
            for k in range(4):
                here = builder.add(step, I64(k))
                at = builder.mul(here, I64(w))
                weights = [
                    builder.load(builder.gep(panel, [builder.add(at, I64(m))], inbounds=True), align=4)
                    for m in range(w)
                ]
                for j in range(n):
                    if BY_ELEMENT:
                        lane = ir.Constant(ir.VectorType(I32, 4), [k] * 4)
                        one = builder.shuffle_vector(fours[j], ir.Constant(vector, ir.Undefined), lane)
                    else:
                        one = splat(builder, builder.load(builder.gep(of[j], [here], inbounds=True)), vector.count)
                    for m in range(w):
                        # Allowed to contract: one fused instruction where the CPU has it.
                        product = builder.fmul(one, weights[m], flags=("contract",))
                        after[j * w + m] = builder.fadd(after[j * w + m], product, flags=("contract",))
            following = builder.add(step, I64(4))
            step.add_incoming(following, body)
            for total, first, last in zip(sums, before, after, strict=True):
                total.add_incoming(first, entry)
                total.add_incoming(last, body)
            builder.cbranch(builder.icmp_signed("<", following, steps), body, out)

            builder.position_at_end(out)
            for place, total in zip(places, after, strict=True):
                builder.store(total, place, align=4)

        done = builder.append_basic_block("done")
        choice = builder.switch(rows, done)
        for n in range(1, BLOCK + 1):
            case = builder.append_basic_block(f"rows{n}")
            choice.add_case(I64(n), case)
            builder.position_at_end(case)
            kernel(n)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    at = types.int64
    return types.none(width, f, at, at, i, at, at, at, at, at, at), emit


@njit(nogil=True, cache=True, error_model="numpy")
def product(f, c_at, columns, i, list_at, a_at, b_at, rows, steps, lane):
    """c[list] (rows, columns) += a (rows, steps) b (steps, columns), columns a whole number of vectors.

    The list names rows of c; rows of a are contiguous. b lies in panels (the last may be half as wide): all steps of
    the first panel, then those of the next, so that weights are read once and in order. No row depends on the others.
    """
    at = 0
    while at < columns:
        panel = b_at + at * steps
        if at + PANEL * lane <= columns:
            for k in range(0, rows, BLOCK):
                n = min(BLOCK, rows - k)
                _add(PANEL, f, c_at + at, columns, i, list_at + k, a_at + k * steps, steps, panel, n, steps)
            at += PANEL * lane
        else:
            for k in range(0, rows, BLOCK):
                n = min(BLOCK, rows - k)
                _add(HALF, f, c_at + at, columns, i, list_at + k, a_at + k * steps, steps, panel, n, steps)
            at += HALF * lane


@njit(nogil=True, cache=True, error_model="numpy")
def spread(f, bias, to, rows, columns):
    """Copy the bias into every row."""
    for k in range(rows):
        for c in range(0, columns, 8):
            copy(f, to + k * columns + c, bias + c)


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def places(i, r, first):
    """Indices of the value of row r and of its inputs a and b, for the events from `first` on."""
    pitch = i[r + PITCH]
    to = i[r + VALUE] + (first * pitch if i[r + KEPT] else 0)
    a = i[r + A] + (first * i[r + A_PITCH] if i[r + A_KEPT] else 0)
    b = i[r + B] + (first * pitch if i[r + B_KEPT] else 0)
    return to, a, b
