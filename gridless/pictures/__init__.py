"""Pictures: clouds, meshes, samples, neighbourhoods, events, predictions over time.

`show` draws any structure or file; the result can be turned in a notebook, and saves as PNG, as a page or as a video.
"""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gridless.pictures.colours import BLUE, RED, row_colours
from gridless.plan import Plan
from gridless.structures import Cloud, Edges, Events

# What a PNG says of where it came from.
MARK = "gridless"
SUFFIXES = (".png", ".svg", ".pdf", ".html", ".gif", ".mp4")
VIEWS = ("space", "frame", "surface")
# The axis that points up, and which coordinates then are to the right, to the back and up.
UP = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}
# Points that are drawn at most, taken at random: more than a browser turns smoothly, or than paper tells apart.
MOST = 40_000
# Triangles of a mesh that are drawn at most, the largest.
MOST_TRIANGLES = 20_000


class Triangles(NamedTuple):
    """A mesh: the corners (T, 3, 3) of its triangles."""

    corners: np.ndarray


class Picture:
    """A drawing. A notebook shows it, to be turned with the mouse; `save` takes .png, .svg, .pdf, .html, .gif, .mp4.

    The arguments are those of `gl.show`; `colours` (N, 3) are uint8, one for each point, or None.
    """

    def __init__(
        self,
        thing: Cloud | Events | Triangles,
        sample: Cloud | None = None,
        edges: Edges | None = None,
        colours: np.ndarray | None = None,
        up: str = "z",
        view: str = "space",
    ) -> None:
        self.thing, self.sample, self.edges, self.colours, self.up, self.view = thing, sample, edges, colours, up, view

    def figure(self) -> Any:
        """The drawing as a matplotlib figure."""
        from gridless.pictures import figures

        if isinstance(self.thing, Triangles):
            corners, _ = self._triangles()
            return figures.mesh(corners, self.words)
        if isinstance(self.thing, Events) and self.view != "space":
            return figures.image(self.image(), self.words)
        points, colours, sizes = self._points()
        keep, words = self._kept(points)
        if isinstance(self.thing, Events):
            # Time, x and y as they are.
            points = points * np.array([1e-3, 1, -1])
            return figures.space_time(points[keep], colours[keep], words)
        flat = self.thing.dim < 3
        return figures.points(points[keep][:, : 2 if flat else 3], colours[keep], sizes[keep], words)

    def html(self) -> str:
        """The drawing as a page of its own that can be turned with the mouse."""
        from gridless.pictures.page import Page, cloud, image, mesh

        if isinstance(self.thing, Triangles):
            corners, words = self._triangles()
            card = mesh(corners)
        elif self.view != "space":
            card, words = image(self.figure()), self.words
        else:
            points, colours, sizes = self._points()
            keep, words = self._kept(points)
            if isinstance(self.thing, Events) and len(points):
                # As long as one and a half sensors are wide.
                points = points * np.array([1.6 * max(self.thing.sensor) / max(points[:, 0].max(), 1), 1, 1])
            card = cloud(points[keep], colours[keep], sizes[keep])
        turns = "" if self.view != "space" else "Drag to turn, wheel to zoom."
        page = Page(words, turns, fit=True)
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
        """Events as a video, .gif or .mp4: `fps` frames a second, each of `speed` / `fps` seconds of the recording."""
        from gridless.pictures.video import event_images, write_video

        if not isinstance(self.thing, Events):
            raise ValueError("a video shows events: clouds and meshes can be turned in a page, save('picture.html')")
        return write_video(path, event_images(self.thing, fps, speed), fps)

    def save(self, path: str | Path) -> Path:
        from gridless.data.files import write_whole

        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise ValueError(f"cannot draw to {path.name}: the name must end in {', '.join(SUFFIXES)}")
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
        """What is drawn, in a line."""
        thing = self.thing
        if isinstance(thing, Triangles):
            return f"{len(thing.corners):,} triangles"
        if isinstance(thing, Events):
            if not len(thing):
                return "no events"
            seconds = int(thing.time[-1] - thing.time[0]) / 1e6
            return f"{len(thing):,} events in {seconds:.3g} s, {thing.sensor[0]} x {thing.sensor[1]} pixels"
        words = [f"{len(thing):,} points" if len(thing) else "no points"]
        lost = int((~thing.coords.isfinite()).any(1).sum())
        if lost:
            words.append(f"{lost:,} of them not finite and left out")
        if self.sample is not None:
            words.append(f"{len(self.sample):,} samples")
        if self.edges is not None:
            words.append(f"{len(self.edges) / max(self.edges.num_target, 1):.1f} neighbours each")
        return ", ".join(words)

    def __repr__(self) -> str:
        return f"Picture of {self.words}: in a notebook it can be turned; else .save('picture.html') or .save('a.png')"

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 520px; border: 0"></iframe>'

    def _points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
                colours[near], sizes[near] = (240, 160, 30), 7
        if self.sample is not None and self.sample.parent_index is not None:
            kept = self.sample.parent_index.cpu().numpy()
            colours[kept], sizes[kept] = RED, 9
        return points, colours, sizes

    def _kept(self, points: np.ndarray) -> tuple[np.ndarray, str]:
        """Which of the points are drawn, and the line that says so."""
        keep = np.flatnonzero(np.isfinite(points).all(1))
        if len(keep) <= MOST:
            return keep, self.words
        chosen = np.random.default_rng(0).choice(keep, MOST, replace=False)
        return np.sort(chosen), f"{self.words}: {MOST:,} of them, taken at random, are shown"

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
        raise ValueError("a video shows events: save a plan as .png, .svg, .pdf or .html")

    @property
    def words(self) -> str:
        clouds = sum(name.startswith("X") for name in self.plan.steps)
        of = "" if self.model is None else f" of {type(self.model).__name__}"
        return f"plan{of}: {clouds} clouds or streams, {len(self.plan.steps) - clouds} searches"


