"""The operators of the convolution over taps, and their gradients.

Eager code hands `TapEdges` over as they are, with all that is kept beside them. Operators that torch traces take the
table. The backend travels with them by name, so that a backward pass runs where its forward pass ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gridless import backends
from gridless.ops.operator import eager, operator, traced, without_autocast
from gridless.structures.tap_edges import TapEdges

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Backend(Protocol):
    """Functions of `cpu.py` and `gpu.py`. All tensors are on one device, and contiguous (except the weight)."""

    def conv(self, features: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges) -> Tensor:
        """out (S', P) in the dtype of the features."""
        ...

    def conv_backward(
        self, grad: Tensor, features: Tensor, weight: Tensor, edges: TapEdges,
        need_features: bool, need_weight: bool, need_bias: bool,
    ) -> Gradients:  # fmt: skip
        """Gradients of features, weight and bias; None where they are not needed."""
        ...


def _on(backend: str, where: Tensor) -> Backend:
    return backends.module_of("gridless.ops.tap_conv", backend, where.device)


def conv(features: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges, backend: str) -> Tensor:
    if traced(features):
        settings = edges.num_source, edges.symmetric, backend
        return _traced_conv(features, weight, bias, edges.table, *settings)
    return _eager_conv(features, weight, bias, edges, backend)


@without_autocast
def _forward(features: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges, backend: str) -> Tensor:
    bias = bias if bias is None else bias.contiguous()
    return _on(backend, features).conv(features.contiguous(), weight, bias, edges)


@eager("tap_conv_backward")
@without_autocast
def _backward(
    grad: Tensor, features: Tensor, weight: Tensor, edges: TapEdges, needs: Sequence[bool], backend: str
) -> Gradients:
    return _on(backend, grad).conv_backward(grad.contiguous(), features.contiguous(), weight, edges, *needs[:3])


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    features, weight, _, ctx.edges, ctx.backend = inputs
    ctx.save_for_backward(features, weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grads = _backward(grad, *ctx.saved_tensors, ctx.edges, ctx.needs_input_grad, ctx.backend)
    return *grads, None, None


_eager_conv = eager("tap_conv", _save, _differentiate)(_forward)


# The convolution as operators.

# Tables of traced graphs, and their edges (with all that the edges cache).
_KNOWN = WeakTensorKeyDictionary()


def _edges(table: Tensor, num_source: int, symmetric: bool) -> TapEdges:
    settings = num_source, symmetric, table._version
    # A graph that is captured is replayed with other values in the same table.
    capturing = table.is_cuda and torch.cuda.is_current_stream_capturing()
    known = None if capturing else _KNOWN.get(table)
    if known is not None and known[0] == settings:
        return known[1]
    # An alias: the table itself would keep its own entry alive.
    edges = TapEdges.made(table=table.detach(), num_source=num_source, symmetric=symmetric).trusted()
    if not capturing:
        _KNOWN[table] = settings, edges
    return edges


def _fake_backward(grad, features, weight, table, num_source, symmetric, needs, backend):  # type: ignore[no-untyped-def]
    like = features.shape, weight.shape, grad.shape[1:]
    return tuple(grad.new_empty(shape if need else (0,)) for shape, need in zip(like, needs, strict=True))


def _backward_flops(grad, features, weight, table, num_source, symmetric, needs, backend, **_):  # type: ignore[no-untyped-def]
    return (needs[0] + needs[1]) * _flops(features, weight, None, table)


def _flops(features, weight, bias, table, *rest, **_):  # type: ignore[no-untyped-def]
    """All taps of every target. Shapes do not tell the number of edges."""
    return 2 * table[0] * weight[0] * weight[1] * weight[2]


@operator(
    "tap_conv_backward",
    _fake_backward,
    flops=_backward_flops,
    schema="(Tensor grad, Tensor features, Tensor weight, Tensor table, SymInt num_source, bool symmetric, "
    "bool[] needs, str backend) -> (Tensor, Tensor, Tensor)",
)
def _traced_backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    features, weight, table, num_source, symmetric, needs, backend = given
    grads = _backward(grad, features, weight, _edges(table, num_source, symmetric), needs, backend)
    return tuple(grad.new_empty(0) if x is None else x.contiguous() for x in grads)


def _fake_conv(features, weight, bias, table, num_source, symmetric, backend):  # type: ignore[no-untyped-def]
    return features.new_empty(table.shape[0], weight.shape[2])


def _save_traced(ctx: Any, inputs: tuple, output: Tensor) -> None:
    features, weight, _, table, *ctx.settings = inputs
    ctx.save_for_backward(features, weight, table)


def _differentiate_traced(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs, (num_source, symmetric, backend) = list(ctx.needs_input_grad[:3]), ctx.settings
    grads = _traced_backward(grad, *ctx.saved_tensors, num_source, symmetric, needs, backend)
    return *(x if need else None for x, need in zip(grads, needs, strict=True)), None, None, None, None


@operator(
    "tap_conv",
    _fake_conv,
    _save_traced,
    _differentiate_traced,
    flops=_flops,
    schema="(Tensor features, Tensor weight, Tensor? bias, Tensor table, SymInt num_source, bool symmetric, "
    "str backend) -> Tensor",
)
def _traced_conv(features: Tensor, *given: Any) -> Tensor:
    weight, bias, table, num_source, symmetric, backend = given
    return _forward(features, weight, bias, _edges(table, num_source, symmetric), backend)
