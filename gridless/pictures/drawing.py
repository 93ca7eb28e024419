"""`Picture` draws a cloud, a mesh or events; `Diagram` draws a plan. Both save in every format."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gridless.pictures.colours import BLUE, ORANGE, RED, Legend, entry
from gridless.pictures.page import box_of
from gridless.structures import Cloud, Edges, Events

# Software tag written into the PNG metadata.
MARK = "gridless"
SUFFIXES = (".png", ".svg", ".pdf", ".html", ".gif", ".mp4")
VIEWS = ("space", "frame", "surface")
# Up axis -> coordinates that point right, back and up.
UP = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}
# Default of `max_points`; the points drawn are chosen at random.
MOST = 40_000
# Maximum triangles of a mesh; the largest ones are drawn.
MOST_TRIANGLES = 20_000


class Triangles(NamedTuple):
    """A mesh: the corners (T, 3, 3) of its triangles."""

    corners: np.ndarray


class Picture:
    """A drawing. A notebook shows it, to be turned with the mouse; `save` takes .png, .svg, .pdf, .html, .gif, .mp4.

    Args:
        thing: the cloud, the events or the mesh.
        sample: a sample of the cloud, drawn in red.
        edges: neighbourhoods of the cloud, of which a few are drawn.
        colours: (N, 3) uint8, one for each point or event, or None for the default ones.
        up: the axis that points up: x, y or z.
        view: "space", or for events "frame" or "surface".
        legend: what the colours mean, or None.
        max_points: points drawn at most, or None for `MOST`.
    """

    def __init__(
        self,
        thing: Cloud | Events | Triangles,
        sample: Cloud | None = None,
        edges: Edges | None = None,
        colours: np.ndarray | None = None,
        up: str = "z",
        view: str = "space",
        legend: Legend | None = None,
        max_points: int | None = None,
    ) -> None:
        self.thing, self.sample, self.edges, self.colours, self.up, self.view = thing, sample, edges, colours, up, view
        self.legend, self.max_points = legend, max_points

    def figure(self) -> Any:
        """The drawing as a matplotlib figure."""
        from gridless.pictures import figures

        if isinstance(self.thing, Triangles):
            corners, _ = self._triangles()
            return figures.mesh(corners, self.words)
        if isinstance(self.thing, Events) and self.view != "space":
            return figures.image(self.image(), self.words)
        points, colours, sizes = self.points()
        keep, title = self._kept(points, fit=not isinstance(self.thing, Events))
        if isinstance(self.thing, Events):
            # Milliseconds, x, and y pointing down.
            points = points * np.array([1e-3, 1, -1])
            return figures.space_time(points[keep], colours[keep], title, self.full_legend())
        flat = self.thing.dim < 3
        places = points[keep][:, : 2 if flat else 3]
        return figures.points(places, colours[keep], sizes[keep], title, self.full_legend())

    def html(self) -> str:
        """The drawing as a page of its own that can be turned with the mouse."""
        from gridless.pictures.page import Page, cloud, image, mesh

        if isinstance(self.thing, Triangles):
            corners, title = self._triangles()
            card = mesh(corners)
        elif self.view != "space":
            card, title = image(self.figure()), self.words
        else:
            points, colours, sizes = self.points()
            keep, title = self._kept(points)
            if isinstance(self.thing, Events) and len(points):
                # Scale the time axis to 1.6 times the longer side of the sensor.
                points = points * np.array([1.6 * max(self.thing.sensor) / max(points[:, 0].max(), 1), 1, 1])
            card = cloud(points[keep], colours[keep], sizes[keep], legend=self.full_legend())
        turns = "" if self.view != "space" else "Drag to turn, wheel to zoom."
        page = Page(title, turns, fit=True)
        page.row(card)
        return page.html()

    def image(self) -> np.ndarray:
        """Events as an image (H, W, 3) uint8: a frame or a time surface, ON red, OFF blue."""
        from gridless.data.images import frames, time_surface
        from gridless.pictures.video import painted

        events = self.thing
        assert isinstance(events, Events)
        if self.view == "surface":
            span = int(events.time[-1] - events.time[0]) if len(events) else 1
            return painted(time_surface(events, max(span / 3, 1)), 1.0)
        counts = frames(events)[0]
        some = counts[counts > 0]
        return painted(counts, max(float(some.quantile(0.9)) if 0 < len(some) < 1 << 24 else 1.0, 1.0))

    def video(self, path: str | Path, fps: float = 25, speed: float = 1) -> Path:
        """Write events as a .gif or .mp4 video of `fps` frames per second; a frame shows `speed` / `fps` seconds."""
        from gridless.pictures.video import event_images, write_video

        if not isinstance(self.thing, Events):
            raise ValueError("a video shows events, not clouds or meshes. Save a page: save('picture.html').")
        return write_video(path, event_images(self.thing, fps, speed), fps)

    def save(self, path: str | Path) -> Path:
        from gridless.data.files import write_whole

        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise ValueError(f"{path.name} is not a picture format. The name must end in {', '.join(SUFFIXES)}.")
        if path.suffix in (".gif", ".mp4"):
            return self.video(path)
        if path.suffix == ".html":
            return write_whole(path, self.html().encode())
        buffer = io.BytesIO()
        about = {"Software": MARK} if path.suffix == ".png" else None
        self.figure().savefig(buffer, format=path.suffix[1:], dpi=150, metadata=about)
        return write_whole(path, buffer.getvalue())

    @property
    def words(self) -> str:
        """A description of the drawing, in one line."""
        thing = self.thing
        if isinstance(thing, Triangles):
            return f"{len(thing.corners):,} triangles"
        if isinstance(thing, Events):
            if not len(thing):
                return "no events"
            seconds = int(thing.time[-1] - thing.time[0]) / 1e6
            return f"{len(thing):,} events in {seconds:.3g} s, {thing.sensor[0]} x {thing.sensor[1]} pixels"
        parts = [f"{len(thing):,} points" if len(thing) else "no points"]
        lost = int((~thing.coords.isfinite()).any(1).sum())
        if lost:
            parts.append(f"{lost:,} of them not finite and left out")
        if self.sample is not None:
            parts.append(f"{len(self.sample):,} samples")
        if self.edges is not None:
            parts.append(f"{len(self.edges) / max(self.edges.num_target, 1):.1f} neighbours each")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"Picture of {self.words}: in a notebook it can be turned; else .save('picture.html') or .save('a.png')"

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 520px; border: 0"></iframe>'

    def full_legend(self) -> Legend | None:
        """The legend of all colours; None for a cloud in one colour, or in its own colours."""
        entries = list(self.legend.entries) if self.legend is not None else []
        scale = self.legend is not None and self.legend.scale
        if isinstance(self.thing, Events) and self.colours is None:
            plain = self.thing.polarity is None
            entries = [entry("event", BLUE)] if plain else [entry("ON, brighter", RED), entry("OFF, darker", BLUE)]
        if not scale and self.sample is not None:
            entries.append(entry("sample", RED))
        if not scale and self.edges is not None:
            entries.append(entry("a few neighbourhoods", ORANGE))
        if entries and not isinstance(self.thing, Events) and self.colours is None:
            entries.append(entry("other points", BLUE))
        return Legend(entries, scale) if entries else None

    def points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All points (N, 3) with z up, colours (N, 3) uint8 and sizes (N); of events, (time, x, -y)."""
        thing, given = self.thing, self.colours
        if isinstance(thing, Events):
            pixel, time = thing.pixel.cpu().numpy().astype(np.float64), thing.time.cpu().numpy()
            points = np.concatenate([(time - time[:1])[:, None], pixel * [1, -1]], 1)
            on = thing.polarity.cpu().numpy() if thing.polarity is not None else np.zeros(len(thing), bool)
            colours = np.where(on[:, None], RED, BLUE) if given is None else given
            return points, colours, np.full(len(points), 4, np.uint8)
        assert isinstance(thing, Cloud)
        coords = thing.coords.detach().cpu().numpy()
        points = np.zeros((len(coords), 3))
        points[:, : min(3, coords.shape[1])] = coords[:, :3]
        if thing.dim >= 3:
            points = points[:, UP[self.up]]
        colours, sizes = np.tile(BLUE, (len(points), 1)), np.full(len(points), 5, np.uint8)
        if given is not None:
            colours = given.copy()
        if self.edges is not None:
            source, splits = self.edges.source.cpu().numpy(), self.edges.splits.cpu().numpy()
            for i in np.linspace(0, self.edges.num_target - 1, min(6, self.edges.num_target)).astype(int):
                near = source[splits[i] : splits[i + 1]]
                colours[near], sizes[near] = ORANGE, 7
        if self.sample is not None and self.sample.parent_index is not None:
            index = self.sample.parent_index.cpu().numpy()
            colours[index], sizes[index] = RED, 9
        return points, colours, sizes

    def _kept(self, points: np.ndarray, fit: bool = False) -> tuple[np.ndarray, str]:
        """Indices of the points that are drawn, and a line with their number. With `fit`, outliers are left out."""
        keep, title = np.flatnonzero(np.isfinite(points).all(1)), self.words
        if fit and len(keep):
            low, high = box_of(points[keep])
            inside = ((points[keep] >= low) & (points[keep] <= high)).all(1)
            if not inside.all():
                title += f", {int((~inside).sum()):,} outliers are outside the picture"
            keep = keep[inside]
        most = self.max_points or MOST
        if len(keep) <= most:
            return keep, title
        chosen = np.random.default_rng(0).choice(keep, most, replace=False)
        return np.sort(chosen), f"{title}: {most:,} of them, taken at random, are shown"

    def _triangles(self) -> tuple[np.ndarray, str]:
        assert isinstance(self.thing, Triangles)
        corners = self.thing.corners
        corners = corners[np.isfinite(corners).all((1, 2))][..., UP[self.up]]
        if len(corners) <= MOST_TRIANGLES:
            return corners, self.words
        area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
        largest = np.sort(np.argpartition(-area, MOST_TRIANGLES)[:MOST_TRIANGLES])
        return corners[largest], f"{self.words}: the {MOST_TRIANGLES:,} largest are shown"


class Diagram(Picture):
    """A drawing of a plan, or of a network with its plan: the paper's figure 2. It saves as a `Picture` does."""

    def __init__(self, plan: Any, model: Any = None) -> None:
        self.plan, self.model = plan, model

    def figure(self) -> Any:
        from gridless.pictures.diagrams import diagram, of_network, of_plan

        if self.model is None:
            return diagram(*of_plan(self.plan))
        return diagram(*of_network(self.model), divide=1.5)

    def html(self) -> str:
        from gridless.pictures.page import Page, image

        page = Page(self.words)
        page.row(image(self.figure(), str(self.plan)))
        return page.html()

    def video(self, path: str | Path, fps: float = 25, speed: float = 1) -> Path:
        raise ValueError("a video shows events, not a plan. Save it as .png, .svg, .pdf or .html.")

    @property
    def words(self) -> str:
        clouds = sum(name.startswith("X") for name in self.plan.steps)
        of = "" if self.model is None else f" of {type(self.model).__name__}"
        return f"plan{of}: {clouds} clouds or streams, {len(self.plan.steps) - clouds} searches"
