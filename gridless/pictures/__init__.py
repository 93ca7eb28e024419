"""Pictures: clouds, meshes, samples, neighbourhoods, events, predictions over time.

`show` draws any structure or file; the result can be turned in a notebook, and saves as PNG, as a page or as a video.
With `viewer="rerun"` the Rerun viewer shows it instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gridless.pictures.colours import row_colours, row_legend
from gridless.pictures.drawing import MARK, UP, VIEWS, Diagram, Picture, Triangles  # noqa: F401
from gridless.pictures.reading import read
from gridless.plan import Plan
from gridless.structures import Cloud, Edges, Events

__all__ = ["Diagram", "Picture", "show"]

VIEWERS = ("page", "rerun")


def show(
    thing: Any,
    sample: Cloud | None = None,
    edges: Edges | None = None,
    colour: Any = None,
    up: str = "z",
    view: str = "space",
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    max_points: int | None = None,
    viewer: str = "page",
    predictions: Any = None,
    positions: Any = None,
) -> Any:
    """Draw a cloud (with a sample of it, with neighbourhoods), a mesh, a recording of events, or a plan.

    >>> gl.show(cloud)                                # whatever Cloud.of takes, or the path of a file
    >>> gl.show(cloud, sample=gl.rejection_sample(cloud, radius=0.2))
    >>> gl.show(cloud, colour="label", class_names=["road", "car", "tree"])
    >>> gl.show(cloud, colour=logits.argmax(1))
    >>> gl.show(events, view="frame").save("frame.png")
    >>> gl.show(events).video("recording.mp4", speed=0.1)
    >>> gl.show(model.plan)                           # or gl.show(model), with its convolutions
    >>> gl.show(cloud, viewer="rerun")                # in Rerun: pip install gridless[rerun]

    Args:
        thing: a cloud, a recording, a mesh of trimesh, or a file of a cloud, a mesh or a recording; or a plan, or a
            network with one.
        sample: a sample of the cloud, drawn in red.
        edges: neighbourhoods of the cloud, of which a few are drawn.
        colour: the name of the rows that give the colours, or such rows. They are (S, 3) colours; whole numbers such
            as labels or predictions, with one colour per number; or real numbers, from blue to red. The default is
            the rows `rgb`, if there are any.
        up: the axis that points up: x, y or z.
        view: events in "space" and time, as a "frame" of all of them, or as a time "surface".
        class_names: names of the whole numbers of `colour` for the legend, by number.
        max_points: maximum points or events drawn, chosen at random; by default 40,000. A page with a million takes
            14 MB.
        viewer: "page" returns a `Picture`; "rerun" opens the Rerun viewer and returns its recording, whose
            `save("x.rrd")` writes a file.
        predictions: with `viewer="rerun"` and events, the predictions of `Engine.push`: probabilities over time.
        positions: the same of a network that tracks: its positions over time.
    Returns:
        A `Picture`, a `Diagram` of a plan, or the recording of Rerun.
    """
    if up not in UP or view not in VIEWS:
        raise ValueError(f"show: up is {up!r}, view {view!r}. Up must be x, y or z, view {', '.join(VIEWS)}.")
    if viewer not in VIEWERS:
        raise ValueError(f"show: viewer must be {' or '.join(VIEWERS)}, not {viewer!r}")
    if (predictions is not None or positions is not None) and viewer != "rerun":
        raise ValueError('show: only Rerun draws predictions and positions. Pass viewer="rerun".')
    if max_points is not None and max_points < 1:
        raise ValueError(f"show: max_points must be at least 1, not {max_points}")
    if isinstance(plan := getattr(thing, "plan", thing), Plan):
        if viewer == "rerun":
            raise ValueError('show: Rerun does not draw plans. Leave out viewer="rerun".')
        if sample is not None or edges is not None or colour is not None:
            raise ValueError("show: a plan has neither samples nor colours of its own. Draw the cloud with them.")
        return Diagram(plan, None if thing is plan else thing)
    if isinstance(thing, str | Path):
        thing = read(Path(thing))
    elif type(thing).__module__.startswith("trimesh") and hasattr(thing, "triangles"):
        thing = Triangles(np.array(thing.triangles))
    if isinstance(thing, Triangles):
        if sample is not None or edges is not None or colour is not None:
            raise ValueError("show: a mesh has no samples or colours. Draw its points: gl.data.sample_mesh(path).")
        return _shown(Picture(thing, up=up), viewer)
    if not isinstance(thing, Events):
        thing = Cloud.of(thing)
    if thing.num_examples > 1:
        raise ValueError(f"show draws one example, not {thing.num_examples} examples. Pass one: x.examples[0].")
    if isinstance(thing, Events) and (sample is not None or edges is not None):
        raise ValueError("show: samples and neighbourhoods are for clouds, not for events")
    if view != "space" and not isinstance(thing, Events):
        raise ValueError(f"show: view {view!r} is for events, not for clouds")
    picture = Picture(thing, sample, edges, None, up, view, None, max_points)
    picture.colours, picture.legend = _colours(thing, colour, class_names)
    return _shown(picture, viewer, predictions, class_names, positions)


def _colours(thing: Cloud | Events, colour: Any, class_names: Any) -> tuple[np.ndarray | None, Any]:
    """The colours (S, 3) uint8 of points or events and their legend, or None for both."""
    colour = "rgb" if colour is None and "rgb" in thing.rows else colour
    if colour is None:
        return None, None
    name, rows = (colour, thing.rows[colour]) if isinstance(colour, str) else ("colour", torch.as_tensor(colour))
    if len(rows) != len(thing):
        raise ValueError(f"show: colour must have one row for each of {len(thing)}, not {len(rows)}")
    return row_colours(name, rows), row_legend(name, rows, class_names)


def _shown(
    picture: Picture, viewer: str, predictions: Any = None, class_names: Any = None, positions: Any = None
) -> Any:
    if viewer == "page":
        return picture
    from gridless.pictures.rerun_viewer import show_in_rerun

    return show_in_rerun(picture, predictions, class_names, positions)
