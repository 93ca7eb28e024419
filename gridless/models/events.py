"""Event networks: the paper's classifier, its sizes, and a second head that can run for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gridless.nn.blocks import Dense
from gridless.nn.events import (
    DownConv,
    EventConv,
    InceptionBlock,
    Last,
    LeakyCount,
    LeakyMean,
    Memory,
    VoxelConv,
    VoxelMean,
    VoxelMerge,
)
from gridless.nn.norm import BatchNorm
from gridless.plan import Name, Plan
from gridless.structures import Geometry

# Edges are cut after so many decay times.
WINDOW = 4


class EventResNet(nn.Module):
    """The paper's event classifier: every stream and convolution is written once, here.

    Per level: the stream fires a coarser one (LIF), a strided 3 x 3 convolution takes the features along, and an
    inception block works in place; channels and decay time double from level to level, and the block already has the
    next level's decay time. The first convolution sees polarity.

    Two heads. "voxel" is the paper's: from level `pooled` on, the mean features of voxels (x, y, t) are merged from
    coarse to coarser into one grid and classified: logits (B, classes). The time axis of the voxels is the recording,
    or the first `duration` microseconds of it. "stream" predicts after every event of the last stream, from leaky means
    of the streams from level `pooled` on, in constant memory; `model(geometry)` is the prediction after the last one.

    `model(model.plan(events))`; packet by packet, `geometry, lif = model.plan.step(packet, lif)` and
    `model(geometry, memory)` with a dict that the layers keep their memory in.

    Args:
        classes: how many classes.
        sensor: (width, height) of the camera.
        width: channels of the first level.
        levels: how often the stream fires a coarser one.
        pooled: the first level that the head sees, counted from 0.
        decay_time: of the first level, in microseconds.
        threshold: the potential above which an event is fired.
        reset: the potential after that.
        head: "voxel" or "stream".
        duration: microseconds that the voxels span; the whole recording when left out.
        form: how convolutions are computed: "scan" sees all history; "edges" writes the neighbourhoods out, cut after 4
            decay times as in the paper. Both have the same parameters.
        rates: how decay rates begin: "spread" over time scales, or at 1 ("ones"), as the authors'. "shared": spread,
            and the same at all taps of a convolution, which needs a third of the memory in C.
        dropout: probability, in down-sampling blocks and in the head.
    """

    task = "recordings"

    def __init__(
        self,
        classes: int,
        sensor: tuple[int, int],
        width: int = 8,
        levels: int = 5,
        pooled: int = 2,
        decay_time: float = 4000.0,
        threshold: float = 1.5,
        reset: float = -3.0,
        head: str = "voxel",
        duration: int | None = None,
        form: str = "scan",
        rates: str = "spread",
        dropout: float = 0.5,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        for name, value, known in (("form", form, ("scan", "edges")), ("head", head, ("voxel", "stream"))):
            if value not in known:
                raise ValueError(f"EventResNet: {name} must be one of {', '.join(map(repr, known))}, not {value!r}")
        if not levels <= 32:
            raise ValueError(f"EventResNet: levels is {levels}. Give at most 32.")
        if not 0 <= pooled < levels:
            raise ValueError(f"EventResNet: pooled is {pooled}. Give a level from 0 to {levels - 1}.")
        self.config: dict[str, Any] = {"model": "EventResNet", **arguments, "sensor": list(map(int, sensor))}
        plan = self.plan = Plan()  # what pixels and times alone decide
        window = WINDOW if form == "edges" else None
        clock = stream = plan.events(sensor)
        self.downs, self.blocks = nn.ModuleList(), nn.ModuleList()
        self.streams: list[Name] = []
        channels = None
        for _ in range(levels):
            coarse = plan.lif(stream, 3, 2, decay_time=decay_time, threshold=threshold, reset=reset)
            down = plan.causal(stream, coarse, 3, 2, window and window * decay_time)
            grown = width if channels is None else 2 * channels
            self.downs.append(DownConv(down, channels, grown, decay_time, dropout=dropout, rates=rates))
            decay_time, channels, stream = 2 * decay_time, grown, coarse
            cross = plan.causal(stream, stream, "cross5", 1, window and window * decay_time)
            point = plan.causal(stream, stream, 1, 1, window and 4 * window * decay_time)
            self.blocks.append(InceptionBlock(cross, point, channels, decay_time, rates=rates))
            self.streams.append(stream)
        widths = [width * 2**i for i in range(levels)]
        if head == "voxel":
            self.head: VoxelHead | StreamHead = VoxelHead(
                self.streams, widths, pooled, clock, classes, duration, dropout
            )
        else:
            self.head = StreamHead(self.streams, widths, pooled, classes, 4 * decay_time, dropout)

    def trunk(self, geometry: Geometry, memory: Memory | None = None) -> list[Tensor]:
        """The features of the events of every level."""
        features: Tensor | None = None
        levels = []
        for down, block in zip(self.downs, self.blocks, strict=True):
            features = block(down(features, geometry, memory), geometry, memory)
            levels.append(features)
        return levels

    def forward(self, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        return self.head(self.trunk(geometry, memory), geometry, memory)

    def predictions(self, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        """Logits (S, classes) of a stream head after every event of the last stream."""
        if not isinstance(self.head, StreamHead):
            raise ValueError("this network does not predict after every event. Build it with head='stream'.")
        return self.head.predictions(self.trunk(geometry, memory), geometry, memory)

    def loss(self, geometry: Geometry, label: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The cross entropy, of a stream head over time, and the logits (B, classes) at the end."""
        return self.head.loss(self.trunk(geometry), geometry, label, smoothing)

    def cost(self, geometry: Geometry) -> dict[str, float]:
        """Multiply-adds per input event when run event by event, by part; the voxel head's own is not counted."""
        events = max(len(geometry["X0"]), 1)
        parts: dict[str, float] = {}
        for name, layer in self.named_modules():
            if isinstance(layer, EventConv):
                parts[name] = _conv_cost(layer, geometry) / events
            elif isinstance(layer, InceptionBlock):
                dense = 2 * layer.expand.weight.numel() + layer.norm.channels
                parts[f"{name}.dense"] = len(geometry[layer.cross.near.target]) * dense / events
            elif isinstance(layer, StreamMean):
                # Dense, mean, and the part of the logits that it decides.
                work = layer.hidden.weight.numel() + (2 + self.config["classes"]) * layer.hidden.out_features
                parts[name] = len(geometry[layer.stream]) * work / events
        return parts | {"total": sum(parts.values())}


