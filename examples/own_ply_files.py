"""Train on your own files: a folder of clouds, one subfolder per class. The command is `gridless train own-clouds`.

python examples/own_ply_files.py               writes sample files to a temporary folder first
python examples/own_ply_files.py my_scans/     my_scans/CLASS/*.ply (or .las, .npy, .off ...), any number of points
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import gridless as gl


def write_files(folder: Path, per_class: int) -> None:
    """Writes files as a scanner would: binary PLY, in millimetres, far from the origin, of different sizes."""
    shapes = gl.data.Shapes(4 * per_class, points=400, class_names=["mug", "chair", "ring", "stairs"])
    for i in range(len(shapes)):
        coords, label = shapes[i]
        points = (coords[: 250 + 10 * (i % 15)] * 300 + 1000).numpy()
        path = folder / shapes.class_names[label] / f"{i:04d}.ply"
        path.parent.mkdir(exist_ok=True)
        columns = "".join(f"property float {axis}\n" for axis in "xyz")
        header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n{columns}end_header\n"
        path.write_bytes(header.encode() + points.astype("<f4").tobytes())


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.folder is None:
            write_files(folder, 30 if options.quick else 40)
        return train(folder, 9 if options.quick else 10)


def train(folder: Path, epochs: int) -> float:
    torch.manual_seed(0)
    # Clouds are centred, on the unit sphere, with y up. Whole sessions are held out, if file names tell them apart.
    held_out = gl.data.CloudFolder(folder, "validation", points=400, up="z")
    classes = held_out.class_names
    model = gl.models.point_resnet_plus(len(classes), width=16, lift=128, spacing=0.12, levels=2, stem_radius=0.2)
    augment = [gl.augment.Shuffle(), gl.augment.RotateAboutUp(up="y"), gl.augment.Jitter(0.01, 0.02)]
    trained = gl.data.CloudFolder(folder, "fit", points=400, up="z", transform=[*augment, model.plan])
    batches = DataLoader(trained, 16, shuffle=True, collate_fn=gl.collate)
    test = model.plan(gl.collate([held_out[i][0] for i in range(len(held_out))]))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        model.train()
        for geometry, label in batches:
            loss = functional.cross_entropy(model(geometry), label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            right = (model.eval()(test).argmax(1) == held_out.labels).float().mean().item()
        print(f"epoch {epoch + 1}: {right:.1%} of {len(held_out)} files that were not trained on")
    return right


if __name__ == "__main__":
    main()
