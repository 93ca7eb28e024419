"""Small matrix products in Numba kernels, in LLVM vectors: the one building block of the CPU convolution.

    c[i] += sum over k < steps of a(i, k) b(k)        i < rows, b(k) a run of `width` vectors

The sums stay in registers while k runs. `a(i, k)` lies at a_at + i a_row + k a_step and b(k) at b_at + k b_row; in
`add_gathered` it lies at b_at + index[index_at + k] b_row, so that b is gathered while it is multiplied. All offsets
count elements from the beginning of the arrays, which must be contiguous and of one float type. Nothing is checked
here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gridless.kernels.compile import njit
from gridless.kernels.llvm import I64, cpu_features, element, float_type, splat

_WIDE = "+avx512f" in cpu_features()
_VECTOR_BYTES = 64 if _WIDE else 32 if "+avx" in cpu_features() else 16

# Rows of a block: with two vectors each they fill the registers (32 with AVX-512, else 16) and leave room for b.
BLOCK = 8 if _WIDE else 4
# Steps whose panel of b, two vectors wide, fills a third of the first-level cache.
STEPS = 128


def lanes(dtype: Any) -> int:
    """Elements of a vector."""
    return _VECTOR_BYTES // np.dtype(dtype).itemsize


def _vectors(builder, pointer, vector, count):
    """Pointers to `count` vectors, one behind the other."""
    first = builder.bitcast(pointer, vector.as_pointer())
    return [builder.gep(first, [I64(n)], inbounds=True) for n in range(count)]


def _emit(context, builder, signature, args, gathered):
    rows, width = signature.args[0].literal_value, signature.args[1].literal_value
    c_ty, a_ty, b_ty = signature.args[2], signature.args[5], signature.args[9]
    c_at, c_row, a_at, a_row, a_step, b_at, b_row, steps = (args[n] for n in (3, 4, 6, 7, 8, 10, 11, 12))
    size = c_ty.dtype.bitwidth // 8
    vector = ir.VectorType(float_type(c_ty.dtype), _VECTOR_BYTES // size)

    def at_row(i):
        return builder.add(c_at, builder.mul(c_row, I64(i)))

    places = [
        p for i in range(rows)
        for p in _vectors(builder, element(context, builder, c_ty, args[2], at_row(i)), vector, width)
    ]  # fmt: skip
    before = [builder.load(p, align=size) for p in places]
    a_rows = [
        element(context, builder, a_ty, args[5], builder.add(a_at, builder.mul(a_row, I64(i)))) for i in range(rows)
    ]
    b_base = element(context, builder, b_ty, args[9], b_at)
    if gathered:
        index = element(context, builder, signature.args[13], args[13], args[14])

    entry = builder.block
    body, done = builder.append_basic_block("body"), builder.append_basic_block("done")
    builder.cbranch(builder.icmp_signed(">", steps, I64(0)), body, done)

    builder.position_at_end(body)
    k = builder.phi(I64)
    sums = [builder.phi(vector) for _ in places]
    k.add_incoming(I64(0), entry)
    row = builder.sext(builder.load(builder.gep(index, [k], inbounds=True)), I64) if gathered else k
    b_pointer = builder.gep(b_base, [builder.mul(row, b_row)], inbounds=True)
    b = [builder.load(p, align=size) for p in _vectors(builder, b_pointer, vector, width)]
    along = builder.mul(k, a_step)
    after = []
    for i in range(rows):
        a = splat(builder, builder.load(builder.gep(a_rows[i], [along], inbounds=True)), vector.count)
        for n in range(width):
            # Allowed to contract: one fused instruction where the CPU has it.
            product = builder.fmul(a, b[n], flags=("contract",))
            after.append(builder.fadd(sums[i * width + n], product, flags=("contract",)))
    following = builder.add(k, I64(1))
    k.add_incoming(following, body)
    for total, first, last in zip(sums, before, after):
        total.add_incoming(first, entry)
        total.add_incoming(last, body)
    builder.cbranch(builder.icmp_signed("<", following, steps), body, done)

    builder.position_at_end(done)
    results = [builder.phi(vector) for _ in places]
    for place, result, first, last in zip(places, results, before, after):
        result.add_incoming(first, entry)
        result.add_incoming(last, body)
        builder.store(result, place, align=size)
    return context.get_dummy_value()


@intrinsic(prefer_literal=True)
def add_product(typingctx, rows, width, c, c_at, c_row, a, a_at, a_row, a_step, b, b_at, b_row, steps):
    """c[rows x width vectors] += a b, see above; `rows` and `width` are literal numbers."""
    at = types.int64
    signature = types.none(rows, width, c, at, at, a, at, at, at, b, at, at, at)
    return signature, lambda *arguments: _emit(*arguments, gathered=False)


@intrinsic(prefer_literal=True)
def add_gathered(
    typingctx, rows, width, c, c_at, c_row, a, a_at, a_row, a_step, b, b_at, b_row, steps, index, index_at
):
    """The same, with the row index[index_at + k] of b at step k."""
    at = types.int64
    signature = types.none(rows, width, c, at, at, a, at, at, at, b, at, at, at, index, at)
    return signature, lambda *arguments: _emit(*arguments, gathered=True)


@njit(nogil=True, cache=True, inner=True)
def matmul(c, a, a_row, packed, rows, columns, steps, lane):
    """c (rows, columns) += a (rows, steps) b: rows a multiple of BLOCK, columns of a vector, b as `pack` left it."""
    for column in range(0, columns, 2 * lane):
        # Some steps at a time, so that their rows of b stay in the first-level cache while all rows of a pass.
        for k in range(0, steps, STEPS):
            step_count = min(STEPS, steps - k)
            # A step of 1 and a row of b of known length let LLVM count with one register.
            if column + 2 * lane <= columns:
                b_at = column * steps + k * 2 * lane
                for i in range(0, rows, BLOCK):
                    at, a_at = i * columns + column, i * a_row + k
                    add_product(BLOCK, 2, c, at, columns, a, a_at, a_row, 1, packed, b_at, 2 * lane, step_count)
            else:
                b_at = column * steps + k * lane
                for i in range(0, rows, BLOCK):
                    at, a_at = i * columns + column, i * a_row + k
                    add_product(BLOCK, 1, c, at, columns, a, a_at, a_row, 1, packed, b_at, lane, step_count)


@njit(nogil=True, cache=True, inner=True)
def matmul_transposed(c, a, a_at, a_row, b, b_row, rows, columns, steps, lane):
    """c (rows, columns) += a^T b, with a (steps, rows) and b (steps, columns); multiples as above."""
    for column in range(0, columns, 2 * lane):
        if column + 2 * lane <= columns:
            for i in range(0, rows, BLOCK):
                at = i * columns + column
                add_product(BLOCK, 2, c, at, columns, a, a_at + i, 1, a_row, b, column, b_row, steps)
        else:
            for i in range(0, rows, BLOCK):
                at = i * columns + column
                add_product(BLOCK, 1, c, at, columns, a, a_at + i, 1, a_row, b, column, b_row, steps)


@njit(nogil=True, cache=True, inner=True)
def gather(c, c_at, a, a_at, a_row, b, b_at, b_row, rows, columns, steps, index, index_at, lane):
    """c (rows, columns) += a (rows, steps) b[index] (steps, columns), for any number of rows."""
    for column in range(0, columns, 2 * lane):
        i = 0
        if column + 2 * lane <= columns:
            while i + 4 <= rows:
                at, a_i = c_at + i * columns + column, a_at + i * a_row
                add_gathered(4, 2, c, at, columns, a, a_i, a_row, 1, b, b_at + column, b_row, steps, index, index_at)
                i += 4
            while i < rows:
                at, a_i = c_at + i * columns + column, a_at + i * a_row
                add_gathered(1, 2, c, at, columns, a, a_i, a_row, 1, b, b_at + column, b_row, steps, index, index_at)
                i += 1
        else:
            while i + 4 <= rows:
                at, a_i = c_at + i * columns + column, a_at + i * a_row
                add_gathered(4, 1, c, at, columns, a, a_i, a_row, 1, b, b_at + column, b_row, steps, index, index_at)
                i += 4
            while i < rows:
                at, a_i = c_at + i * columns + column, a_at + i * a_row
                add_gathered(1, 1, c, at, columns, a, a_i, a_row, 1, b, b_at + column, b_row, steps, index, index_at)
                i += 1


def padded(channels: int, dtype: Any) -> int:
    """Channels rounded up to whole vectors and whole blocks."""
    unit = max(lanes(dtype), BLOCK)
    return -(-channels // unit) * unit


def pack(b: np.ndarray) -> np.ndarray:
    """The columns of b (steps, columns) in panels of two vectors, each contiguous, the last one possibly of one."""
    wide = 2 * lanes(b.dtype)
    steps, columns = b.shape
    whole = columns - columns % wide
    panels = b[:, :whole].reshape(steps, -1, wide).transpose(1, 0, 2)
    return np.concatenate([panels.ravel(), b[:, whole:].ravel()])
