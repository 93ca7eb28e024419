"""A launcher gives every launch to the kernel that Triton would have chosen."""

from __future__ import annotations

import importlib

import pytest
import torch

pytest.importorskip("triton")

import gridless as gl
from gridless.kernels import launch as launching
from gridless.kernels.launch import Launch, Launcher, cdiv, compile_once, compiling_ahead, power_of_two
from gridless.nn import conv


class Kernel:
    """Notes how it is launched, and returns what was compiled, which notes it too."""

    def __init__(self) -> None:
        self.through_triton: list[tuple] = []
        self.at_once: list[tuple] = []
        self.ahead: list[tuple] = []

    def warmup(self, *arguments, grid, num_warps, enable_fp_fusion):
        self.ahead.append((arguments, num_warps))
        if self.refuses:
            raise ValueError("this kernel does not compile")

    refuses = False

    def __getitem__(self, grid):
        def launch(*arguments, num_warps, enable_fp_fusion, **more):
            self.through_triton.append((grid, arguments, num_warps))
            self.more = more
            return Compiled(self, arguments, num_warps)

        return launch


class Compiled:
    def __init__(self, kernel, first, warps) -> None:
        self.kernel, self.first, self.warps = kernel, first, warps

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.at_once.append((self, grid, arguments))


def test_the_second_launch_with_the_same_constants_is_immediate():
    kernel = Kernel()
    launch = Launcher(kernel)
    a, b = torch.zeros(8), torch.zeros(8)
    launch((2, 1, 1), (a, b), (5,), (True, 3), 4)
    launch((7, 1, 1), (b, a), (6,), (True, 3), 4)
    assert len(kernel.through_triton) == len(kernel.at_once) == 1
    _, grid, arguments = kernel.at_once[0]
    assert grid == (7, 1, 1)
    assert arguments == (b.data_ptr(), a.data_ptr(), 6, True, 3)


def test_sizes_beyond_int32_go_through_triton():
    kernel = Kernel()
    launch = Launcher(kernel)
    for size in (5, 2**31, 2**31, 6):
        launch((1, 1, 1), (torch.zeros(8),), (size,), (3,), 4)
    assert [arguments[1] for _, arguments, _ in kernel.through_triton] == [5, 2**31, 2**31]
    assert kernel.at_once[0][2][1] == 6


def test_registers_are_an_option_only_where_they_are_limited():
    """Triton knows the option for NVIDIA's devices, and refuses it for others."""
    kernel = Kernel()
    launch = Launcher(kernel)
    for registers, more in ((None, {}), (128, {"maxnreg": 128})):
        launch((1, 1, 1), (torch.zeros(8),), (5,), (3,), 4, registers)
        assert kernel.more == more


def test_constants_by_name_come_in_the_order_of_the_kernel():
    kernel = Kernel()
    kernel.arg_names = ["x", "size", "FIRST", "SECOND"]
    assert Launcher(kernel).ordered({"SECOND": 2, "FIRST": 1, "OTHER": 3}) == (1, 2)


@pytest.mark.parametrize(("constants", "warps"), [((True, 4), 4), ((False, 3), 4), ((True, 3), 8)])
def test_other_constants_or_warps_are_another_kernel(constants, warps):
    kernel = Kernel()
    launch = Launcher(kernel)
    launch((1, 1, 1), (torch.zeros(8),), (5,), (True, 3), 4)
    for _ in range(2):
        launch((1, 1, 1), (torch.zeros(8),), (5,), constants, warps)
    assert len(kernel.through_triton) == 2
    assert kernel.at_once[0][0].first[2:] == constants
    assert kernel.at_once[0][0].warps == warps


def test_a_tensor_that_begins_anywhere_goes_through_triton():
    """A kernel compiled for multiples of 16 bytes would read it in vectors."""
    kernel = Kernel()
    launch = Launcher(kernel)
    even, odd = torch.zeros(8), torch.zeros(9)[1:]
    for tensor in (odd, even, odd, odd):
        launch((1, 1, 1), (tensor,), (5,), (3,), 1)
    assert [arguments[0].data_ptr() % 16 for _, arguments, _ in kernel.through_triton] == [4, 0, 4, 4]
    launch((1, 1, 1), (even,), (5,), (3,), 1)
    assert kernel.at_once[0][0].first[0] is even


