"""Draw the pictures of the README and the documentation, with the package itself: python docs/images/make.py

With `parts DIR RUN/weights`, only the picture of predicted parts: of validation shapes of ShapeNetPart, by weights that
were trained without them.
"""

import io
import sys
from pathlib import Path

import numpy as np
import torch

import gridless as gl
from gridless.pictures import figures

HERE = Path(__file__).parent


def save(figure, name: str, dpi: int = 90) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    (HERE / name).write_bytes(buffer.getvalue())
    print(name, len(buffer.getvalue()) // 1000, "kB")


def blob(points: int = 700) -> np.ndarray:
    """A flat cloud that is dense in the middle and thin at the rim."""
    g = np.random.default_rng(3)
    angle = g.uniform(0, 2 * np.pi, points)
    return np.stack([np.cos(angle), np.sin(angle)], 1) * np.sqrt(g.random(points))[:, None] ** 1.6


def sampling() -> None:
    """The paper's figure: random against rejection, as many samples of both."""
    points, radius = blob(), 0.22
    cloud = gl.Cloud.of(points)
    kept = gl.rejection_sample(cloud, radius=radius).parent_index
    drawn = gl.random_sample(cloud, len(kept), torch.Generator().manual_seed(0)).parent_index
    save(figures.sampling(points, {"random": drawn.numpy(), "rejection": kept.numpy()}, radius), "sampling.png")


def neighbourhoods() -> None:
    """A chair, a rejection sample of it, and a few balls."""
    coords, _ = gl.data.Shapes(8, points=2048)[7]
    cloud = gl.Cloud.of(coords)
    kept = gl.rejection_sample(cloud, radius=0.15)
    save(gl.show(cloud, sample=kept, edges=gl.ball(cloud, kept, 0.25)).figure(), "chair.png")


def events() -> None:
    """A moving digit in space and time."""
    recording, _ = gl.data.MovingGlyphs(9, sensor=(96, 96), duration=120_000, background=0.3)[8]
    save(gl.show(recording).figure(), "events.png")


def parts(data: str, weights: str) -> None:
    """Shapes of eight categories, every point in the colour of the part that a network finds."""
    import matplotlib.pyplot as plt

    from gridless.tasks.labelled import COLOURS

    model, shapes = gl.load(weights), gl.data.ShapeNetPart(data, "validation")
    figure, axes = plt.subplots(2, 4, figsize=(12, 5.6), subplot_kw={"projection": "3d"})
    names = ("airplane", "car", "chair", "guitar", "lamp", "motorbike", "mug", "table")
    for ax, name in zip(axes.flat, names, strict=True):
        kind = shapes.class_names.index(name)
        cloud, _ = shapes[int((shapes.labels == kind).nonzero()[2])]
        with torch.no_grad():
            part = model(model.plan(cloud), torch.tensor([kind])).argmax(1) - sum(model.config["parts"][:kind])
        x, y, z = cloud.coords.T
        ax.scatter(x, z, y, s=2, c=np.array(COLOURS)[part] / 255)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(name)
    figure.tight_layout()
    save(figure, "parts.png")


if __name__ == "__main__":
    if sys.argv[1:2] == ["parts"]:
        parts(*sys.argv[2:])
    else:
        sampling()
        neighbourhoods()
        events()
