"""A launcher gives every launch to the kernel that Triton would have chosen."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from gridless.kernels.launch import Launcher, cdiv, power_of_two


class Kernel:
    """Notes how it is launched, and returns what was compiled, which notes it too."""

    def __init__(self) -> None:
        self.through_triton: list[tuple] = []
        self.at_once: list[tuple] = []

    def __getitem__(self, grid):
        def launch(*arguments, num_warps, maxnreg, enable_fp_fusion):
            self.through_triton.append((grid, arguments, num_warps))
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


def test_constants_by_name_come_in_the_order_of_the_kernel():
    kernel = Kernel()
    kernel.arg_names = ["x", "size", "FIRST", "SECOND"]
    assert Launcher(kernel).ordered(2, {"SECOND": 2, "FIRST": 1, "OTHER": 3}) == (1, 2)


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
    """What was compiled for multiples of 16 bytes would read it in vectors."""
    kernel = Kernel()
    launch = Launcher(kernel)
    even, odd = torch.zeros(8), torch.zeros(9)[1:]
    for tensor in (odd, even, odd, odd):
        launch((1, 1, 1), (tensor,), (5,), (3,), 1)
    assert [arguments[0].data_ptr() % 16 for _, arguments, _ in kernel.through_triton] == [4, 0, 4, 4]
    launch((1, 1, 1), (even,), (5,), (3,), 1)
    assert kernel.at_once[0][0].first[0] is even


def test_sizes_of_programs():
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 127, 128, 129)] == [1, 2, 4, 4, 8, 128, 128, 256]
    assert [cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
