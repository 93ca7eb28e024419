"""Charts of ratios as SVG text: ours beside the best peer, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import median

# Pixels: the height of a lane, the widths of names, of the axis and of the number behind it.
LANE, NAMES, AXIS, NUMBERS = 24, 400, 400, 130
TOP, BOTTOM = 34, 30
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
OURS, THEIRS, INK, SOFT, LINE = "#3178c6", "#d1382c", "#1c2430", "#4d5866", "#d9dee5"

Lane = tuple[str, Sequence[float]]  # a name, and its ratios: above 1 we are better


def ratios(lanes: Sequence[Lane], title: str) -> str:
    """A chart with a lane for each name: a bar for one ratio, dots and their median for several."""
    values = [value for _, each in lanes for value in each]
    low, high = min(0.5, *values) / 1.15, max(2.0, *values) * 1.15
    height, width = TOP + LANE * len(lanes) + BOTTOM, NAMES + AXIS + NUMBERS

    def across(value: float) -> float:
        return NAMES + AXIS * math.log(value / low) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(across(1) - 8, 20, "others better", SOFT, "end"),
        _text(across(1) + 8, 20, "gridless better", SOFT),
    ]
    bottom = TOP + LANE * len(lanes)
    for tick in TICKS:
        if low <= tick <= high:
            x, colour = across(tick), INK if tick == 1 else LINE
            parts.append(f'<path d="M{x:.1f} {TOP - 4}V{bottom}" stroke="{colour}"/>')
            parts.append(_text(x, bottom + 18, f"{tick:g} x", SOFT, "middle"))
    for at, (name, each) in enumerate(lanes):
        y = TOP + LANE * at + LANE / 2
        parts.append(_text(NAMES - 12, y + 4.5, name, INK, "end"))
        parts += _lane(y, each, across)
    return "\n".join([*parts, "</svg>", ""])


def _lane(y: float, each: Sequence[float], across) -> list[str]:
    if len(each) == 1:
        begin, end = sorted((across(1), across(each[0])))
        bar = f'<rect x="{begin:.1f}" y="{y - 7:.1f}" width="{max(end - begin, 1):.1f}" height="14" rx="3"'
        return [f'{bar} fill="{_colour(each[0])}"/>', _text(NAMES + AXIS + 10, y + 4.5, f"{each[0]:.3g} x", INK)]
    middle = median(each)
    dots = [
        f'<circle cx="{across(value):.1f}" cy="{y:.1f}" r="4" fill="{_colour(value)}" fill-opacity="0.45"/>'
        for value in sorted(each)
    ]
    mark = f'<path d="M{across(middle):.1f} {y - 9:.1f}v18" stroke="{INK}" stroke-width="2.5"/>'
    return [*dots, mark, _text(NAMES + AXIS + 10, y + 4.5, f"median {middle:.3g} x", INK)]


def _colour(value: float) -> str:
    return OURS if value >= 1 else THEIRS


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
