"""Train a small SparseUNet, written for spconv, on scans of a street, and label a scene that it has not seen.

It needs gridless only. Scans are generated, unless you give the folder of SemanticKITTI or its pack.

python examples/sparse_unet.py                   minutes on two cores
python examples/sparse_unet.py --scans FOLDER    LiDAR scans of SemanticKITTI
python examples/sparse_unet.py --quick           a smoke test of a few seconds
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import gridless as gl
import gridless.compat.spconv.pytorch as spconv  # or gl.compat.enable(), then import spconv.pytorch as spconv
from gridless.compat.spconv.pytorch.conv import SparseConvolution
from gridless.compat.torch_scatter import scatter_mean, scatter_min

CLASSES = len(gl.data.SemanticKITTI.class_names)


def layer(conv: SparseConvolution) -> spconv.SparseSequential:
    return spconv.SparseSequential(conv, nn.BatchNorm1d(conv.out_channels, momentum=0.3), nn.ReLU())


class Level(spconv.SparseModule):
    """Goes down `depth` levels and back up. Skips join features of the same voxels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inner = spconv.SparseSequential(
            layer(spconv.SparseConv3d(width, 2 * width, 2, 2, indice_key=f"down{depth}")),
            layer(spconv.SubMConv3d(2 * width, 2 * width, 3, indice_key=f"level{depth - 1}")),
            *([Level(2 * width, depth - 1)] if depth > 1 else []),
            layer(spconv.SparseInverseConv3d(2 * width, width, 2, indice_key=f"down{depth}")),
        )
        self.join = layer(spconv.SubMConv3d(2 * width, width, 3, indice_key=f"level{depth}"))

    def forward(self, x: spconv.SparseConvTensor) -> spconv.SparseConvTensor:
        y = self.inner(x)
        return self.join(y.replace_feature(torch.cat([y.features, x.features], 1)))


def voxels_of(scan: gl.Cloud, side: float, device: str) -> tuple[spconv.SparseConvTensor, Tensor, Tensor]:
    """Returns occupied voxels with (intensity, height, distance), the label of each, and the voxel of each point."""
    x = scan.coords
    cell, voxel = ((x - x.amin(0)) / side).int().unique(dim=0, return_inverse=True)
    rows = torch.stack([scan.rows["intensity"], x[:, 2] / 2, x[:, :2].norm(dim=1) / 20], 1)
    sites = nn.functional.pad(cell, (1, 0)).to(device)  # one example: batch 0
    tensor = spconv.SparseConvTensor(scatter_mean(rows, voxel, 0).to(device), sites, (cell.amax(0) + 4).tolist(), 1)
    return tensor, scan.rows["label"][scatter_min(torch.arange(len(x)), voxel)[0]].to(device), voxel


def street(seed: int) -> gl.Cloud:
    """Returns a generated scan: a road (label 8), a row of cars (0) and a wall (12)."""
    box, kind = torch.rand(6000, 3, generator=torch.Generator().manual_seed(seed)), torch.arange(6000) % 3
    size = torch.tensor([[40, 8, 0.05], [40, 2, 1.5], [40, 0.3, 6]])[kind]
    x = box * size + torch.tensor([[0, 0, 0], [0, 8, 0], [0, 11, 0]])[kind]
    return gl.Cloud.of(x, intensity=box[:, 0].roll(1), label=torch.tensor([8, 0, 12])[kind])


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--scans", type=Path, help="the release of SemanticKITTI, or its pack")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    device, (side, width) = "cuda" if torch.cuda.is_available() else "cpu", (1.0, 8) if options.quick else (0.3, 24)
    if options.scans:
        train, test = (gl.data.SemanticKITTI(options.scans, split) for split in ("fit", "validation"))
        clouds, scene = [train[i][0] for i in range(6 if options.quick else len(train))], test[0][0]
    else:
        *clouds, scene = map(street, range(7))
    scans = [voxels_of(cloud, side, device) for cloud in clouds]
    stem, head = layer(spconv.SubMConv3d(3, width, 3, indice_key="level2")), nn.Linear(width, CLASSES)
    model = spconv.SparseSequential(stem, Level(width, 2), head).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for epoch in range(3 if options.quick else 10):
        for i in torch.randperm(len(scans)).tolist():
            loss = nn.functional.cross_entropy(model(scans[i][0]).features, scans[i][1], ignore_index=-1)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        print(f"epoch {epoch + 1}: loss {loss.item():.2f}")
    x, _, voxel = voxels_of(scene, side, device)
    with torch.no_grad():
        label = model.eval()(x).features.argmax(1).cpu()[voxel]
    share = float((label == scene.rows["label"])[scene.rows["label"] >= 0].float().mean())
    print(f"{share:.1%} of the points of a new scene right")
    if not options.quick:
        gl.show(scene, colour=label).save("scene.html")
    return share


if __name__ == "__main__":
    main()
