"""Event networks as users write them: other shapes than the paper's, and shapes drawn at random."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

import gridless as gl
from gridless.nn import (
    BatchNorm,
    Dense,
    EventConv,
    Last,
    LeakyCount,
    LeakyMean,
    MaxPool,
    MeanPool,
    PolarityConv,
    VoxelConv,
    VoxelMean,
    VoxelMerge,
)  # fmt: skip
from gridless.nn.events import polarity_features

SENSOR = (21, 17)
FAST = {"decay_time": 3000.0, "threshold": 0.6, "reset": -0.4}


class SkipsAcrossLevels(nn.Module):
    """Two levels; the second one sees the features of its causes, and those of their causes, beside its own."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        self.x1 = plan.lif(x0, **FAST)
        self.x2 = plan.lif(self.x1, **FAST)
        self.own = EventConv(plan.causal(x0, x0, 3), 2, 5, 3)
        self.first = EventConv(plan.causal(x0, self.x1, 3, 2), 5, 11)
        self.second = EventConv(plan.causal(self.x1, self.x2, 3, 2), 11, 9, 2, bias=False)
        self.norm = BatchNorm(25, self.x2, relu="after")
        self.logits = Dense(25, 6)
        self.last = Last(self.x2)

    def forward(self, geometry, memory=None):
        fine = self.own(polarity_features(geometry["X0"], self.logits.weight.dtype), geometry, memory).tanh()
        middle = functional.relu(self.first(fine, geometry, memory))
        coarse = self.second(middle, geometry, memory)
        above, below = geometry[self.x2].cause, geometry[self.x1].cause
        y = torch.cat([coarse, middle[above], fine[below[above]]], -1)
        return self.last(self.logits(self.norm(y, geometry)), geometry, memory, self.logits.bias)


class WideStride(nn.Module):
    """5 x 5 at a stride of 3, a cross of 3 in place; LayerNorm and GELU; a row for every event, as probabilities."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        x1 = plan.lif(x0, 5, 3, **FAST)
        self.down = PolarityConv(plan.causal(x0, x1, 5, 3), 16, temporal=9)
        self.cross = EventConv(plan.causal(x1, x1, "cross3"), 16, 24, temporal=11, decay_time=400.0)
        self.norm, self.act = nn.LayerNorm(16, eps=0.1), nn.GELU()
        self.logits = nn.Linear(24, 7)

    def forward(self, geometry, memory=None):
        y = self.act(self.norm(self.down(geometry, memory)))
        return self.logits(self.cross(y, geometry, memory)).softmax(-1)


class TwoBranches(nn.Module):
    """A fast and a slow stream of the same camera, pooled over all time: an answer when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        self.fast = plan.lif(x0, 3, 2, decay_time=500.0, threshold=0.4, reset=-0.2)
        self.slow = plan.lif(x0, 3, 4, decay_time=9000.0, threshold=0.7, reset=-1.0)
        self.a = PolarityConv(plan.causal(x0, self.fast, 3, 2), 8)
        self.b = PolarityConv(plan.causal(x0, self.slow, 3, 4), 12, temporal=1)
        self.mean, self.max = MeanPool(self.fast), MaxPool(self.slow)
        self.logits = Dense(20, 3)

    def forward(self, geometry, memory=None):
        a = self.mean(functional.silu(self.a(geometry, memory)), geometry, memory)
        b = self.max(-self.b(geometry, memory).abs(), geometry, memory)
        return self.logits(torch.cat([a, b], 1))


