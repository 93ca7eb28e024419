"""Write your own task in one file: regression. The network estimates the volume of an ellipsoid from points on it.

gridless train examples/own_task.yaml --out runs/volume
gridless evaluate runs/volume/weights --task examples/own_task.py:Volume
gridless predict my.ply --weights runs/volume/weights --task examples/own_task.py:Volume

python examples/own_task.py            the first two of these: half a minute on two cores
python examples/own_task.py --quick    a smoke test of a few seconds
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch.nn import functional

import gridless as gl
from gridless.tasks import FilePrediction, Loss, Task
from gridless.training import Clouds

HERE = Path(__file__).parent


class Volume(Task):
    """One number for each cloud: the volume of the ellipsoid that its points lie on."""

    network = "a network that estimates volumes"
    data = ("ellipsoids",)

    def load(self, recipe, path, split, held_out_list=None, about=None):
        """Returns random ellipsoids, different ones for each split. Labels may have any dtype, here float32."""
        seed = {"train": 0, "fit": 0, "validation": 1, "test": 2}[split]
        size = recipe.data_options.get("size" if seed == 0 else "held_out", 256)
        generator = torch.Generator().manual_seed(seed)
        axes = 0.3 + 0.7 * torch.rand(size, 3, generator=generator)
        points = functional.normalize(torch.randn(size, recipe.points, 3, generator=generator), dim=2)
        return Clouds(points * axes[:, None], 4 / 3 * torch.pi * axes.prod(1))

    def loss(self, model, batch, smoothing=0.0):
        return Loss(functional.mse_loss(model(batch.geometry)[:, 0].float(), batch.labels))

    @torch.no_grad()
    def score(self, model, batch):
        """Returns the absolute error of each example, (B, 1)."""
        return (model(batch.geometry)[:, 0] - batch.labels).abs().double()[:, None]

    def figures(self, scores, data):
        guess = (data.labels - data.labels.mean()).abs().mean().item()
        return {"mean_error": scores.mean().item(), "error_of_the_mean": guess}

    @torch.no_grad()
    def predict(self, model, file, options):
        volume = model(model.plan(gl.read_cloud(file)))[0, 0].item()
        return FilePrediction(f"{file}: volume {volume:.3f}", {"file": str(file), "volume": volume})


def main(argv: list[str] | None = None) -> tuple[float, float]:
    """Trains and evaluates by the command line. Returns the mean error, and the error of always predicting the mean."""
    from gridless.cli.main import main as gridless

    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = ["--epochs", "6", "--set", "data_options.size=192"] if parser.parse_args(argv).quick else []
    task = f"{HERE / 'own_task.py'}:Volume"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "volume"
        assert gridless(["train", str(HERE / "own_task.yaml"), "--task", task, "--out", str(out), *quick]) == 0
        assert gridless(["evaluate", str(out / "weights"), "--task", task]) == 0
        results = json.loads((out / "results.json").read_text())
    return results["valid_mean_error"], results["valid_error_of_the_mean"]


if __name__ == "__main__":
    main()
