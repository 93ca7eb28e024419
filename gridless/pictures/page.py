"""One self-contained HTML page: text, tables, figures and clouds that turn. No network, no library."""

from __future__ import annotations

import base64
import html
import io
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from gridless.data.files import write_whole
from gridless.kernels.progress import shown
from gridless.pictures.colours import Legend


def text_of(text: object) -> str:
    """A text for HTML, with control characters escaped."""
    return html.escape(shown(text))


class Page:
    """A page is a list of pieces of HTML; the methods add pieces, `save` writes the file in one go."""

    def __init__(self, title: str, lead: str = "", fit: bool = False) -> None:
        """Begin a page. With `fit`, its content fills the window."""
        self.title, self.fit = title, fit
        self.pieces = [f"<h1>{text_of(title)}</h1>"]
        if lead:
            self.pieces.append(f'<p class="soft">{text_of(lead)}</p>')

    def heading(self, text: str) -> None:
        self.pieces.append(f"<h2>{text_of(text)}</h2>")

    def text(self, text: str) -> None:
        self.pieces.append(f"<p>{text_of(text)}</p>")

    def code(self, text: str) -> None:
        self.pieces.append(f"<pre>{html.escape(text)}</pre>")

    def figures(self, pairs: list[tuple[str, str]]) -> None:
        """Large numbers with their meaning underneath."""
        cards = "".join(f'<div class="card"><b>{text_of(n)}</b><span>{text_of(t)}</span></div>' for n, t in pairs)
        self.pieces.append(f'<div class="figures">{cards}</div>')

    def table(self, head: list[str], rows: list[list[Any]]) -> None:
        cells = "".join(f"<th>{text_of(h)}</th>" for h in head)
        body = "".join("<tr>" + "".join(f"<td>{text_of(c)}</td>" for c in row) + "</tr>" for row in rows)
        self.pieces.append(f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>")

    def row(self, *cards: str) -> None:
        """Cards from `image` and `cloud`, side by side."""
        self.pieces.append('<div class="row">' + "".join(cards) + "</div>")

    def html(self) -> str:
        body = "\n".join(self.pieces)
        style, viewer = (files("gridless.pictures").joinpath(f).read_text("utf-8") for f in ("page.css", "viewer.js"))
        script = f"<script>{viewer}</script>" if "<canvas" in body else ""
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text_of(self.title)}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<link rel="icon" href="data:,"><style>{style}</style></head>\n'
            f"<body{' class=fit' if self.fit else ''}>\n{body}\n"
            f"{script}\n</body></html>\n"
        )

    def save(self, path: str | Path) -> Path:
        return write_whole(path, self.html().encode())


def png(figure: Any) -> bytes:
    """A matplotlib figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def image(picture: Any, caption: str = "", legend: Legend | None = None) -> str:
    """A matplotlib figure, or a PNG file of one, as a card, with a caption and a legend."""
    data = base64.b64encode(picture if isinstance(picture, bytes) else png(picture)).decode()
    return _card(f'<img alt="{text_of(caption)}" src="data:image/png;base64,{data}">', caption, legend)


# Clouds of more points are drawn with WebGL.
LARGE = 20_000
# The view reaches at most `FAR` times as far from the middle as the points between these quantiles.
QUANTILES, FAR = (0.005, 0.995), 1.5
# Points farther out than this, in units of the view, are not drawn: their coordinates would overflow 16 bits.
REACH = 32.0


def cloud(
    points: np.ndarray, colours: np.ndarray, sizes: np.ndarray | int = 5, caption: str = "",
    legend: Legend | None = None, **data: str,
) -> str:  # fmt: skip
    """Points as a card that turns.

    Args:
        points: (N, 3); the view fits most of them, not the outliers.
        colours: (N, 3) uint8.
        sizes: (N) or one for all, in thirds of a pixel.
        caption: a line below.
        legend: the legend of the colours.
        data: attributes of the canvas for the viewer: `turn` and `tilt` in radians, `spin="no"`.
    """
    points = scaled(points)
    packed = np.empty(len(points), np.dtype([("xyz", "<i2", 3), ("rgb", "u1", 3), ("size", "u1")]))
    packed["rgb"], packed["size"] = colours, sizes
    near = np.abs(points).max(1, initial=0) < REACH
    packed["xyz"] = np.round(np.where(near[:, None], points, 0) * 1000)
    packed = packed[near]
    if len(packed) > LARGE:
        # In random order any prefix is a uniform sample; the viewer draws a prefix while the cloud moves.
        packed = packed[np.random.default_rng(0).permutation(len(packed))]
    attributes = "".join(f' data-{k}="{text_of(v)}"' for k, v in data.items())
    encoded = base64.b64encode(packed.tobytes()).decode()
    return _card(f'<canvas data-points="{encoded}"{attributes}></canvas>', caption, legend)


def mesh(corners: np.ndarray) -> str:
    """Triangles (T, 3, 3) as a card that turns, lit from above."""
    points = corners.reshape(-1, 3)
    packed = np.round(scaled(points, most=False) * 1000).astype("<i2")
    return _card(f'<canvas data-triangles="{base64.b64encode(packed.tobytes()).decode()}"></canvas>')


def box_of(points: np.ndarray, most: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest corner (3) of the box around points (N, 3).

    With `most`, outliers may be outside: on each axis the box reaches at most `FAR` times as far from the middle as
    the central 99 % of the points.
    """
    low, high = points.min(0), points.max(0)
    if not most:
        return low, high
    inner_low, inner_high = np.quantile(points, QUANTILES, axis=0)
    middle, half = (inner_low + inner_high) / 2, (inner_high - inner_low) / 2
    # The lower bound keeps an axis along which nearly all points are equal from marking all others as outliers.
    reach = FAR * np.maximum(half, 0.05 * half.max())
    return np.maximum(low, middle - reach), np.minimum(high, middle + reach)


def scaled(points: np.ndarray, most: bool = True) -> np.ndarray:
    """Points (N, 3), scaled so that their `box_of` becomes the unit box."""
    points = np.asarray(points, np.float64)
    if not len(points):
        return points
    low, high = box_of(points, most)
    middle = (low + high) / 2
    return (points - middle) / max(float((high - low).max()) / 2, 1e-12)


def _legend(legend: Legend | None) -> str:
    if legend is None:
        return ""
    keys = [f"rgb({r}, {g}, {b})" for _, (r, g, b) in legend.entries]
    names = [text_of(name) for name, _ in legend.entries]
    if legend.scale:
        return (
            f'<div class="legend"><span>{names[0]}</span><i style="background: linear-gradient(90deg, {keys[0]}, '
            f'{keys[1]})"></i><span>{names[1]}</span></div>'
        )
    items = "".join(f'<span class="key" style="--key: {key}">{name}</span>' for name, key in zip(names, keys))
    return f'<div class="legend">{items}</div>'


def _card(inside: str, caption: str = "", legend: Legend | None = None) -> str:
    note = f"<figcaption>{text_of(caption)}</figcaption>" if caption else ""
    return f'<figure class="card">{inside}{_legend(legend)}{note}</figure>'
