"""Figures in matplotlib: clouds, samplings, events in space and time, learning curves, confusion, live predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridless.kernels.progress import shown
from gridless.pictures.colours import PALETTE, Legend

BLUE, RED, GREY, GREEN = "#3178c6", "#d1382c", "#8a94a1", "#2b8a3e"
# Common size of figures that stand side by side.
SIDE_BY_SIDE = (6.0, 5.2)


def new_figure(width: float, height: float) -> Any:
    """A figure that belongs to no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib. Run pip install matplotlib.") from error
    return Figure((width, height), layout="constrained")


def _add_legend(figure: Any, legend: Legend | None) -> None:
    """Names and colours below the axes."""
    if legend is None:
        return
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], marker="o", linestyle="", color=(r / 255, g / 255, b / 255), label=shown(name))
        for name, (r, g, b) in legend.entries
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 4), frameon=False, fontsize=9)


def points(
    coords: np.ndarray, colours: np.ndarray, sizes: np.ndarray, title: str = "", legend: Legend | None = None
) -> Any:
    """Points in 3-D (or 2-D), in colours (N, 3) uint8 and sizes; the larger ones in front."""
    figure = new_figure(6, 6)
    axes = figure.add_subplot() if coords.shape[1] < 3 else figure.add_subplot(projection="3d")
    for size in np.unique(sizes):
        some = sizes == size
        axes.scatter(
            *coords[some].T, s={5: 3, 7: 10}.get(int(size), 26), c=colours[some] / 255, alpha=0.9, linewidths=0
        )
    if len(coords):
        axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, fontsize=10, wrap=True)
    _add_legend(figure, legend)
    return figure


def mesh(corners: np.ndarray, title: str = "") -> Any:
    """Triangles (T, 3, 3), lit from above."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    figure = new_figure(6, 6)
    axes = figure.add_subplot(projection="3d")
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-30)
    light = 0.45 + 0.55 * np.abs(normal @ np.array([0.35, -0.45, 0.82]))
    axes.add_collection3d(Poly3DCollection(corners, facecolors=light[:, None] * np.array([0.32, 0.55, 0.86])))
    for k, set_limits in enumerate((axes.set_xlim, axes.set_ylim, axes.set_zlim)):
        if len(corners):
            set_limits(corners[..., k].min(), corners[..., k].max())
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, fontsize=10)
    return figure


def image(pixels: np.ndarray, title: str = "") -> Any:
    """An image (H, W, 3) uint8, its first row on top."""
    height, width = pixels.shape[:2]
    figure = new_figure(6, max(6 * height / width, 1) + 0.2)
    axes = figure.add_subplot()
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xlabel="x", ylabel="y")
    axes.set_title(title, fontsize=10)
    return figure


def sampling(points: np.ndarray, samples: dict[str, np.ndarray], radius: float) -> Any:
    """The paper's picture of sampling: a 2-D cloud, samples in red, and their balls; points outside all are marked."""
    figure = new_figure(5 * len(samples), 5.5)
    # The layout leaves no room for titles when axes are off.
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.94))
    for at, (title, index) in enumerate(samples.items()):
        axes = figure.add_subplot(1, len(samples), at + 1)
        chosen = points[index]
        gap = np.linalg.norm(points[:, None] - chosen[None], axis=-1).min(1)
        from matplotlib.patches import Circle

        for centre in chosen:
            axes.add_patch(Circle(centre, radius, color=RED, alpha=0.10, linewidth=0))
            axes.add_patch(Circle(centre, radius / 2, color=RED, alpha=0.12, linewidth=0))
        inside = gap <= radius
        axes.scatter(*points[inside].T, s=5, c=BLUE, linewidths=0)
        axes.scatter(*points[~inside].T, s=22, c="black", marker="x", linewidths=1)
        axes.scatter(*chosen.T, s=18, c=RED, linewidths=0)
        axes.set_title(f"{title}: {len(chosen)} samples,\n{int((~inside).sum())} points left out", fontsize=18)
        axes.set_aspect("equal")
        axes.axis("off")
    return figure


def space_time(events: np.ndarray, colours: np.ndarray, title: str = "", legend: Legend | None = None) -> Any:
    """Events (N, 3), each (milliseconds since the first, x, y), in colours (N, 3) uint8: time to the right, y down."""
    figure = new_figure(7, 5)
    axes = figure.add_subplot(projection="3d")
    axes.scatter(*events.T, s=2, c=colours / 255, linewidths=0)
    axes.invert_zaxis()
    axes.set(xlabel="time (ms)", ylabel="x", zlabel="y")
    axes.set_box_aspect((2, 1, 1), zoom=0.9)
    axes.set_title(title, fontsize=10)
    _add_legend(figure, legend)
    return figure


