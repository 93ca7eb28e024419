"""A network is read once into streams and rows; what cannot be read is refused by name, with what to do."""

from __future__ import annotations

import threading

import pytest
import torch
from live import CONFIGURATIONS, network
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune, spectral_norm, weight_norm

import gridless as gl
from gridless.live.export.writer import Writer
from gridless.live.program import Program


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
    model = network(name, head=head, duration=1000)
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


def test_streams_that_nothing_sees_are_not_fired():
    model = Small().eval()
    model.plan.lif(model.plan.lif(model.coarse, decay_time=1000.0, threshold=0.5, reset=-0.5), 3, 2, decay_time=1.0,
                   threshold=0.5, reset=-0.5)  # fmt: skip
    program = Program.of(model)
    assert [stream.name for stream in program.streams] == ["X0", str(model.coarse)]
    # Compilers would complain about what it does not use.
    assert "run_X2" not in Writer(program).text


def test_a_program_is_printed_with_its_multiply_adds_and_bytes_within_the_terminal(monkeypatch):
    program = Program.of(Small().eval())
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError()))
    text = str(program)
    # 9 taps, 4 decays, 2 channels of polarity, 6 of output; an event of a stride of 2 is in 2.25 taps in the mean.
    assert "first = convolve(polarity, source=X0, kernel=3, stride=2)" in text
    assert "504 + 18 per source event" in text
    # 6 channels to 4, and 4 biases.
    (line,) = (line for line in text.splitlines() if "logits = dense(relu)" in line)
    assert line.split()[-4:] == ["4", "24", "112", "B"]
    assert text.splitlines()[-1].startswith("output logits")
    for width in (80, 50):
        monkeypatch.setenv("COLUMNS", str(width))
        narrow = str(program)
        assert max(map(len, narrow.splitlines())) <= width
        # Only empty cells are left out.
        assert {"504", "18", "24", "112", "convolve(polarity", "stride=2)"} <= {*narrow.replace(",", " ").split()}


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


def conv(module):
    return gl.nn.EventConv(module.near, 6, 6)


def voxels(module):
    return gl.nn.VoxelMean(module.coarse, module.first.near.source, 2, 1000)


def pool(module):
    return gl.nn.MeanPool(module.coarse)


def replaced(layer):
    layer.forward = lambda x: 2 * x
    return layer


def half_of(module, geometry):
    return (geometry[module.coarse].pixel[:, 0] * 0.5).long()


@pytest.mark.parametrize(
    ("after", "extra", "message"),
    [
        (cumulative, None, "cumsum"),
        (lambda m, x, g, s: m.extra(x), nn.GroupNorm(2, 6), r"layer 'extra' \(GroupNorm\)"),
        (lambda m, x, g, s: m.extra(x), nn.ELU(0.5), r"ELU\(alpha=0\.5\)"),
        (lambda m, x, g, s: m.extra(x), replaced(nn.ReLU()), r"layer 'extra' \(ReLU\)"),
        (forgetful, conv, "memory"),
        (lambda m, x, g, s: m.extra(x), conv, "'extra'.*EventConv.*'geometry'"),
        (lambda m, x, g, s: m.extra(x, g, s)[:, 0, 1], voxels, "index"),
        (lambda m, x, g, s: x[:, ::2], None, "index"),
        (lambda m, x, g, s: x + m.extra(x, g, s).mean(), pool, "mean.*cells"),
        (lambda m, x, g, s: x * g[m.coarse].time[:, None], None, "attribute time"),
        (lambda m, x, g, s: x @ m.extra, nn.Parameter(torch.rand(6)), "constant matrix"),
        (branching, None, "cannot be read"),
        (lambda m, x, g, s: x // x, None, "floordiv"),
        (lambda m, x, g, s: g["X9"].cause, None, "X9"),
        (lambda m, x, g, s: x + x.int(), None, "int.*whole numbers"),
        (lambda m, x, g, s: x + x.to(torch.int64), None, "torch.int64"),
        (lambda m, x, g, s: functional.dropout(x), None, "training=self.training"),
        (lambda m, x, g, s: x * m.extra, nn.Parameter(torch.rand(6, 1)), "mul.*shape"),
        (lambda m, x, g, s: x + m.extra, nn.Parameter(torch.rand(1, 1, 6)), "add.*shape"),
        (lambda m, x, g, s: x + functional.embedding(half_of(m, g), m.extra), nn.Parameter(torch.rand(9, 6)), "0.5"),
        (lambda m, x, g, s: x + m.extra(half_of(m, g)), nn.Embedding(30, 6), "0.5"),
        (lambda m, x, g, s: x + m.extra(g[m.coarse].pixel[:, 0]), nn.Embedding(5, 6), "0 to 5.* 5"),
        (lambda m, x, g, s: x + m.extra(g[m.coarse].pixel[:, 0]), nn.Embedding(6, 6, max_norm=1), "max_norm"),
        (lambda m, x, g, s: x + x[:, :3].add_(1).sum(), None, "add_.*in place"),
        (lambda m, x, g, s: x + functional.elu(x, 0.5), None, "elu.*alpha=0.5"),
    ],
)
def test_what_is_not_known_is_refused_by_name_with_what_to_do(after, extra, message):
    model = Small(after)
    model.extra = extra(model) if extra in (conv, voxels, pool) else extra
    with pytest.raises(TypeError, match=message) as error:
        Program.of(model.eval())
    assert "gl.streaming.Session(model)" in str(error.value)


@pytest.mark.parametrize("layer", [gl.nn.LeakyMean, gl.nn.VoxelMean, gl.nn.Last, gl.nn.MeanPool, gl.nn.MaxPool])
def test_a_layer_of_another_stream_than_its_features_is_refused(layer):
    model = Small(lambda m, x, g, s: m.extra(x, g, s))
    camera = model.first.near.source
    settings = {gl.nn.LeakyMean: (500.0,), gl.nn.VoxelMean: (camera, 2, 1000)}
    model.extra = layer(camera, *settings.get(layer, ()))
    with pytest.raises(ValueError, match=r"extra .*X0.*X1"):
        Program.of(model.eval())


class Unrelated(nn.Module):
    """Two streams of one camera, of which one is to see the other; or the camera's at a stride that is not theirs."""

    def __init__(self, siblings: bool) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events((20, 20))
        x1, x2 = (plan.lif(x0, k, 2, decay_time=1000.0, threshold=0.5, reset=-0.5) for k in (3, 5))
        self.first = gl.nn.PolarityConv(plan.causal(x0, x1, 3, 2 if siblings else 1), 4)
        self.second = gl.nn.EventConv(plan.causal(x1, x2, 3), 4, 4)

    def forward(self, geometry, memory=None):
        return self.second(self.first(geometry, memory), geometry, memory)


def test_streams_that_cannot_see_each_other_are_refused_before_anything_is_written():
    with pytest.raises(ValueError, match=r"second .*X1 to X2"):
        Program.of(Unrelated(siblings=True).eval())
    with pytest.raises(ValueError, match=r"first .*\b1\b.*X1.*\(10, 10\)"):
        Program.of(Unrelated(siblings=False).eval())


class Returns(Small):
    def forward(self, geometry, memory=None):
        return self.after(self, self.first(geometry, memory), geometry, memory)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda m, x, g, s: (x, x), "tuple"),
        (lambda m, x, g, s: m.logits.bias, "forward must return"),
        (lambda m, x, g, s: m.extra(x, g, s), "grid"),
    ],
)
def test_a_forward_that_returns_no_rows_is_told_what_to_return(after, message):
    model = Returns(after)
    model.extra = voxels(model)
    with pytest.raises(TypeError, match=message):
        Program.of(model.eval())


