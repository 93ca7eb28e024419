"""Figures in matplotlib: clouds, samplings, events in space and time, learning curves, confusion, live predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridless.structures import Cloud, Edges, Events

BLUE, RED, GREY, GREEN = "#3178c6", "#d1382c", "#8a94a1", "#2b8a3e"


def _figure(width: float, height: float) -> Any:
    """A figure that belongs to no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from error
    return Figure((width, height), layout="constrained")


def cloud(
    points: Cloud, sample: Cloud | None = None, edges: Edges | None = None, colours: np.ndarray | None = None
) -> Any:
    """Points in 3-D (or 2-D), in colours (N, 3) uint8; sampled points in red; with edges, some neighbourhoods."""
    coords = points.coords.cpu().numpy()
    figure = _figure(6, 6)
    flat = coords.shape[1] < 3
    axes = figure.add_subplot() if flat else figure.add_subplot(projection="3d")
    columns = [coords[:, k] if k < coords.shape[1] else np.zeros(len(coords)) for k in range(2 if flat else 3)]
    paint = BLUE if colours is None else colours / 255
    axes.scatter(*columns, s=3, c=paint, alpha=0.5 if sample is not None else 0.9, linewidths=0)
    if edges is not None:
        source = edges.source.cpu().numpy()
        splits = edges.splits.cpu().numpy()
        for i in np.linspace(0, edges.num_target - 1, min(6, edges.num_target)).astype(int):
            mine = source[splits[i] : splits[i + 1]]
            axes.scatter(*[c[mine] for c in columns], s=14, linewidths=0)
    if sample is not None and sample.parent_index is not None:
        kept = sample.parent_index.cpu().numpy()
        axes.scatter(*[c[kept] for c in columns], s=14, c=RED, linewidths=0)
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


def sampling(points: np.ndarray, samples: dict[str, np.ndarray], radius: float) -> Any:
    """The paper's picture of sampling: a 2-D cloud, samples in red, and their balls; points outside all are marked."""
    figure = _figure(5 * len(samples), 5)
    for at, (title, kept) in enumerate(samples.items()):
        axes = figure.add_subplot(1, len(samples), at + 1)
        chosen = points[kept]
        gap = np.linalg.norm(points[:, None] - chosen[None], axis=-1).min(1)
        from matplotlib.patches import Circle

        for centre in chosen:
            axes.add_patch(Circle(centre, radius, color=RED, alpha=0.10, linewidth=0))
            axes.add_patch(Circle(centre, radius / 2, color=RED, alpha=0.12, linewidth=0))
        inside = gap <= radius
        axes.scatter(*points[inside].T, s=5, c=BLUE, linewidths=0)
        axes.scatter(*points[~inside].T, s=22, c="black", marker="x", linewidths=1)
        axes.scatter(*chosen.T, s=18, c=RED, linewidths=0)
        axes.set_title(f"{title}: {len(chosen)} samples, {int((~inside).sum())} points left out", fontsize=11)
        axes.set_aspect("equal")
        axes.axis("off")
    return figure


def events(recording: Events, limit: int = 20_000, colours: np.ndarray | None = None) -> Any:
    """Events in space and time: ON red, OFF blue, or in colours (N, 3) uint8; time to the right."""
    keep = np.unique(np.linspace(0, len(recording) - 1, min(limit, len(recording))).astype(int))
    pixel, time = recording.pixel.cpu().numpy()[keep], recording.time.cpu().numpy()[keep] / 1000
    figure = _figure(7, 5)
    axes = figure.add_subplot(projection="3d")
    colour: Any = GREY
    if colours is not None:
        colour = colours[keep] / 255
    elif recording.polarity is not None:
        colour = np.where(recording.polarity.cpu().numpy()[keep], RED, BLUE)
    axes.scatter(time, pixel[:, 0], -pixel[:, 1], s=2, c=colour, linewidths=0)
    axes.set(xlabel="time (ms)", ylabel="x", zlabel="y")
    axes.set_box_aspect((2, 1, 1))
    return figure


def curves(series: dict[str, Sequence[float]], label: str = "accuracy (%)", x: str = "epoch") -> Any:
    """Learning curves, one line per entry."""
    figure = _figure(6, 3.6)
    axes = figure.add_subplot()
    for (name, values), colour in zip(series.items(), (BLUE, RED, GREEN, GREY) * 4, strict=False):
        axes.plot(np.arange(1, len(values) + 1), values, label=name, color=colour, linewidth=2)
    axes.set(xlabel=x, ylabel=label)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def confusion(counts: np.ndarray, names: Sequence[str]) -> Any:
    """Rows are what was shown, columns what was answered; each row adds up to one."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 1.6 + 0.36 * len(names)
    figure = _figure(side, side)
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=9)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    for i, j in zip(*np.nonzero(counts), strict=True):
        axes.text(
            j, i, int(counts[i, j]), ha="center", va="center", fontsize=7, color="w" if share[i, j] > 0.5 else "k"
        )
    axes.set(xlabel="answered", ylabel="shown")
    return figure


def live(time: np.ndarray, probability: np.ndarray, names: Sequence[str], truth: int | None = None) -> Any:
    """Probabilities over time (ms): the classes that ever lead are named, the true one is thick."""
    figure = _figure(8, 3.6)
    axes = figure.add_subplot()
    leaders = set(probability.argmax(1)) | ({truth} if truth is not None else set())
    for k, name in enumerate(names):
        thick = k == truth
        axes.plot(
            time,
            probability[:, k],
            label=name if k in leaders else None,
            linewidth=2.6 if thick else 1.2,
            color=RED if thick else None,
            alpha=1 if k in leaders else 0.25,
        )
    axes.set(xlabel="time (ms)", ylabel="probability", ylim=(0, 1.02))
    axes.legend(frameon=False, ncols=2, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
