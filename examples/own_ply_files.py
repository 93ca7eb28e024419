"""Train on your own files: a folder of PLY files, one subfolder per class.

python examples/own_ply_files.py               writes a few files into a temporary folder first
python examples/own_ply_files.py my_scans/     my_scans/CLASS/*.ply, any number of points, any scale
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import gridless as gl


class Folder(Dataset):
    """FOLDER/CLASS/*.ply as (example, class number). `gl.read_cloud` also takes PCD, LAS, NPY, XYZ and more."""

    def __init__(self, folder: Path, transform: list) -> None:
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files = [
            (file, k) for k, name in enumerate(self.classes) for file in sorted((folder / name).glob("*.ply"))
        ]
        if not self.files:
            raise FileNotFoundError(f"{folder} has no CLASS/*.ply in it")
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[gl.Geometry, int]:
        file, label = self.files[i]
        example = gl.read_cloud(file, torch.float32, rows=())  # places only, without colours and the like
        for step in self.transform:
            example = step(example)
        return example, label


def write_files(folder: Path, per_class: int) -> None:
    """What your scanner does: binary PLY, in millimetres, far from the origin, of different sizes."""
    shapes = gl.data.Shapes(4 * per_class, points=400, classes=["mug", "chair", "ring", "stairs"])
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
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        if options.folder is None:
            write_files(folder, 30 if options.quick else 40)
        return train(folder, 9 if options.quick else 10)


def train(folder: Path, epochs: int) -> float:
    torch.manual_seed(0)
    classes = Folder(folder, []).classes
    model = gl.models.point_resnet_plus(len(classes), width=16, lift=128, spacing=0.12, levels=2, stem_radius=0.2)
    scale = gl.augment.Normalise()  # centre, unit sphere: radii are in these units
    augment = [gl.augment.Shuffle(), gl.augment.RotateAboutUp(up=2), gl.augment.Jitter(0.01, 0.02)]
    new = Folder(folder, [scale, *augment, model.plan])
    plain = Folder(folder, [scale, model.plan])
    # Every fifth file is kept for the test.
    test_rows = range(0, len(plain), 5)
    train_rows = [i for i in range(len(plain)) if i % 5]
    batches = DataLoader(torch.utils.data.Subset(new, train_rows), 16, shuffle=True, collate_fn=gl.collate)
    test = gl.collate([plain[i] for i in test_rows])
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        model.train()
        for geometry, label in batches:
            loss = functional.cross_entropy(model(geometry), label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            right = (model.eval()(test[0]).argmax(1) == test[1]).float().mean().item()
        print(f"epoch {epoch + 1}: {right:.1%} of {len(test_rows)} files that were not trained on")
    return right


if __name__ == "__main__":
    main()
