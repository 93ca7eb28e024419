"""Contract of the kernels of the event convolution: arguments and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gridless.geometry.causal import Link
from gridless.structures import Edges, Events


@dataclass(frozen=True)
class Neighbourhoods:
    """The events that each target sees: two streams and some of the taps."""

    link: Link
    decay_time: float
    first_tap: int = 0


class EventConvBackend(Protocol):
    """Functions of `cpu.py` and `gpu.py`; the reference has `scan_step`, and torch differentiates its `gather`."""

    def gather(self, features: Tensor, rate: Tensor, near: Neighbourhoods) -> Tensor:
        """A as a matrix (S', U V Q)."""
        ...

    def scatter(
        self, grad: Tensor, features: Tensor, rate: Tensor, near: Neighbourhoods, wanted: bool, total: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """Gradients of the features, if `wanted` (added to `total` if there is one), and of the rate, from that of the
        matrix."""
        ...

    def scan_step(
        self, features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor, time: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A (S', U, V, Q) of a packet, and the trace and the time after it."""
        ...


def at_one_pixel(events: Events) -> Events:
    """The same events on a sensor of one pixel."""

    def make() -> Events:
        fields = {"time": events.time, "splits": events.splits, "padding": events.padding}
        return Events.made(pixel=torch.zeros_like(events.pixel), polarity=None, sensor=(1, 1), **fields).trusted()

    return events.cached("at one pixel", make)


def fitted(edges: Edges, joined: Link) -> Edges:
    """The edges with a row for every (target, tap), padding rows too."""
    rows = len(joined.target) * len(joined.offsets)
    padded = joined.target.padding or edges.padding
    if edges.num_source != len(joined.source) or (edges.num_target != rows and not padded):
        raise ValueError(
            f"event_conv: edges must join {len(joined.source)} sources and {rows} (target, tap) rows, "
            f"not {edges.num_source} and {edges.num_target}. Make them with causal(source, target, kernel, stride)."
        )
    if edges.device != joined.source.device:
        raise ValueError(f"event_conv: edges are on {edges.device}, the events on {joined.source.device}. Move one.")
    if edges.num_target == rows:
        return edges

    def make() -> Edges:
        # Targets and (target, tap) rows were padded to different sizes; the rows in question have no edges.
        more = max(rows - edges.num_target, 0)
        splits = torch.cat([edges.splits[: rows + 1], edges.splits[-1:].expand(more)])
        return Edges(splits, edges.source, edges.num_source, padding=edges.padding).trusted()

    return edges.cached("fitted", make)
