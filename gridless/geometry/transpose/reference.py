"""The transpose as a specification: a stable sort by source."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.structures import Edges


def transpose(edges: Edges) -> tuple[Tensor, Tensor]:
    end = len(edges) - edges.padding
    source = edges.source[:end].long()
    counts = torch.bincount(source, minlength=edges.num_source)
    splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    index = torch.zeros_like(edges.source)
    index[:end] = edges.target[:end][source.argsort(stable=True)]
    return splits, index
