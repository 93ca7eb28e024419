"""Eight or sixteen float32 at a time, in LLVM vectors: the traces of the live engine fade, take in, and are read.

LLVM does not vectorise these loops by itself: they are short, and their arrays might overlap for all it knows. Offsets
count elements from the beginning of the arrays. Nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gridless.kernels.llvm import I32, element, splat
from gridless.ops.event_conv.reference import CUTOFF

_F32 = ir.FloatType()

# What a trace of less than this could add is lost in the rounding of any sum; zero is cheaper than subnormal numbers.
_TINY = 1e-30


def _all(value: float, kind: ir.Type = _F32, count: int = 8) -> ir.Constant:
    return ir.Constant(ir.VectorType(kind, count), [value] * count)


def _place(context: Any, builder: Any, ty: Any, array: Any, at: Any, count: int = 8) -> Any:
    return builder.bitcast(element(context, builder, ty, array, at), ir.VectorType(_F32, count).as_pointer())


def _decay(builder: Any, x: Any) -> Any:
    """exp(-x) for x >= 0: 2^n e^r with r in +-ln 2 / 2, relative error 2e-7; 0 beyond the cutoff."""
    fused, count = ("contract",), x.type.count

    def number(value: float, kind: ir.Type = _F32) -> ir.Constant:
        return _all(value, kind, count)

    inside = builder.fcmp_ordered("<=", x, number(CUTOFF))
    y = builder.fneg(builder.select(inside, x, number(CUTOFF)))
    # Adding and taking away 1.5 * 2^23 rounds to a whole number.
    n = builder.fadd(builder.fmul(y, number(1.44269504088896341)), number(12582912.0))
    n = builder.fsub(n, number(12582912.0))
    # ln 2 in two parts, the first short enough that n times it is exact.
    r = builder.fsub(builder.fsub(y, builder.fmul(n, number(0.693359375))), builder.fmul(n, number(-2.12194440e-4)))
    series = number(1 / 720)
    for factor in (120, 24, 6, 2, 1, 1):
        series = builder.fadd(builder.fmul(series, r, flags=fused), number(1 / factor), flags=fused)
    bits = builder.add(builder.fptosi(n, ir.VectorType(I32, count)), number(127, I32))
    power = builder.bitcast(builder.shl(bits, number(23, I32)), ir.VectorType(_F32, count))
    return builder.select(inside, builder.fmul(series, power), number(0.0))


def _faded(builder: Any, trace: Any, factor: Any) -> Any:
    count = trace.type.count
    z = builder.fmul(trace, factor)
    kind = ir.FunctionType(z.type, [z.type])
    size = builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fabs.v{count}f32"), [z])
    large = builder.fcmp_ordered(">", size, _all(_TINY, count=count))
    return builder.select(large, z, _all(0.0, count=count))


@intrinsic(prefer_literal=True)
def decays(typingctx: Any, count: Any, out: Any, to: Any, rate: Any, at: Any, age: Any) -> Any:
    """out[to:][:count] = exp(-rate[at:][:count] age), for a literal count."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n = signature.args[0].literal_value
        pick = _place(context, builder, signature.args[3], args[3], args[4], n)
        x = builder.fmul(builder.load(pick, align=4), splat(builder, args[5], n))
        builder.store(_decay(builder, x), _place(context, builder, signature.args[1], args[1], args[2], n), align=4)
        return context.get_dummy_value()

    return types.none(count, out, types.int64, rate, types.int64, types.float32), emit


@intrinsic(prefer_literal=True)
def enter(typingctx: Any, count: Any, trace: Any, at: Any, x: Any, x_at: Any, factor: Any) -> Any:
    """trace[at:][:count] = trace[at:][:count] factor + x[x_at:][:count], for a literal count."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n = signature.args[0].literal_value
        place = _place(context, builder, signature.args[1], args[1], args[2], n)
        z = _faded(builder, builder.load(place, align=4), splat(builder, args[5], n))
        new = builder.load(_place(context, builder, signature.args[3], args[3], args[4], n), align=4)
        builder.store(builder.fadd(z, new), place, align=4)
        return context.get_dummy_value()

    return types.none(count, trace, types.int64, x, types.int64, types.float32), emit


@intrinsic(prefer_literal=True)
def read(typingctx: Any, count: Any, out: Any, to: Any, trace: Any, at: Any, factor: Any) -> Any:
    """out[to:][:count] = trace[at:][:count] factor, for a literal count."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n = signature.args[0].literal_value
        z = builder.load(_place(context, builder, signature.args[3], args[3], args[4], n), align=4)
        z = builder.fmul(z, splat(builder, args[5], n))
        builder.store(z, _place(context, builder, signature.args[1], args[1], args[2], n), align=4)
        return context.get_dummy_value()

    return types.none(count, out, types.int64, trace, types.int64, types.float32), emit


