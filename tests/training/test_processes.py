"""Two processes compute what one does: statistics are synchronised, and every process sees its part of each batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_run import shapes
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

from gridless.nn import synchronise
from gridless.training import Clouds, Loader

pytestmark = pytest.mark.slow

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
    run(
        Recipe.from_dict(json.loads({recipe!r})), clouds, clouds, Path({out!r}), devices=2, progress=False, workers=0,
        cache=Path({out!r}) / "cache",
    )
"""

# Nothing of ours but the files, the network and `collate`: Lightning's own sampler and DDP.
PLAIN = """
import json
import lightning, torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
import gridless as gl
torch.set_num_threads(1)


class Sizes(torch.utils.data.Dataset):
    fingerprint = "sizes"

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return torch.rand(10 + 7 * i, 3), i


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = gl.models.PointResNet(classes=3, width=8, levels=2, radius=0.3)
        gl.nn.synchronise(self.model)
        self.seen = []

    def training_step(self, batch, number):
        geometry, label = batch
        self.seen.append((self.current_epoch, label.tolist()))
        return cross_entropy(self.model(geometry), label % 3)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_train_end(self):
        weights = torch.cat([v.double().flatten() for v in self.model.state_dict().values()])
        json.dump({{"seen": self.seen, "weights": weights.tolist()}}, open(f"{out}/{{self.global_rank}}.json", "w"))


if __name__ == "__main__":
    network = Network()
    files = gl.Precomputed(Sizes(), "{out}", network.model.plan, shard=5)
    loader = DataLoader(files, 4, shuffle=True, collate_fn=gl.collate)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(network, loader)
"""


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def in_two_processes(script: str, folder: Path, **settings: str) -> None:
    folder.mkdir()
    (folder / "script.py").write_text(script.format(out=str(folder), **settings))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(folder / "script.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


def gradients(recipe, rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Gradients of the first batch, in float64."""
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
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_gradients_of_two_processes_average_to_that_of_one(recipe, tmp_path):
    # A batch of 15, so 8 and 7 examples.
    recipe = recipe.changed(model__dropout=0.0)
    # First, so that the kernels are compiled once and not in both processes.
    alone = gradients(recipe)
    torch.multiprocessing.spawn(one_of_two, (recipe, str(tmp_path)), 2)
    theirs = load_file(tmp_path / "gradients.safetensors")
    for name, grad in alone.items():
        torch.testing.assert_close(theirs[name], grad, atol=1e-11, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def test_two_processes_that_read_files_reach_the_loss_of_one(recipe, tmp_path):
    # Here, lest every process of the test above imports it.
    from gridless.training.run import run

    # Dropout is drawn per process, and so is left out; a large epsilon keeps Adam from amplifying rounding.
    recipe = recipe.changed(model__dropout=0.0, epochs=2, average=None, epsilon=1e-2, batch_size=15)
    run(recipe, shapes(40), shapes(40), tmp_path / "one", progress=False)
    recipe = recipe.changed(geometry="offline", repeats=2)
    tests, values = str(Path(__file__).parent), json.dumps(recipe.to_dict())
    in_two_processes(SCRIPT, tmp_path / "two", tests=tests, recipe=values)
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    # In this network rounding moves gradients by up to 4e-4, and one thread or two the loss by 1e-3; in float64, as
    # above, steps are the same.
    assert abs(one["train_loss"] - two["train_loss"]) < 4e-3
    assert abs(one["train_accuracy"] - two["train_accuracy"]) < 1.5 / 40
    assert one["learning_rate"] == two["learning_rate"]


@pytest.mark.slow
def test_lightnings_ddp_as_it_is_reads_files_of_unequal_sizes(tmp_path):
    folder = tmp_path / "two"
    in_two_processes(PLAIN, folder)
    files = sorted(folder.glob("*/*.safetensors"))
    assert len(files) == 5
    assert len({file.stat().st_size for file in files}) == 5
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, result in enumerate(ranks):
        sampler = DistributedSampler(range(23), 2, rank, shuffle=True)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert [i for at, part in result["seen"] for i in part if at == epoch] == list(sampler)
    # Twelve for each process: one example of 23 is seen twice.
    seen = [i for result in ranks for at, part in result["seen"] for i in part if at == 0]
    assert set(seen) == set(range(23))
    assert len(seen) == 24
    assert ranks[0]["weights"] == ranks[1]["weights"]