class OwnVoxels(nn.Module):
    """A head of voxels of the user's own: one grid of 3 frames, merged once, all cells side by side."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        x1 = plan.lif(x0, **FAST)
        x2 = plan.lif(x1, 3, 2, **FAST)
        self.first = PolarityConv(plan.causal(x0, x1, 3, 2), 6)
        self.second = EventConv(plan.causal(x1, x2, 1, 2), 6, 10)
        self.fine = VoxelMean(x1, x0, 3, 4000)
        self.merge = VoxelMerge(VoxelMean(x2, x0, 2, 4000), 6, 10)
        self.around, self.norm = VoxelConv(6, 6), BatchNorm(6, relu="before")
        self.logits = nn.Sequential(Dense(10 * 2 * 5 * 6, 16), nn.Sigmoid(), Dense(16, 4))

    def forward(self, geometry, memory=None):
        y = self.first(geometry, memory).relu()
        grid = self.fine(y, geometry, memory)
        grid = grid + self.norm(self.around(grid))
        z = self.merge.mean(self.second(y, geometry, memory), geometry, memory)
        return self.logits(self.merge(grid, z).flatten(1))


class Gates(nn.Module):
    """Channels cut in two, one half gates the other; kernels of 7 and of 1; a scaled residual; places and a mean."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        self.x1 = plan.lif(x0, 3, 2, **FAST)
        self.first = PolarityConv(plan.causal(x0, self.x1, 7, 2), 12, temporal=2)
        self.same = EventConv(plan.causal(self.x1, self.x1, 1), 6, 12)
        self.scale, self.place = nn.Parameter(torch.rand(6)), nn.Parameter(torch.randn(11 * 9, 6))
        self.column = nn.Embedding(11, 6)
        self.mean, self.act = LeakyMean(self.x1, 700.0), nn.LeakyReLU(0.2)
        self.logits, self.last = Dense(6, 5), Last(self.x1)

    def gated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return a.sigmoid() * torch.tanh(b)

    def forward(self, geometry, memory=None):
        y = self.gated(self.first(geometry, memory))
        y = y - 0.5 * self.gated(self.same(y, geometry, memory)) * self.scale + 1
        events = geometry[self.x1]
        x, row = events.pixel.long().unbind(1)
        y = self.act(y / 2 - 0.5) + functional.embedding(row * events.sensor[0] + x, self.place) + self.column(x)
        y = self.mean(torch.exp(-y[:, :6].abs()).log1p(), geometry, memory)
        return self.last(functional.log_softmax(self.logits(y), dim=1), geometry, memory)


class NothingFires(nn.Module):
    """No LIF at all: convolutions of the camera's own events, and a value after each of them."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        self.first = PolarityConv(plan.causal(x0, x0, 3), 3, temporal=5)
        self.second = EventConv(plan.causal(x0, x0, "cross7"), 3, 17, decay_time=200.0)
        self.norm = nn.BatchNorm1d(17)
        self.logits = nn.Sequential(nn.ELU(), nn.Dropout(0.3), Dense(17, 2), nn.Softplus())

    def forward(self, geometry, memory=None):
        return self.logits(self.norm(self.second(self.first(geometry, memory), geometry, memory)))


class FadingCounts(nn.Module):
    """Counts that decay, convolved at a stride of 2, beside the last value of a stream: an answer when asked for."""

    def __init__(
        self, every: int | None = None, decay_times: tuple[float, ...] = (300.0, 5000.0, 1e9), fit: bool = False
    ) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        x1 = plan.lif(x0, **FAST)
        self.count = LeakyCount(x0, 2, decay_times, every, fit)
        self.conv, self.norm = VoxelConv(2 * len(decay_times), 7, 2), BatchNorm(7, relu="after")
        self.down, self.last = PolarityConv(plan.causal(x0, x1, 3, 2), 4), Last(x1)
        self.logits = Dense(18, 3)

    def forward(self, geometry, memory=None):
        grid = self.norm(self.conv(self.count(geometry, memory)))
        last = self.last(self.down(geometry, memory), geometry, memory)
        return self.logits(torch.cat([last, grid.mean((1, 2, 3)), grid.amax((1, 2, 3))], 1))


class NowAndThen(FadingCounts):
    """The same, with a prediction every 4 ms, and nothing forgotten."""

    def __init__(self) -> None:
        super().__init__(4000)


class FittedCounts(FadingCounts):
    """The cells in which something is left, magnified to the whole grid: fewer and fewer while nothing happens."""

    def __init__(self) -> None:
        super().__init__(500, (60.0, 150.0), fit=True)


class JoinedGrids(nn.Module):
    """Means of two streams, one of which fires more often, side by side in one grid; a convolution sees both."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        x1 = plan.lif(x0, **FAST)
        x2 = plan.lif(x0, **{**FAST, "threshold": 0.2})
        self.down, self.also = PolarityConv(plan.causal(x0, x1, 3, 2), 4), PolarityConv(plan.causal(x0, x2, 3, 2), 2)
        self.mean, self.more = VoxelMean(x1, x0, 4, 4000), VoxelMean(x2, x0, 4, 4000)
        self.conv, self.logits = VoxelConv(6, 5), Dense(10, 3)

    def forward(self, geometry, memory=None):
        mean = self.mean(self.down(geometry, memory), geometry, memory)
        more = self.more(self.also(geometry, memory), geometry, memory)
        grid = self.conv(torch.cat([more, mean], -1)) - 1
        frame = grid[:, 1]
        return self.logits(torch.cat([grid.tanh().amax((1, 2, 3)), frame.mean((1, 2))], 1))