def _elementwise(count: int, value: Callable[..., Any]) -> Any:
    """f(x, to, *places): x[to:][:8] = value of x[place:][:8] of `count` places, all in one array."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, *places = (_place(context, builder, signature.args[0], args[0], at) for at in args[1:])
        builder.store(value(builder, *(builder.load(place, align=4) for place in places)), to, align=4)
        return context.get_dummy_value()

    def one(typingctx: Any, x: Any, to: Any, a: Any) -> Any:
        return types.none(x, *(types.int64,) * 2), emit

    def two(typingctx: Any, x: Any, to: Any, a: Any, b: Any) -> Any:
        return types.none(x, *(types.int64,) * 3), emit

    def three(typingctx: Any, x: Any, to: Any, a: Any, b: Any, c: Any) -> Any:
        return types.none(x, *(types.int64,) * 4), emit

    return intrinsic((one, two, three)[count - 1])


def _affine(builder: Any, x: Any, scale: Any, shift: Any) -> Any:
    return builder.fadd(builder.fmul(x, scale, flags=("contract",)), shift, flags=("contract",))


def _relu(builder: Any, x: Any) -> Any:
    # Not a number stays so.
    return builder.select(builder.fcmp_ordered("<", x, _all(0.0)), _all(0.0), x)


copy = _elementwise(1, lambda builder, x: x)
relu = _elementwise(1, _relu)
add = _elementwise(2, lambda builder, x, y: builder.fadd(x, y))
multiply = _elementwise(2, lambda builder, x, y: builder.fmul(x, y))
affine = _elementwise(3, _affine)


@intrinsic
def mean(typingctx: Any, f: Any, to: Any, x_at: Any, d: Any, at: Any, left: Any, share: Any) -> Any:
    """Sums in float64: d[at:][:8] = d[at:][:8] left + f[x_at:][:8], and f[to:][:8] = d[at:][:8] share."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.DoubleType(), 8)
        place = builder.bitcast(element(context, builder, signature.args[3], args[3], args[4]), wide.as_pointer())
        x = builder.load(_place(context, builder, signature.args[0], args[0], args[2]), align=4)
        sums = builder.fmul(builder.load(place, align=8), splat(builder, args[5], 8))
        sums = builder.fadd(sums, builder.fpext(x, wide))
        builder.store(sums, place, align=8)
        value = builder.fptrunc(builder.fmul(sums, splat(builder, args[6], 8)), x.type)
        builder.store(value, _place(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.none(f, types.int64, types.int64, d, types.int64, types.float64, types.float64), emit


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as what `numba.carray` takes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), emit


def _load(kind: Any) -> Any:
    """The element `index` of an array of this type at an address."""

    def typed(typingctx: Any, address: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(kind.bitwidth).as_pointer())
            return builder.sext(builder.load(builder.gep(pointer, [args[1]]), align=1), ir.IntType(64))

        return types.int64(types.int64, types.int64), emit

    return intrinsic(typed)


load8, load32, load64 = _load(types.int8), _load(types.int32), _load(types.int64)


@intrinsic
def enter_each(typingctx: Any, trace: Any, at: Any, x: Any, x_at: Any, rate: Any, rate_at: Any, age: Any) -> Any:
    """As `enter`, every element with a rate of its own."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        rates = builder.load(_place(context, builder, signature.args[4], args[4], args[5]), align=4)
        factor = _decay(builder, builder.fmul(rates, splat(builder, args[6], 8)))
        new = builder.load(_place(context, builder, signature.args[2], args[2], args[3]), align=4)
        builder.store(builder.fadd(_faded(builder, builder.load(place, align=4), factor), new), place, align=4)
        return context.get_dummy_value()

    return types.none(trace, types.int64, x, types.int64, rate, types.int64, types.float32), emit


@intrinsic
def read_each(typingctx: Any, out: Any, to: Any, trace: Any, at: Any, rate: Any, rate_at: Any, age: Any) -> Any:
    """As `read`, every element with a rate of its own."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rates = builder.load(_place(context, builder, signature.args[4], args[4], args[5]), align=4)
        factor = _decay(builder, builder.fmul(rates, splat(builder, args[6], 8)))
        z = builder.fmul(builder.load(_place(context, builder, signature.args[2], args[2], args[3]), align=4), factor)
        builder.store(z, _place(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.none(out, types.int64, trace, types.int64, rate, types.int64, types.float32), emit
