"""Vector code over one block of 64 points, boxes or distances at a time.

Numba does not vectorise searches for a minimum or maximum, so these few steps are written in LLVM's own vectors of 64
bytes. LLVM breaks them up for machines with shorter ones. No operation is fused or reordered: d2 is rounded as
specified.

A block is stored axis by axis: coordinate d of point l of block b is at (b * dim + d) * 64 + l.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gridless.kernels.llvm import I32, I64, element, float_type, splat

BLOCK = 64


class _Emit:
    """Shorthands for emitting vector code over arrays of one float type."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context, self.builder = context, builder
        self.bits = dtype.bitwidth
        self.lanes = 512 // self.bits
        self.parts = BLOCK // self.lanes
        self.vector = ir.VectorType(float_type(dtype), self.lanes)

    def pointer(self, array_type: Any, array: Any, offset: Any) -> Any:
        """The address of element `offset`."""
        return element(self.context, self.builder, array_type, array, offset)

    def load(self, pointer: Any, part: int) -> Any:
        return self.builder.load(self._at(pointer, part), align=self.bits // 8)

    def store(self, value: Any, pointer: Any, part: int) -> None:
        self.builder.store(value, self._at(pointer, part), align=self.bits // 8)

    def _at(self, pointer: Any, part: int) -> Any:
        moved = self.builder.gep(pointer, [I64(part * self.lanes)])
        return self.builder.bitcast(moved, self.vector.as_pointer())

    def splat(self, value: Any) -> Any:
        return splat(self.builder, value, self.lanes)

    def zeros(self) -> Any:
        return ir.Constant(self.vector, [0.0] * self.lanes)

    def larger(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def smaller(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def over_axes(self, dim: Any, step: Any) -> list[Any]:
        """Sums of squares, for each part: `step(d)` gives the differences along axis d."""
        builder = self.builder
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        d = builder.phi(I64)
        sums = [builder.phi(self.vector) for _ in range(self.parts)]
        totals = [builder.fadd(s, builder.fmul(x, x)) for s, x in zip(sums, step(d), strict=True)]
        following = builder.add(d, I64(1))
        end = builder.block
        builder.cbranch(builder.icmp_signed("<", following, dim), loop, after)
        d.add_incoming(I64(0), before)
        d.add_incoming(following, end)
        for s, t in zip(sums, totals, strict=True):
            s.add_incoming(self.zeros(), before)
            s.add_incoming(t, end)
        builder.position_at_end(after)
        return totals

    def mask(self, conditions: list[Any]) -> Any:
        """One bit for each point of a block."""
        builder, word = self.builder, I64(0)
        for part, condition in enumerate(conditions):
            bits = builder.zext(builder.bitcast(condition, ir.IntType(self.lanes)), I64)
            word = builder.or_(word, builder.shl(bits, I64(part * self.lanes)))
        return word

    def largest(self, vectors: list[Any]) -> Any:
        """The largest of all lanes."""
        while len(vectors) > 1:
            pairs = [self.larger(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
            vectors = pairs
        vector = vectors[0]
        while vector.type.count > 1:
            vector = self.larger(*self._halves(vector))
        return self.builder.extract_element(vector, I32(0))

    def fold(self, vectors: list[Any]) -> list[Any]:
        """Half as many values, each the smaller of two."""
        half = len(vectors) // 2
        if half:
            return [self.smaller(a, b) for a, b in zip(vectors[:half], vectors[half:], strict=True)]
        return [self.smaller(*self._halves(vectors[0]))]

    def _halves(self, vector: Any) -> list[Any]:
        half = vector.type.count // 2
        nothing, whole = ir.Constant(vector.type, ir.Undefined), ir.VectorType(I32, half)
        orders = [list(range(half)), list(range(half, 2 * half))]
        return [self.builder.shuffle_vector(vector, nothing, ir.Constant(whole, order)) for order in orders]


def _squares(emit, x, coords, block, dim, point, own):
    """The squared distances from a point to the points of a block."""
    builder = emit.builder
    start = emit.pointer(x, coords, builder.mul(builder.mul(block, I64(BLOCK)), dim))

    def step(d):
        coordinate = emit.splat(builder.load(emit.pointer(point, own, d)))
        axis = builder.gep(start, [builder.mul(d, I64(BLOCK))])
        return [builder.fsub(emit.load(axis, part), coordinate) for part in range(emit.parts)]

    return emit.over_axes(dim, step)


@intrinsic
def lower(typingctx, x, block, dim, point, closest):
    """Lower the squared distances `closest` of a block to those from `point`; returns the largest of them."""

    def code(context, builder, signature, arguments):
        emit = _Emit(context, builder, x.dtype)
        coords, at, axes, own, distances = arguments
        block = emit.pointer(closest, distances, builder.mul(at, I64(BLOCK)))
        values = []
        for part, total in enumerate(_squares(emit, x, coords, at, axes, point, own)):
            values.append(emit.smaller(total, emit.load(block, part)))
            emit.store(values[-1], block, part)
        return emit.largest(values)

    return x.dtype(x, types.int64, types.int64, point, closest), code


@intrinsic
def distances(typingctx, x, block, dim, point, bound, out):
    """The squared distances of a block to `point`, written to `out`; returns a mask of those not above `bound`."""

    def code(context, builder, signature, arguments):
        emit = _Emit(context, builder, x.dtype)
        coords, at, axes, own, limit, place = arguments
        block, limits, inside = emit.pointer(out, place, I64(0)), emit.splat(limit), []
        for part, total in enumerate(_squares(emit, x, coords, at, axes, point, own)):
            emit.store(total, block, part)
            inside.append(builder.fcmp_ordered("<=", total, limits))
        return emit.mask(inside)

    return types.uint64(x, types.int64, types.int64, point, x.dtype, out), code


def _gaps(emit, low, high, lows, highs, block, dim, point, own):
    """The squared distances from a point to the boxes of a block.

    They are rounded as those to points; rounding is monotone, so no point inside a box has a smaller one.
    """
    builder = emit.builder
    offset = builder.mul(builder.mul(block, I64(BLOCK)), dim)
    low_start, high_start = emit.pointer(low, lows, offset), emit.pointer(high, highs, offset)

    def step(d):
        coordinate = emit.splat(builder.load(emit.pointer(point, own, d)))
        shift = builder.mul(d, I64(BLOCK))
        below, above = builder.gep(low_start, [shift]), builder.gep(high_start, [shift])
        gaps = []
        for part in range(emit.parts):
            left = builder.fsub(emit.load(below, part), coordinate)
            right = builder.fsub(coordinate, emit.load(above, part))
            gaps.append(emit.larger(emit.larger(left, right), emit.zeros()))
        return gaps

    return emit.over_axes(dim, step)


@intrinsic
def touched(typingctx, low, high, block, dim, point, most):
    """A mask of the boxes of a block that are nearer to `point` than their `most`, in squared distance."""

    def code(context, builder, signature, arguments):
        emit = _Emit(context, builder, low.dtype)
        lows, highs, at, axes, own, mosts = arguments
        gaps = _gaps(emit, low, high, lows, highs, at, axes, point, own)
        block = emit.pointer(most, mosts, builder.mul(at, I64(BLOCK)))
        return emit.mask([builder.fcmp_ordered("<", gap, emit.load(block, p)) for p, gap in enumerate(gaps)])

    return types.uint64(low, high, types.int64, types.int64, point, most), code


@intrinsic
def reached(typingctx, low, high, block, dim, point, bound):
    """A mask of the boxes of a block whose squared distance to `point` is not above `bound`."""

    def code(context, builder, signature, arguments):
        emit = _Emit(context, builder, low.dtype)
        lows, highs, at, axes, own, limit = arguments
        limits = emit.splat(limit)
        gaps = _gaps(emit, low, high, lows, highs, at, axes, point, own)
        return emit.mask([builder.fcmp_ordered("<=", gap, limits) for gap in gaps])

    return types.uint64(low, high, types.int64, types.int64, point, low.dtype), code


@intrinsic
def insert(typingctx, values, vectors, value):
    """Put `value` in its place among ascending values; the last one falls out.

    `values` is one vector of -inf, and then as many vectors as are kept.
    """

    def code(context, builder, signature, arguments):
        emit = _Emit(context, builder, values.dtype)
        array, count, one = arguments
        new = emit.splat(one)
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        v = builder.phi(I64)
        v.add_incoming(count, before)
        here = emit.pointer(values, array, builder.mul(v, I64(emit.lanes)))
        # Whole vectors are read, as they were written, and moved up by one place in registers: that does not wait
        # for memory. Vectors are written from the last to the first, so what moves up is still the old value.
        vector, vector_before = emit.load(here, 0), emit.load(here, -1)
        up = ir.Constant(ir.VectorType(I32, emit.lanes), list(range(emit.lanes - 1, 2 * emit.lanes - 1)))
        moved = builder.shuffle_vector(vector_before, vector, up)
        emit.store(emit.larger(moved, emit.smaller(vector, new)), here, 0)
        following = builder.sub(v, I64(1))
        v.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed(">", following, I64(0)), loop, after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(values, types.int64, values.dtype), code


@intrinsic
def largest(typingctx, values, block):
    """The largest value of a block."""

    def code(context, builder, signature, arguments):
        emit = _Emit(context, builder, values.dtype)
        block = emit.pointer(values, arguments[0], builder.mul(arguments[1], I64(BLOCK)))
        return emit.largest([emit.load(block, part) for part in range(emit.parts)])

    return values.dtype(values, types.int64), code


def _compared(test: str):
    @intrinsic
    def compared(typingctx, values, block, bound):
        def code(context, builder, signature, arguments):
            emit = _Emit(context, builder, values.dtype)
            block = emit.pointer(values, arguments[0], builder.mul(arguments[1], I64(BLOCK)))
            limit = emit.splat(arguments[2])
            return emit.mask([builder.fcmp_ordered(test, emit.load(block, p), limit) for p in range(emit.parts)])

        return types.uint64(values, types.int64, values.dtype), code

    return compared


# Masks of the values of a block that equal a number, and of those that are not above it.
equal = _compared("==")
within = _compared("<=")


@intrinsic
def enough(typingctx, values, k):
    """A bound that at least k of 64 values do not exceed: the largest of the least of k or more groups of them."""

    def code(context, builder, signature, arguments):
        emit = _Emit(context, builder, values.dtype)
        block = emit.pointer(values, arguments[0], I64(0))
        vectors = [emit.load(block, part) for part in range(emit.parts)]
        groups, bound = BLOCK, emit.largest(vectors)
        while groups > 8:
            groups //= 2
            vectors = emit.fold(vectors)
            fits = builder.icmp_signed("<=", arguments[1], I64(groups))
            bound = builder.select(fits, emit.largest(vectors), bound)
        return bound

    return values.dtype(values, types.int64), code
