"""Events as images, for networks on grids and for people. Tensors in, tensors out, on any device.

The result of one recording has no batch dimension, that of several begins with B. The same bits in every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.geometry.checks import check_whole
from gridless.structures import Events

# Pixels of all frames of a recording.
MOST = 1 << 36


def frames(events: Events, count: int | None = None, duration: int | None = None) -> Tensor:
    """Count the events of each pixel, (T, 2, H, W) float32: OFF, then ON; (T, 1, H, W) without polarity.

    >>> gl.frames(events)[0]                          # one frame of the whole recording
    >>> gl.frames(events, count=10)                   # ten equally long ones, from its first event to its last
    >>> gl.frames(events, duration=20_000)            # one for every 20 ms, from its first event on

    Args:
        events: one recording, or a batch.
        count: how many frames each recording has; 1.
        duration: microseconds for each frame, in place of a count. Recordings of a batch then have as many frames as
            the longest of them needs.
    """
    if count is not None and duration is not None:
        raise ValueError("frames: both count and duration are given. Give one of them.")
    since, span, example = _since(events, "frames")
    if duration is not None:
        duration = check_whole("frames", "duration", duration)
        at = since // duration
        count = int(at.max()) + 1 if len(at) else 1
        if count * events.sensor[0] * events.sensor[1] > MOST:
            raise ValueError(f"frames: {count:,} frames of {duration:,} us do not fit in memory. {_jump(events)}")
    else:
        count = 1 if count is None else check_whole("frames", "count", count)
        if max(span.tolist(), default=0) * count >= 2**63:
            raise ValueError(f"frames: {count:,} frames are too many for so long a recording. {_jump(events)}")
        # The last event is in the last frame.
        at = (since * count // span[example].clamp(min=1)).clamp(max=count - 1)
    return _counted(events, example * count + at, count)


def voxel_grid(events: Events, bins: int) -> Tensor:
    """ON minus OFF (bins, H, W) float32: each event is shared by the two bins nearest to it in time, by its distances.

    The first event is at the centre of the first bin, the last at that of the last. Without polarity all count as ON.
    """
    bins = check_whole("voxel_grid", "bins", bins)
    since, span, example = _since(events, "voxel_grid")
    place = since.double() * (bins - 1) / span[example].clamp(min=1)
    low = place.long().clamp(max=bins - 1)
    # Whole numbers, which add up to the same in any order.
    upper = ((place - low) * 2**32).long()
    shares = torch.stack([2**32 - upper, upper])
    if events.polarity is not None:
        shares = torch.where(events.polarity[: len(low)], shares, -shares)
    width, height = events.sensor
    cells = torch.stack([low, (low + 1).clamp(max=bins - 1)]) + example * bins
    total = torch.zeros(events.num_examples * bins * height * width, dtype=torch.int64, device=events.device)
    total.index_add_(0, (cells * height * width + _pixel(events)).flatten(), shares.flatten())
    return _shaped(total.double().div_(2**32).float(), events, (bins, height, width))


def time_surface(events: Events, decay: float, at: int | None = None) -> Tensor:
    """The freshness of each pixel (2, H, W) float32: exp(-age / decay) of its last OFF and ON event, 0 without one.

    Args:
        events: one recording, or a batch.
        decay: microseconds after which a pixel has faded to 1/e.
        at: the time to look at, in microseconds after the first event; that of the last event when left out. Later
            events are not seen.
    """
    if not decay > 0:
        raise ValueError(f"time_surface: decay must be positive, not {decay}")
    since, span, example = _since(events, "time_surface")
    now = span if at is None else torch.full_like(span, check_whole("time_surface", "at", at, least=0))
    channels, channel = _channels(events)
    width, height = events.sensor
    size = height * width
    latest = torch.full((events.num_examples * channels * size,), -1, dtype=torch.int64, device=events.device)
    seen = since <= now[example]
    place = (example * channels + channel) * size + _pixel(events)
    latest.scatter_reduce_(0, place[seen], since[seen], "amax")
    latest = latest.view(events.num_examples, -1)
    fresh = torch.exp((latest - now[:, None]).double() / decay).float()
    return _shaped(fresh.masked_fill_(latest < 0, 0), events, (channels, height, width))


def _since(events: Events, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """Microseconds of each event since the first of its recording, of each recording's last, and their recordings."""
    if not isinstance(events, Events):
        raise TypeError(f"{what}: expected Events, not {type(events).__name__}. Use gl.Events.of(array, sensor=...).")
    end = len(events) - events.padding
    example, time = events.example[:end], events.time[:end]
    some = events.sizes > 0
    first, last = time.new_zeros(events.num_examples), time.new_zeros(events.num_examples)
    first[some], last[some] = time[events.splits[:-1][some]], time[events.splits[1:][some] - 1]
    return time - first[example], last - first, example


def _jump(events: Events) -> str:
    """A hint where the clock may have jumped: the longest time without an event."""
    time = events.time[: len(events) - events.padding]
    step = torch.where(events.example[1 : len(time)] == events.example[: len(time) - 1], time.diff(), 0)
    row = int(step.argmax())
    recording = int(events.example[row])
    return (
        f"No event follows for {int(step[row]):,} us after row {row - int(events.splits[recording])} of recording "
        f"{recording}: if the clock jumped there, cut the recording in two."
    )


def _pixel(events: Events) -> Tensor:
    pixel = events.pixel[: len(events) - events.padding].long()
    return pixel[:, 1] * events.sensor[0] + pixel[:, 0]


def _channels(events: Events) -> tuple[int, Tensor | int]:
    if events.polarity is None:
        return 1, 0
    return 2, events.polarity[: len(events) - events.padding].long()


def _counted(events: Events, frame: Tensor, count: int) -> Tensor:
    channels, channel = _channels(events)
    width, height = events.sensor
    cells = events.num_examples * count * channels * height * width
    total = torch.bincount((frame * channels + channel) * height * width + _pixel(events), minlength=cells)
    return _shaped(total.float(), events, (count, channels, height, width))


def _shaped(values: Tensor, events: Events, shape: tuple[int, ...]) -> Tensor:
    return values.view(shape if events.num_examples == 1 else (events.num_examples, *shape))
