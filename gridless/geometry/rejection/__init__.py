"""Rejection sampling: thin a cloud until no two survivors are neighbours."""

from __future__ import annotations

from torch import Tensor

from gridless import backends
from gridless.geometry.checks import check_cloud, check_near, check_radius
from gridless.geometry.rejection import reference
from gridless.structures import Cloud, Edges


@backends.uncompiled
def rejection_sample(
    cloud: Cloud, near: Edges | None = None, *, radius: float | None = None, distance: bool = False
) -> Cloud:
    """The paper's rejection sampling: in index order, keep each point that no earlier kept point has as a neighbour.

    Neighbours are given by `near`, a search of the cloud in itself that a convolution may need anyway, or by `radius`
    (distance <= radius, inclusive, rounded as in `ball`), and then no edges are made. Both give the same samples:
    `rejection_sample(cloud, ball(cloud, cloud, r)) == rejection_sample(cloud, radius=r)`, index for index.

    No two samples are neighbours, and every point is a sample or a neighbour of one. With one-way edges, such as
    some of `nearest`, a sample may have an earlier one as its neighbour.

    A backend's `sample(cloud, near, radius, distance)` gets a checked cloud and either edges or a radius rounded to the
    dtype.

    Args:
        cloud: S points.
        near: Edges of the cloud in itself; row i lists what a sample i rejects.
        radius: instead of `near`.
        distance: also return how far every point of `cloud` is from the closest sample that has it as a neighbour.
    Returns:
        Cloud of the samples in index order, with their rows and `parent_index`, and `distance` (S) on request (0 for
        padding).
    """
    check_cloud("rejection_sample", cloud)
    if (near is None) == (radius is None):
        raise ValueError(
            "rejection_sample: near and radius exclude each other. Give one: rejection_sample(cloud, near)."
        )
    if near is not None:
        check_near("rejection_sample", cloud, near)
    if radius is not None:
        radius = check_radius("rejection_sample", radius, cloud.coords.dtype)
    backend = backends.implementation(reference, cloud.device)
    return backend.sample(cloud, near, radius, distance)


@backends.uncompiled
def ball_of_samples(near: Edges, sample: Cloud) -> Edges:
    """`ball(cloud, sample, radius)` from `near`, which is `ball(cloud, cloud, radius)`: its rows at the samples.

    The samples are points of the cloud, and know which (`parent_index`): nothing is searched.
    """
    return backends.implementation(reference, near.device).ball_of_samples(near, sample)


def doubtful_depth(near: Edges, depth: Tensor, known: float, radius: float) -> float:
    """Depth up to which the rejection samples of a part of a scene may differ from those of the whole scene.

    The points of the part are in the order that they have in the scene. Nothing is known of those whose `depth`, the
    distance to where the part ends, is at most `known`; neighbours of others may be missing up to known + radius. A
    point is certain to be rejected when one of its earlier neighbours is certain to be kept, and certain to be kept
    when all of those are certain to be rejected and none is missing; deeper than the result all are certain.

    A backend's `doubtful_depth(rows, depth, known, radius)` gets edges whose row i are the points that reject i.

    Args:
        near: the neighbours, a ball search of the points in themselves.
        depth: (S) float64, infinite where the part ends with the scene.
        known: depth up to which the points themselves are in doubt.
        radius: of the search.
    """
    rows = near if near.symmetric else near.transpose()
    return max(known, backends.implementation(reference, depth.device).doubtful_depth(rows, depth, known, radius))
