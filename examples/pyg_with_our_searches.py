"""Train a PyTorch Geometric network on our searches: a ball search gives edge_index, the layers are PyG's.

python examples/pyg_with_our_searches.py [--quick]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torch_geometric.nn import MLP, PointNetConv, global_max_pool

import gridless as gl


class PointNet(nn.Module):
    """Two levels of PyG's PointNetConv, along the edges of a plan."""

    def __init__(self, classes: int, radius: float = 0.25) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        self.radius = radius
        self.fine = plan.points(dim=3)
        near = plan.ball(self.fine, self.fine, radius)
        self.coarse = plan.rejection_sample(near)
        self.down = plan.ball(self.fine, self.coarse, radius)
        self.wide = plan.ball(self.coarse, self.coarse, 2 * radius)
        # Our balls contain the point itself.
        self.conv1 = PointNetConv(MLP([3, 32, 64]), add_self_loops=False)
        self.conv2 = PointNetConv(MLP([64 + 3, 64, 128]), add_self_loops=False)
        self.head = MLP([128, 64, classes])

    def forward(self, geometry: gl.Geometry) -> Tensor:
        fine, coarse = geometry[self.fine], geometry[self.coarse]
        at, to = fine.coords / self.radius, coarse.coords / self.radius
        x = self.conv1((None, None), (at, to), geometry[self.down].to_edge_index()).relu()
        x = self.conv2(x, to, geometry[self.wide].to_edge_index()).relu()
        return self.head(global_max_pool(x, coarse.example, coarse.num_examples))


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)
    classes = ["ball", "crate", "chair", "spring", "mug", "shelf"]
    model = PointNet(len(classes))

    def loader(size: int, seed: int) -> DataLoader:
        data = gl.data.Shapes(size, points=256, seed=seed, class_names=classes, transform=[model.plan])
        return DataLoader(data, 16, shuffle=True, collate_fn=gl.collate)

    train, test = loader(192 if quick else 384, 0), loader(60 if quick else 120, 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        model.train()
        for geometry, label in train:
            loss = functional.cross_entropy(model(geometry), label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(geometry).argmax(1) == label).sum()) for geometry, label in test)
        share = right / len(test.dataset)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy on new shapes {share:.1%}")
    return share


if __name__ == "__main__":
    main()
