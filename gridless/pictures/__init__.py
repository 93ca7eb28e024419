"""Pictures: clouds, samples, neighbourhoods, events, predictions over time.

`show` draws any structure; the result appears in a notebook by itself and saves as PNG or as an interactive page.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from gridless.structures import Cloud, Edges, Events

BLUE, RED = np.array([49, 120, 198], np.uint8), np.array([209, 56, 44], np.uint8)
# For whole numbers: blue, red, green, ochre, violet, turquoise, pink, brown, grey, olive.
PALETTE = np.array(
    [BLUE, RED, (43, 138, 62), (224, 160, 30), (123, 79, 181), (23, 162, 162), (227, 119, 194), (140, 86, 75)]
    + [(138, 148, 161), (154, 165, 43)],
    np.uint8,
)
SUFFIXES = (".png", ".svg", ".pdf", ".html")


class Picture:
    """A drawing of a structure. In a notebook it shows itself; `save` takes .png, .svg, .pdf or .html."""

    def __init__(
        self,
        thing: Cloud | Events,
        sample: Cloud | None = None,
        edges: Edges | None = None,
        colours: np.ndarray | None = None,
    ) -> None:
        self.thing, self.sample, self.edges, self.colours = thing, sample, edges, colours

    def figure(self) -> Any:
        """The drawing as a matplotlib figure."""
        from gridless.pictures import figures

        if isinstance(self.thing, Events):
            return figures.events(self.thing, colours=self.colours)
        return figures.cloud(self.thing, self.sample, self.edges, self.colours)

    def html(self) -> str:
        """The drawing as a page of its own that can be turned with the mouse."""
        from gridless.pictures.page import Page, cloud

        points, colours, sizes = _coloured(self.thing, self.sample, self.edges, self.colours)
        page = Page(_title(self.thing, self.sample, self.edges), "Drag to turn, wheel to zoom.")
        page.row(cloud(points, colours, sizes))
        return page.html().replace("height: 340px", "height: 78vh")

    def save(self, path: str | Path) -> Path:
        from gridless.data.files import write_whole

        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise ValueError(f"cannot draw to {path.name}: the name must end in {', '.join(SUFFIXES)}")
        if path.suffix == ".html":
            return write_whole(path, self.html().encode())
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format=path.suffix[1:], dpi=150)
        return write_whole(path, buffer.getvalue())

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def show(thing: Any, sample: Cloud | None = None, edges: Edges | None = None, colour: str | None = None) -> Picture:
    """Draw a cloud (with a sample of it, with neighbourhoods) or a recording of events.

    >>> gl.show(cloud)                                # a (S, 3) tensor or array will do
    >>> gl.show(cloud, sample=gl.rejection_sample(cloud, radius=0.2))
    >>> gl.show(cloud, colour="label")
    >>> gl.show(events).save("recording.html")

    Args:
        thing: a cloud or a recording.
        sample: a sample of the cloud, drawn in red.
        edges: neighbourhoods of the cloud, of which a few are drawn.
        colour: the name of the rows that give the colours: (S, 3) colours; or a whole number for each point, each of
            which has a colour of its own; or a number, from blue to red. Rows called `rgb` are drawn unless others are
            named.
    """
    if not isinstance(thing, Events):
        thing = Cloud.of(thing)
    if thing.num_examples > 1:
        raise ValueError(f"show draws one example, these are {thing.num_examples}: pick one, e.g. x.examples[0]")
    if isinstance(thing, Events) and (sample is not None or edges is not None):
        raise ValueError("samples and neighbourhoods are drawn on clouds, not on events")
    name = "rgb" if colour is None and "rgb" in thing.rows else colour
    return Picture(thing, sample, edges, None if name is None else row_colours(name, thing.rows[name]))


def row_colours(name: str, rows: Any) -> np.ndarray:
    """Colours (N, 3) uint8 of rows: of colours, of whole numbers, or of numbers."""
    values = rows.detach().cpu().numpy()
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2 and values.shape[1] in (3, 4):
        most = 1.0 if values.dtype.kind == "f" else 255 if values.dtype == np.uint8 else values.max(initial=1)
        return (np.clip(values[:, :3] / most, 0, 1) * 255).astype(np.uint8)
    if values.ndim != 1:
        raise ValueError(f"show: rows {name!r} of shape {values.shape} are no colours: (S, 3), or (S)")
    if values.dtype.kind in "biu":
        return PALETTE[values.astype(np.int64) % len(PALETTE)]
    low, high = (np.nanmin(values), np.nanmax(values)) if len(values) else (0, 1)
    share = np.nan_to_num((values - low) / max(high - low, 1e-30))[:, None]
    return ((1 - share) * BLUE + share * RED).astype(np.uint8)


def _title(thing: Cloud | Events, sample: Cloud | None, edges: Edges | None) -> str:
    if isinstance(thing, Events):
        return f"{len(thing):,} events, {thing.sensor[0]} x {thing.sensor[1]} pixels"
    words = [f"{len(thing):,} points"]
    if sample is not None:
        words.append(f"{len(sample):,} samples")
    if edges is not None:
        words.append(f"{len(edges) / max(edges.num_target, 1):.1f} neighbours each")
    return ", ".join(words)


def _coloured(
    thing: Cloud | Events, sample: Cloud | None, edges: Edges | None, given: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    """Points (N, 3) with z up, colours (N, 3) uint8 and sizes (N) for the interactive viewer."""
    if isinstance(thing, Events):
        keep = np.unique(np.linspace(0, len(thing) - 1, min(40_000, len(thing))).astype(int))
        pixel, time = thing.pixel.cpu().numpy()[keep], thing.time.cpu().numpy()[keep]
        span = max(int(time.max() - time.min()), 1) if len(time) else 1
        long = 1.6 * max(thing.sensor)
        points = (
            np.stack([(time - time[:1]) / span * long, pixel[:, 0], -pixel[:, 1]], 1) if len(time) else pixel[:, :0]
        )
        on = thing.polarity.cpu().numpy()[keep] if thing.polarity is not None else np.zeros(len(keep), bool)
        colours = np.where(on[:, None], RED, BLUE) if given is None else given[keep]
        return points.reshape(-1, 3), colours, np.full(len(keep), 4, np.uint8)
    coords = thing.coords.cpu().numpy()
    points = np.zeros((len(coords), 3))
    points[:, : min(3, coords.shape[1])] = coords[:, :3]
    colours, sizes = np.tile(BLUE, (len(points), 1)), np.full(len(points), 5, np.uint8)
    if given is not None:
        colours = given.copy()
    if edges is not None:
        source, splits = edges.source.cpu().numpy(), edges.splits.cpu().numpy()
        for i in np.linspace(0, edges.num_target - 1, min(6, edges.num_target)).astype(int):
            colours[source[splits[i] : splits[i + 1]]] = (240, 160, 30)
    if sample is not None and sample.parent_index is not None:
        kept = sample.parent_index.cpu().numpy()
        colours[kept], sizes[kept] = RED, 9
    return points, colours, sizes
