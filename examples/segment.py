"""Segment point clouds: label the points of a lamp, a table or a bottle as foot, middle or top.

The network gets the positions of neighbours relative to each point, not the height of the point: it must learn shapes.

python examples/segment.py            half a minute on two cores
python examples/segment.py --quick    a smoke test of a few seconds
"""

import argparse

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import gridless as gl

PARTS = ("foot", "middle", "top")


class Parts(Dataset):
    """Shapes as geometry. The part of each point is `geometry["X0"].rows["part"]`."""

    def __init__(self, size: int, seed: int, plan: gl.Plan) -> None:
        self.shapes = gl.data.Shapes(size, points=256, seed=seed, class_names=["lamp", "table", "bottle"])
        self.plan = plan

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, i: int) -> gl.Geometry:
        coords, _ = self.shapes[i]
        height = coords[:, 2]
        share = (height - height.min()) / (height.max() - height.min())
        part = (share > 0.25).long() + (share > 0.75).long()
        return self.plan(gl.Cloud.of(coords, part=part))


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: DataLoader) -> tuple[float, list[float]]:
    """Share of points that are right, and intersection over union of each part."""
    model.eval()
    counts = torch.zeros(len(PARTS), len(PARTS))
    for geometry in batches:
        pair = geometry["X0"].rows["part"] * len(PARTS) + model(geometry).argmax(1)
        counts += torch.bincount(pair, minlength=len(PARTS) ** 2).view_as(counts)
    both = counts.diag()
    return float(both.sum() / counts.sum()), (both / (counts.sum(0) + counts.sum(1) - both)).tolist()


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)

    model = gl.models.point_unet(len(PARTS), width=16, levels=3, radius=0.15, dropout=0.0)
    for layer in model.modules():
        if isinstance(layer, gl.nn.BatchNorm):
            layer.momentum = 0.1  # short training: running statistics must follow quickly
    train = DataLoader(Parts(150 if quick else 480, 0, model.plan), 16, shuffle=True, collate_fn=gl.collate)
    test = DataLoader(Parts(16 if quick else 96, 1, model.plan), 16, collate_fn=gl.collate)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4 if quick else 6):
        model.train()
        for geometry in train:
            loss = functional.cross_entropy(model(geometry), geometry["X0"].rows["part"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        share, each = accuracy(model, test)
        print(f"epoch {epoch + 1}: {share:.1%} of the points of new shapes right")
    print(", ".join(f"{name} {iou:.2f}" for name, iou in zip(PARTS, each, strict=True)), "(intersection over union)")
    return share


if __name__ == "__main__":
    main()
