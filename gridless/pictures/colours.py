"""The colours of points and events, and of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

BLUE, RED = np.array([49, 120, 198], np.uint8), np.array([209, 56, 44], np.uint8)
# For whole numbers: blue, red, green, ochre, violet, turquoise, pink, brown, grey, olive.
PALETTE = np.array(
    [BLUE, RED, (43, 138, 62), (224, 160, 30), (123, 79, 181), (23, 162, 162), (227, 119, 194), (140, 86, 75)]
    + [(138, 148, 161), (154, 165, 43)],
    np.uint8,
)


def row_colours(name: str, rows: Any) -> np.ndarray:
    """Colours (N, 3) uint8 of rows: of colours, of whole numbers, or of numbers."""
    values = rows.detach().cpu().numpy()
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2 and values.shape[1] in (3, 4):
        most = 1.0 if values.dtype.kind == "f" else 255 if values.dtype == np.uint8 else values.max(initial=1)
        return (np.clip(np.nan_to_num(values[:, :3]) / most, 0, 1) * 255).astype(np.uint8)
    if values.ndim != 1:
        raise ValueError(
            f"show: rows {name!r} of shape {values.shape} are no colours: (S, 3), or (S); of logits, logits.argmax(1)"
        )
    if values.dtype.kind in "biu":
        return PALETTE[values.astype(np.int64) % len(PALETTE)]
    # The range of a narrower type may not fit into it.
    values = values.astype(np.float64)
    some = values[np.isfinite(values)]
    low, high = (some.min(), some.max()) if len(some) else (0, 1)
    share = np.clip(np.nan_to_num((values - low) / max(high - low, 1e-30)), 0, 1)[:, None]
    return ((1 - share) * BLUE + share * RED).astype(np.uint8)
