"""Vectors in Numba kernels: lists of points that are tested, filtered and scanned many lanes at a time.

A list holds its points plane by plane: one run of floats for each dimension and one of int32 ids, `stride` bytes apart.
It is padded with NaN to a whole number of vectors, which no comparison lets through. Kernels pass raw addresses.

The intrinsics emit LLVM vectors, which every CPU has in some width; Numba itself does not vectorise loops that keep
some elements and drop others. AVX-512 compresses the selected lanes in one instruction; other targets visit them one by
one. Both give the same lists. Nothing here lets LLVM fuse or reorder arithmetic.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from gridless.kernels.compile import njit
from gridless.kernels.llvm import I32, I64, cpu_features, first_bit, float_type, splat


def has_compress() -> bool:
    """True if kernels are compiled for a CPU that can pack the chosen lanes of a vector."""
    return {"+avx512f", "+avx512vl"} <= cpu_features()


def _float(ty: types.Type) -> tuple[ir.Type, int]:
    return float_type(ty), 64 // (ty.bitwidth // 8)


def _load(builder: ir.IRBuilder, address: ir.Value, ty: ir.Type, align: int) -> ir.Value:
    pointer = builder.inttoptr(address, ty.as_pointer())
    return builder.load(pointer, align=align, typ=ty) if _OPAQUE else builder.load(pointer, align=align)


_OPAQUE = "typ" in ir.IRBuilder.load.__code__.co_varnames


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def _planes(builder: ir.IRBuilder, at: ir.Value, stride: ir.Value, dim: int, ty: ir.Type, width: int) -> list[ir.Value]:
    vector, align = ir.VectorType(ty, width), 64 // width
    return [_load(builder, builder.add(at, builder.mul(stride, I64(d))), vector, align) for d in range(dim)]


def _as_bits(builder: ir.IRBuilder, mask: ir.Value, width: int) -> ir.Value:
    return builder.zext(builder.bitcast(mask, ir.IntType(width)), I64)


def _as_mask(builder: ir.IRBuilder, bits: ir.Value, width: int) -> ir.Value:
    return builder.bitcast(builder.trunc(bits, ir.IntType(width)), ir.VectorType(ir.IntType(1), width))


@njit(nogil=True, cache=True)
def address(array):
    """Address of an array's data, as a signed number."""
    return np.int64(array.ctypes.data)


