"""Gluon kernels under Triton's interpreter: the same source, with layouts left out and shared memory as plain values.

This tests the results of a kernel without a GPU, but not its layouts.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import triton
import triton.language as tl


class _Shared:
    """A piece of shared memory: what was stored last."""

    def __init__(self, owner: _Shared | None = None) -> None:
        self.owner = owner
        self.value: Any = None
        self.pieces: dict[int, _Shared] = {}

    def index(self, i: Any) -> _Shared:
        return self.pieces.setdefault(int(i), _Shared())

    def store(self, value: Any) -> None:
        self.value = value

    def permute(self, order: Sequence[int]) -> _Shared:
        assert tuple(order) == (1, 0)
        return _Shared(self)

    def load(self, layout: Any = None) -> Any:
        return self.value if self.owner is None else tl.trans(self.owner.value)


class _Language(ModuleType):
    """Gluon's language, in Triton's."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Layout"):
            return lambda *given, **named: None
        return getattr(tl, name)

    def arange(self, start: int, end: int, layout: Any) -> Any:
        return tl.arange(start, end)

    def zeros(self, shape: list[int], dtype: Any, layout: Any) -> Any:
        return tl.zeros(shape, dtype)

    def convert_layout(self, value: Any, layout: Any) -> Any:
        return value

    def inline_asm_elementwise(self, *given: Any, **named: Any) -> None:
        """The only one asks for what will be loaded later."""

    def barrier(self) -> None:
        """Statements of a program are interpreted one after the other."""

    def warp_specialize(self, roles: list[tuple[Any, tuple]], warps: list[int], registers: list[int]) -> None:
        """Each role in a thread; the first error of any of them is raised."""
        errors: list[Exception] = []

        def run(role: Any, given: tuple) -> None:
            try:
                role(*given)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=part) for part in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def allocate_shared_memory(self, dtype: Any, shape: list[int], layout: Any) -> _Shared:
        return _Shared()


def _mma(a: Any, b: Any, c: Any, input_precision: str = "tf32", is_async: bool = False) -> Any:
    a, b = (x.load() if isinstance(x, _Shared) else x for x in (a, b))
    return tl.dot(a, b, c, input_precision="ieee")


def _at_once(*given: Any) -> None:
    """Fences and barriers need not wait here."""


def _copy(shared: _Shared, pointer: Any) -> None:
    shared.store(tl.load(pointer))


class _Barrier:
    """`mbarrier`s that one arrival completes: waits for the phase of a parity to be over."""

    MBarrierLayout = staticmethod(_at_once)
    changed = threading.Condition()

    def init(self, barrier: _Shared, count: int) -> None:
        assert count == 1
        barrier.value = 0

    def arrive(self, barrier: _Shared, count: int) -> None:
        with self.changed:
            barrier.value += 1
            self.changed.notify_all()

    def wait(self, barrier: _Shared, phase: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: barrier.value % 2 != int(phase), timeout=60), "nobody arrives"


ASYNC_COPY = SimpleNamespace(async_load=_copy, commit_group=_at_once, wait_group=_at_once)
HOPPER = SimpleNamespace(
    fence_async_shared=_at_once,
    mbarrier=_Barrier(),
    warpgroup_mma=_mma,
    warpgroup_mma_init=lambda value: value,
    warpgroup_mma_wait=lambda left, deps: deps[0] if len(deps) == 1 else deps,
)


@triton.jit
def every_row(T: tl.constexpr, WARPS: tl.constexpr):
    """In place of a warp's own rows: there is one warp."""
    return tl.arange(0, T)


def interpreted(name: str, **others: ModuleType) -> ModuleType:
    """The module `name` with its Gluon kernels as interpreted Triton kernels, their products in full precision; it
    finds the modules `others`, interpreted before, beside itself."""
    from triton.runtime import jit

    # The interpreter knows a constant by the word tl.constexpr.
    normalise = jit._normalize_ty
    jit._normalize_ty = lambda given: "constexpr" if given == "gl.constexpr" else normalise(given)
    language = _Language("language")
    gluon = SimpleNamespace(jit=triton.jit, language=language, constexpr_function=lambda function: function)
    stand_ins = {
        "triton.experimental": SimpleNamespace(gluon=gluon),
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language": language,
        "triton.experimental.gluon.language.nvidia.ampere": SimpleNamespace(mma_v2=_mma, async_copy=ASYNC_COPY),
        "triton.experimental.gluon.language.nvidia.hopper": HOPPER,
        **{f"{name.rpartition('.')[0]}.{other}": module for other, module in others.items()},
    }
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["tl"] = tl  # where the interpreter looks for the language
    with mock.patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module
