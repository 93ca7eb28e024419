"""Samplers, k nearest points and transposes on the CPU: the part `farthest` of geometry.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import RADIUS, cpu_seconds, evenly, machine, modelnet

import gridless as gl
from gridless.structures.edges import transpose


def measure(points: int = 100_000) -> dict[str, Any]:
    """Everything, each beside its peers: by name of the work, then of who did it."""
    data, x = modelnet(128)
    cloud = gl.Cloud.of([torch.from_numpy(one) for one in x])
    big, radius = evenly(points)
    large = gl.Cloud.of(big)
    rows: dict[str, dict[str, float]] = {}

    def row(name: str, unit: str, per: float, **functions: Callable[[], object]) -> None:
        """`per` divided by the seconds of each function, or the seconds themselves where `per` is 0."""
        took = {who: cpu_seconds(f) for who, f in functions.items()}
        values = {who: per / t if per else t for who, t in took.items()}
        rows[f"{name}, {unit}"] = values
        ours = took.pop("gridless")
        best = f"   {min(took.values()) / ours:.1f} times the best peer" if took else ""
        print(f"{name:46s} {unit:9s} " + " ".join(f"{w} {v:,.4g}" for w, v in values.items()) + best, flush=True)

    farthest(row, cloud, x, large, big)
    nearest(row, cloud, x, large, big)
    rest(row, cloud, large, radius)
    return {"machine": machine(), "threads": torch.get_num_threads(), "data": data, "rows": rows}


def farthest(row, cloud: gl.Cloud, x: np.ndarray, large: gl.Cloud, big: np.ndarray) -> None:
    import fpsample

    taken = gl.farthest_sample(cloud, 256).parent_index
    with gl.use_backend("reference"):
        some = gl.Cloud.of([torch.from_numpy(one) for one in x[:8]])
        assert torch.equal(gl.farthest_sample(some, 256).parent_index, taken[: 8 * 256])
    # The peer rounds in another order: its points are the same where no two are equally far.
    few = gl.farthest_sample(large, 200).parent_index.numpy()
    assert (fpsample.fps_sampling(big, 200, start_idx=0) == few).all()
    bucket = fpsample.bucket_fps_kdline_sampling
    row(
        "exact farthest, 1024 to 256",
        "clouds/s",
        len(x),
        gridless=lambda: gl.farthest_sample(cloud, 256),
        fpsample_h3=lambda: [bucket(one, 256, h=3, start_idx=0) for one in x],
        fpsample_h5=lambda: [bucket(one, 256, h=5, start_idx=0) for one in x],
    )
    size = len(big) // 10
    row(
        f"exact farthest, {len(big)} to {size}",
        "seconds",
        0,
        gridless=lambda: gl.farthest_sample(large, size),
        fpsample_h7=lambda: bucket(big, size, h=7, start_idx=0),
        fpsample_h9=lambda: bucket(big, size, h=9, start_idx=0),
    )


def nearest(row, cloud: gl.Cloud, x: np.ndarray, large: gl.Cloud, big: np.ndarray) -> None:
    from scipy.spatial import cKDTree

    for k in (8, 32):
        edges = gl.nearest(cloud, cloud, k)
        with gl.use_backend("reference"):
            few = gl.Cloud.of([torch.from_numpy(one) for one in x[:4]])
            assert torch.equal(gl.nearest(few, few, k).source, edges.source[: 4 * 1024 * k])
        row(
            f"{k} nearest of 1024",
            "clouds/s",
            len(x),
            gridless=lambda k=k: gl.nearest(cloud, cloud, k),
            scipy=lambda k=k: [cKDTree(one).query(one, k, workers=torch.get_num_threads()) for one in x],
        )
    row(
        f"16 nearest of {len(big)}",
        "seconds",
        0,
        gridless=lambda: gl.nearest(large, large, 16),
        scipy=lambda: cKDTree(big).query(big, 16, workers=torch.get_num_threads()),
    )


def rest(row, cloud: gl.Cloud, large: gl.Cloud, radius: float) -> None:
    near = gl.ball(cloud, cloud, RADIUS)
    samples = gl.rejection_sample(cloud, near)
    assert torch.equal(samples.parent_index, gl.rejection_sample(cloud, radius=RADIUS).parent_index)
    count = cloud.num_examples
    row("rejection over edges", "clouds/s", count, gridless=lambda: gl.rejection_sample(cloud, near))
    row(
        "rejection over edges, distances",
        "clouds/s",
        count,
        gridless=lambda: gl.rejection_sample(cloud, near, distance=True),
    )
    row("rejection by radius", "clouds/s", count, gridless=lambda: gl.rejection_sample(cloud, radius=RADIUS))
    row(
        "approximate farthest, 1024 to 256",
        "clouds/s",
        count,
        gridless=lambda: gl.farthest_sample(cloud, 256, near=near),
    )
    edges = gl.nearest(large, large, 16)
    matrix = edges.to_scipy()
    wanted = matrix.T.tocsr()
    assert (transpose(edges).source.numpy() == wanted.indices).all()
    row(
        f"transpose, {len(large)} x 16 in random order",
        "edges/s",
        len(edges),
        gridless=lambda: transpose(edges),
        scipy=lambda: matrix.T.tocsr(),
    )
    size = len(large) // 10
    row(
        "approximate farthest, large to a tenth",
        "seconds",
        0,
        gridless=lambda: gl.farthest_sample(large, size, near=edges),
    )
    row(
        "rejection by radius, large, 20 neighbours",
        "seconds",
        0,
        gridless=lambda: gl.rejection_sample(large, radius=radius),
    )