def _conv_cost(layer: EventConv, geometry: Geometry) -> float:
    """Every source event updates the taps its pixel feeds; every target event reads all of them, then transforms."""
    near = layer.near
    taps, temporal, q, p = layer.weight.shape
    (width, height), (columns, rows) = near.source.sensor, near.target.sensor
    fed = taps * columns * rows / (width * height)
    update = len(geometry[near.source]) * fed * temporal * q
    return update + len(geometry[near.target]) * taps * temporal * q * (1 + p)


class VoxelHead(nn.Module):
    """Voxel grids of the last levels, merged from fine to coarse, then classified: logits (B, classes).

    The grid of level `pooled` has 2^(levels - 1 - pooled) frames, that of the last level one. Dense to twice the
    channels, max over the pixels, norm, dropout, Dense 256, ReLU, norm, dropout, Dense.
    """

    def __init__(
        self,
        streams: list[Name],
        widths: list[int],
        pooled: int,
        clock: Name,
        classes: int,
        duration: int | None,
        dropout: float,
    ) -> None:
        super().__init__()
        levels = len(streams)
        self.pooled, self.duration = pooled, duration
        means = [VoxelMean(streams[i], clock, 2 ** (levels - 1 - i), duration) for i in range(pooled, levels)]
        self.mean, self.norm = means[0], BatchNorm(widths[pooled])
        sizes = zip(means[1:], widths[pooled:], widths[pooled + 1 :], strict=False)
        self.merges = nn.ModuleList(VoxelMerge(mean, q, p) for mean, q, p in sizes)
        self.lift = Dense(widths[-1], 2 * widths[-1])
        self.classify = nn.Sequential(
            BatchNorm(2 * widths[-1]),
            nn.Dropout(dropout),
            Dense(2 * widths[-1], 256),
            nn.ReLU(),
            BatchNorm(256),
            nn.Dropout(dropout),
            Dense(256, classes),
        )

    def forward(self, levels: list[Tensor], geometry: Geometry, memory: Memory | None = None) -> Tensor:
        pooled = zip(self.means, levels[self.pooled :], strict=True)
        return self.merged([mean(features, geometry, memory) for mean, features in pooled])

    @property
    def means(self) -> list[VoxelMean]:
        """The layers that pool the streams, from fine to coarse."""
        return [self.mean, *(merge.mean for merge in self.merges)]  # type: ignore[union-attr]

    def merged(self, grids: list[Tensor]) -> Tensor:
        """logits (B, classes) of the means (B, T, H, W, C) of the pooled levels."""
        grid = self.norm(grids[0])
        for merge, mean in zip(self.merges, grids[1:], strict=True):
            grid = merge(grid, mean)
        return self.classify(self.lift(grid[:, 0]).amax((1, 2)))

    def loss(
        self, levels: list[Tensor], geometry: Geometry, label: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        logits = self(levels, geometry)
        return functional.cross_entropy(logits, label, label_smoothing=smoothing), logits

    def restart(self, memory: Memory) -> None:
        """Begin the next window of `duration` microseconds."""
        for layer in self.means:
            layer.restart(memory)


class StreamMean(nn.Module):
    """The leaky mean of relu(dense(features) + place) of a stream: (S, C) to (S, 2 C), at each of its events.

    `place` (H W, 2 C) tells the pixels apart.
    """

    def __init__(self, stream: Name, channels: int, decay_time: float) -> None:
        super().__init__()
        self.stream = stream
        self.hidden = Dense(channels, 2 * channels)
        width, height = stream.sensor
        self.place = nn.Parameter(torch.zeros(height * width, 2 * channels))
        self.mean = LeakyMean(stream, decay_time)

    def forward(self, features: Tensor, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        events = geometry[self.stream]
        x, y = events.pixel.long().unbind(1)
        return self.mean((self.hidden(features) + _rows(self.place, y * events.sensor[0] + x)).relu(), geometry, memory)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """values[index], as an embedding: its gradient is the same bits in every run; that of plain indexing is not."""
    return functional.embedding(index, values)


class StreamHead(nn.Module):
    """A prediction after every event of the last stream, from the means of the streams from level `pooled` on.

    Each mean is that of its stream so far: up to the event that fired the one that fired ... this one. Constant memory,
    so that it can run for ever.
    """

    def __init__(
        self, streams: list[Name], widths: list[int], pooled: int, classes: int, decay_time: float, dropout: float
    ) -> None:
        super().__init__()
        self.pooled, self.stream = pooled, streams[-1]
        levels = zip(streams[pooled:], widths[pooled:], strict=True)
        self.means = nn.ModuleList(StreamMean(stream, channels, decay_time) for stream, channels in levels)
        hidden = 2 * sum(widths[pooled:])
        self.norm = BatchNorm(hidden, self.stream)
        self.dropout = nn.Dropout(dropout)
        self.logits = Dense(hidden, classes)
        self.last = Last(self.stream)

    def predictions(self, levels: list[Tensor], geometry: Geometry, memory: Memory | None = None) -> Tensor:
        """logits (S, classes) after every event."""
        columns: list[Tensor] = []
        row: Tensor | None = None  # of the finer stream, for each event of the last
        means = cast(list[StreamMean], list(self.means))
        for mean, features in zip(reversed(means), reversed(levels[self.pooled :]), strict=True):
            values = mean(features, geometry, memory)
            columns.insert(0, values if row is None else _rows(values, row))
            cause: Any = geometry[mean.stream].cause
            row = cause if row is None else cause[row]
        return self.logits(self.dropout(self.norm(torch.cat(columns, 1), geometry)))

    def forward(self, levels: list[Tensor], geometry: Geometry, memory: Memory | None = None) -> Tensor:
        """logits (B, classes) after the last event; the bias alone before the first."""
        return self.last(self.predictions(levels, geometry, memory), geometry, memory, self.logits.bias)

    def loss(
        self, levels: list[Tensor], geometry: Geometry, label: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The mean over recordings of the mean over their events; a recording without one counts with its bias."""
        events = geometry[self.stream]
        logits = self.predictions(levels, geometry)
        before = self.logits.bias.expand(events.num_examples, -1)
        everything = torch.cat([logits, before.to(logits.dtype)])
        example = events.example.clamp(max=events.num_examples - 1)
        sizes = events.sizes
        share = torch.where(events.example < events.num_examples, 1 / sizes.clamp(min=1)[example], 0.0)
        weight = torch.cat([share, (sizes == 0).to(share.dtype)]).to(logits.dtype)
        every = functional.cross_entropy(
            everything, torch.cat([label[example], label]), reduction="none", label_smoothing=smoothing
        )
        return (every * weight).sum() / events.num_examples, self.last(logits, geometry, None, self.logits.bias)


class EventCounts(nn.Module):
    """A small convolutional network on decaying counts of the camera's events (`LeakyCount`): logits (B, classes).

    relu(norm(conv)) of 3 x 3 cells, then `levels` times two of them, the first of which halves the grid and doubles the
    channels; then the mean and the maximum over all cells, dropout, Dense. Nothing has an end: it runs for ever in
    constant memory. An event costs one cell of the grid; the rest is computed for a prediction.

    Args:
        classes: how many classes.
        sensor: (width, height) of the camera.
        width: channels of the first convolution.
        levels: how often the grid is halved, and the channels are doubled.
        size: `size` x `size` pixels are a cell of the grid.
        decay_times: microseconds after which an event counts 1/e; each has an OFF and an ON channel.
        dropout: probability, before the last layer.
        every: microseconds between live predictions; one after each packet when left out.
        fit: whether what was recorded is magnified to the whole grid first, see `LeakyCount`.
    """

    task = "recordings"

    def __init__(
        self,
        classes: int,
        sensor: tuple[int, int],
        width: int = 16,
        levels: int = 4,
        size: int = 1,
        decay_times: Sequence[float] = (100_000.0,),
        dropout: float = 0.3,
        every: int | None = None,
        fit: bool = False,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        if not 0 <= levels <= 32:
            raise ValueError(f"EventCounts: levels is {levels}. Give at most 32.")
        lists = {"sensor": list(map(int, sensor)), "decay_times": list(map(float, decay_times))}
        self.config: dict[str, Any] = {"model": "EventCounts", **arguments, **lists}
        self.plan = Plan()
        self.count = LeakyCount(self.plan.events(sensor), size, decay_times, every, fit)
        sizes = [(2 * len(decay_times), width, 1)]
        for q in (width * 2**level for level in range(levels)):
            sizes += [(q, 2 * q, 2), (2 * q, 2 * q, 1)]
        layers = ((VoxelConv(q, p, stride), BatchNorm(p, relu="after")) for q, p, stride in sizes)
        self.layers = nn.Sequential(*(layer for pair in layers for layer in pair))
        self.dropout = nn.Dropout(dropout)
        self.logits = Dense(2 * width * 2**levels, classes)

    def forward(self, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        grid = self.layers(self.count(geometry, memory))
        return self.logits(self.dropout(torch.cat([grid.mean((1, 2, 3)), grid.amax((1, 2, 3))], 1)))

    def cost(self, geometry: Geometry) -> dict[str, float]:
        """Multiply-adds per input event, by part, with one prediction at the end of each recording, of all cells.

        Live, cells are left out that no event has reached, and the share of a prediction falls with the rate of events.
        """
        events = geometry[self.count.stream]
        (height, width), work = self.count.grid, self.logits.weight.numel()
        for layer in self.layers:
            if isinstance(layer, VoxelConv):
                height, width = (-(-side // layer.stride[0]) for side in (height, width))
                work += height * width * layer.weight.numel()
        parts = {"count": 2.0 * len(self.count.decay_times)}
        parts["prediction"] = work * events.num_examples / max(len(events), 1)
        return parts | {"total": sum(parts.values())}


class Keywords(TypedDict, total=False):
    """The arguments of `EventResNet` behind `classes` and `sensor`, which every size below takes."""

    width: int
    levels: int
    pooled: int
    decay_time: float
    threshold: float
    reset: float
    head: str
    duration: int | None
    form: str
    rates: str
    dropout: float


# The paper's event network of any size.
event_resnet = EventResNet


def n_mnist(classes: int = 10, sensor: tuple[int, int] = (34, 34), **options: Unpack[Keywords]) -> EventResNet:
    """The paper's N-MNIST network: 3 levels from 32 channels, all of them pooled; 1,849,490 parameters.

    Options (`EventResNet`): width, levels, pooled, decay_time, threshold, reset, head, duration, form, rates, dropout.
    """
    sizes: Keywords = {"width": 32, "levels": 3, "pooled": 0, "decay_time": 2000.0, "threshold": 1.5, "reset": -3.0}
    return EventResNet(classes, sensor, **sizes | options)


def mnist_dvs(classes: int = 10, sensor: tuple[int, int] = (128, 128), **options: Unpack[Keywords]) -> EventResNet:
    """The paper's MNIST-DVS network: 5 levels from 8 channels; 1,890,466 parameters.

    Options (`EventResNet`): width, levels, pooled, decay_time, threshold, reset, head, duration, form, rates, dropout.
    """
    sizes: Keywords = {"width": 8, "levels": 5, "pooled": 2, "decay_time": 10000.0, "threshold": 1.5, "reset": -2.0}
    return EventResNet(classes, sensor, **sizes | options)


def cifar10_dvs(classes: int = 10, sensor: tuple[int, int] = (128, 128), **options: Unpack[Keywords]) -> EventResNet:
    """The paper's CIFAR10-DVS network: 5 levels from 8 channels; 1,890,466 parameters.

    Options (`EventResNet`): width, levels, pooled, decay_time, threshold, reset, head, duration, form, rates, dropout.
    """
    sizes: Keywords = {"width": 8, "levels": 5, "pooled": 2, "decay_time": 4000.0, "threshold": 1.6, "reset": -3.0}
    return EventResNet(classes, sensor, **sizes | options)


def n_caltech101(classes: int = 102, sensor: tuple[int, int] = (117, 87), **options: Unpack[Keywords]) -> EventResNet:
    """The paper's N-Caltech101 network, on recordings of half resolution: 5 levels from 16; 7,432,414 parameters.

    Options (`EventResNet`): width, levels, pooled, decay_time, threshold, reset, head, duration, form, rates, dropout.
    """
    sizes: Keywords = {"width": 16, "levels": 5, "pooled": 2, "decay_time": 1000.0, "threshold": 1.25, "reset": -2.0}
    return EventResNet(classes, sensor, **sizes | options)


def asl_dvs(classes: int = 24, sensor: tuple[int, int] = (120, 90), **options: Unpack[Keywords]) -> EventResNet:
    """The paper's ASL-DVS network, on recordings of half resolution: 5 levels from 16; 7,412,368 parameters.

    Options (`EventResNet`): width, levels, pooled, decay_time, threshold, reset, head, duration, form, rates, dropout.
    """
    sizes: Keywords = {"width": 16, "levels": 5, "pooled": 2, "decay_time": 1000.0, "threshold": 1.0, "reset": -3.0}
    return EventResNet(classes, sensor, **sizes | options)


def n_cars(classes: int = 2, sensor: tuple[int, int] = (120, 100), **options: Unpack[Keywords]) -> EventResNet:
    """A network for N-Cars, of our own sizing: 4 levels from 16 channels, the last three pooled.

    Threshold and decay time let half of the recordings fire 30 events or more on the last level, at 41 thousand
    multiply-adds per input event with the stream head.

    Options (`EventResNet`): width, levels, pooled, decay_time, threshold, reset, head, duration, form, rates, dropout.
    """
    sizes: Keywords = {"width": 16, "levels": 4, "pooled": 1, "decay_time": 8000.0, "threshold": 1.0, "reset": -2.0}
    return EventResNet(classes, sensor, **sizes | options)
