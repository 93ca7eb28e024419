"""Train a point-cloud classifier on generated shapes, save it, load it again and predict with it.

python examples/classify_clouds.py            half a minute on two cores
python examples/classify_clouds.py --quick    a smoke test of a few seconds
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import gridless as gl


def loader(size: int, seed: int, plan: gl.Plan, transform: tuple = (), shuffle: bool = False) -> DataLoader:
    """Returns batches of clouds of 256 points. The plan is the last transform, so it runs in the loader's workers."""
    data = gl.data.Shapes(size, points=256, seed=seed, transform=[*transform, plan])
    return DataLoader(data, 32, shuffle=shuffle, collate_fn=gl.collate)


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: DataLoader) -> float:
    model.eval()
    right = sum(int((model(geometry).argmax(1) == label).sum()) for geometry, label in batches)
    return right / len(batches.dataset)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)

    names = gl.data.Shapes.class_names
    model = gl.models.point_resnet_plus(len(names), width=16, lift=128, spacing=0.12, levels=2, stem_radius=0.2)
    print(model.plan, end="\n\n")  # one line per search or sampling

    augment = (gl.augment.Shuffle(), gl.augment.Jitter(0.01, 0.02), gl.augment.Scale(0.8, 1.25))
    train = loader(336 if quick else 1120, 0, model.plan, augment, shuffle=True)
    test = loader(56 if quick else 280, 1, model.plan)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(4 if quick else 5):
        model.train()
        for geometry, label in train:
            loss = functional.cross_entropy(model(geometry), label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy on new shapes {accuracy(model, test):.1%}")

    with tempfile.TemporaryDirectory() as folder:
        gl.save(model, Path(folder) / "shapes", class_names=list(names))
        again = gl.load(Path(folder) / "shapes")
    cloud, label = gl.data.Shapes(3, points=256, seed=2)[2]
    answer = again(again.plan(cloud)).softmax(1)[0]
    print(f"a {names[label]}, taken for a {again.about['class_names'][answer.argmax()]} ({answer.max():.0%})")
    return accuracy(model, test)


if __name__ == "__main__":
    main()