def test_weights_for_other_channels_than_there_are_are_refused():
    for after in (lambda m, x, g, s: torch.cat([x, x], 1), lambda m, x, g, s: m.extra(torch.cat([x, x], 1), g, s)):
        model = Small(after)
        model.extra = conv(model)
        with pytest.raises(ValueError, match=r"(logits|extra) .* 6 .* 12"):
            Program.of(model.eval())


@pytest.mark.parametrize("name", ["", "logits"])
def test_forward_hooks_are_refused_by_name(name):
    model = Small().eval()
    model.get_submodule(name).register_forward_hook(lambda module, args, out: 2 * out)
    with pytest.raises(TypeError, match=r"(the network|layer 'logits' \(Dense\)) .*hook.*Session"):
        Program.of(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("change", [lambda layer: prune.identity(layer, "weight"), weight_norm, spectral_norm])
def test_weights_that_torch_renews_before_a_call_are_those_of_the_call(change):
    model = Small()
    change(model.logits)
    model.eval()
    for parameter in model.logits.parameters():
        parameter.data.uniform_(0.5, 1.5)
    weight = Program.of(model)["logits"].constants["weight"]
    model.logits(torch.zeros(1, 6))
    assert torch.equal(torch.from_numpy(weight), model.logits.weight.detach().T)


@pytest.mark.slow
def test_a_part_that_was_compiled_is_read_as_what_it_was_made_of():
    model = Small()
    model.logits = torch.compile(model.logits)
    program = Program.of(model.eval())
    assert program.modules["logits"] == program.output
    assert torch.equal(torch.from_numpy(program[program.output].constants["weight"]), model.logits.weight.T)


def test_a_network_is_left_as_it_was():
    model = Small(lambda m, x, g, s: setattr(m, "seen", x) or setattr(m.logits, "seen", x) or x + torch.ones(6))
    model.logits.seen = None
    before = set(vars(model))
    Program.of(model.eval())
    assert set(vars(model)) == before
    assert model.logits.seen is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_are_read(dtype):
    model = Small(lambda m, x, g, s: x * m.extra)
    model.extra = nn.Parameter(torch.tensor([1.0, 2, 3, 4, 5, 6]))
    program = Program.of(model.to(dtype).eval())
    assert torch.equal(torch.from_numpy(program["logits"].constants["weight"]), model.logits.weight.T.float())
    for row in program.rows:
        if row.operation == "convolve":
            layer = dict(model.named_modules())[row.name]
            rate = (layer.log_rate.double().exp() / layer.decay_time).expand(len(layer.weight), -1)
            assert torch.allclose(torch.from_numpy(row.constants["rate"]), rate.float(), rtol=1e-6)


def test_other_threads_call_networks_while_one_is_read():
    model, other = Small().eval(), nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    begun, ended, errors = threading.Event(), threading.Event(), []

    def wait(module, features, geometry, memory):
        begun.set()
        ended.wait(10)
        return features

    def call():
        begun.wait(10)
        try:
            other(torch.zeros(1, 3))
            assert isinstance(model.logits(torch.zeros(1, 6)), torch.Tensor)
        except BaseException as error:
            errors.append(error)
        ended.set()

    model.after = wait
    thread = threading.Thread(target=call)
    thread.start()
    assert Program.of(model).output == "logits"
    thread.join()
    assert ended.is_set()
    assert not errors


def test_networks_are_read_in_many_threads_at_once():
    model, texts, together = network("n_mnist", head="stream", width=4, levels=2, pooled=1), [], threading.Barrier(4)

    def read():
        together.wait()
        texts.append(str(Program.of(model)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4
    assert len(set(texts)) == 1
