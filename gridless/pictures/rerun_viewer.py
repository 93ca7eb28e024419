"""Clouds, samples, neighbourhoods, events and predictions over time in the Rerun viewer (extra `rerun`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gridless.kernels.progress import shown
from gridless.pictures.colours import BLUE, ORANGE, RED
from gridless.pictures.drawing import MOST_TRIANGLES, Picture, Triangles
from gridless.structures import Cloud, Events

NAME = "gridless"
# Colour of a tracked position.
POSITION = (255, 196, 0)
# Default of `max_points`; the points sent are chosen at random.
MOST = 2_000_000
# Time steps that a recording of events is cut into, and number of neighbourhoods drawn as lines.
MOMENTS, NEIGHBOURHOODS = 300, 6


def load_rerun() -> Any:
    """The module of Rerun's SDK."""
    try:
        import rerun  # type: ignore[import-not-found]
    except ImportError as error:
        raise ImportError("Rerun is not installed. Run pip install rerun-sdk, or gridless[rerun].") from error
    return rerun


def has_display() -> bool:
    """True if a window can be opened."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class RerunPicture:
    """Result of `gl.show(x, viewer="rerun")`. `open()` shows it in the viewer, `save("x.rrd")` writes a file."""

    def __init__(
        self,
        picture: Picture,
        predictions: Iterable[Any] | None = None,
        names: Any = None,
        positions: Iterable[Any] | None = None,
    ) -> None:
        self.picture, self.names = picture, names
        self.predictions, self.positions = list(predictions or ()), list(positions or ())

    def open(self) -> RerunPicture:
        """Start the viewer, or use the one that is open, and send everything to it."""
        recording = load_rerun().RecordingStream(NAME)
        recording.spawn()
        self.log(recording)
        recording.flush()
        return self

    def save(self, path: str | Path) -> Path:
        """Write a file for `rerun FILE`."""
        path = Path(path)
        if path.suffix != ".rrd":
            raise ValueError(f"Rerun: {path.name} must end in .rrd")
        recording = load_rerun().RecordingStream(NAME)
        memory = recording.memory_recording()
        self.log(recording)
        path.write_bytes(memory.drain_as_bytes())
        return path

    def log(self, recording: Any) -> None:
        """Log everything to a `rerun.RecordingStream`."""
        thing = self.picture.thing
        if isinstance(thing, Triangles):
            corners = thing.corners[np.isfinite(thing.corners).all((1, 2))][:MOST_TRIANGLES].reshape(-1, 3)
            faces = np.arange(len(corners)).reshape(-1, 3)
            mesh = load_rerun().Mesh3D(vertex_positions=corners, triangle_indices=faces, albedo_factor=BLUE)
            recording.log("mesh", mesh, static=True)
        elif isinstance(thing, Events):
            log_events(recording, thing, self.picture.colours, self.picture.max_points or MOST)
        else:
            self._log_cloud(recording, thing)
        if self.predictions:
            log_predictions(recording, self.predictions, self.names)
        if self.positions:
            log_positions(recording, self.positions)

    def _log_cloud(self, recording: Any, cloud: Cloud) -> None:
        rerun, picture = load_rerun(), self.picture
        recording.log("cloud", _up(rerun, picture.up), static=True)
        coords = _spatial(cloud)
        index = _random(coords, picture.max_points or MOST)
        colours = BLUE if picture.colours is None else picture.colours[index]
        points = rerun.Points3D(coords[index], colors=colours, radii=_radius(rerun, 1.5))
        recording.log("cloud/points", points, static=True)
        for name, (red, green, blue) in picture.legend.entries if picture.legend else ():
            recording.log("legend", rerun.TextLog(name, color=(red, green, blue)), static=False)
        if picture.sample is not None:
            sample = rerun.Points3D(_spatial(picture.sample), colors=RED, radii=_radius(rerun, 4))
            recording.log("cloud/sample", sample, static=True)
        if picture.edges is not None:
            recording.log("cloud/neighbourhoods", _neighbourhoods(rerun, picture, coords), static=True)

    def __repr__(self) -> str:
        return f"Rerun picture of {self.picture.words}: .open() shows it, .save('picture.rrd') writes a file"


def show_in_rerun(picture: Picture, predictions: Any = None, names: Any = None, positions: Any = None) -> RerunPicture:
    """The picture in Rerun; the viewer opens where there is a display."""
    load_rerun()
    drawing = RerunPicture(picture, predictions, names, positions)
    return drawing.open() if has_display() else drawing


def log_events(recording: Any, events: Events, colours: np.ndarray | None = None, most: int = MOST) -> None:
    """Log a recording to `events`: its events on the sensor, moment by moment on the timeline `time`.

    Args:
        recording: a `rerun.RecordingStream`.
        events: one recording.
        colours: (S, 3) uint8, or None for ON and OFF.
        most: events logged at most, taken at random.
    """
    rerun = load_rerun()
    pixel, time = events.pixel.cpu().numpy().astype(np.float32), events.time.cpu().numpy()
    if colours is None:
        on = np.zeros(len(time), bool) if events.polarity is None else events.polarity.cpu().numpy()
        colours = np.where(on[:, None], RED, BLUE)
    index = _random(pixel, most)
    pixel, time, colours = pixel[index], time[index], colours[index]
    width, height = events.sensor
    recording.log(
        "events", rerun.Boxes2D(mins=[[0, 0]], sizes=[[width, height]], colors=[[128, 128, 128]]), static=True
    )
    if not len(time):
        return
    moments = np.linspace(time[0], time[-1] + 1, min(MOMENTS, int(time[-1] - time[0]) + 1) + 1)
    bounds = np.searchsorted(time, moments)
    for moment, begin, end in zip(moments[1:], bounds, bounds[1:]):
        recording.set_time("time", duration=float(moment) * 1e-6)
        points = rerun.Points2D(pixel[begin:end] + 0.5, colors=colours[begin:end], radii=0.5)
        recording.log("events/sensor", points)


def log_predictions(
    recording: Any, predictions: Iterable[Any], names: Sequence[str] | Mapping[int, str] | None = None
) -> None:
    """Log the `Prediction`s of `Engine.push` as probabilities on the timeline `time`."""
    rerun = load_rerun()
    first = True
    for prediction in predictions:
        if first:
            log_names(recording, class_labels(names, len(prediction.logits)))
            first = False
        recording.set_time("time", duration=prediction.time * 1e-6)
        recording.log("probability", rerun.Scalars(prediction.logits.softmax(0).tolist()))


def log_positions(recording: Any, predictions: Iterable[Any]) -> None:
    """Log the `Prediction`s of a network that tracks: a ring on `events`, and x and y on the timeline `time`."""
    log_axes(recording)
    for prediction in predictions:
        recording.set_time("time", duration=prediction.time * 1e-6)
        log_position(recording, prediction.logits.tolist())


def log_axes(recording: Any) -> None:
    """Log the names of the lines of `position`."""
    recording.log("position", load_rerun().SeriesLines(names=["x", "y"]), static=True)


def log_position(recording: Any, position: Sequence[float], shown_at: Sequence[float] | None = None) -> None:
    """Log x and y at the current time.

    Args:
        recording: a `rerun.RecordingStream`.
        position: x and y in pixels; (0, 0) is the middle of the first pixel.
        shown_at: the same in pixels of the picture `events`, if it is smaller than the sensor.
    """
    rerun = load_rerun()
    x, y = shown_at or position
    # The middle of Rerun's first pixel is (0.5, 0.5).
    ring = rerun.Points2D([[x + 0.5, y + 0.5]], colors=POSITION, radii=_radius(rerun, 6), draw_order=100)
    recording.log("events/position", ring)
    recording.log("position", rerun.Scalars(list(position)))


def log_names(recording: Any, names: Sequence[str]) -> None:
    """Log the names of the lines of `probability`."""
    lines = load_rerun().SeriesLines(names=[shown(name) for name in names])
    recording.log("probability", lines, static=True)


def class_labels(names: Sequence[str] | Mapping[int, str] | None, count: int) -> list[str]:
    """A name for each class; a class without one is called by its number."""
    named = names if isinstance(names, Mapping) else dict(enumerate(names or ()))
    return [str(named.get(k, k)) for k in range(count)]


def _up(rerun: Any, up: str) -> Any:
    return {"x": rerun.ViewCoordinates.RIGHT_HAND_X_UP, "y": rerun.ViewCoordinates.RIGHT_HAND_Y_UP}.get(
        up, rerun.ViewCoordinates.RIGHT_HAND_Z_UP
    )


def _radius(rerun: Any, pixels: float) -> Any:
    """A radius in screen pixels, independent of the scale of the cloud."""
    return rerun.Radius.ui_points(pixels)


def _spatial(cloud: Cloud) -> np.ndarray:
    """Coordinates (N, 3) float32; a flat cloud has z = 0."""
    coords = cloud.coords.detach().cpu().numpy().astype(np.float32)[:, :3]
    return np.pad(coords, ((0, 0), (0, 3 - coords.shape[1])))


def _random(coords: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` finite points, chosen at random, in ascending order."""
    finite = np.flatnonzero(np.isfinite(coords).all(1))
    if len(finite) <= most:
        return finite
    return np.sort(np.random.default_rng(0).choice(finite, most, replace=False))


def _neighbourhoods(rerun: Any, picture: Picture, coords: np.ndarray) -> Any:
    """Lines from a few targets to the points of their neighbourhoods."""
    edges, sample = picture.edges, picture.sample
    assert edges is not None
    targets = _spatial(sample) if sample is not None and len(sample) == edges.num_target else coords
    source, splits = edges.source.cpu().numpy(), edges.splits.cpu().numpy()
    chosen = np.linspace(0, edges.num_target - 1, min(NEIGHBOURHOODS, edges.num_target)).astype(int)
    lines = [[targets[i], coords[j]] for i in chosen if i < len(targets) for j in source[splits[i] : splits[i + 1]]]
    return rerun.LineStrips3D(lines, colors=ORANGE, radii=_radius(rerun, 0.7))
