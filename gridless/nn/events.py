"""Layers on event streams. Those that remember take a memory, and a batch is a stream of one packet.

`layer(features, geometry)` is the forward of whole recordings. `layer(features, geometry, memory)` is that of the next
packet of each stream: `memory` is a dict from layers to what they remember; a layer reads its own entry (none before
the first packet) and puts a new one in its place. The geometry of packets comes from `plan.step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from gridless.geometry.taps import offsets
from gridless.nn.blocks import Dense
from gridless.nn.norm import BatchNorm
from gridless.ops.event_conv import event_conv, event_conv_step, event_gather_step
from gridless.ops.event_conv.neighbourhoods import at_one_pixel
from gridless.ops.leaky_sum import leaky_sum
from gridless.ops.voxel_mean import voxel_mean
from gridless.plan import Name
from gridless.structures import Events, Geometry, expect_geometry

Memory = dict[nn.Module, Any]

# Weight of an event after three times its decay time: a cell of a grid that holds less counts as empty.
LEFT = 0.05

# When the window of a stream begins that has had no event.
NEVER = 2**63 - 1


class EventConv(nn.Module):
    """out_i = bias + sum over u, v and the events j seen at tap u of exp(-rate_uv age_ij) features_j weight_uv.

    features (S, in_channels) of the source events to (S', out_channels) of the target events, as in
    `gridless.ops.event_conv`. `near` is a line `plan.causal(...)`: with a window the convolution runs along its edges,
    without one by scan, over all history. weight (U, V, in_channels, out_channels), V = `temporal`; ages are in units
    of `decay_time`. The rate (U, V) is exp(log_rate), so it is positive. It begins spread evenly in logarithm from 1/4
    to 4 along v, so that a tap sees several time scales at once, or at 1 (`rates="ones"`, as the authors). With
    `rates="shared"` it is spread, and stays the same at all taps: a pixel then needs one trace for all that see it.
    Parameters are made on `device` and of `dtype`.
    """

    def __init__(
        self,
        near: Name,
        in_channels: int,
        out_channels: int,
        temporal: int = 4,
        decay_time: float = 1000.0,
        bias: bool = True,
        rates: str = "spread",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        kind = type(self).__name__
        if not hasattr(near, "window"):
            raise TypeError(f"{kind}: near must be the name of edges of events, plan.causal(...), not {near!r}")
        if rates not in ("spread", "ones", "shared"):
            raise ValueError(f"EventConv: rates must be 'spread', 'ones' or 'shared', not {rates!r}")
        if not isinstance(temporal, int) or temporal < 1:
            raise ValueError(f"EventConv: temporal must be a whole number of decays, 1 or more, not {temporal!r}")
        self.near, self.decay_time, self.rates = near, float(decay_time), rates
        taps, empty = len(offsets(near.kernel)), partial(torch.empty, device=device, dtype=dtype)
        self.weight = nn.Parameter(empty(taps, temporal, in_channels, out_channels))
        self.log_rate = nn.Parameter(empty(1 if rates == "shared" else taps, temporal))
        self.bias = nn.Parameter(empty(out_channels)) if bias else None
        self.reset_parameters()

    @property
    def rate(self) -> Tensor:
        """(U, V), in units of 1 / decay_time."""
        return self.log_rate.exp().expand(len(self.weight), -1).contiguous()

    def reset_parameters(self) -> None:
        taps, temporal, q, p = self.weight.shape
        bound = math.sqrt(6 / (taps * temporal * (q + p)))
        nn.init.uniform_(self.weight, -bound, bound)
        spread = math.log(4) if self.rates != "ones" and temporal > 1 else 0.0
        with torch.no_grad():
            self.log_rate.copy_(torch.linspace(-spread, spread, temporal, device=self.log_rate.device))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, features: Tensor, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        expect_geometry(geometry)
        near = self.near
        streams = geometry[near.source], geometry[near.target], near.kernel, near.stride, self.decay_time
        values = features.to(self.weight.dtype), self.weight, self.rate, self.bias
        if memory is None:
            edges = None if near.window is None else geometry[near]
            return event_conv(*values, *streams, edges)
        if near.window is not None:
            raise ValueError(f"EventConv over {near} has a window, which does not work with packets. Use form='scan'.")
        out, memory[self] = event_conv_step(*values, *streams, memory.get(self))
        return out

    def extra_repr(self) -> str:
        taps, temporal, q, p = self.weight.shape
        return f"{self.near}, {q}, {p}, taps={taps}, temporal={temporal}, decay_time={self.decay_time:g}"


class PolarityConv(EventConv):
    """The first convolution, on polarity: an OFF event has the features (1, 0), an ON event (0, 1).

    The arguments are those of `EventConv`.
    """

    def __init__(
        self, near: Name, out_channels: int, temporal: int = 4, decay_time: float = 1000.0, bias: bool = True,
        rates: str = "spread", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(near, 2, out_channels, temporal, decay_time, bias, rates, device, dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        taps, temporal, q, p = self.weight.shape
        # The authors count v among the input channels only.
        bound = math.sqrt(6 / (taps * (q * temporal + p)))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, geometry: Geometry, memory: Memory | None = None) -> Tensor:  # type: ignore[override]
        expect_geometry(geometry)
        return super().forward(polarity_features(geometry[self.near.source], self.weight.dtype), geometry, memory)


def polarity_features(events: Events, dtype: torch.dtype = torch.float32) -> Tensor:
    """(S, 2): (1, 0) for OFF, (0, 1) for ON."""
    if events.polarity is None:
        raise ValueError("the events have no polarity. The first convolution needs it.")
    on = events.polarity.to(dtype)
    return torch.stack([1 - on, on], 1)


# Networks that are read to run live call it as a whole, by whatever name.
fx.wrap("polarity_features")


class InceptionBlock(nn.Module):
    """The paper's in-place block: F + norm(relu(cross(F) + point(F) + dense(F))), (S, C) to (S, C).

    cross: the row and the column of 5 x 5 pixels; point: the event's own pixel, with four times the temporal taps and
    the decay time; dense: C to 4 C, ReLU, to C. The two convolutions are linear. C is `channels`; `decay_time`,
    `temporal` and `rates` are those of `EventConv`, of the cross.
    """

    def __init__(
        self,
        cross: Name,
        point: Name,
        channels: int,
        decay_time: float,
        temporal: int = 4,
        rates: str = "spread",
    ) -> None:
        super().__init__()
        self.cross = EventConv(cross, channels, channels, temporal, decay_time, rates=rates)
        self.point = EventConv(point, channels, channels, 4 * temporal, 4 * decay_time, rates=rates)
        self.expand = Dense(channels, 4 * channels)
        self.reduce = Dense(4 * channels, channels)
        self.norm = BatchNorm(channels, cross.target)

    def forward(self, features: Tensor, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        y = self.cross(features, geometry, memory) + self.point(features, geometry, memory)
        y = (y + self.reduce(self.expand(features).relu())).relu()
        return features + self.norm(y, geometry)


class DownConv(nn.Module):
    """A strided convolution, ReLU, norm and dropout: (S, Q) to (S', P). Without features, on polarity.

    `in_channels` is None for polarity; `near`, `out_channels`, `decay_time` and `rates` are those of `EventConv`.
    """

    def __init__(
        self,
        near: Name,
        in_channels: int | None,
        out_channels: int,
        decay_time: float,
        dropout: float = 0.5,
        rates: str = "spread",
    ) -> None:
        super().__init__()
        if in_channels is None:
            self.conv = PolarityConv(near, out_channels, decay_time=decay_time, rates=rates)
        else:
            self.conv = EventConv(near, in_channels, out_channels, decay_time=decay_time, rates=rates)
        self.norm = BatchNorm(out_channels, near.target)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor | None, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        y = self.conv(geometry, memory) if features is None else self.conv(features, geometry, memory)
        return self.dropout(self.norm(y.relu(), geometry))


class VoxelMemory(NamedTuple):
    """Sums (cells, C) and counts (cells) int64 of the window that begins at `start` (B) int64, or at `NEVER`."""

    total: Tensor
    count: Tensor
    start: Tensor


class VoxelMean(nn.Module):
    """The mean feature of the events of `stream` in each voxel: (S, C) to (B, frames, H, W, C), 0 where there are none.

        frame = floor(frames (time - start) / duration)

    start is the time of the first event of the recording (of `clock`, the plan's input). Without `duration`
    (microseconds) the frames share the whole recording, so that its last event is in the last frame: duration = last -
    start + 1. With it, events after the duration are in no voxel, and the layer can run live: its memory holds sums and
    counts of the window so far, the means returned are those of the window so far, and `restart` begins the next one.
    """

    def __init__(self, stream: Name, clock: Name, frames: int, duration: int | None = None) -> None:
        super().__init__()
        if duration is not None and (not isinstance(duration, int) or duration < frames):
            raise ValueError(f"VoxelMean: duration must be whole microseconds, {frames} or more, not {duration!r}")
        self.stream, self.clock, self.frames, self.duration = stream, clock, frames, duration

    def forward(self, features: Tensor, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        events, clock = geometry[self.stream], geometry[self.clock]
        width, height = events.sensor
        shape = (events.num_examples, self.frames, height, width, features.shape[1])
        start, span = self._window(clock, memory)
        cell = self._cell(events, start, span)
        if memory is None:
            return voxel_mean(features, cell, math.prod(shape[:4])).view(shape)
        state = memory.get(self)
        if state is None:
            wide = torch.promote_types(features.dtype, torch.float32)
            total = features.new_zeros(math.prod(shape[:4]), shape[4], dtype=wide)
            state = VoxelMemory(total, torch.zeros(len(total), dtype=torch.int64, device=total.device), start)
        inside = cell >= 0
        count = state.count + torch.bincount(cell[inside], minlength=len(state.count))
        total = state.total.index_add(0, cell[inside], features[inside].to(state.total.dtype))
        memory[self] = VoxelMemory(total, count, start)
        return (total / count.clamp(min=1)[:, None]).to(features.dtype).view(shape)

    def restart(self, memory: Memory) -> None:
        """Forget the window, and begin the next one where it ends."""
        state: VoxelMemory | None = memory.get(self)
        if state is not None and self.duration is not None:
            nothing = torch.zeros_like(state.total), torch.zeros_like(state.count)
            start = torch.where(state.start == NEVER, NEVER, state.start + self.duration)
            memory[self] = VoxelMemory(*nothing, start)

    def _window(self, clock: Events, memory: Memory | None) -> tuple[Tensor, Tensor]:
        """When the window of each recording begins (B), and how long it is (B), in microseconds."""
        if memory is None and self.duration is None:
            first, last = _ends(clock)
            return first, last - first + 1
        if self.duration is None:
            raise ValueError("the voxel head waits for the end of the recording. Give it a duration.")
        state: VoxelMemory | None = None if memory is None else memory.get(self)
        start = torch.where(clock.sizes > 0, _ends(clock)[0], NEVER)
        if state is not None:
            start = torch.where(state.start == NEVER, start, state.start)
        return start, torch.full_like(start, self.duration)

    def _cell(self, events: Events, start: Tensor, span: Tensor) -> Tensor:
        width, height = self.stream.sensor
        example = events.example.clamp(max=events.num_examples - 1)
        frame = torch.div((events.time - start[example]) * self.frames, span[example], rounding_mode="floor")
        x, y = events.pixel.long().unbind(1)
        inside = (frame >= 0) & (frame < self.frames) & (events.example < events.num_examples)
        return torch.where(inside, ((example * self.frames + frame) * height + y) * width + x, -1)

    def extra_repr(self) -> str:
        return f"{self.stream}, frames={self.frames}, duration={self.duration}"


class CountMemory(NamedTuple):
    """Decayed counts (B, H W, 2 K) float64 as of `time` (B) int64."""

    total: Tensor
    time: Tensor


class LeakyCount(nn.Module):
    """log(1 + sum over the OFF, the ON events of each cell of exp(-age / decay time)): (B, 1, H, W, 2 K).

    `layer(geometry, at=at)` returns the counts after the events `at` (B, P) of whole recordings: (B, P, H, W, 2 K).
    These are numbers of events in the batch, ascending in each row; a number may be repeated.

    A cell is `size` x `size` pixels of `stream`, the plan's events; each of the K `decay_times` (microseconds) has its
    OFF and its ON channel, and ages are those at the last event. Every event counts, and nothing has an end: the layer
    remembers its cells and one time. A live network predicts `every` so many microseconds from the first event on, or
    else after each packet.

    With `fit` the smallest rectangle that holds every cell in which 0.05 (`LEFT`) or more is left is magnified to the
    whole grid before the logarithm, between cells linearly, its middle to the middle, the ratio of its sides kept: the
    size at which something was recorded then tells nothing.

    Sums are made in float64; the result has the dtype of the network.
    """

    kind: Tensor

    def __init__(
        self,
        stream: Name,
        size: int,
        decay_times: Sequence[float],
        every: int | None = None,
        fit: bool = False,
    ) -> None:
        super().__init__()
        if every is not None and (not isinstance(every, int) or every < 1):
            raise ValueError(f"LeakyCount: every must be whole microseconds, 1 or more, not {every!r}")
        self.every = every
        if not isinstance(size, int) or size < 1 or not decay_times or min(decay_times) <= 0:
            raise ValueError(
                f"LeakyCount: size is {size} and decay_times {decay_times}. Give a size from 1 and positive times."
            )
        self.stream, self.size, self.decay_times = stream, size, tuple(map(float, decay_times))
        self.grid, self.fit = (-(-stream.sensor[1] // size), -(-stream.sensor[0] // size)), bool(fit)
        # Only its dtype is used: that of the network.
        self.register_buffer("kind", torch.zeros(()), persistent=False)

    def forward(self, geometry: Geometry, memory: Memory | None = None, at: Tensor | None = None) -> Tensor:
        events = geometry[self.stream]
        if events.polarity is None:
            raise ValueError("LeakyCount: the events have no polarity. Use the input events of the plan.")
        if memory is not None and at is not None:
            raise ValueError("LeakyCount: at is for whole recordings. Leave it out with a memory.")
        (height, width), count = self.grid, events.num_examples
        channels, frames = 2 * len(self.decay_times), 1 if at is None else at.shape[1]
        # Filled on the device: a captured graph may not copy from the host.
        rate = torch.cat([events.time.new_full((1,), 1 / t, dtype=torch.float64) for t in self.decay_times])
        before: CountMemory | None = None if memory is None else memory.get(self)
        example = events.example.clamp(max=count - 1)
        counted = events.example < count
        if at is None:
            now, frame = _ends(events)[1][:, None], example
        else:
            # An event belongs to the first place that it is not after; those after the last place do not count.
            now = events.time[at]
            frame = torch.searchsorted(at.flatten(), torch.arange(len(events), device=at.device))
            counted = counted & (frame.div(frames, rounding_mode="floor") == example)
            frame = frame.clamp(max=at.numel() - 1)
        if before is not None:
            now = torch.where(events.sizes > 0, now[:, 0], before.time)[:, None]
        x, y = (events.pixel.long() // self.size).unbind(1)
        place = 2 * ((frame * height + y) * width + x) + events.polarity
        share = torch.exp((events.time - now.flatten()[frame]).clamp(max=0).double()[:, None] * rate)  # (S, K)
        # Whole numbers, of which as many fit as there are events: the order of these sums does not matter.
        one = 2.0 ** min(42, 62 - len(events).bit_length())
        whole = (share * one).round().long() * counted[:, None]
        total = torch.zeros(2 * count * frames * height * width, len(rate), dtype=torch.int64, device=events.device)
        total = total.index_add_(0, place, whole).view(count, frames, height * width, channels).double() / one
        rate = rate.repeat(2)
        for k in range(1, frames):
            total[:, k] += total[:, k - 1] * torch.exp((now[:, k - 1] - now[:, k]).double()[:, None, None] * rate)
        if before is not None:
            left = torch.exp((before.time[:, None] - now).double()[:, :, None, None] * rate)
            total = total + before.total[:, None] * left
        if memory is not None:
            memory[self] = CountMemory(total[:, 0], now[:, 0])
        total = total.view(count * frames, height, width, channels)
        total = (magnified(total) if self.fit else total).log1p().to(self.kind.dtype)
        return total.view(count, frames, height, width, channels)

    def extra_repr(self) -> str:
        fit = ", fit=True" if self.fit else ""
        return f"{self.stream}, size={self.size}, decay_times={self.decay_times}, every={self.every}{fit}"


def magnified(counts: Tensor) -> Tensor:
    """(B, H, W, C): the rectangle of the cells that hold `LEFT` or more, of the whole grid; see `LeakyCount`."""
    held = (counts >= LEFT).any(3)
    size, places = [], []
    for side in (held.any(1), held.any(2)):  # along the width, and along the height
        length = side.shape[1]
        at = torch.arange(length, device=counts.device)
        low = torch.where(side, at, length).amin(1).double()
        high = torch.where(side, at, -1).amax(1).double()
        # The grid stays as it is if no cell holds so much.
        low, high = torch.where(high < 0, 0.0, low), torch.where(high < 0, length - 1.0, high)
        size.append((high - low + 1) / length)
        places.append(((low + high) / 2, at - (length - 1) / 2))
    share = torch.maximum(*size)[:, None]
    # `grid_sample` puts -1 and 1 at the outer sides of the first and the last cell.
    across, down = ((2 * (middle[:, None] + share * at) + 1) / len(at) - 1 for middle, at in places)
    where = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), 3)
    return functional.grid_sample(counts.permute(0, 3, 1, 2), where, align_corners=False).permute(0, 2, 3, 1)


def _ends(events: Events) -> tuple[Tensor, Tensor]:
    """The times of the first and the last event of each recording (B); 0 of an empty one."""
    first, last = events.splits[:-1], events.splits[1:] - 1
    if not len(events):
        return torch.zeros_like(first), torch.zeros_like(last)
    any_event = last >= first
    limit = len(events) - 1
    return tuple(torch.where(any_event, events.time[at.clamp(0, limit)], 0) for at in (first, last))  # type: ignore


class LeakyMean(nn.Module):
    """The mean of a stream so far, at each of its events, in which older events count less: (S, C) to (S, C).

    mean_i = sum over j <= i of exp(-rate age_ij) features_j / sum over j <= i of exp(-rate age_ij), wherever on the
    sensor the events are; age in units of `decay_time`, rate = exp(log_rate) learned. It remembers C + 1 numbers.
    """

    def __init__(self, stream: Name, decay_time: float) -> None:
        super().__init__()
        self.stream, self.decay_time = stream, float(decay_time)
        self.log_rate = nn.Parameter(torch.zeros(1, 1))

    def forward(self, features: Tensor, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        events = geometry[self.stream]
        features = features.to(self.log_rate.dtype)
        counted = torch.cat([features, features.new_ones(len(features), 1)], 1)  # (S, C + 1)
        if memory is None:
            total = leaky_sum(counted, self.log_rate.exp()[0], events, self.decay_time)[:, 0]
        else:
            one = at_one_pixel(events)
            values = counted, self.log_rate.exp(), one, one, 1, 1, self.decay_time
            gathered, memory[self] = event_gather_step(*values, memory.get(self))
            total = gathered[:, 0, 0]
        # Every event counts itself, with 1; only padding rows have none.
        return total[:, :-1] / total[:, -1:].clamp(min=1)

    def extra_repr(self) -> str:
        return f"{self.stream}, decay_time={self.decay_time:g}"


class LeakySum(nn.Module):
    """Sums over a stream so far, at each of its events, in which older events count less: (S, C) to (S, C K).

    sum_i[c K + k] = sum over j <= i of exp(-rate_k age_ij) features_j[c], wherever on the sensor the events are. The
    K rates are learned: exp(log_rate) per millisecond; they begin at 1 / decay time.

    Args:
        stream: the events.
        decay_times: microseconds after which an event begins by counting 1/e, one for each rate.
    """

    UNIT = 1000.0
    """Microseconds: the unit of ages."""

    def __init__(self, stream: Name, decay_times: Sequence[float]) -> None:
        super().__init__()
        if not decay_times or min(decay_times) <= 0:
            raise ValueError(f"LeakySum: decay_times must be above 0, not {decay_times}. Give one or more.")
        self.stream = stream
        self.log_rate = nn.Parameter(torch.tensor([math.log(self.UNIT / time) for time in decay_times]))

    def forward(self, features: Tensor, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        events, rate = geometry[self.stream], self.log_rate.exp()
        features = features.to(rate.dtype)
        if memory is None:
            return leaky_sum(features, rate, events, self.UNIT).transpose(1, 2).flatten(1)
        one = at_one_pixel(events)
        gathered, memory[self] = event_gather_step(features, rate[None], one, one, 1, 1, self.UNIT, memory.get(self))
        return gathered[:, 0].transpose(1, 2).flatten(1)

    def extra_repr(self) -> str:
        return f"{self.stream}, decays={len(self.log_rate)}"


class Last(nn.Module):
    """The value at the last event of each recording: (S, C) to (B, C); `before` (C), or 0, where there is none yet.

    It remembers that value. Live, a network whose output it is predicts after every event of its stream.
    """

    def __init__(self, stream: Name) -> None:
        super().__init__()
        self.stream = stream

    def forward(
        self, values: Tensor, geometry: Geometry, memory: Memory | None = None, before: Tensor | None = None
    ) -> Tensor:
        """values (S, C) of the stream's events in `geometry`; `memory` of a stream that goes on is read and written;
        `before` (C) is the value before the first event."""
        events = geometry[self.stream]
        first = None if memory is None else memory.get(self)
        if first is None:
            first = values.new_zeros(values.shape[1]) if before is None else before
            first = first.expand(events.num_examples, -1)
        rows = torch.arange(events.num_examples, device=values.device) + len(values)
        at = torch.where(events.sizes > 0, events.splits[1:] - 1, rows)
        last = torch.cat([values, first.to(values.dtype)])[at]
        if memory is not None:
            memory[self] = last
        return last

    def extra_repr(self) -> str:
        return str(self.stream)


class VoxelConv(nn.Conv2d):
    """A convolution of 3 x 3 pixels in every frame of a voxel grid: (B, T, H, W, Q) to (B, T, H', W', P).

    H' and W' are H and W divided by `stride`, rounded up.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, 3, stride, padding=1, bias=False)

    def forward(self, grid: Tensor) -> Tensor:
        frames = grid.to(self.weight.dtype).flatten(0, 1).permute(0, 3, 1, 2)
        return super().forward(frames).permute(0, 2, 3, 1).unflatten(0, grid.shape[:2])


class VoxelMerge(nn.Module):
    """norm(relu(conv3d(grid))) + norm(mean of the stream's events): a coarser voxel grid from a finer one and a stream.

    The convolution is 2 x 2 x 2 with stride 2; a side of odd length is extended by a plane of zeros.
    """

    def __init__(self, mean: VoxelMean, in_channels: int, channels: int) -> None:
        super().__init__()
        self.mean = mean
        self.conv = nn.Conv3d(in_channels, channels, 2, 2)
        nn.init.xavier_uniform_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]
        self.norm = BatchNorm(channels)
        self.mean_norm = BatchNorm(channels)

    def forward(self, grid: Tensor, mean: Tensor) -> Tensor:
        sides = [side for size in reversed(grid.shape[1:4]) for side in (0, size % 2)]
        grid = functional.pad(grid, [0, 0, *sides])
        b, t, h, w, c = grid.shape
        # Cells that do not overlap: the convolution is one product over the eight voxels of each.
        cells = grid.view(b, t // 2, 2, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4)
        y = cells @ self.conv.weight.permute(2, 3, 4, 1, 0).flatten(0, 3) + self.conv.bias  # type: ignore[operator]
        return self.norm(y.relu()) + self.mean_norm(mean)
