"""Draw the pictures of the README and the documentation, with the package itself: python docs/images/make.py

With `paper`, the five figures of the paper, as paper-1.png to paper-5b.png (about a minute).
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


def spike(points: int = 500) -> np.ndarray:
    """A flat cloud that ends in a long thin spike."""
    g = np.random.default_rng(5)
    x = g.random(points) ** 0.8 * 2.4 - 1
    return np.stack([x, (g.random(points) - 0.5) * np.where(x < 0, 1.6, 0.5 * (1.45 - x) ** 2 * 0.6)], 1)


def products() -> None:
    """Figure 1: a convolution as a sum of products of sparse matrices, features and weights."""
    import matplotlib.pyplot as plt

    from gridless.ops.point_conv.reference import edge_values

    x = np.sort(np.random.default_rng(0).random((26, 2)).astype(np.float32), axis=0)
    cloud, basis = gl.Cloud.of(x), gl.nn.Monomials(2, 1)
    near = gl.ball(cloud, cloud, 0.22)
    values = edge_values(near, cloud.coords, cloud.coords, basis, 0.22, True, True, torch.float32)
    g = torch.Generator().manual_seed(0)
    features, weight = torch.randn(26, 4, generator=g), torch.randn(basis.size, 4, 6, generator=g)
    out = gl.point_conv(features, weight, None, near, cloud.coords, cloud.coords, 0.22, basis, "linear", True)
    figure, axes = plt.subplots(1, 3 * basis.size + 1, figsize=(13, 3), width_ratios=[1.5, *(5, 1, 1.5) * basis.size])
    parts = [("F'", out)]
    for m in range(basis.size):
        sign = "= " if m == 0 else "+ "
        parts += [(f"{sign}N({m})", torch.tensor(near.to_scipy(values[:, m].numpy()).toarray())), ("F", features)]
        parts += [(f"Θ({m})", weight[m])]
    for ax, (title, matrix) in zip(axes, parts, strict=True):
        most = float(matrix.abs().max())
        ax.imshow(matrix, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
        ax.set(xticks=[], yticks=[], title=title)
    save(figure, "paper-1.png", 70)


def stages() -> None:
    """Figure 2: one network, and what is computed before batching, after it, and on the accelerator."""
    from gridless.pictures.diagrams import EDGES, Box, diagram, layers_of, of_network, of_plan

    model = gl.models.PointResNet(levels=2)
    save(diagram(*of_network(model), divide=1.5), "paper-2a.png", 70)
    boxes, arrows = of_plan(model.plan)
    before = None
    for name, layer, edges in layers_of(model):
        row = boxes[str(edges)].row
        boxes[f"batch {edges}"] = Box(2, row, f"block diagonal\nof {edges}, by collate", EDGES)
        boxes[name] = Box(3, row, f"{type(layer).__name__}\n{tuple(layer.weight.shape)}", "#2b8a3e")
        arrows += [(str(edges), f"batch {edges}"), (f"batch {edges}", name)]
        arrows += [(before, name)] if before else []
        before = name
    for column, words in enumerate(("one example", "one example", "one batch", "learned, one batch")):
        boxes[f"head {column}"] = Box(column, -1, words)
    save(diagram(boxes, arrows, divide=1.5), "paper-2b.png", 70)


def occupancy() -> None:
    """Figure 3: random against rejection sampling, of an even cloud and of one with a spike."""
    for name, points, radius in (("paper-3a.png", blob(), 0.22), ("paper-3b.png", spike(), 0.22)):
        cloud = gl.Cloud.of(points)
        kept = gl.rejection_sample(cloud, radius=radius).parent_index
        drawn = gl.random_sample(cloud, len(kept), seed=1).parent_index
        save(figures.sampling(points, {"random": drawn.numpy(), "rejection": kept.numpy()}, radius), name, 70)


def with_head(network, model, geometry):
    """The diagram of a network with the layers after its last convolution, each with the shape of what it gives."""
    from gridless.pictures.diagrams import LAYERS, OTHERS, Box, layers_of

    boxes, arrows = network
    last = {edges.target: name for name, _, edges in layers_of(model)}
    words = {"VoxelMean": "mean of voxels", "VoxelMerge": "Conv3d", "MaxPool": "max pooling", "Dense": "dense"}
    labels, learned, streams = {}, set(), {}

    def note(name, layer, out):
        shape = tuple(out.shape[1:] if isinstance(out, torch.Tensor) and len(out) == 1 else out.shape)
        labels[name] = f"{words[type(layer).__name__]}\n{shape}"
        if hasattr(layer, "weight"):
            learned.add(name)
        if hasattr(layer, "stream"):
            streams[name] = last[layer.stream]

    for name, layer in model.named_modules():
        if not name.startswith(("blocks", "downs", "stem")) and type(layer).__name__ in words:
            layer.register_forward_hook(lambda layer, given, out, name=name: note(name, layer, out))
    with torch.no_grad():
        model.eval()(geometry)
    row, before = max(box.row for box in boxes.values()), list(boxes)[-1]
    for name, label in labels.items():
        whole = name.removesuffix(".mean")
        if whole in labels and whole != name:
            # The mean of coarser voxels goes into the layer that it is a part of.
            arrows.append((name, whole))
            continue
        row += 1
        boxes[name] = Box(2, row, label, LAYERS if name in learned else OTHERS)
        arrows.append((streams.get(name, before), name))
        before = name
    for name, whole in [each for each in arrows if each[0] not in boxes]:
        boxes[name] = Box(3, boxes[whole].row, labels[name])
        arrows.append((streams[name], name))
    return boxes, arrows


def point_network() -> None:
    """Figure 4: the residual blocks, and the large network with what a chair of 1,024 points gives at each line."""
    from gridless.pictures.diagrams import diagram, of_block, of_network

    model = gl.models.point_resnet_large()
    save(diagram(*of_block(model.blocks[1])), "paper-4a.png", 70)
    save(diagram(*of_block(model.blocks[0])), "paper-4b.png", 70)
    geometry = model.plan(gl.data.Shapes(8, points=1024)[7][0])
    sizes = {
        name: f"{len(v):,} points" if name.startswith("X") else f"{len(v):,} edges" for name, v in geometry.items()
    }
    save(diagram(*with_head(of_network(model, sizes), model, geometry), divide=1.5), "paper-4c.png", 70)


def event_network() -> None:
    """Figure 5: the CIFAR10-DVS network and its in-place block."""
    from gridless.pictures.diagrams import diagram, of_block, of_network

    model = gl.models.cifar10_dvs()
    recording, _ = gl.data.MovingGlyphs(9, sensor=(128, 128), duration=400_000, background=0.3)[8]
    save(diagram(*with_head(of_network(model), model, model.plan(recording)), divide=1.5), "paper-5a.png", 70)
    save(diagram(*of_block(model.blocks[0])), "paper-5b.png", 70)


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
    elif sys.argv[1:2] == ["paper"]:
        for draw in (products, stages, occupancy, point_network, event_network):
            draw()
    else:
        sampling()
        neighbourhoods()
        events()
