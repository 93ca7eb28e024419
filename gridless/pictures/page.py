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


def text_of(text: object) -> str:
    """A text for HTML, with control characters escaped."""
    return html.escape(shown(text))


class Page:
    """A page is a list of pieces of HTML; the methods add pieces, `save` writes the file in one go."""

    def __init__(self, title: str, lead: str = "", fit: bool = False) -> None:
        """With `fit`, what is on the page has the size of the window."""
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
        """Cards side by side: what `image` and `cloud` return."""
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


def image(figure: Any, caption: str = "") -> str:
    """A matplotlib figure as a card."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    data = base64.b64encode(buffer.getvalue()).decode()
    return _card(f'<img alt="{text_of(caption)}" src="data:image/png;base64,{data}">', caption)


def cloud(points: np.ndarray, colours: np.ndarray, sizes: np.ndarray | int = 5, caption: str = "", **data: str) -> str:
    """Points (N, 3) as a card that turns: scaled to the unit box, colours (N, 3) uint8, sizes in thirds of a pixel."""
    points = _scaled(points)
    packed = np.empty(len(points), np.dtype([("xyz", "<i2", 3), ("rgb", "u1", 3), ("size", "u1")]))
    packed["xyz"], packed["rgb"], packed["size"] = np.round(points * 1000), colours, sizes
    words = "".join(f' data-{k}="{text_of(v)}"' for k, v in data.items())
    encoded = base64.b64encode(packed.tobytes()).decode()
    return _card(f'<canvas data-points="{encoded}"{words}></canvas>', caption)


def mesh(corners: np.ndarray) -> str:
    """Triangles (T, 3, 3) as a card that turns, lit from above."""
    packed = np.round(_scaled(corners.reshape(-1, 3)) * 1000).astype("<i2")
    return _card(f'<canvas data-triangles="{base64.b64encode(packed.tobytes()).decode()}"></canvas>')


def _scaled(points: np.ndarray) -> np.ndarray:
    """Points (N, 3) in the unit box."""
    points = np.asarray(points, np.float64)
    if not len(points):
        return points
    middle = (points.max(0) + points.min(0)) / 2
    return (points - middle) / max(np.abs(points - middle).max(), 1e-12)


def _card(inside: str, caption: str = "") -> str:
    note = f"<figcaption>{text_of(caption)}</figcaption>" if caption else ""
    return f'<figure class="card">{inside}{note}</figure>'
