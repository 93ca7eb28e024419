"""The event convolution: weights that decay with the age of what they meet.

    out_i = bias + sum over taps u and v of  A_iuv  weight_uv
    A_iuv = sum over the events j that target i sees at tap u of  exp(-rate_uv age_ij) features_j
    age_ij = (time_i - time_j) / decay_time

with features (S, Q), weight (U, V, Q, P), rate (U, V) >= 0, bias (P). Which events a target sees is said by
`gridless.geometry.causal`: those at the pixel of tap u that arrived up to and including the target's cause. There are
two exact forms with the same parameters:

- **scan** (no `edges`): all history. Each source pixel keeps, per tap and v, the state z, which its events update,

      z <- features_j + exp(-rate_uv (time_j - T) / decay_time) z,   T <- time_j,

  and a target reads A_iuv = exp(-rate_uv (time_i - T) / decay_time) z. Nothing is kept per edge or per event: the
  backward pass makes A again, and walks the pixels once more, back in time.
- **edges**: the events of `causal(source, target, kernel, stride, window)`, which are written out, as sparse matrices
  that torch multiplies with the features, on every device.

Without a window both give the same numbers. A decay factor under exp(-80) counts as 0, so that no state becomes
subnormal. Times are int64; only their differences become floating point. The scan gives the same bits in every run.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gridless.backends import backend_for, implementation
from gridless.geometry.causal import Link, link
from gridless.geometry.taps import Taps
from gridless.ops.event_conv import reference
from gridless.ops.event_conv.autograd import convolve
from gridless.ops.event_conv.neighbourhoods import fitted
from gridless.structures import Edges, Events

__all__ = ["EventMemory", "event_conv", "event_conv_step", "event_gather", "event_gather_step"]


class EventMemory(NamedTuple):
    """State of a convolution along a stream: trace (B H W, U, V, Q) of every source pixel, at time (B H W) int64.

    Taps that no target pixel uses (at a stride, or at a border) stay 0.
    """

    trace: Tensor
    time: Tensor

    @classmethod
    def start(cls, source: Events, weight: Tensor) -> EventMemory:
        """Before the first event: all zero, of the type and device of the weight."""
        pixels = source.num_examples * source.sensor[0] * source.sensor[1]
        trace = weight.new_zeros(pixels, *weight.shape[:3])
        return cls(trace, torch.zeros(pixels, dtype=torch.int64, device=trace.device))


def event_conv(
    features: Tensor,
    weight: Tensor,
    rate: Tensor,
    bias: Tensor | None,
    source: Events,
    target: Events,
    kernel: Taps = 3,
    stride: int = 1,
    decay_time: float = 1000.0,
    edges: Edges | None = None,
) -> Tensor:
    """features (S, Q) of the source events to (S', P) of the target events, by scan, or by edges if they are given.

    float32 or float64. Gradients go to features, weight, rate and bias. Refused: what does not fit together, by name.

    Args:
        features: (S, Q), a row for each source event.
        weight: (U, V, Q, P).
        rate: (U, V), in units of 1 / decay_time.
        bias: (P), or None.
        source: the events that are seen.
        target: the events that see them: the source itself, or what `lif` made from it.
        kernel: the side of the window of pixels, odd, or the name of one: U taps.
        stride: how much coarser the target's grid is.
        decay_time: microseconds in which a rate of 1 decays to 1/e.
        edges: of `gl.geometry.causal` with a window; None for all history.
    """
    joined = _checked(features, weight, rate, bias, source, target, kernel, stride, decay_time)
    if edges is not None and not torch.compiler.is_compiling():
        edges = fitted(edges, joined)
    return convolve(features, weight, rate, bias, joined, float(decay_time), edges)


def event_conv_step(
    features: Tensor,
    weight: Tensor,
    rate: Tensor,
    bias: Tensor | None,
    source: Events,
    target: Events,
    kernel: Taps = 3,
    stride: int = 1,
    decay_time: float = 1000.0,
    memory: EventMemory | None = None,
) -> tuple[Tensor, EventMemory]:
    """The scan form on the next packet of each stream: memory in (None before the first), memory out.

    Packet boundaries change no bit of the memory, and the result only by rounding. The `memory` argument itself is not
    changed. For inference: no gradients. The other arguments are those of `event_conv`.
    """
    _checked(features, weight, rate, bias, source, target, kernel, stride, decay_time)
    gathered, memory = event_gather_step(features, rate, source, target, kernel, stride, decay_time, memory)
    with torch.no_grad():
        out = gathered.flatten(1) @ weight.flatten(0, 2)
        return out if bias is None else out + bias, memory


def event_gather(features: Tensor, rate: Tensor, events: Events, decay_time: float = 1000.0) -> Tensor:
    """A (S, 1, V, Q) itself, by scan, of one tap that sees the events of its recording wherever they are.

    Gradients go to features (S, Q) and rate (1, V), in units of 1 / decay_time (microseconds).
    """
    joined = _checked(features, _weightless(features, rate), rate, None, events, events, 1, 1, decay_time)
    return convolve(features, None, rate, None, joined, float(decay_time), anywhere=True).unflatten(
        1, (*rate.shape, features.shape[1])
    )


def event_gather_step(
    features: Tensor, rate: Tensor, source: Events, target: Events, kernel: Taps = 3, stride: int = 1,
    decay_time: float = 1000.0, memory: EventMemory | None = None,
) -> tuple[Tensor, EventMemory]:  # fmt: skip
    """A (S', U, V, Q) of the next packet of each stream: memory in (None before the first), memory out.

    The other arguments are those of `event_conv`.
    """
    weight = _weightless(features, rate)
    joined = _checked(features, weight, rate, None, source, target, kernel, stride, decay_time)
    if memory is None:
        memory = EventMemory.start(source, weight)
    pixels = source.num_examples * source.sensor[0] * source.sensor[1]
    if memory.trace.shape != (pixels, *weight.shape[:3]) or memory.time.shape != (pixels,):
        raise ValueError(
            f"event_conv: memory must have a trace of {(pixels, *weight.shape[:3])} and a time of ({pixels},), "
            f"not {tuple(memory.trace.shape)} and {tuple(memory.time.shape)}"
        )
    kinds = (memory.trace.dtype, memory.time.dtype, memory.trace.device, memory.time.device)
    if kinds != (features.dtype, torch.int64, features.device, features.device):
        raise TypeError(
            f"event_conv: memory must be {features.dtype} and int64 on {features.device}, "
            f"not {kinds[0]} on {kinds[2]} and {kinds[1]} on {kinds[3]}. Convert it."
        )
    with torch.no_grad():
        backend = implementation(reference, features.device)
        values = (features.detach().contiguous(), rate.detach().contiguous())
        gathered, trace, time = backend.scan_step(*values, joined, float(decay_time), *(t.contiguous() for t in memory))
    return gathered, EventMemory(trace, time)


def _weightless(features: Tensor, rate: Tensor) -> Tensor:
    if features.ndim != 2 or rate.ndim != 2:
        raise ValueError(f"event_conv: features are (S, Q) and rate (U, V), not {features.shape} and {rate.shape}")
    return features.new_empty(*rate.shape, features.shape[1], 0)


def _checked(
    features: Tensor, weight: Tensor, rate: Tensor, bias: Tensor | None,
    source: Events, target: Events, kernel: Taps, stride: int, decay_time: float,
) -> Link:  # fmt: skip
    joined = link(source, target, kernel, stride, "event_conv")
    taps = len(joined.offsets)
    if features.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"event_conv: features must be float32 or float64, not {features.dtype}. Convert by .float().")
    if features.ndim != 2 or len(features) != len(source):
        raise ValueError(
            f"event_conv: features must be ({len(source)}, channels), a row for each source event, "
            f"not {tuple(features.shape)}"
        )
    if weight.ndim != 4 or weight.shape[0] != taps or weight.shape[2] != features.shape[1]:
        raise ValueError(
            f"event_conv: weight must be ({taps} taps, V, {features.shape[1]} channels, P), not {tuple(weight.shape)}"
        )
    if rate.shape != weight.shape[:2]:
        raise ValueError(f"event_conv: rate must be {tuple(weight.shape[:2])}, not {tuple(rate.shape)}")
    if bias is not None and bias.shape != weight.shape[3:]:
        raise ValueError(f"event_conv: bias must be {tuple(weight.shape[3:])}, not {tuple(bias.shape)}")
    for name, value in (("weight", weight), ("rate", rate), ("bias", bias)):
        if value is not None and (value.dtype != features.dtype or value.device != features.device):
            raise TypeError(
                f"event_conv: {name} is {value.dtype} on {value.device}, features {features.dtype} on "
                f"{features.device}. Convert one of them."
            )
    if features.device != source.device:
        raise ValueError(f"event_conv: features are on {features.device}, the events on {source.device}. Move one.")
    if not decay_time > 0:
        raise ValueError(f"event_conv: decay_time must be positive, not {decay_time}")
    backend_for(features.device)
    return joined
