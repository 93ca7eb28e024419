"""All points within a radius."""

from __future__ import annotations

from gridless.backends import implementation, uncompiled
from gridless.geometry.ball import reference
from gridless.geometry.checks import check_clouds, check_radius, check_whole
from gridless.structures import Cloud, Edges


@uncompiled
def ball(source: Cloud, target: Cloud, radius: float, limit: int | None = None) -> Edges:
    """Edges from every target to the sources of its example within `radius`, inclusive, sources ascending.

        edge (i, j)  when  |source_j - target_i|^2 <= radius^2

    A ball is never cut short unless `limit` is given: then each target keeps its `limit` nearest sources (of equally
    near ones those with the smaller index), and the edges say so.

    Every backend returns the same edges. The squared distance is ((dx dx + dy dy) + dz dz)..., in dimension order, and
    it and the square of the radius are rounded to the dtype of the clouds after every operation.

    Refused: a radius that is not positive and finite, points that are not finite, clouds that differ in dimension,
    dtype, device or number of examples, and more than 2^31 - 1 edges (before they are allocated).

    A backend's `ball(source, target, radius, limit)` gets checked clouds and a radius already rounded to their dtype,
    and returns splits (S' + 1) int64 and source (E) int32. Padding rows of a cloud have no edges.
    """
    check_clouds("ball", source, target)
    if isinstance(radius, bool | str) or not hasattr(radius, "__float__"):
        raise TypeError(f"ball: radius must be a number, such as 0.1, in the units of the points, not {radius!r}")
    radius = check_radius("ball", radius, source.coords.dtype)
    if limit is not None:
        limit = check_whole("ball", "limit", limit)
    splits, index = implementation(reference, source.device).ball(source, target, radius, limit)
    return Edges.made(
        splits=splits,
        source=index,
        num_source=len(source),
        limit=limit,
        symmetric=source is target and limit is None,
    ).trusted()