def show(
    thing: Any,
    sample: Cloud | None = None,
    edges: Edges | None = None,
    colour: Any = None,
    up: str = "z",
    view: str = "space",
) -> Picture:
    """Draw a cloud (with a sample of it, with neighbourhoods), a mesh, a recording of events, or a plan.

    >>> gl.show(cloud)                                # whatever Cloud.of takes, or the path of a file
    >>> gl.show(cloud, sample=gl.rejection_sample(cloud, radius=0.2))
    >>> gl.show(cloud, colour="label")
    >>> gl.show(cloud, colour=logits.argmax(1))
    >>> gl.show(events, view="frame").save("frame.png")
    >>> gl.show(events).video("recording.mp4", speed=0.1)
    >>> gl.show(model.plan)                           # or gl.show(model), with its convolutions

    Args:
        thing: a cloud, a recording, a mesh of trimesh, or a file of a cloud, a mesh or a recording; or a plan, or a
            network with one.
        sample: a sample of the cloud, drawn in red.
        edges: neighbourhoods of the cloud, of which a few are drawn.
        colour: the name of the rows that give the colours, or such rows: (S, 3) colours; or a whole number for each
            point, such as a label or a prediction, each of which has a colour of its own; or a number, from blue to
            red. Rows called `rgb` are drawn unless others are named.
        up: the axis that points up: x, y or z.
        view: events in "space" and time, as a "frame" of all of them, or as a time "surface".
    """
    if up not in UP or view not in VIEWS:
        raise ValueError(f"show: up is x, y or z, and view {', '.join(VIEWS)}, not {up!r} and {view!r}")
    if isinstance(plan := getattr(thing, "plan", thing), Plan):
        if sample is not None or edges is not None or colour is not None:
            raise ValueError("show: a plan has neither samples nor colours of its own. Draw the cloud with them.")
        return Diagram(plan, None if thing is plan else thing)
    if isinstance(thing, str | Path):
        thing = read(Path(thing))
    elif type(thing).__module__.startswith("trimesh") and hasattr(thing, "triangles"):
        thing = Triangles(np.array(thing.triangles))
    if isinstance(thing, Triangles):
        if sample is not None or edges is not None or colour is not None:
            raise ValueError("a mesh is drawn as it is: for samples and colours draw points, gl.data.sample_mesh(path)")
        return Picture(thing, up=up)
    if not isinstance(thing, Events):
        thing = Cloud.of(thing)
    if thing.num_examples > 1:
        raise ValueError(f"show draws one example, these are {thing.num_examples}: pick one, e.g. x.examples[0]")
    if isinstance(thing, Events) and (sample is not None or edges is not None):
        raise ValueError("samples and neighbourhoods are drawn on clouds, not on events")
    if view != "space" and not isinstance(thing, Events):
        raise ValueError(f"show: events are seen as a {view}, a cloud is not")
    colour = "rgb" if colour is None and "rgb" in thing.rows else colour
    if colour is None:
        return Picture(thing, sample, edges, None, up, view)
    name, rows = (colour, thing.rows[colour]) if isinstance(colour, str) else ("colour", torch.as_tensor(colour))
    if len(rows) != len(thing):
        raise ValueError(f"show: colour must have one row for each of {len(thing)}, not {len(rows)}")
    return Picture(thing, sample, edges, row_colours(name, rows), up, view)


def _read_bag(file: Path, topic: str | None) -> Any:
    from gridless.data import read_cloud, read_events
    from gridless.data.readers.bags import Bag
    from gridless.data.readers.clouds.ros import TYPES as CLOUDS
    from gridless.data.readers.events.ros import TYPES as EVENTS

    with Bag.open(file) as bag:
        topics = bag.topics()
    clouds = [name for name, (kind, _) in topics.items() if kind in CLOUDS]
    if topic in clouds or (topic is None and clouds and not any(kind in EVENTS for kind, _ in topics.values())):
        return read_cloud(file, topic=topic)
    return read_events(file, topic=topic)


def read(file: Path, topic: str | None = None) -> Any:
    """The cloud, the mesh or the events of a file, by its name; a table of plain numbers is a cloud after all.

    Of a recording of ROS these are its events, or else the first of its clouds; `topic` says which.
    """
    from gridless.data import FormatError, read_cloud, read_events
    from gridless.data.errors import check_file
    from gridless.data.readers.bags import is_bag
    from gridless.data.readers.clouds import MESHES
    from gridless.data.readers.meshes import read_triangles

    if is_bag(file):
        return _read_bag(file, topic)
    if topic is not None:
        raise FormatError(file, "has no topics: topic is for recordings of ROS")
    check_file(file)
    suffix = file.suffix.lower()
    if suffix in MESHES:
        return Triangles(read_triangles(file))
    if suffix == ".ply":
        try:
            return Triangles(read_triangles(file))
        except FormatError:
            return read_cloud(file)
    if suffix in (".asc", ".e57", ".pcd", ".las", ".laz", ".xyz", ".pts") or file.name.endswith(".pcd.bin"):
        return read_cloud(file)
    try:
        return read_events(file)
    except FormatError:
        if suffix not in (".npy", ".npz", ".csv", ".txt", ".bin"):
            raise
        return read_cloud(file)
