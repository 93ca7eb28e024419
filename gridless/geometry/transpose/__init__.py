"""Edges seen from the other side: CSR to CSR."""

from __future__ import annotations

from gridless import backends
from gridless.structures import Edges


def transpose(edges: Edges) -> Edges:
    """The same edges with source and target exchanged: a stable counting sort by source.

    A backend's `transpose(edges)` returns splits (S + 1) int64 and, for each edge, its target (E) int32; padding edges
    stay at the end and belong to no row. The result does not carry `limit`, which is of the targets.

    The edges of each source are listed by ascending target; `Edges.transpose()` is the same, cached.
    """
    if not isinstance(edges, Edges):
        raise TypeError(f"transpose: expected Edges, not {type(edges).__name__}")
    splits, index = backends.implementation(__name__, edges.device).transpose(edges)
    back = Edges.made(
        splits=splits,
        source=index,
        num_source=edges.num_target,
        symmetric=edges.symmetric,
        padding=edges.padding,
    )
    return back.trusted() if edges.is_checked else back
