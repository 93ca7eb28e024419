"""PointNet++ (single scale), DGCNN and PointCNN, as their papers describe them, for the epoch tables.

Over torch-geometric's PointNetConv and EdgeConv where it is installed, and over the same in a few lines of torch where
it is not (which is faster: rows of a CSR instead of a scatter); the results say which.
torch-geometric's own radius, knn and fps need pyg-lib, a compiled library that PyPI does not have: farthest points and
balls are searched by gridless, neighbours in feature space by torch.cdist and topk. PointCNN is of torch-geometric's
XConv, whose searches gridless makes (`gl.pyg.enable()`).
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor, nn

import gridless as gl
from gridless.ops.segment_pool import segment_max, segment_mean

PYG = find_spec("torch_geometric") is not None


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class PointNetConv(nn.Module):
    """max over the neighbours j of i of nn(x_j, p_j - p_i)."""

    def __init__(self, local: nn.Module) -> None:
        super().__init__()
        if PYG:
            from torch_geometric.nn import PointNetConv

            self.theirs = PointNetConv(local, add_self_loops=False)
        else:
            self.local = local

    def forward(self, x: Tensor | None, source: Tensor, target: Tensor, edges: gl.Edges) -> Tensor:
        if PYG:
            return self.theirs((x, None), (source, target), edges.to_edge_index())
        j, i = edges.source.long(), edges.target.long()
        message = source[j] - target[i]
        message = message if x is None else torch.cat([x[j], message], 1)
        return segment_max(self.local(message), edges.splits)


class EdgeConv(nn.Module):
    """max over the neighbours j (S, k) of i of nn(x_i, x_j - x_i)."""

    def __init__(self, local: nn.Module) -> None:
        super().__init__()
        if PYG:
            from torch_geometric.nn import EdgeConv

            self.theirs = EdgeConv(local, aggr="max")
        else:
            self.local = local

    def forward(self, x: Tensor, j: Tensor) -> Tensor:
        if PYG:
            i = torch.arange(len(j), device=j.device)[:, None].expand_as(j)
            return self.theirs(x, torch.stack([j.flatten(), i.flatten()]))
        centre = x[:, None].expand(-1, j.shape[1], -1)
        message = torch.cat([centre, x[j] - centre], 2)
        return self.local(message.flatten(0, 1)).view(len(x), j.shape[1], -1).amax(1)


class PointNet2(nn.Module):
    """PointNet++ SSG for classification: 512 points within 0.2 (32 nearest), 128 within 0.4 (64 nearest), then all."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        self.first = PointNetConv(mlp(3, 64, 64, 128))
        self.second = PointNetConv(mlp(128 + 3, 128, 128, 256))
        self.third = mlp(256 + 3, 256, 512, 1024)
        self.head = nn.Sequential(
            mlp(1024, 512), nn.Dropout(0.5), mlp(512, 256), nn.Dropout(0.5), nn.Linear(256, classes)
        )

    @staticmethod
    def geometry(cloud: gl.Cloud) -> tuple:
        few = gl.farthest_sample(cloud, 512)
        fewer = gl.farthest_sample(few, 128)
        return cloud, few, fewer, gl.ball(cloud, few, 0.2, limit=32), gl.ball(few, fewer, 0.4, limit=64)

    def forward(self, geometry: tuple) -> Tensor:
        cloud, few, fewer, down, further = geometry
        x = self.first(None, cloud.coords, few.coords, down)
        x = self.second(x, few.coords, fewer.coords, further)
        x = self.third(torch.cat([x, fewer.coords], 1))
        return self.head(segment_max(x, fewer.splits))


class DGCNN(nn.Module):
    """Four dynamic edge convolutions, 20 neighbours in feature space, max and mean pooling."""

    def __init__(self, classes: int = 40, k: int = 20) -> None:
        super().__init__()
        self.k = k
        self.layers = nn.ModuleList(EdgeConv(mlp(2 * a, b)) for a, b in ((3, 64), (64, 64), (64, 128), (128, 256)))
        self.lift = mlp(512, 1024)
        self.head = nn.Sequential(
            mlp(2048, 512), nn.Dropout(0.5), mlp(512, 256), nn.Dropout(0.5), nn.Linear(256, classes)
        )

    @staticmethod
    def geometry(cloud: gl.Cloud) -> tuple:
        return (cloud,)

    def forward(self, geometry: tuple) -> Tensor:
        (cloud,) = geometry
        batch = cloud.num_examples
        x, every = cloud.coords, []
        for layer in self.layers:
            x = layer(x, self._nearest(x.view(batch, -1, x.shape[1])))
            every.append(x)
        x = self.lift(torch.cat(every, 1))
        return self.head(torch.cat([segment_max(x, cloud.splits), segment_mean(x, cloud.splits)], 1))

    @torch.no_grad()
    def _nearest(self, x: Tensor) -> Tensor:
        """Rows (S, k) of the nearest neighbours of each point within its cloud; all clouds have as many points."""
        parts = [torch.cdist(part, part).topk(self.k, largest=False).indices for part in x.split(128)]
        index = torch.cat(parts) + torch.arange(len(x), device=x.device)[:, None, None] * x.shape[1]
        return index.view(-1, self.k)


class PointCNN(nn.Module):
    """Four X-convolutions of torch-geometric over nearest neighbours, farthest points between them, mean pooling."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        if not PYG:
            raise ImportError("PointCNN is of torch-geometric's XConv: pip install torch-geometric")
        gl.pyg.enable()
        from torch_geometric.nn import XConv

        self.layers = nn.ModuleList(
            XConv(q, p, dim=3, kernel_size=k, hidden_channels=h, dilation=d)
            for q, p, k, h, d in ((0, 48, 8, 32, 1), (48, 96, 12, 64, 2), (96, 192, 16, 128, 2), (192, 384, 16, 256, 2))
        )
        self.head = nn.Sequential(
            nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)
        )

    @staticmethod
    def geometry(cloud: gl.Cloud) -> tuple:
        few = gl.farthest_sample(cloud, 384)
        return cloud, few, gl.farthest_sample(few, 128)

    def forward(self, geometry: tuple) -> Tensor:
        cloud, few, fewer = geometry
        x = self.layers[0](None, cloud.coords, cloud.example).relu()
        x = self.layers[1](x[few.parent_index], few.coords, few.example).relu()
        x = self.layers[2](x[fewer.parent_index], fewer.coords, fewer.example).relu()
        x = self.layers[3](x, fewer.coords, fewer.example).relu()
        return self.head(segment_mean(x, fewer.splits))
