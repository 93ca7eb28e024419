"""One differentiable operation, said once and called in two ways.

Eager code calls an autograd function, which costs microseconds. `torch.compile` and `torch.export` trace the operator
that is registered with torch instead, which costs a hundred of them in eager code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from gridless.backends import is_forced

Save = Callable[[Any, tuple, Any], None]

FLOPS: dict[Any, Callable[..., int]] = {}
"""The products of convolutions, for torch's counter of operations: `FlopCounterMode(custom_mapping=gl.ops.FLOPS)`. They
are not registered with it, as that loads Triton, which takes 0.4 s."""


def operator(
    name: str,
    fake: Callable,
    save: Save | None = None,
    backward: Callable | None = None,
    schema: str | None = None,
    flops: Callable | None = None,
) -> Callable[[Callable], Callable[..., Any]]:
    """Decorates the forward function of tensors and plain numbers, whose first argument is a tensor.

    Args:
        name: of the registered operator.
        fake: makes empty outputs while a graph is traced.
        save: `save(ctx, inputs, output)`, as of `torch.library.register_autograd`.
        backward: `backward(ctx, *grads)`, likewise; without it a second derivative is refused.
        schema: the arguments and results in torch's words, where the function's own signature does not say them.
        flops: what torch's `FlopCounterMode` counts, of the arguments with shapes in place of tensors.
    """

    def decorate(forward: Callable) -> Callable[..., Any]:
        function = _without_tangents(name, forward)
        registered = torch.library.custom_op(f"gridless::{name}", function, mutates_args=(), schema=schema)
        registered.register_fake(_without_tangents(name, fake))
        registered.register_autograd(backward or _refuse_second, setup_context=save or _keep_nothing)
        if flops is not None:
            FLOPS[getattr(torch.ops.gridless, name)] = flops
        run = eager(name, save, backward)(forward)

        @wraps(forward)
        def call(*inputs: Any) -> Any:
            return registered(*inputs) if traced(*inputs) else run(*inputs)

        call.registered = registered  # type: ignore[attr-defined]
        return call

    return decorate


def traced(*inputs: Any) -> bool:
    """True while a graph of these inputs is traced; the first is a tensor."""
    if torch.compiler.is_compiling() or type(inputs[0]) not in (Tensor, Parameter):
        return True
    # A tracer (make_fx) would record the empty output, and not what fills it.
    tracer = torch._C._len_torch_dispatch_stack() and not torch._C._are_functorch_transforms_active()
    return bool(tracer) and not any(map(_is_dual, inputs))


def by_reference(x: Tensor) -> bool:
    """True if torch differentiates the reference itself: it was asked for, and no graph of x is traced."""
    return not traced(x) and is_forced("reference")


def eager(name: str, save: Save | None = None, backward: Callable | None = None, first: bool = False) -> Callable:
    """Decorates a forward function as `operator` does, for eager code alone: its inputs may be anything. With `first`
    callers, and autograd, get the first of its outputs: the others are for `save`."""

    def decorate(forward: Callable) -> Callable:
        keep = save or _keep_nothing

        def run(ctx: Any, *inputs: Any) -> Any:
            output = forward(*inputs)
            keep(ctx, inputs, output)
            return output[0] if first else output

        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(f"{name} has no forward-mode derivative. {REMEDY}")

        # Profiles and anomalies call it by the name of its class.
        methods = {"forward": run, "jvp": jvp, "backward": backward or _refuse_second}
        static_methods = {what: staticmethod(method) for what, method in methods.items()}
        kind: Any = type(torch.autograd.Function)(name, (torch.autograd.Function,), static_methods)  # type: ignore[call-arg]
        # Skips the part of `Function.apply` for torch.func's transforms, which are refused.
        apply: Callable = super(torch.autograd.Function, kind).apply  # type: ignore[misc]

        @wraps(forward)
        def call(*inputs: Any) -> Any:
            refuse_transforms(name)
            if torch.is_grad_enabled() or forward_ad._current_level >= 0:
                return apply(*inputs)
            return forward(*inputs)[0] if first else forward(*inputs)

        return call

    return decorate


def refuse_transforms(name: str) -> None:
    """Refuse a transform of torch.func, before a kernel meets one of its tensors, which have no memory."""
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(f"{name} does not support torch.func. {REMEDY}")


def without_autocast(function: Callable) -> Callable:
    """The function of tensors runs as if autocast were off: its products have the type of its sums."""

    @wraps(function)
    def run(first: Tensor, *others: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return function(first, *others)
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *others)

    return run


REMEDY = "Use gl.use_backend('reference'), which torch differentiates."


def _is_dual(x: Any) -> bool:
    """True if forward mode differentiates along x, which a registered operator would do with zeros."""
    return forward_ad._current_level >= 0 and isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None


def _without_tangents(name: str, function: Callable) -> Callable:
    """A registered operator would give zeros for forward-mode derivatives: it is refused where any are taken."""

    @wraps(function)
    def run(*inputs: Any) -> Any:
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            raise NotImplementedError(f"{name} supports neither forward-mode derivatives nor torch.func. {REMEDY}")
        return function(*inputs)

    return run


def _keep_nothing(ctx: Any, inputs: tuple, output: Any) -> None:
    pass


def _refuse_second(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError(f"fast backends have no second derivatives. {REMEDY}")
