"""The rows of the live engine: compiled bodies of all operations, and chains that call the body of a row."""

# pyright: reportCallIssue=false

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gridless.kernels.compile import njit
from gridless.kernels.llvm import I64, element
from gridless.live.operation import Body
from gridless.live.operations import OPERATIONS, freeze
from gridless.live.table import A_MASK, B_MASK, CELLS, MASK, OP


@functools.cache
def compiled(body: Body | None) -> Any:
    """The compiled body. A function is compiled once, also if it serves several operations or is their answer, too."""
    return body and njit(nogil=True, error_model="numpy", inner=True)(body)


def chain(bodies: Iterable[Any]) -> Any:
    """An intrinsic that calls the body with the number of a row's operation; None does nothing."""
    numbered = [(number, body) for number, body in enumerate(bodies) if body is not None]

    @intrinsic
    def call(
        typingctx: Any, i: Any, f: Any, d: Any, r: Any, s: Any, first: Any, n: Any, lane: Any
    ) -> Any:  # fmt: skip
        arguments = (i, f, d, *(types.int64,) * 5)
        typed = [(number, types.Dispatcher(body)) for number, body in numbered]
        cases = [(number, body, body.get_call_type(typingctx, arguments, {})) for number, body in typed]

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = builder.add(args[3], I64(OP))
            operation = builder.load(element(context, builder, signature.args[0], args[0], at))
            done = builder.append_basic_block("done")
            choice = builder.switch(operation, done)
            for number, body, kind in cases:
                case = builder.append_basic_block(f"operation{number}")
                choice.add_case(ir.Constant(operation.type, number), case)
                builder.position_at_end(case)
                context.get_function(body, kind)(builder, args)
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.none(*arguments), emit

    return call


freeze()
_bodies = [compiled(operation.body) for operation in OPERATIONS.values()]
_answers = [compiled(operation.answer) for operation in OPERATIONS.values()]


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def _join_masks(i, f, d, r, s, first, n, lane):
    """A cell of a row differs where one of the inputs differs."""
    mask = i[r + MASK]
    if mask != i[r + A_MASK]:
        for cell in range(i[r + CELLS]):
            i[mask + cell] = i[i[r + A_MASK] + cell] | i[i[r + B_MASK] + cell]


# Operations that have no answer of their own: the body computes all cells of a row without a stream.
_over_cells = [None if answer else body for answer, body in zip(_answers, _bodies, strict=True)]
_own_answer, _all_cells = chain(_answers), chain(_over_cells)
_masks = chain(body and _join_masks for body in _over_cells)


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def answer_row(i, f, d, r, s, first, n, lane):
    """Compute a row without a stream."""
    _own_answer(i, f, d, r, s, first, n, lane)
    _all_cells(i, f, d, r, s, first, i[r + CELLS], lane)
    _masks(i, f, d, r, s, first, n, lane)


# A row of n events; a row without a stream when a window begins.
work = chain(_bodies)
restart_row = chain(compiled(operation.restart) for operation in OPERATIONS.values())
