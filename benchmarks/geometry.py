"""How fast geometry is: the paper's preprocessing chain and large searches, beside every peer that can be imported.

    python benchmarks/geometry.py [--clouds 128] [--points 1000000] [--only chain,large,gpu] [--name geometry]

Every result is checked before it is timed. One thread unless a row says otherwise; times are medians of one run, of the
process's CPU for one thread (so that a peer's hidden threads count). Samplers are in samplers.py, kernels on the GPU in
geometry_gpu.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import cpu_seconds, floors, modelnet, peak_memory, report, seconds

import gridless as gl

RADIUS = 0.1125
Search = Callable[[np.ndarray, np.ndarray, float], tuple[np.ndarray, np.ndarray]]


def network(radius: float = RADIUS, levels: int = 3) -> gl.Plan:
    """The geometry of the paper's large network: 7 searches, 3 samplings."""
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, radius)
    for _ in range(levels):
        coarse = plan.rejection_sample(near)
        plan.ball(cloud, coarse, radius * 2**0.5)
        radius *= 2
        near, cloud = plan.ball(coarse, coarse, radius), coarse
    return plan


# Peers: (sources, targets, radius) -> splits, sources of one cloud, in any order.


def scipy_search(x: np.ndarray, y: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    from scipy.spatial import cKDTree

    found = cKDTree(x).query_ball_point(y, radius)
    return _csr(found)


def sklearn_search(x: np.ndarray, y: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.neighbors import KDTree

    return _csr(KDTree(x).query_radius(y, radius))


def open3d_search(x: np.ndarray, y: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Its radius search over a nanoflann tree, the fastest of its own."""
    import open3d.core as o3c

    tree = o3c.nns.NearestNeighborSearch(o3c.Tensor.from_numpy(x))
    tree.fixed_radius_index(radius)
    index, _, splits = tree.fixed_radius_search(o3c.Tensor.from_numpy(y), radius, sort=False)
    return splits.numpy(), index.numpy()


def torch_cluster_search(x: np.ndarray, y: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    from torch_cluster import radius as search

    target, source = search(torch.from_numpy(x), torch.from_numpy(y), radius, max_num_neighbors=len(x))
    counts = torch.bincount(target, minlength=len(y)).numpy()
    return np.concatenate([[0], np.cumsum(counts)]), source.numpy()


def _csr(found: Any) -> tuple[np.ndarray, np.ndarray]:
    splits = np.zeros(len(found) + 1, np.int64)
    np.cumsum([len(row) for row in found], out=splits[1:])
    return splits, np.concatenate([np.asarray(row, np.int32) for row in found])


PEERS: dict[str, tuple[str, Search]] = {
    "SciPy": ("scipy", scipy_search),
    "scikit-learn": ("sklearn", sklearn_search),
    "Open3D": ("open3d", open3d_search),
    "torch_cluster": ("torch_cluster", torch_cluster_search),
}


def peers() -> dict[str, Search]:
    found = {}
    for name, (module, search) in PEERS.items():
        try:
            __import__(module)
            found[name] = search
        except ImportError:
            print(f"{name} is not installed: left out")
    return found


def peer_chain(search: Search, x: np.ndarray, radius: float = RADIUS, levels: int = 3) -> list[tuple]:
    """The chain with a peer's search and our sampler."""
    results = []
    near = search(x, x, radius)
    results.append(near)
    for _ in range(levels):
        splits, source = (
            torch.from_numpy(np.asarray(near[0], np.int64)),
            torch.from_numpy(np.asarray(near[1], np.int32)),
        )
        edges = gl.Edges.made(splits=splits, source=source, num_source=len(x)).trusted()
        cloud = gl.Cloud.of(x).trusted()
        coarse = gl.rejection_sample(cloud, edges).coords.numpy()
        results.append(search(x, coarse, radius * 2**0.5))
        radius *= 2
        near, x = search(coarse, coarse, radius), coarse
        results.append(near)
    return results


def same_edges(ours: gl.Edges, splits: np.ndarray, source: np.ndarray, slack: float = 0.0) -> None:
    """Refuse to time what is wrong: rows must be equal as sets, but for pairs that rounding puts on either side."""
    ours_rows = np.split(ours.source.numpy(), ours.splits.numpy()[1:-1])
    rows = np.split(np.asarray(source), np.asarray(splits)[1:-1])
    different = sum(set(a.tolist()) != set(b.tolist()) for a, b in zip(ours_rows, rows, strict=True))
    if different > slack * len(rows):
        raise AssertionError(f"{different} of {len(rows)} rows differ")


def chain(clouds: int) -> list[dict[str, Any]]:
    """The paper's preprocessing: clouds per second."""
    name, x = modelnet(clouds)
    plan = network()
    tensors = [torch.from_numpy(c) for c in x]
    batch = torch.from_numpy(x.reshape(-1, 3)), torch.arange(clouds + 1) * x.shape[1]
    ours = plan(tensors[0])
    searches = [v for v in ours.values() if isinstance(v, gl.Edges)]
    for (splits, source), edges in zip(peer_chain(scipy_search, x[0].astype(np.float64)), searches, strict=True):
        same_edges(edges, splits, source, slack=0.01)
    whole, merged = plan(gl.Cloud(*batch)), gl.collate([plan(t) for t in tensors])
    for key, value in whole.items():
        if not torch.equal(value.splits, merged[key].splits):
            raise AssertionError(f"{key}: a batch and its collated examples differ")

    edges = sum(len(v) for v in whole.values() if isinstance(v, gl.Edges)) / clouds
    some = x[: max(clouds // 4, 1)]
    rows = []
    for who, search in peers().items():
        time = cpu_seconds(lambda search=search: [peer_chain(search, c) for c in some], 3) / len(some)
        rows.append({"work": f"chain, {name}", "who": who, "clouds/s": 1 / time})
    best = max(row["clouds/s"] for row in rows)

    def online() -> None:
        gl.collate([plan(t) for t in tensors])

    for who, work in (
        (f"gridless, batch of {clouds}", lambda: plan(gl.Cloud(*batch))),
        ("gridless, one by one", lambda: [plan(t) for t in tensors]),
        ("gridless, one by one, collated", online),
    ):
        rate = clouds / cpu_seconds(work, 9)
        rows.append({"work": f"chain, {name}", "who": who, "clouds/s": rate, "ratio": rate / best})
    floor = floors()["copy_bytes_per_s"] / (4 * edges)
    rows.append(
        {
            "work": f"chain, {name}",
            "who": f"floor: writing {edges:,.0f} edges",
            "clouds/s": floor,
            "ratio": floor / best,
        }
    )
    return rows


def large(points: int) -> list[dict[str, Any]]:
    """One large cloud with about 20 neighbours each: seconds, and memory over the edges returned."""
    from scipy.spatial import cKDTree

    x = np.random.default_rng(0).random((points, 3), np.float32)
    radius = float((20 / (4 / 3 * np.pi * points)) ** (1 / 3))
    cloud = gl.Cloud.of(x)
    edges = gl.ball(cloud, cloud, radius)
    pairs = cKDTree(x).query_pairs(radius, output_type="ndarray")
    if abs(len(edges) - (2 * len(pairs) + points)) > 1e-5 * len(edges):
        raise AssertionError(f"{len(edges)} edges, but SciPy finds {2 * len(pairs) + points}")
    some = np.random.default_rng(1).integers(0, points, 1000)
    splits, source = edges.splits.numpy(), edges.source.numpy()
    found = cKDTree(x.astype(np.float64)).query_ball_point(x[some].astype(np.float64), radius)
    wrong = sum(sorted(f) != source[splits[i] : splits[i + 1]].tolist() for i, f in zip(some, found, strict=True))
    if wrong > 5:
        raise AssertionError(f"{wrong} of 1000 rows differ from SciPy's")

    work = f"{points:,} points, {len(edges):,} edges"
    rows = []
    rows.append(
        {
            "work": work,
            "who": "SciPy query_pairs",
            "seconds": cpu_seconds(lambda: cKDTree(x).query_pairs(radius, output_type="ndarray"), 1),
        }
    )
    if "Open3D" in peers():
        rows.append({"work": work, "who": "Open3D", "seconds": cpu_seconds(lambda: open3d_search(x, x, radius), 1)})
    threads = torch.get_num_threads()
    for count in dict.fromkeys((1, threads_of_machine())):
        torch.set_num_threads(count)
        clock = cpu_seconds if count == 1 else seconds
        time = clock(lambda: gl.ball(cloud, cloud, radius), 3)
        row = {"work": work, "who": f"gridless, {count} threads", "seconds": time}
        row |= {
            f"ratio to {r['who'].split()[0].strip(',')}": r["seconds"] / time
            for r in rows
            if "gridless" not in r["who"]
        }
        rows.append(row)
    torch.set_num_threads(threads)
    returned = edges.source.nbytes + edges.splits.nbytes
    setup = (
        f"import numpy as np, torch, gridless as gl; torch.set_num_threads(1)\n"
        f"x = gl.Cloud.of(np.random.default_rng(0).random(({points}, 3), np.float32))\n"
        f"small = gl.Cloud.of(x.coords[:5000].clone()); gl.ball(small, small, {radius})\n"
    )
    used = peak_memory(setup + f"e = gl.ball(x, x, {radius})") - peak_memory(setup)
    rows.append({"work": work, "who": "memory / edges returned", "ratio": used / returned})
    rows.append({"work": work, "who": "floor: writing the edges", "seconds": returned / floors()["copy_bytes_per_s"]})
    return rows


def threads_of_machine() -> int:
    import os

    return len(os.sched_getaffinity(0))


def gpu(clouds: int, points: int) -> list[dict[str, Any]]:
    """The same chain and the same search on the GPU: milliseconds."""
    if not torch.cuda.is_available():
        return []
    rows = []
    name, x = modelnet(clouds)
    plan, splits = network(), torch.arange(clouds + 1) * x.shape[1]
    host = plan(gl.Cloud(torch.from_numpy(x.reshape(-1, 3)), splits))
    batch = gl.Cloud(torch.from_numpy(x.reshape(-1, 3)), splits).to("cuda")
    for key, value in plan(batch).items():
        if not torch.equal(value.splits.cpu(), host[key].splits):
            raise AssertionError(f"{key} differs between CPU and GPU")
    cloud = gl.Cloud.of(torch.rand(points, 3)).to("cuda")
    radius = float((20 / (4 / 3 * np.pi * points)) ** (1 / 3))
    for work, run in (
        (f"chain, {clouds} clouds of {name}", lambda: plan(gl.Cloud(batch.coords, batch.splits))),
        (f"{points:,} points, 20 neighbours", lambda: gl.ball(cloud, cloud, radius)),
    ):

        def synchronised(run: Callable[[], Any] = run) -> None:
            run()
            torch.cuda.synchronize()

        rows.append({"work": work, "who": "gridless, GPU", "ms": 1e3 * seconds(synchronised, 20)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clouds", type=int, default=128)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--only", default="chain,large,gpu")
    parser.add_argument("--name", default="geometry")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    if "chain" in arguments.only:
        rows += chain(arguments.clouds)
    if "large" in arguments.only:
        rows += large(arguments.points)
    if "gpu" in arguments.only:
        rows += gpu(1024, arguments.points)
    report(arguments.name, rows, floors=floors())


if __name__ == "__main__":
    main()
