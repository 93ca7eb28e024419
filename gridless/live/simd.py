"""Vectors of float32 in LLVM: the traces of the live engine fade, take in events, and are read.

LLVM does not vectorise these loops by itself: they are short, and their arrays might overlap for all it knows. Offsets
count elements from the beginning of the array. Bounds are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gridless.kernels.llvm import I32, element, splat
from gridless.ops.event_conv.reference import CUTOFF

_F32 = ir.FloatType()

# Traces below this are set to zero: they are lost in the rounding of any sum, and subnormal numbers are slow.
_TINY = 1e-30


def _all(value: float, kind: ir.Type = _F32, count: int = 8) -> ir.Constant:
    return ir.Constant(ir.VectorType(kind, count), [value] * count)


def _place(context: Any, builder: Any, ty: Any, array: Any, at: Any, count: int = 8) -> Any:
    return builder.bitcast(element(context, builder, ty, array, at), ir.VectorType(_F32, count).as_pointer())


def _vector_operation(value: Callable[..., Any], places: int, scalars: int = 0, width: int = 0) -> Any:
    """An intrinsic f(x, to, *places, *scalars): x[to:][:width] = value(builder, *vectors at the places, *scalars).

    With `width` 0 the width is a literal number, the first argument.
    """
    names = [*([] if width else ["width"]), "x", "to", *(f"place{k}" for k in range(places))]
    names += [f"scalar{k}" for k in range(scalars)]
    first = names.index("x")

    def typed(typingctx: Any, *kinds: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            count = width or signature.args[0].literal_value
            x, to, *rest = args[first:]
            pointers = [_place(context, builder, signature.args[first], x, at, count) for at in (to, *rest[:places])]
            vectors = [builder.load(pointer, align=4) for pointer in pointers[1:]]
            numbers = [splat(builder, scalar, count) for scalar in rest[places:]]
            builder.store(value(builder, *vectors, *numbers), pointers[0], align=4)
            return context.get_dummy_value()

        return types.none(*kinds[: first + 1], *(types.int64,) * (places + 1), *(types.float32,) * scalars), emit

    # Numba reads the number of arguments from the signature.
    parameters = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in ("typingctx", *names)]
    typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(prefer_literal=True)(typed)


def _decay(builder: Any, x: Any) -> Any:
    """exp(-x) for x >= 0, as 2^n e^r with r in +-ln 2 / 2. The relative error is 2e-7; 0 beyond the cutoff."""
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


def _affine(builder: Any, x: Any, scale: Any, shift: Any) -> Any:
    return builder.fadd(builder.fmul(x, scale, flags=("contract",)), shift, flags=("contract",))


def _relu(builder: Any, x: Any) -> Any:
    # NaN stays NaN.
    return builder.select(builder.fcmp_ordered("<", x, _all(0.0)), _all(0.0), x)


def _entered(builder: Any, trace: Any, x: Any, factor: Any) -> Any:
    return builder.fadd(_faded(builder, trace, factor), x)


def _decays(builder: Any, rate: Any, age: Any) -> Any:
    """exp(-rate age)"""
    return _decay(builder, builder.fmul(rate, age))


copy = _vector_operation(lambda builder, x: x, 1, width=8)
relu = _vector_operation(_relu, 1, width=8)
add = _vector_operation(lambda builder, x, y: builder.fadd(x, y), 2, width=8)
multiply = _vector_operation(lambda builder, x, y: builder.fmul(x, y), 2, width=8)
affine = _vector_operation(_affine, 3, width=8)

# (width, x, to, rate, age): exp(-rate age).
decays = _vector_operation(_decays, 1, 1)
# (width, x, to, trace, event, factor): trace factor + event. (x, to, trace, event, rate, age): each with its own rate.
enter = _vector_operation(_entered, 2, 1)
enter_each = _vector_operation(lambda b, trace, x, rate, age: _entered(b, trace, x, _decays(b, rate, age)), 3, 1, 8)
# (width, x, to, trace, factor): trace factor. (x, to, trace, rate, age): each with its own rate.
read = _vector_operation(lambda builder, trace, factor: builder.fmul(trace, factor), 1, 1)
read_each = _vector_operation(lambda b, trace, rate, age: b.fmul(trace, _decays(b, rate, age)), 2, 1, 8)


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
    """Convert an address to the pointer that `numba.carray` takes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), emit


def _load(kind: Any) -> Any:
    """An intrinsic (address, index): the element `index` of an array of this type at an address."""

    def typed(typingctx: Any, address: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(kind.bitwidth).as_pointer())
            return builder.sext(builder.load(builder.gep(pointer, [args[1]]), align=1), ir.IntType(64))

        return types.int64(types.int64, types.int64), emit

    return intrinsic(typed)


load8, load32, load64 = _load(types.int8), _load(types.int32), _load(types.int64)
