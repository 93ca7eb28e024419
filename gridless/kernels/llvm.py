"""Helpers of the files that emit LLVM vectors."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

I32 = ir.IntType(32)
I64 = ir.IntType(64)


def cpu_features() -> set[str]:
    """Features of the CPU that kernels are compiled for, such as "+avx512f"."""
    return set(str(cpu_target.target_context.codegen().magic_tuple()[2]).split(","))


def float_type(dtype: Any) -> ir.Type:
    """LLVM's name for Numba's float32 or float64."""
    return ir.FloatType() if dtype == types.float32 else ir.DoubleType()


def element(context: Any, builder: Any, ty: Any, array: Any, at: Any) -> Any:
    """The address of element `at` of an array of the type `ty`."""
    return builder.gep(context.make_array(ty)(context, builder, array).data, [at], inbounds=True)


def splat(builder: Any, value: Any, count: int) -> Any:
    """A vector of `count` times the same value."""
    nothing = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    one = builder.insert_element(nothing, value, I32(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, count), None))


@intrinsic
def first_bit(typingctx, mask):
    """The number of the lowest bit that is set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.cttz(args[0], ir.IntType(1)(1))