class CalledTwice(nn.Module):
    """One convolution in place, twice, and one mean of the stream, twice."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        x1 = plan.lif(x0, **FAST)
        self.down = PolarityConv(plan.causal(x0, x1, 3, 2), 6)
        self.same = EventConv(plan.causal(x1, x1, 3), 6, 6)
        self.mean = LeakyMean(x1, 700.0)

    def forward(self, geometry, memory=None):
        y = self.same(self.down(geometry, memory).relu(), geometry, memory)
        z = self.same(y.tanh(), geometry, memory)
        return torch.cat([self.mean(y, geometry, memory), self.mean(z.exp(), geometry, memory)], 1)


class VoxelsTwice(nn.Module):
    """One mean over voxels of two values of a stream."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        x1 = plan.lif(x0, **FAST)
        self.down = PolarityConv(plan.causal(x0, x1, 3, 2), 4)
        self.mean, self.logits = VoxelMean(x1, x0, 2, 4000), Dense(8, 3)

    def forward(self, geometry, memory=None):
        y = self.down(geometry, memory)
        grids = [self.mean(value, geometry, memory) for value in (y, y.tanh())]
        return self.logits(torch.cat(grids, -1).mean((1, 2, 3)))


TOPOLOGIES = [
    SkipsAcrossLevels, WideStride, TwoBranches, OwnVoxels, Gates, NothingFires, FadingCounts, NowAndThen, FittedCounts,
    CalledTwice, VoxelsTwice, JoinedGrids,
]  # fmt: skip


class Drawn(nn.Module):
    """A network drawn at random: a tree of streams, convolutions of any kernel, sums, products and joints of them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        plan = self.plan = gl.Plan()
        sensor = self.plan_sensor = draw.randint(1, 24), draw.randint(1, 24)
        streams, self.steps, self.layers = [plan.events(sensor)], [], nn.ModuleList()
        kernels = [1, 3, 5, "cross3", "cross5"]

        def conv(source, target, stride, q):
            p = draw.choice([1, 4, 7, 8, 16, 20])
            near = plan.causal(source, target, draw.choice(kernels), stride)
            options = {
                "temporal": draw.randint(1, 6),
                "decay_time": 10 ** draw.uniform(2, 4),
                "bias": draw.random() < 0.7,
            }
            self.layers.append(PolarityConv(near, p, **options) if q is None else EventConv(near, q, p, **options))
            return p

        # Values of each stream, as (step, channels); the input's polarity is None.
        values: dict = {streams[0]: [(None, None)]}
        for _ in range(draw.randint(1, 3)):
            source = draw.choice(streams)
            if draw.random() < 0.7 or values[source] == [(None, None)]:
                stride = draw.choice([1, 2, 3])
                settings = {"decay_time": 2000.0, "threshold": draw.choice([0.3, 0.9]), "reset": -0.5}
                target = plan.lif(source, draw.choice([1, 3]), stride, **settings)
            else:
                stride, target = 1, source
            step, q = draw.choice(values[source])
            p = conv(source, target, stride, q)
            self.steps.append(("conv", step, len(self.layers) - 1, target))
            values.setdefault(target, []).append((len(self.steps) - 1, p))
            if target not in streams:
                streams.append(target)
            for _ in range(draw.randint(0, 3)):
                step, q = draw.choice([value for value in values[target] if value[0] is not None])
                what = draw.choice(["relu", "tanh", "dense", "norm", "same", "self add", "gate", "join", "mean"])
                if what == "same":
                    q = conv(target, target, 1, q)
                elif what == "dense":
                    self.layers.append(Dense(q, q := draw.choice([2, 8, 13])))
                elif what == "norm":
                    self.layers.append(BatchNorm(q))
                elif what == "mean":
                    self.layers.append(LeakyMean(target, 1500.0))
                elif what == "join":
                    q *= 2
                self.steps.append((what, step, len(self.layers) - 1, target))
                values[target].append((len(self.steps) - 1, q))
        self.stream = self.steps[-1][3]
        self.logits, self.last = Dense(values[self.stream][-1][1], draw.randint(1, 9)), Last(self.stream)
        self.every = draw.random() < 0.5

    def forward(self, geometry, memory=None):
        values: list[Tensor] = []
        for what, step, layer, _ in self.steps:
            module, x = self.layers[layer], values[step] if step is not None else None
            if x is None:
                values.append(module(geometry, memory))
            elif what in ("conv", "same", "mean"):
                values.append(module(x, geometry, memory))
            elif what in ("dense", "norm"):
                values.append(module(x))
            elif what == "relu":
                values.append(x.relu())
            elif what == "tanh":
                values.append(x.tanh())
            elif what == "join":
                values.append(torch.cat([x, 2 * x], 1))
            else:
                values.append(x + x.sigmoid() if what == "self add" else x * x.tanh())
        rows = self.logits(values[-1])
        return rows if self.every else self.last(rows, geometry, memory)
