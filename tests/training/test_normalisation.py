"""Statistics of normalisations: estimated anew for the weights as they are, by users and by the loop."""

from __future__ import annotations

import copy

import pytest
import torch
from small_run import shapes, small
from torch import nn

import gridless as gl
from gridless.tasks.classify import Classify
from gridless.training.evaluate import accuracy
from gridless.training.run import run

pytestmark = pytest.mark.usefixtures("one_thread")


class Mixed(nn.Module):
    """Normalisations of ours and of torch's, dropout, and a part that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout = gl.nn.BatchNorm(4), nn.Dropout(0.5)
        self.second, self.third = nn.BatchNorm1d(4, momentum=0.1), nn.InstanceNorm1d(4, track_running_stats=True)
        self.frozen = nn.Sequential(gl.nn.BatchNorm(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.dropout(self.first(x)))
        return self.frozen(self.third(x.T[None])[0].T)


def batches(count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [2 * torch.randn(50, 4, generator=generator) + 5 + i for i in range(count)]


def test_statistics_become_those_of_the_batches():
    model, given = Mixed(), batches()
    gl.training.update_statistics(model, given, keep=["frozen"])
    torch.testing.assert_close(model.first.running_mean, torch.stack([x.mean(0) for x in given]).mean(0))
    torch.testing.assert_close(model.first.running_var, torch.stack([x.var(0) for x in given]).mean(0))
    # Dropout is off: what was normalised with the statistics of its batch has mean 0 and variance 1.
    torch.testing.assert_close(model.second.running_mean, torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.second.running_var, torch.full((4,), 50 / 49), atol=1e-3, rtol=0)
    torch.testing.assert_close(model.third.running_var, torch.full((4,), 50 / 49), atol=2e-3, rtol=0)
    assert model.frozen[0].running_mean.tolist() == [0] * 4


def test_nothing_else_changes():
    model = Mixed()
    model.dropout.eval()
    for x in batches(2):
        model(x).sum().backward()
    model.frozen[0].running_var.fill_(3.0)  # the batches have another variance
    before, gradients = copy.deepcopy(model), [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    gl.training.update_statistics(model, ((x, "label") for x in batches()), keep=["frozen"])
    assert torch.equal(torch.get_rng_state(), random)
    for (name, a), b in zip(model.named_modules(), before.modules(), strict=True):
        assert a.training == b.training, name
        assert getattr(a, "momentum", 0) == getattr(b, "momentum", 0), name
    for (name, a), b, grad in zip(model.named_parameters(), before.parameters(), gradients, strict=True):
        assert torch.equal(a, b), name
        assert torch.equal(a.grad, grad), name
    for (name, a), b in zip(model.named_buffers(), before.buffers(), strict=True):
        assert torch.equal(a, b) == (name.endswith("tracked") or name.startswith("frozen.")), name


def test_no_batches_leave_everything_as_it_was():
    model = Mixed()
    before = copy.deepcopy(model.state_dict())
    gl.training.update_statistics(model, [])
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values()))


def test_an_error_in_a_batch_leaves_modes_and_momenta():
    model = Mixed()
    with pytest.raises(ValueError, match="BatchNorm"):
        gl.training.update_statistics(model, [torch.rand(5, 7)])
    assert model.training
    assert (model.first.momentum, model.second.momentum) == (0.01, 0.1)


def test_batches_of_a_loader_are_taken_as_they_are():
    recipe = small()
    model = recipe.make_model()
    gl.training.update_statistics(model, Classify().loader(recipe, shapes(9), model.plan))
    assert all(bool((norm.running_mean != 0).any()) for norm in model.modules() if isinstance(norm, gl.nn.BatchNorm))


@pytest.mark.parametrize("average", [None, 0.99])
def test_a_network_of_a_few_steps_is_as_good_in_use_as_in_training(tmp_path, average):
    """With a momentum of 0.01 and averaged weights, running statistics would be those of the first steps."""
    recipe = small().changed(epochs=6, learning_rate=0.01, model__dropout=0.0, average=average, schedule="cosine")
    clouds, held = shapes(42), shapes(30, seed=1)
    results = run(recipe, clouds, held, tmp_path, progress=False)
    model = gl.load(tmp_path / "weights")
    if average is None:
        assert results["valid_accuracy"] > 0.75
        assert accuracy(model, clouds) > 0.75
    assert results["valid_accuracy"] == accuracy(model, held)


def test_validation_does_not_change_the_training(tmp_path):
    """The network in training keeps its own statistics."""
    checkpoints = []
    for every in (1, 3):
        folder = tmp_path / str(every)
        run(small().changed(validate_every=every), shapes(20), shapes(6), folder, progress=False, checkpoint_steps=6)
        checkpoints.append(torch.load(folder / "checkpoints/last.ckpt", weights_only=True))
    for name, tensor in checkpoints[0]["model"].items():
        assert torch.equal(tensor, checkpoints[1]["model"][name]), name
