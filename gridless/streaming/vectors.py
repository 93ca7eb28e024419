"""Eight float32 at a time, in LLVM vectors: the traces of the live engine fade, take in, and are read.

LLVM does not vectorise these loops by itself: they are short, and their arrays might overlap for all it knows. Offsets
count elements from the beginning of the arrays. Nothing is checked here.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_F32, _I32 = ir.FloatType(), ir.IntType(32)
_EIGHT = ir.VectorType(_F32, 8)

# A decay beyond exp(-80) counts as nothing, as in the network's own scan.
_CUTOFF = 80.0

# What a trace of less than this could add is lost in the rounding of any sum; zero is cheaper than subnormal numbers.
_TINY = 1e-30


def _all(value: float, kind: ir.Type = _F32) -> ir.Constant:
    return ir.Constant(ir.VectorType(kind, 8), [value] * 8)


def _place(context: Any, builder: Any, ty: Any, array: Any, at: Any) -> Any:
    data = context.make_array(ty)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at], inbounds=True), _EIGHT.as_pointer())


def _everywhere(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_EIGHT, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(one, ir.Constant(_EIGHT, ir.Undefined), _all(0, _I32))


def _decay(builder: Any, x: Any) -> Any:
    """exp(-x) for x >= 0: 2^n e^r with r in +-ln 2 / 2, relative error 2e-7; 0 beyond the cutoff."""
    fused = ("contract",)
    inside = builder.fcmp_ordered("<=", x, _all(_CUTOFF))
    y = builder.fneg(builder.select(inside, x, _all(_CUTOFF)))
    # Adding and taking away 1.5 * 2^23 rounds to a whole number.
    n = builder.fadd(builder.fmul(y, _all(1.44269504088896341)), _all(12582912.0))
    n = builder.fsub(n, _all(12582912.0))
    # ln 2 in two parts, the first short enough that n times it is exact.
    r = builder.fsub(builder.fsub(y, builder.fmul(n, _all(0.693359375))), builder.fmul(n, _all(-2.12194440e-4)))
    series = _all(1 / 720)
    for factor in (120, 24, 6, 2, 1, 1):
        series = builder.fadd(builder.fmul(series, r, flags=fused), _all(1 / factor), flags=fused)
    bits = builder.add(builder.fptosi(n, ir.VectorType(_I32, 8)), _all(127, _I32))
    power = builder.bitcast(builder.shl(bits, _all(23, _I32)), _EIGHT)
    return builder.select(inside, builder.fmul(series, power), _all(0.0))


def _faded(builder: Any, trace: Any, factor: Any) -> Any:
    z = builder.fmul(trace, factor)
    size = builder.select(builder.fcmp_ordered("<", z, _all(0.0)), builder.fneg(z), z)
    return builder.select(builder.fcmp_ordered(">", size, _all(_TINY)), z, _all(0.0))


@intrinsic
def decays(typingctx: Any, out: Any, to: Any, rate: Any, at: Any, age: Any) -> Any:
    """out[to:][:8] = exp(-rate[at:][:8] age)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pick = _place(context, builder, signature.args[2], args[2], args[3])
        x = builder.fmul(builder.load(pick, align=4), _everywhere(builder, args[4]))
        builder.store(_decay(builder, x), _place(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.none(out, types.int64, rate, types.int64, types.float32), emit


@intrinsic
def enter(typingctx: Any, trace: Any, at: Any, x: Any, x_at: Any, factor: Any) -> Any:
    """trace[at:][:8] = trace[at:][:8] factor + x[x_at:][:8]."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        z = _faded(builder, builder.load(place, align=4), _everywhere(builder, args[4]))
        new = builder.load(_place(context, builder, signature.args[2], args[2], args[3]), align=4)
        builder.store(builder.fadd(z, new), place, align=4)
        return context.get_dummy_value()

    return types.none(trace, types.int64, x, types.int64, types.float32), emit


@intrinsic
def read(typingctx: Any, out: Any, to: Any, trace: Any, at: Any, factor: Any) -> Any:
    """out[to:][:8] = trace[at:][:8] factor."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        z = builder.load(_place(context, builder, signature.args[2], args[2], args[3]), align=4)
        z = builder.fmul(z, _everywhere(builder, args[4]))
        builder.store(z, _place(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.none(out, types.int64, trace, types.int64, types.float32), emit


@intrinsic
def add(typingctx: Any, out: Any, to: Any, trace: Any, at: Any, factor: Any) -> Any:
    """out[to:][:8] += trace[at:][:8] factor."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        z = builder.load(_place(context, builder, signature.args[2], args[2], args[3]), align=4)
        z = builder.fmul(z, _everywhere(builder, args[4]), flags=("contract",))
        builder.store(builder.fadd(builder.load(place, align=4), z, flags=("contract",)), place, align=4)
        return context.get_dummy_value()

    return types.none(out, types.int64, trace, types.int64, types.float32), emit


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
