"""IEEE float32 products on tensor cores, which know TF32 (11 bits) only.

A number is the sum of its part in TF32 and the rest. Three products of such parts leave out that of both rests: an
error of 5e-7, where a library's float32 product has 6e-7, in half its time.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv

# Rows, columns and steps of a tile, by trial on an H200; and multiply-adds from which a product gains more than its
# launches cost.
_ROWS, _COLUMNS, _STEPS, _WORTH = 64, 64, 32, 1 << 29


def float32_precision() -> str:
    """Precision of products of float32, as PyTorch is set: "tf32", or "tf32x3" for three products of TF32."""
    if torch.version.hip is not None:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def product_with(right: Tensor, rows: int, processors: int) -> Callable[[Tensor, Tensor | None, Tensor], None]:
    """product(left, bias, out) writes left @ right + bias, for left factors that have so many rows in all."""
    if suits(right, rows, processors):
        high, low = parts(right.t())
        return lambda left, bias, out: exact_product(left, high, low, bias, out)

    def by_library(left: Tensor, bias: Tensor | None, out: Tensor) -> None:
        if bias is None:
            torch.mm(left, right, out=out)
        else:
            torch.addmm(bias, left, right, out=out)

    return by_library


def suits(right: Tensor, rows: int, processors: int) -> bool:
    """True if `exact_product` takes the factor, and is faster than the library's: tiles for all processors."""
    steps, columns = right.shape
    if right.dtype != torch.float32 or steps % _STEPS or columns % _COLUMNS or float32_precision() != "tf32x3":
        return False
    return cdiv(rows, _ROWS) * (columns // _COLUMNS) >= processors and rows * right.numel() >= _WORTH


def exact_product(left: Tensor, high: Tensor, low: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out (N, P) = left (N, K) @ right + bias, where high + low (P, K) are the `parts` of the right factor across."""
    (rows, steps), columns = left.shape, len(high)
    blocks = columns // _COLUMNS
    tensors = (left, high, low, high if bias is None else bias, out)
    constants = (steps, columns, _ROWS, _COLUMNS, _STEPS, blocks, bias is not None)
    _PRODUCT((cdiv(rows, _ROWS) * blocks, 1, 1), tensors, (rows,), constants, 4, None, 3)


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (2 or 3 dimensions) in TF32, and the rest; both contiguous."""
    high, low = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    view = x if x.ndim == 3 else x[None]
    size = x.numel()
    _SPLIT((cdiv(size, 1024), 1, 1), (view, high, low), (size, *view.shape[1:], *view.stride()), (1024,))
    return high, low


@triton.jit
def high_part(x):
    """float32 rounded to TF32, towards zero."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def three_products(a, a_low, b, b_low):
    """(a + a_low) (b + b_low) without the product of the low parts.

    Tensor cores round sums towards zero: only those of one step are left to them.
    """
    part = tl.dot(a_low, b, input_precision="tf32")
    part = tl.dot(a, b_low, part, input_precision="tf32")
    return tl.dot(a, b, part, input_precision="tf32")


@triton.jit(do_not_specialize=["size", "rows", "columns", "by_matrix", "by_row", "by_column"])
def _split(X, HIGH, LOW, size, rows, columns, by_matrix, by_row, by_column, B: tl.constexpr):
    """HIGH is X (matrices, rows, columns) in TF32, LOW the rest; B numbers each."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    row = at // columns
    given = (row // rows) * by_matrix + (row % rows) * by_row + (at % columns) * by_column
    x = tl.load(X + given, at < size, other=0.0)
    high = high_part(x)
    tl.store(HIGH + at, high, at < size)
    tl.store(LOW + at, x - high, at < size)


@triton.jit(do_not_specialize=["rows"])
def _product(
    LEFT, HIGH, LOW, BIAS, OUT, rows,
    Q: tl.constexpr, P: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """OUT of M rows and N columns, K steps at a time."""
    row = (tl.program_id(0) // BLOCKS).to(tl.int64) * M + tl.arange(0, M)
    p = (tl.program_id(0) % BLOCKS) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    live = (row < rows)[:, None]
    acc = tl.zeros([M, N], tl.float32)
    for step in range(0, Q, K):
        a = tl.load(LEFT + row[:, None] * Q + step + k[None, :], live, other=0.0)
        at = p[:, None] * Q + step + k[None, :]
        a_high = high_part(a)
        acc += three_products(a_high, a - a_high, tl.trans(tl.load(HIGH + at)), tl.trans(tl.load(LOW + at)))
    if HAS_BIAS:
        acc += tl.load(BIAS + p)[None, :]
    tl.store(OUT + row[:, None] * P + p[None, :], acc, live)


_SPLIT, _PRODUCT = Launcher(_split, exact=True), Launcher(_product)
