"""The k nearest sources of each target, exactly."""

from __future__ import annotations

from gridless import backends
from gridless.geometry.checks import check_clouds, check_whole
from gridless.geometry.nearest import reference
from gridless.structures import MAX_EDGES, Cloud, Edges


@backends.uncompiled
def nearest(source: Cloud, target: Cloud, k: int) -> Edges:
    """The k sources nearest to each target, example by example.

    Exact; among equal distances the smaller index is taken. A target whose example has fewer than k sources gets all
    of them. The edges of a target are listed by ascending source, as everywhere, not by distance.

    Distances are compared squared, d2 = (dx*dx + dy*dy) + dz*dz, each operation rounded in the dtype of the cloud and
    in this order, so that every backend returns the same edges.

    A backend's `search(source, target, k)` gets checked clouds and returns splits (S' + 1) int64 and source (E) int32.
    Padding rows of a cloud have no edges.

    Args:
        source: S points; target: S' points; both with the same number of examples.
        k: at least 1.
    Returns:
        Edges from source to target, at most k per target.
    """
    check_clouds("nearest", source, target)
    k = check_whole("nearest", "k", k)
    if min(k, len(source)) * len(target) > MAX_EDGES:
        raise ValueError(
            f"nearest: {k} neighbours of {len(target)} targets may be more than {MAX_EDGES} edges. Cut the batch."
        )
    splits, index = backends.implementation(reference, source.device).search(source, target, k)
    return Edges.made(splits=splits, source=index, num_source=len(source), limit=k).trusted()
