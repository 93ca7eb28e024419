"""Padding at the level of the batch: few shapes for compiled and captured graphs, the same results.

Padding rows come after the last example and belong to none; padding targets have no edge; padding edges belong to no
target. Whatever walks splits never meets them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from gridless.ragged import _kinds
from gridless.structures import Edges

Buckets = str | Sequence[int]


def bucket_size(length: int, bucket: Buckets) -> int:
    """The smallest bucket that holds `length` rows."""
    if isinstance(bucket, str):
        if bucket != "power_of_two":
            raise ValueError(f"bucket must be 'power_of_two' or a list of sizes, not {bucket!r}")
        return 1 << max(length - 1, 0).bit_length()
    sizes = sorted(bucket)
    if not sizes or not all(isinstance(s, int) and s > 0 for s in sizes):
        raise ValueError(f"bucket must be 'power_of_two' or a list of positive sizes, not {bucket!r}")
    at = bisect_left(sizes, length)
    if at == len(sizes):
        raise ValueError(f"no bucket holds {length} rows: the largest is {sizes[-1]}")
    return sizes[at]


def pad(value: Any, bucket: Buckets) -> Any:
    """The structure with every tensor grown to its bucket; example counts stay as they are."""
    changes: dict[str, Any] = {}
    # The splits of edges have a row per target, and so grow; those of clouds and events have one per example.
    for name, kind, _ in _kinds(type(value)):
        field = getattr(value, name)
        if kind == "size":
            used = any(into == name and getattr(value, user) is not None for user, _, into in _kinds(type(value)))
            changes[name] = bucket_size(field, bucket) if used else field
        elif isinstance(field, Tensor) and kind in ("rows", "index", "full index"):
            changes[name] = _grow(field, bucket_size(len(field), bucket))
        elif isinstance(value, Edges) and kind == "splits":
            rows = bucket_size(len(field) - 1, bucket) + 1
            changes[name] = torch.cat([field, field[-1:].expand(rows - len(field))])
    more = bucket_size(len(value), bucket) - len(value)
    return value._changed(padding=value.padding + more, **changes)


def _grow(tensor: Tensor, rows: int) -> Tensor:
    return pad_tensor(tensor, [0, 0] * (tensor.ndim - 1) + [0, rows - len(tensor)])
