"""Two processes compute what one does: statistics are synchronised, and every process sees its part of each batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from small_run import shapes
from torch.nn.functional import cross_entropy

from gridless.nn import synchronise
from gridless.training import Clouds, Loader

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from small_run import shapes
from gridless.training import Recipe
from gridless.training.run import run

if __name__ == "__main__":
    clouds = shapes(40)
    run(Recipe.from_dict(json.loads({recipe!r})), clouds, clouds, Path({out!r}), devices=2, progress=False)
"""


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def in_two_processes(recipe, folder: Path) -> dict:
    folder.mkdir()
    script = folder / "script.py"
    tests, values = str(Path(__file__).parent), json.dumps(recipe.to_dict())
    script.write_text(SCRIPT.format(tests=tests, recipe=values, out=str(folder)))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return results(folder)


def gradients(recipe, rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Of the first batch, in float64."""
    model, clouds = recipe.make_model().double(), shapes(40)
    if world > 1:
        synchronise(model)
    data = Clouds(clouds.points.double(), clouds.labels)
    batch = next(iter(Loader(data, model.plan, 15, recipe.augment, rank=rank, world=world)))
    (cross_entropy(model(batch.geometry), batch.labels) * batch.share).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def one_of_two(rank: int, recipe, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    grads = gradients(recipe, rank, 2)
    for grad in grads.values():
        torch.distributed.all_reduce(grad)
    if rank == 0:
        save_file({name: grad / 2 for name, grad in grads.items()}, f"{folder}/gradients.safetensors")


def test_the_gradients_of_two_processes_average_to_that_of_one(recipe, tmp_path):
    # A batch of 15, so 8 and 7 examples.
    recipe = recipe.changed(model__dropout=0.0)
    torch.multiprocessing.spawn(one_of_two, (recipe, str(tmp_path)), 2)
    theirs = load_file(tmp_path / "gradients.safetensors")
    for name, grad in gradients(recipe).items():
        torch.testing.assert_close(theirs[name], grad, atol=1e-11, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def test_two_processes_reach_the_loss_of_one(recipe, tmp_path):
    # Here, lest every process of the test above imports it.
    from gridless.training.run import run

    # Dropout is drawn per process, and so is left out; a large epsilon keeps Adam from amplifying rounding.
    recipe = recipe.changed(model__dropout=0.0, epochs=2, average=None, epsilon=1e-2, batch_size=15)
    run(recipe, shapes(40), shapes(40), tmp_path / "one", progress=False)
    one, two = results(tmp_path / "one"), in_two_processes(recipe, tmp_path / "two")
    assert abs(one["train_loss"] - two["train_loss"]) < 1e-4
    assert one["train_accuracy"] == two["train_accuracy"]
    assert one["learning_rate"] == two["learning_rate"]
