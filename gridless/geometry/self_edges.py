"""Neighbourhoods without the point itself."""

from __future__ import annotations

import torch

from gridless import backends
from gridless.structures import Cloud, Edges


@backends.uncompiled
def without_self(edges: Edges, sample: Cloud | None = None) -> Edges:
    """The same edges without those that join a point to itself.

    A target is its own source where their rows are equal; the targets of a `sample` are the sources that they were
    sampled from. A target without other neighbours is left with none. One torch function serves every device.

    Args:
        edges: a search of a cloud in itself, or of a cloud for its sample.
        sample: the targets, where they are a sample of the sources; left out for a cloud in itself.
    """
    if sample is None:
        if edges.num_target != edges.num_source:
            raise ValueError(
                f"without_self: {edges.num_source} sources and {edges.num_target} targets are not one cloud. "
                "Pass the sample whose points are the targets."
            )
        own = torch.arange(edges.num_target, device=edges.device)
    elif sample.parent_index is None or len(sample) != edges.num_target or sample.num_parent != edges.num_source:
        raise ValueError(
            f"without_self: the sample has {len(sample)} points of {sample.num_parent}, the edges join "
            f"{edges.num_source} sources to {edges.num_target} targets. Pass the sample of these edges."
        )
    else:
        own = sample.parent_index
    # Padding edges have the target one past the last: they are nobody's own.
    own = torch.cat([own, own.new_full((1,), -1)])
    keep = edges.source != own[edges.target]
    before = torch.cat([keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)])
    return Edges.made(
        splits=before[edges.splits],
        source=edges.source[keep],
        num_source=edges.num_source,
        limit=edges.limit,
        symmetric=edges.symmetric and sample is None,
        padding=edges.padding,
    ).trusted()
