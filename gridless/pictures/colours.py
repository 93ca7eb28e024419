"""The colours of points and events, and of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from typing import Any

import numpy as np

BLUE, RED = np.array([49, 120, 198], np.uint8), np.array([209, 56, 44], np.uint8)
ORANGE = np.array([240, 160, 30], np.uint8)
# Further colours of the palette: hues a golden angle apart, with these pairs of lightness and saturation in turn.
GOLDEN, SHADES = 0.381966, ((0.36, 0.75), (0.62, 0.6), (0.48, 0.35))


def _palette(count: int) -> np.ndarray:
    """Colours (count, 3) uint8 of whole numbers: blue, red, green, ochre, violet, turquoise, pink, brown, grey, olive,
    and further ones by their hue."""
    first = [BLUE, RED, (43, 138, 62), (224, 160, 30), (123, 79, 181), (23, 162, 162), (227, 119, 194), (140, 86, 75)]
    first += [(138, 148, 161), (154, 165, 43)]
    further = [hls_to_rgb(k * GOLDEN % 1, *SHADES[k % len(SHADES)]) for k in range(count - len(first))]
    return np.array([*first, *(np.round(np.array(colour) * 255) for colour in further)], np.uint8)


PALETTE = _palette(60)
# Classes that a legend names at most.
MOST_NAMES = 24


@dataclass(frozen=True)
class Legend:
    """Legend of a picture: `entries` are (name, colour) pairs; with `scale` they are the ends of a colour scale."""

    entries: list[tuple[str, tuple[int, int, int]]]
    scale: bool = False


def entry(name: str, colour: Any) -> tuple[str, tuple[int, int, int]]:
    """A line of a legend."""
    red, green, blue = (int(v) for v in colour)
    return name, (red, green, blue)


def row_legend(name: str, rows: Any, class_names: Sequence[str] | Mapping[int, str] | None = None) -> Legend | None:
    """The legend of rows that `row_colours` colours; None if the rows are colours.

    Args:
        name: the name of the rows.
        rows: (S,) numbers, or (S, 3) colours.
        class_names: names of whole numbers: by number, or a list that begins with number 0.
    """
    values = rows.detach().cpu().numpy()
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        return None
    if values.dtype.kind in "biu":
        numbers, counts = np.unique(values.astype(np.int64), return_counts=True)
        common = np.sort(numbers[np.argsort(-counts, kind="stable")[:MOST_NAMES]])
        entries = [entry(_class_name(name, int(k), class_names), PALETTE[k % len(PALETTE)]) for k in common]
        if len(numbers) > MOST_NAMES:
            entries.append((f"and {len(numbers) - MOST_NAMES} more", (128, 128, 128)))
        return Legend(entries)
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite):
        return None
    return Legend([entry(f"{name} {finite.min():.4g}", BLUE), entry(f"{finite.max():.4g}", RED)], scale=True)


def _class_name(rows: str, number: int, class_names: Sequence[str] | Mapping[int, str] | None) -> str:
    if isinstance(class_names, Mapping):
        return str(class_names.get(number, f"{rows} {number}"))
    known = class_names is not None and 0 <= number < len(class_names)
    return str(class_names[number]) if known else f"{rows} {number}"  # type: ignore[index]


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
            f"show: rows {name!r} of shape {values.shape} are no colours, (S, 3) or (S). Use logits.argmax(1)."
        )
    if values.dtype.kind in "biu":
        return PALETTE[values.astype(np.int64) % len(PALETTE)]
    # In a narrower type the difference of maximum and minimum may overflow.
    values = values.astype(np.float64)
    some = values[np.isfinite(values)]
    low, high = (some.min(), some.max()) if len(some) else (0, 1)
    share = np.clip(np.nan_to_num((values - low) / max(high - low, 1e-30)), 0, 1)[:, None]
    return ((1 - share) * BLUE + share * RED).astype(np.uint8)
