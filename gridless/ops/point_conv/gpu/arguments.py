"""Constants of the kernels: the edge function, and the integer type for rows and edges."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gridless.ops.point_conv.edge_function import MONOMIALS, EdgeFunction


@lru_cache(1024)
def scale(radius: float) -> tuple[float, float]:
    """1 / radius as a float32, and what is missing from it."""
    high = float(np.float32(1 / radius))
    return high, 1 / radius - high


@lru_cache(1024)
def terms(function: EdgeFunction, base: int, size: int) -> dict[str, Any]:
    """Constants of `size` terms of the edge function, from `base` on."""
    rows = function.table[base * function.dim : (base + size) * function.dim]
    numbers = tuple(int(x) for x in rows) if function.kind == MONOMIALS else rows
    return {"M": size, "KIND": function.kind, "TABLE": numbers, "SHARP": -0.5 / function.width**2}


def widest(rows: int, columns: int, edges: int) -> int:
    """Most numbers per row or column that 32 bits can address; 0 if there are too many edges."""
    return 0 if edges + (1 << 24) >= 1 << 31 else ((1 << 31) - 1) // max(rows, columns, 1)
