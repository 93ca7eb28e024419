"""A network is read once into streams and rows; what cannot be read is refused by name, with what to do."""

from __future__ import annotations

import pytest
import torch
from live import CONFIGURATIONS, network
from torch import nn

import gridless as gl
from gridless.streaming.program import Program


class Small(nn.Module):
    """A network of a user: one level, one value after each of its events; `after` is the user's own idea."""

    def __init__(self, after=lambda module, features, geometry, memory: features) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        stream = plan.events((12, 9))
        self.coarse = plan.lif(stream, 3, 2, decay_time=1000.0, threshold=0.5, reset=-0.5)
        self.first = gl.nn.PolarityConv(plan.causal(stream, self.coarse, 3, 2), 6)
        self.near = plan.causal(self.coarse, self.coarse, 3)
        self.logits = gl.nn.Dense(6, 4)
        self.after = after

    def forward(self, geometry, memory=None):
        return self.logits(self.after(self, self.first(geometry, memory).relu(), geometry, memory))


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_network_of_the_paper_is_a_program(name, head):
    model = network(name, head=head, duration=1000, squash=True, blocks=1)
    program = Program.of(model)
    assert [stream.name for stream in program.streams] == ["X0", *map(str, model.streams)]
    parameters = sum(p.numel() for p in model.parameters())
    # Weights are there once; normalisation became two numbers for each channel.
    assert abs(program.constant_bytes / 4 - parameters) < 0.02 * parameters
    names = set()
    for row in program.rows:
        assert names >= set(row.inputs)
        names.add(row.name)
    assert (program.duration, program.answers) == ((1000, None) if head == "voxel" else (None, str(model.streams[-1])))
    assert program[program.output].shape == (model.config["classes"],)


def test_a_program_is_printed_with_its_multiply_adds_and_bytes():
    text = str(Program.of(Small().eval()))
    # 9 taps, 4 decays, 2 channels of polarity, 6 of output; an event of a stride of 2 is in 2.25 taps in the mean.
    assert "first = convolve(polarity, source=X0, kernel=3, stride=2)" in text
    assert "504 + 18 per source event" in text
    assert "logits = dense(relu)" in text
    assert text.splitlines()[-1].startswith("output logits")


def test_rates_are_per_microsecond_and_normalisation_is_folded():
    model = network("n_mnist", head="stream", width=8, levels=1)
    program = Program.of(model)
    conv, norm = model.downs[0].conv, model.downs[0].norm
    rate = torch.from_numpy(program["downs.0.conv"].constants["rate"])
    assert torch.allclose(rate, (conv.rate / conv.decay_time).detach(), rtol=1e-6)
    x, row = torch.randn(5, 8), {k: torch.from_numpy(v) for k, v in program["downs.0.norm"].constants.items()}
    statistics = norm.running_mean, norm.running_var, norm.weight, norm.bias
    expected = nn.functional.batch_norm(x, *statistics, eps=norm.eps)
    assert torch.allclose(x * row["scale"] + row["shift"], expected, atol=1e-5)


def cumulative(module, features, geometry, memory):
    return torch.cumsum(features, 0)


def forgetful(module, features, geometry, memory):
    return module.extra(features, geometry)


def branching(module, features, geometry, memory):
    return features if features.sum() > 0 else -features


@pytest.mark.parametrize(
    ("after", "extra", "words"),
    [
        (cumulative, None, "cumsum"),
        (lambda m, x, g, s: m.extra(x), nn.GroupNorm(2, 6), r"layer 'extra' \(GroupNorm\)"),
        (lambda m, x, g, s: m.extra(x), nn.ELU(0.5), r"ELU\(alpha=0\.5\)"),
        (forgetful, "conv", "called without the memory"),
        (branching, None, "cannot be read"),
        (lambda m, x, g, s: x / x, None, "division by a value"),
        (lambda m, x, g, s: g["X9"].cause, None, "X9"),
    ],
)
def test_what_is_not_known_is_refused_by_name_with_what_to_do(after, extra, words):
    model = Small(after)
    model.extra = gl.nn.EventConv(model.near, 6, 6) if extra == "conv" else extra
    with pytest.raises(TypeError, match=words) as found:
        Program.of(model.eval())
    assert "gl.streaming.Session" in str(found.value)
