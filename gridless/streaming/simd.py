"""Eight or sixteen float32 at a time, in LLVM vectors: the traces of the live engine fade, take in, and are read.

LLVM does not vectorise these loops by itself: they are short, and their arrays might overlap for all it knows. Offsets
count elements from the beginning of the arrays. Nothing is checked here.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_F32, _I32 = ir.FloatType(), ir.IntType(32)

# A decay beyond exp(-80) counts as nothing, as in the network's own scan.
_CUTOFF = 80.0

# What a trace of less than this could add is lost in the rounding of any sum; zero is cheaper than subnormal numbers.
_TINY = 1e-30


def _all(value: float, kind: ir.Type = _F32, count: int = 8) -> ir.Constant:
    return ir.Constant(ir.VectorType(kind, count), [value] * count)


def _place(context: Any, builder: Any, ty: Any, array: Any, at: Any, count: int = 8) -> Any:
    data = context.make_array(ty)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at], inbounds=True), ir.VectorType(_F32, count).as_pointer())


def _everywhere(builder: Any, value: Any, count: int = 8) -> Any:
    nothing = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, value, _I32(0)), nothing, _all(0, _I32, count))


def _decay(builder: Any, x: Any) -> Any:
    """exp(-x) for x >= 0: 2^n e^r with r in +-ln 2 / 2, relative error 2e-7; 0 beyond the cutoff."""
    fused, count = ("contract",), x.type.count

    def number(value: float, kind: ir.Type = _F32) -> ir.Constant:
        return _all(value, kind, count)

    inside = builder.fcmp_ordered("<=", x, number(_CUTOFF))
    y = builder.fneg(builder.select(inside, x, number(_CUTOFF)))
    # Adding and taking away 1.5 * 2^23 rounds to a whole number.
    n = builder.fadd(builder.fmul(y, number(1.44269504088896341)), number(12582912.0))
    n = builder.fsub(n, number(12582912.0))
    # ln 2 in two parts, the first short enough that n times it is exact.
    r = builder.fsub(builder.fsub(y, builder.fmul(n, number(0.693359375))), builder.fmul(n, number(-2.12194440e-4)))
    series = number(1 / 720)
    for factor in (120, 24, 6, 2, 1, 1):
        series = builder.fadd(builder.fmul(series, r, flags=fused), number(1 / factor), flags=fused)
    bits = builder.add(builder.fptosi(n, ir.VectorType(_I32, count)), number(127, _I32))
    power = builder.bitcast(builder.shl(bits, number(23, _I32)), ir.VectorType(_F32, count))
    return builder.select(inside, builder.fmul(series, power), number(0.0))


def _faded(builder: Any, trace: Any, factor: Any) -> Any:
    count = trace.type.count
    z = builder.fmul(trace, factor)
    size = builder.select(builder.fcmp_ordered("<", z, _all(0.0, count=count)), builder.fneg(z), z)
    large = builder.fcmp_ordered(">", size, _all(_TINY, count=count))
    return builder.select(large, z, _all(0.0, count=count))


@intrinsic(prefer_literal=True)
def decays(typingctx: Any, count: Any, out: Any, to: Any, rate: Any, at: Any, age: Any) -> Any:
    """out[to:][:count] = exp(-rate[at:][:count] age), for a literal count."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n = signature.args[0].literal_value
        pick = _place(context, builder, signature.args[3], args[3], args[4], n)
        x = builder.fmul(builder.load(pick, align=4), _everywhere(builder, args[5], n))
        builder.store(_decay(builder, x), _place(context, builder, signature.args[1], args[1], args[2], n), align=4)
        return context.get_dummy_value()

    return types.none(count, out, types.int64, rate, types.int64, types.float32), emit


@intrinsic(prefer_literal=True)
def enter(typingctx: Any, count: Any, trace: Any, at: Any, x: Any, x_at: Any, factor: Any) -> Any:
    """trace[at:][:count] = trace[at:][:count] factor + x[x_at:][:count], for a literal count."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n = signature.args[0].literal_value
        place = _place(context, builder, signature.args[1], args[1], args[2], n)
        z = _faded(builder, builder.load(place, align=4), _everywhere(builder, args[5], n))
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
        z = builder.fmul(z, _everywhere(builder, args[5], n))
        builder.store(z, _place(context, builder, signature.args[1], args[1], args[2], n), align=4)
        return context.get_dummy_value()

    return types.none(count, out, types.int64, trace, types.int64, types.float32), emit


def _elementwise(kind: str) -> Any:
    """out[to:][:8] = kind(x[a:][:8], x[b:][:8], x[c:][:8]), all in one array."""

    def typed(typingctx: Any, x: Any, to: Any, a: Any, b: Any, c: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            places = [_place(context, builder, signature.args[0], args[0], at) for at in args[1:]]
            p, q, r = (builder.load(place, align=4) for place in places[1:])
            if kind == "affine":
                product = builder.fmul(p, q, flags=("contract",))
                value = builder.fadd(product, r, flags=("contract",))
            elif kind == "add":
                value = builder.fadd(p, q)
            elif kind == "multiply":
                value = builder.fmul(p, q)
            else:
                # Not a number stays so.
                value = builder.select(builder.fcmp_ordered("<", p, _all(0.0)), _all(0.0), p)
            builder.store(value, places[0], align=4)
            return context.get_dummy_value()

        return types.none(x, *(types.int64,) * 4), emit

    return intrinsic(typed)


affine, add, multiply, relu = (_elementwise(kind) for kind in ("affine", "add", "multiply", "relu"))


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
        factor = _decay(builder, builder.fmul(rates, _everywhere(builder, args[6])))
        new = builder.load(_place(context, builder, signature.args[2], args[2], args[3]), align=4)
        builder.store(builder.fadd(_faded(builder, builder.load(place, align=4), factor), new), place, align=4)
        return context.get_dummy_value()

    return types.none(trace, types.int64, x, types.int64, rate, types.int64, types.float32), emit


@intrinsic
def read_each(typingctx: Any, out: Any, to: Any, trace: Any, at: Any, rate: Any, rate_at: Any, age: Any) -> Any:
    """As `read`, every element with a rate of its own."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rates = builder.load(_place(context, builder, signature.args[4], args[4], args[5]), align=4)
        factor = _decay(builder, builder.fmul(rates, _everywhere(builder, args[6])))
        z = builder.fmul(builder.load(_place(context, builder, signature.args[2], args[2], args[3]), align=4), factor)
        builder.store(z, _place(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.none(out, types.int64, trace, types.int64, rate, types.int64, types.float32), emit