@intrinsic
def load_point(typingctx, at, stride, axes, like):
    """The coordinates at `at`, one from each plane, as a tuple of `len(axes)` floats of the type of `like`."""
    result = types.UniTuple(like, len(axes))

    def codegen(context, builder, signature, args):
        ty = _float(like)[0]
        values = [
            _load(builder, builder.add(args[0], builder.mul(args[1], I64(d))), ty, like.bitwidth // 8)
            for d in range(len(axes))
        ]
        return context.make_tuple(builder, result, values)

    return result(types.int64, types.int64, axes, like), codegen


@intrinsic
def ball_mask(typingctx, at, stride, point, reach):
    """Bits of the lanes whose squared distance to `point` is <= reach, rounded after every operation."""

    def codegen(context, builder, signature, args):
        ty, width = _float(reach)
        total = None
        values = cgutils.unpack_tuple(builder, args[2], len(point))
        for x, p in zip(_planes(builder, args[0], args[1], len(point), ty, width), values, strict=True):
            d = builder.fsub(x, splat(builder, p, width))
            square = builder.fmul(d, d)
            total = square if total is None else builder.fadd(total, square)
        return _as_bits(builder, builder.fcmp_ordered("<=", total, splat(builder, args[3], width)), width)

    return types.uint64(types.int64, types.int64, point, reach), codegen


def _side_mask(test: str):
    @intrinsic
    def side_mask(typingctx, at, bound):
        def codegen(context, builder, signature, args):
            ty, width = _float(bound)
            x = _load(builder, args[0], ir.VectorType(ty, width), 64 // width)
            return _as_bits(builder, builder.fcmp_ordered(test, x, splat(builder, args[1], width)), width)

        return types.uint64(types.int64, bound), codegen

    return side_mask


_below_mask = _side_mask("<=")
_above_mask = _side_mask(">")


@intrinsic
def plane_bounds(typingctx, at, vectors, like):
    """The smallest and largest number of a plane of `vectors` vectors; NaN is passed over."""
    result = types.UniTuple(like, 2)

    def codegen(context, builder, signature, args):
        ty, width = _float(like)
        vector = ir.VectorType(ty, width)
        infinity = splat(builder, ir.Constant(ty, float("inf")), width)
        low = cgutils.alloca_once_value(builder, infinity)
        high = cgutils.alloca_once_value(builder, builder.fneg(infinity))
        with cgutils.for_range(builder, args[1]) as loop:
            x = _load(builder, builder.add(args[0], builder.mul(loop.index, I64(64))), vector, 64 // width)
            a, b = builder.load(low), builder.load(high)
            builder.store(builder.select(builder.fcmp_ordered("<", x, a), x, a), low)
            builder.store(builder.select(builder.fcmp_ordered(">", x, b), x, b), high)
        ends = []
        for bound, test in ((builder.load(low), "<"), (builder.load(high), ">")):
            v, n = bound, width
            while n > 1:
                n //= 2
                order = ir.Constant(ir.VectorType(I32, width), [(i % n) + n if i < n else i for i in range(width)])
                other = builder.shuffle_vector(v, v, order)
                v = builder.select(builder.fcmp_ordered(test, v, other), v, other)
            ends.append(builder.extract_element(v, I32(0)))
        return context.make_tuple(builder, result, ends)

    return result(types.int64, types.int64, like), codegen


@intrinsic
def copy_vector(typingctx, source, to):
    """Copy 64 bytes."""

    def codegen(context, builder, signature, args):
        _store(builder, _load(builder, args[0], ir.VectorType(I32, 16), 4), args[1], 4)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx, at):
    """Ask for the cache line of an address that will be written."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        name = "llvm.prefetch.p0" if _OPAQUE else "llvm.prefetch.p0i8"
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [pointer, I32(1), I32(3), I32(1)])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@intrinsic
def store_scalar(typingctx, to, value):
    """Write a number at an address."""

    def codegen(context, builder, signature, args):
        _store(builder, args[1], args[0], value.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(types.int64, value), codegen


@intrinsic
def _load_scalar(typingctx, at, like):
    def codegen(context, builder, signature, args):
        return _load(builder, args[0], context.get_value_type(like), like.bitwidth // 8)

    return like(types.int64, like), codegen


@intrinsic
def size_of(typingctx, like):
    """Bytes of a number of this type."""
    return types.int64(like), lambda context, builder, signature, args: I64(like.bitwidth // 8)


@intrinsic
def load_id(typingctx, at):
    """The int32 at an address."""

    def codegen(context, builder, signature, args):
        return _load(builder, args[0], I32, 4)

    return types.int32(types.int64), codegen


@intrinsic
def _count_bits(typingctx, bits):
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@intrinsic
def _compress(typingctx, at, bits, to, like, narrow):
    """Pack the chosen lanes of the vector at `at` and write a whole vector at `to`. AVX-512 only.

    The elements have the type of `like`; a vector has as many as there are floats of the type of `narrow` in 64 bytes.
    """

    def codegen(context, builder, signature, args):
        width = _float(narrow)[1]
        ty = context.get_value_type(like)
        vector = ir.VectorType(ty, width)
        letter = "i" if isinstance(like, types.Integer) else "f"
        name = f"llvm.x86.avx512.mask.compress.v{width}{letter}{like.bitwidth}"
        mask = _as_mask(builder, args[1], width)
        kind = ir.FunctionType(vector, [vector, vector, mask.type])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        x = _load(builder, args[0], vector, like.bitwidth // 8)
        packed = builder.call(function, [x, ir.Constant(vector, ir.Undefined), mask])
        _store(builder, packed, args[2], like.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.uint64, types.int64, like, narrow), codegen


@intrinsic
def _fill_nan(typingctx, to, like):
    """Write a vector of NaN."""

    def codegen(context, builder, signature, args):
        ty, width = _float(like)
        _store(builder, splat(builder, ir.Constant(ty, float("nan")), width), args[0], 64 // width)
        return context.get_dummy_value()

    return types.none(types.int64, like), codegen


def _append(at, stride, ids, bits, to, to_stride, to_ids, axes, like):
    """Append the chosen lanes of every plane and their ids; up to a vector behind them may be overwritten."""


@overload(_append)
def _append_for_target(at, stride, ids, bits, to, to_stride, to_ids, axes, like):
    dim = len(axes)
    size = like.bitwidth // 8
    if has_compress():

        def packed(at, stride, ids, bits, to, to_stride, to_ids, axes, like):
            for d in range(dim):
                _compress(at + d * stride, bits, to + d * to_stride, like, like)
            _compress(ids, bits, to_ids, np.int32(0), like)

        return packed

    def one_by_one(at, stride, ids, bits, to, to_stride, to_ids, axes, like):
        k = 0
        while bits:
            lane = first_bit(bits)
            for d in range(dim):
                store_scalar(to + d * to_stride + k * size, _load_scalar(at + d * stride + lane * size, like))
            store_scalar(to_ids + k * 4, load_id(ids + lane * 4))
            k += 1
            bits &= bits - np.uint64(1)

    return one_by_one


@njit(nogil=True, cache=True, inner=True)
def halve(at, stride, count, left, left_stride, right, right_stride, axis, upper, lower, axes):
    """Copy the points with x[axis] <= upper to one list and those with x[axis] > lower to another, in order.

    Returns how many each has. Both lists have room for a vector more.
    """
    size, width = size_of(upper), 64 // size_of(upper)
    dim, a, b = len(axes), 0, 0
    ids, left_ids, right_ids = at + dim * stride, left + dim * left_stride, right + dim * right_stride
    for first in range(0, count, width):
        here = at + first * size
        bits = _below_mask(here + axis * stride, upper)
        _append(here, stride, ids + first * 4, bits, left + a * size, left_stride, left_ids + a * 4, axes, upper)
        a += _count_bits(bits)
        bits = _above_mask(here + axis * stride, lower)
        _append(here, stride, ids + first * 4, bits, right + b * size, right_stride, right_ids + b * 4, axes, upper)
        b += _count_bits(bits)
    for d in range(dim):
        _fill_nan(left + d * left_stride + a * size, upper)
        _fill_nan(right + d * right_stride + b * size, upper)
    return a, b


@njit(nogil=True, cache=True)
def pick(at, stride, count, low, high, to, to_stride, axes):
    """Copy the points with low < x <= high in every dimension to a list that has room for a vector more, in order."""
    like, dim, n = low[0], len(axes), 0
    size = size_of(like)
    for first in range(0, count, 64 // size):
        here, bits = at + first * size, ~np.uint64(0)
        for d in range(dim):
            bits &= _above_mask(here + d * stride, low[d]) & _below_mask(here + d * stride, high[d])
        ids, to_ids = at + dim * stride + first * 4, to + dim * to_stride + n * 4
        _append(here, stride, ids, bits, to + n * size, to_stride, to_ids, axes, like)
        n += _count_bits(bits)
    for d in range(dim):
        _fill_nan(to + d * to_stride + n * size, like)


def scan_ball(at, stride, count, point, reach, out):
    """Write the ids of the points of a list within reach of `point`, in order; return how many."""


@overload(scan_ball)
def _scan_ball_for_target(at, stride, count, point, reach, out):
    dim, size = len(point), reach.bitwidth // 8
    width = 64 // size
    if has_compress():

        def packed(at, stride, count, point, reach, out):
            ids, end = at + dim * stride, out
            for first in range(0, count, width):
                bits = ball_mask(at + first * size, stride, point, reach)
                _compress(ids + first * 4, bits, end, np.int32(0), reach)
                end += 4 * _count_bits(bits)
            return (end - out) // 4

        return packed

    def word_by_word(at, stride, count, point, reach, out):
        ids, end = at + dim * stride, out
        for block in range(0, count, 64):
            word = np.uint64(0)
            for first in range(block, min(block + 64, count), width):
                bits = ball_mask(at + first * size, stride, point, reach)
                word |= bits << np.uint64(first - block)
            while word:
                store_scalar(end, load_id(ids + 4 * (block + first_bit(word))))
                end += 4
                word &= word - np.uint64(1)
        return (end - out) // 4

    return word_by_word


@njit(nogil=True, cache=True, inner=True)
def count_ball(at, stride, count, point, reach):
    """Count the points of a list within reach of `point`."""
    size, total = size_of(reach), 0
    for first in range(0, count, 64 // size):
        total += _count_bits(ball_mask(at + first * size, stride, point, reach))
    return total