def test_a_kernel_that_is_compiled_ahead_is_compiled_once_and_not_launched(monkeypatch):
    monkeypatch.setattr(launching, "TOGETHER", True)
    kernel = Kernel()
    launch = Launcher(kernel)
    given = (2, 1, 1), (torch.zeros(8), torch.zeros(8, dtype=torch.int32)), (5,), (True, 3), 8
    with compiling_ahead():
        launch(*given)
        launch(*given)
    assert not kernel.through_triton
    launch(*given)
    launch(*given)
    assert kernel.ahead == [((torch.float32, torch.int32, 5, True, 3), 8)]
    assert len(kernel.through_triton) == len(kernel.at_once) == 1
    with compiling_ahead():
        launch(*given)
    assert len(kernel.ahead) == 1
    # Compiling does not launch either: the tensors have one number for all places.
    assert len(kernel.at_once) == 1


def test_what_failed_ahead_is_left_to_the_launch(monkeypatch):
    monkeypatch.setattr(launching, "TOGETHER", True)
    kernel = Kernel()
    kernel.refuses = True
    launch = Launcher(kernel)
    with compiling_ahead():
        launch((1, 1, 1), (torch.zeros(8),), (5,), (3,))
    launch((1, 1, 1), (torch.zeros(8),), (5,), (3,))
    assert len(kernel.ahead) == len(kernel.through_triton) == 1


def test_a_python_that_cannot_parse_in_threads_compiles_at_the_launch(monkeypatch):
    monkeypatch.setattr(launching, "TOGETHER", False)
    kernel = Kernel()
    launch = Launcher(kernel)
    with compiling_ahead():
        launch((1, 1, 1), (torch.zeros(8),), (5,), (3,))
    launch((1, 1, 1), (torch.zeros(8),), (5,), (3,))
    assert not kernel.ahead
    assert len(kernel.through_triton) == 1


@pytest.fixture
def begun(monkeypatch):
    """Keys that were begun: those of the test alone."""
    monkeypatch.setattr(launching, "TOGETHER", True)
    monkeypatch.setattr(launching, "_begun", set())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return launching._begun


def test_what_compiles_once_begins_once_for_each_key_and_may_fail(begun):
    calls = []

    def begin() -> None:
        calls.append(launching.is_compiling_ahead())
        compile_once(("inside",), begin)
        raise ValueError("a guess that fails")

    for key in ("a", "a", "b"):
        compile_once((key,), begin)
    assert calls == [True, True]
    assert not launching.is_compiling_ahead()


@pytest.mark.parametrize("together", [True, False])
def test_nothing_begins_under_capture_or_in_a_python_that_cannot(begun, monkeypatch, together):
    monkeypatch.setattr(launching, "TOGETHER", together)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: together)
    compile_once(("a",), lambda: pytest.fail("begun"))
    assert not begun


def test_the_first_layer_of_a_plan_knows_what_all_of_them_launch(monkeypatch):
    plan = gl.Plan()
    cloud = plan.points()
    near = plan.ball(cloud, cloud, 0.3)
    coarse = plan.rejection_sample(near)
    down = plan.ball(cloud, coarse, 0.4)
    stem, same = gl.nn.FeaturelessConv(near, 8), gl.nn.PointConv(near, 8, 8)
    alone, wide = gl.nn.DepthwiseConv(near, 8), gl.nn.PointConv(down, 8, 40, order="transform_first")
    geometry = plan(torch.rand(40, 3))
    geometry[down].transpose()
    begun, launched = set(), set()

    def note(self, grid, tensors, sizes):
        if "point_conv" in self._kernel.fn.__module__:
            kernels = launched if launching._compiling.pool is None else begun
            kernels.add((self._kernel.fn.__name__, self._constants, str(self._options), *(t.dtype for t in tensors)))

    # Imported while that is so, the kernels would take it for true ever after.
    importlib.import_module("gridless.ops.point_conv.gpu")
    monkeypatch.setattr(Launch, "__call__", note)
    monkeypatch.setattr(gl.backends, "interpreting", lambda: True)  # CPU tensors are taken
    with gl.use_backend("gpu"):
        with compiling_ahead():
            conv.compile_layers(near.plan, geometry, torch.device("cpu"))
        features = stem(geometry)
        wide(alone(same(features, geometry), geometry), geometry).sum().backward()
    # The first layer has its own kernel, and compiles it meanwhile.
    assert {name for name, *_ in launched - begun} == {"sums_kernel"}
    assert {name for name, *_ in begun} >= {"fused_kernel", "fused_backward_kernel", "depthwise_kernel"}
    assert begun <= launched


def test_sizes_of_programs():
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 127, 128, 129)] == [1, 2, 4, 4, 8, 128, 128, 256]
    assert [cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
