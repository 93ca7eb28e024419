"""Earlier events in a small pixel window, as edges."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gridless.backends import implementation, uncompiled
from gridless.geometry.causal import reference
from gridless.geometry.causal.link import Link, link
from gridless.geometry.taps import Taps
from gridless.structures import Edges, Events

__all__ = ["Link", "Runs", "by_pixel", "causal", "link"]


class Runs(NamedTuple):
    """Events sorted by (example, pixel): those of pixel (x, y) of example b are order[splits[c]:splits[c + 1]], with
    c = (b H + y) W + x, in order of arrival. order (S) int32, splits (B H W + 1) int64.
    """

    order: Tensor
    splits: Tensor


def by_pixel(events: Events) -> Runs:
    """The runs of `events`, made once and kept beside them. Padding rows come last and belong to no pixel."""
    return events.cached("by_pixel", lambda: Runs(*implementation(reference, events.device).by_pixel(events)))


@uncompiled
def causal(source: Events, target: Events, kernel: Taps = 3, stride: int = 1, window: float | None = None) -> Edges:
    """Edges from every (target, tap) to the earlier events at that tap's pixel, sources ascending.

        edge (i * U + u, j)  when  pixel_j = stride * pixel_i + offset_u,  j <= until_i  and  time_i - time_j <= window

    A row of these edges is one tap of one target: U rows each. `until` is the target's `cause`; where the target is the
    source itself, an event sees up to and including itself. Order of arrival decides, never equal time stamps. Without
    a `window` (microseconds, inclusive) all history counts.

    A backend's `causal(link, window)` returns splits (S' U + 1) int64 and source (E) int32.

    Args:
        source: the events that are seen.
        target: the events that see them: the source itself, or what `lif` made from it.
        kernel: the side of the window of pixels, odd, or the name of one.
        stride: how much coarser the target's grid is.
        window: the greatest age of an edge, in microseconds.
    """
    joined = link(source, target, kernel, stride)
    if window is not None and not window >= 0:
        raise ValueError(f"causal: window must be a number of microseconds, 0 or more, not {window}")
    # Ages are whole microseconds, so that a fraction of one changes nothing.
    reach = 2**62 if window is None or window >= 2**62 else int(window)
    splits, edges = implementation(reference, source.device).causal(joined, reach)
    return Edges(splits, edges, len(source)).trusted()
