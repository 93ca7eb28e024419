"""The choice of an implementation: `reference` (torch), `cpu` (Numba) or `gpu` (Triton).

The device of the tensors decides; `use_backend` overrides it, and an explicit choice never falls back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, overload

import torch

Module = TypeVar("Module")
Given = ParamSpec("Given")
Result = TypeVar("Result")

BACKENDS = ("reference", "cpu", "gpu")

_forced: ContextVar[str | None] = ContextVar("gridless_backend", default=None)


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Run everything inside the block on one backend: `with gl.use_backend("reference"): ...`.

    `None` restores the choice by device. Asking for `gpu` with tensors on the CPU is an error, not a fallback. A thread
    that is started inside the block does not inherit it, unless it runs `contextvars.copy_context().run(function)`
    with a context that was copied in the block.
    """
    if name is not None and name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}. Choose {', '.join(BACKENDS)}, or None to follow the device.")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def interpreting() -> bool:
    """Triton kernels run on CPU tensors under its interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def backend_for(device: torch.device) -> str:
    """The name of the backend that tensors on `device` get now."""
    name = _forced.get()
    if device.type == "meta":
        raise ValueError("tensors on 'meta' have no values to compute with. Move network and input with .to('cpu').")
    if name is None:
        return "gpu" if device.type == "cuda" else "cpu" if device.type == "cpu" else "reference"
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"backend 'cpu' was asked for, but the tensors are on {device}. Move them with .to('cpu').")
    if name == "gpu" and device.type != "cuda" and not interpreting():
        raise ValueError(f"backend 'gpu' was asked for, but the tensors are on {device}. Move them with .to('cuda').")
    return name


def existing(device: torch.device | str) -> torch.device:
    """The device of this name, refused where torch does not see it."""
    found_device = torch.device(device)
    if found_device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r} was asked for, but torch sees no GPU. Choose cpu.")
    if found_device.type == "cuda" and (found_device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"device {str(device)!r} was asked for, but torch sees {count} GPUs, from cuda:0")
    return found_device


def is_forced(name: str) -> bool:
    """True inside `use_backend(name)`."""
    return _forced.get() == name


def on_cpu(tensor: torch.Tensor) -> bool:
    """`backend_for(tensor.device) == "cpu"`, in a tenth of the time."""
    return tensor.is_cpu and _forced.get() in (None, "cpu")


# A compiled graph keeps the backend that was current when it was traced.
backend_for._dynamo_marked_constant = True  # type: ignore[attr-defined]


def uncompiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """`function`, for torch.compile to call and not to trace: where it traces Numba's compiler, that fails.

    It is `torch.compiler.disable` at the first call that is traced: that loads dynamo, which takes 3.5 s.
    """
    disabled: list[Any] = []

    @wraps(function)
    def call(*args: Given.args, **named: Given.kwargs) -> Result:
        if not torch.compiler.is_compiling():
            return function(*args, **named)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **named)

    return call


@overload
def implementation(package: str, device: torch.device) -> Any: ...
@overload
def implementation(package: Module, device: torch.device) -> Module: ...
def implementation(package: Any, device: torch.device) -> Any:
    """The module of `package` (its `__name__`) that serves `device`, imported on first use.

    Given the reference of the package instead, the result is typed as the reference is, which specifies the others.
    """
    if isinstance(package, ModuleType):
        package = package.__name__.rpartition(".")[0]
    return module_of(package, backend_for(device), device)


def module_of(package: str, name: str, device: torch.device) -> Any:
    """The module of `package` that is backend `name`, for tensors on `device`."""
    module = load(package, name)
    return _Elsewhere(module, device) if name == "gpu" and _is_elsewhere(device) else module


def current(device: torch.device) -> AbstractContextManager:
    """A block with `device` as the current one, which is where Triton launches kernels."""
    return torch.cuda.device(device) if _is_elsewhere(device) else nullcontext()


def _is_elsewhere(device: torch.device) -> bool:
    return device.type == "cuda" and device.index != torch.cuda.current_device()


class _Elsewhere:
    """A module whose functions run with `device` as the current one."""

    def __init__(self, module: ModuleType, device: torch.device) -> None:
        self._module, self._device = module, device

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        if not callable(attribute):
            return attribute

        @wraps(attribute)
        def run(*args: Any, **named: Any) -> Any:
            with torch.cuda.device(self._device):
                return attribute(*args, **named)

        return run


@cache
def load(package: str, name: str) -> Any:
    """The module of `package` that is backend `name`."""
    try:
        return import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        raise ImportError(
            "the kernels for GPUs are Triton, which is not installed. Install it (PyTorch for Linux brings it), or "
            "move the tensors with .to('cpu'), or run under gl.use_backend('reference'), which is slow."
        ) from error