def curves(series: dict[str, Sequence[float]]) -> Any:
    """Learning curves, accuracies in percent by epoch, one line per entry."""
    figure = new_figure(*SIDE_BY_SIDE)
    axes = figure.add_subplot()
    for (name, values), colour in zip(series.items(), (BLUE, RED, GREEN, GREY) * 4, strict=False):
        # A single epoch is a dot.
        axes.plot(np.arange(1, len(values) + 1), values, "o-", label=name, color=colour, linewidth=2, markersize=3)
    axes.set(xlabel="epoch", ylabel="accuracy (%)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def learning(history: Sequence[dict[str, Any]], losses: Sequence[str], accuracies: Sequence[str]) -> Any:
    """Loss and accuracy of a run by epoch, side by side; an epoch without a figure is left out of its line."""
    figure = new_figure(2 * SIDE_BY_SIDE[0], SIDE_BY_SIDE[1])
    for at, (names, label, scale) in enumerate(((losses, "loss", 1.0), (accuracies, "accuracy (%)", 100.0))):
        axes = figure.add_subplot(1, 2, at + 1)
        for name, colour in zip(names, (BLUE, RED, GREEN, GREY) * 4, strict=False):
            known = [(k + 1, scale * row[name]) for k, row in enumerate(history) if row.get(name) is not None]
            epochs, values = zip(*known, strict=True) if known else ((), ())
            axes.plot(epochs, values, "o-", label=name.replace("_", " "), color=colour, linewidth=2, markersize=3)
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if names:
            axes.legend(frameon=False)
    return figure


def confusion(counts: np.ndarray, names: Sequence[str]) -> Any:
    """The confusion matrix: rows are true classes, columns predicted classes; each row sums to 1."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = new_figure(*SIDE_BY_SIDE)
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    labels = [shown(name) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=9)
    axes.set_yticks(range(len(names)), labels, fontsize=9)
    for i, j in zip(*np.nonzero(counts), strict=True):
        axes.text(
            j, i, int(counts[i, j]), ha="center", va="center", fontsize=7, color="w" if share[i, j] > 0.5 else "k"
        )
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


def bars(values: Sequence[float], x: str, y: str) -> Any:
    """One bar for each of several percentages."""
    figure = new_figure(*SIDE_BY_SIDE)
    axes = figure.add_subplot()
    axes.bar(range(1, len(values) + 1), values, color=BLUE)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel=x, ylabel=y, ylim=(0, 101))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def levels(lines: dict[str, dict[str, dict[str, float]]], title: str = "") -> Any:
    """Rows of every line of a plan, and the neighbours of every search: medians as bars, means and maxima as marks."""
    figure = new_figure(10, 1.2 + 0.36 * len(lines))
    for at, what in enumerate(("rows", "neighbours")):
        named = {name: statistics[what] for name, statistics in lines.items() if what in statistics}
        axes = figure.add_subplot(1, 2, at + 1)
        places = np.arange(len(named))
        axes.barh(places, [max(each["median"], 0.1) for each in named.values()], color=BLUE, label="median")
        axes.plot([max(each["mean"], 0.1) for each in named.values()], places, "|", color="black", ms=12, label="mean")
        axes.plot([max(each["max"], 0.1) for each in named.values()], places, ".", color=RED, label="maximum")
        axes.set_yticks(places, list(named), fontsize=8)
        axes.invert_yaxis()
        axes.set(xscale="log", xlabel=f"{what} {'of an example' if at == 0 else 'of a point or event'}")
        axes.spines[["top", "right"]].set_visible(False)
        if at == 0:
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure


def live(time: np.ndarray, probability: np.ndarray, names: Sequence[str]) -> Any:
    """Probabilities over time (ms). The legend names all classes; classes that never lead are paler."""
    figure = new_figure(8, 3.6)
    axes = figure.add_subplot()
    leaders = set(probability.argmax(1))
    for k, name in enumerate(names):
        red, green, blue = (int(v) / 255 for v in PALETTE[k % len(PALETTE)])
        colour = red, green, blue, 1.0 if k in leaders else 0.35
        axes.plot(time, probability[:, k], label=shown(name), color=colour, linewidth=1.4)
    axes.set(xlabel="time (ms)", ylabel="probability", ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5), ncols=1 + len(names) // 16)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
