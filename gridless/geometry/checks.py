"""Checks of the arguments of searches, before any kernel runs."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from gridless.structures import MAX_EDGES, Cloud, Edges

# A kernel returns this when it meets an edge that leaves its example.
CROSSING = 1
_FLOAT = struct.Struct("f")


def check_clouds(what: str, source: Cloud, target: Cloud) -> None:
    """Refuse a pair of clouds that no search can join.

    On a CUDA device nothing is read here: the kernels report points that are not finite together with the number of
    edges, and `Cloud.check` then names them.
    """
    for role, cloud in (("source", source), ("target", target)):
        if not isinstance(cloud, Cloud):
            raise TypeError(f"{what}: {role} must be a Cloud, not {type(cloud).__name__}. Use Cloud.of(x).")
    if source is not target:
        if source.dim != target.dim:
            raise ValueError(f"{what}: source has {source.dim} dimensions, target {target.dim}")
        if source.coords.dtype != target.coords.dtype:
            raise TypeError(
                f"{what}: source is {source.coords.dtype}, target {target.coords.dtype}. Convert one of them."
            )
        if source.device != target.device:
            raise ValueError(f"{what}: source is on {source.device}, target on {target.device}. Move one by .to(...).")
        if source.num_examples != target.num_examples:
            raise ValueError(
                f"{what}: source has {source.num_examples} examples, target {target.num_examples}. "
                "Both must be one batch."
            )
    if source.device.type == "cpu":
        check_finite(f"{what}: source", source)
        if target is not source:
            check_finite(f"{what}: target", target)


def check_finite(what: str, cloud: Cloud) -> None:
    """Refuse coordinates that are not finite, naming example and row.

    A cloud on a GPU is read once in its life. One on the CPU may share memory that is written to between two calls.
    """
    if cloud.device.type != "cpu":
        cloud.check(what)
    elif not math.isfinite(cloud.coords.detach().sum()):
        # A new cloud, which does not remember that it was checked. Sums of huge coordinates may overflow.
        Cloud(cloud.coords, cloud.splits, padding=cloud.padding).check(what)


def check_cloud(what: str, cloud: Cloud) -> None:
    """Refuse what is not a cloud of finite points."""
    if not isinstance(cloud, Cloud):
        raise TypeError(f"{what}: expected a Cloud, not {type(cloud).__name__}. Use Cloud.of(x).")
    check_finite(what, cloud)


def check_near(what: str, cloud: Cloud, near: Edges) -> None:
    """Refuse edges that do not join a cloud to itself; edges that our own searches made are not read."""
    if not isinstance(near, Edges):
        raise TypeError(f"{what}: near must be Edges, not {type(near).__name__}. Use ball(cloud, cloud, radius).")
    if near.device != cloud.device:
        raise ValueError(f"{what}: near is on {near.device}, the cloud on {cloud.device}. Move one with .to(...).")
    if near.num_source != len(cloud) or near.num_target != len(cloud):
        raise ValueError(
            f"{what}: near joins {near.num_source} sources to {near.num_target} targets, but the cloud has "
            f"{len(cloud)} points. Search this cloud in itself: ball(cloud, cloud, radius)."
        )
    near.check(f"{what}: near")


def refuse_crossing(results: Iterable[int]) -> None:
    """Turn what kernels returned into an error."""
    if any(result == CROSSING for result in results):
        raise ValueError(
            "near joins points of different examples. Search this cloud in itself: ball(cloud, cloud, radius)."
        )


def check_radius(what: str, radius: float, dtype: torch.dtype) -> float:
    """The radius rounded to the dtype of the clouds, whose square must be a normal number of that dtype."""
    radius = float(radius)
    if not radius > 0 or math.isinf(radius):
        raise ValueError(f"{what}: radius must be positive and finite, not {radius}")
    limits = torch.finfo(dtype)
    rounded = round_to(radius, dtype)
    if not limits.tiny <= rounded * rounded <= limits.max:
        raise ValueError(
            f"{what}: the square of radius {radius} is out of the range of {dtype}. Rescale the coordinates"
            + (" or use float64." if dtype == torch.float32 else ".")
        )
    return rounded


def check_whole(what: str, name: str, value: Any, least: int = 1) -> int:
    """The value as an int, NumPy's too, and written as a float (2e3); refuse what is no whole number from `least`."""
    number: Any = int(value) if isinstance(value, float | np.floating) and value.is_integer() else value
    try:
        whole = operator.index(number)
    except TypeError:
        whole = least - 1
    if isinstance(value, bool) or whole < least:
        raise ValueError(f"{what}: {name} must be a whole number of at least {least}, not {value!r}")
    return whole


def check_edge_count(what: str, count: int) -> None:
    """Refuse more edges than an int32 can number; called before they are allocated."""
    if count > MAX_EDGES:
        raise ValueError(
            f"{what}: {count} edges are more than {MAX_EDGES}. Take a smaller radius, set limit=, or cut the batch."
        )


def round_to(value: float, dtype: torch.dtype) -> float:
    """`value` rounded to `dtype`, as a Python float (which holds it exactly)."""
    if dtype != torch.float32:
        return float(value)
    try:
        return _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def squared_radius(radius: float, dtype: torch.dtype) -> float:
    """r * r with r and the product rounded to `dtype`: a pair is inside when its squared distance is <= this."""
    r = round_to(radius, dtype)
    return round_to(r * r, dtype)
