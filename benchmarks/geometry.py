"""Geometry beside every peer that can be imported. Results are checked before they are timed.

    python benchmarks/geometry.py [chain] [large] [farthest] [gpu] [pack]        all but pack, unless some are named

chain     the paper's preprocessing on ModelNet40's clouds, on one core            results/geometry_chain.json
large     one cloud of a million points, on one core and on all                    results/geometry_large.json
farthest  farthest points and the other samplers, k nearest, transposes            results/samplers.json
gpu       all of it on a GPU, where there is one                                   results/geometry_gpu.json
pack      inputs and the CPU's results for a GPU on a machine without the data     carry/

Each part runs in a fresh process that is held to as many cores as it says, peers and their hidden threads included.
Times are the least of several rounds in which all take turns (`farthest`, `gpu`: medians), of the process's CPU on
one core, so that other work on the machine matters less, and of the wall clock on several.

With NUMBA_CPU_NAME=x86-64 NUMBA_CPU_FEATURES= (and --suffix _x86-64) kernels are compiled for any x86-64 machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RADIUS, RESULTS, ROOT, cores, evenly, floors, in_turn, keep, modelnet, on_cores, report

import gridless as gl

Search = Callable[[np.ndarray, np.ndarray, float], tuple[np.ndarray, np.ndarray]]


# Peers: (sources, targets, radius) -> splits, sources of one cloud, in any order.


def scipy_search(x: np.ndarray, y: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    from scipy.spatial import cKDTree

    neighbours = cKDTree(x).query_ball_point(y, radius)
    return _csr(neighbours)


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


def _csr(neighbours: Any) -> tuple[np.ndarray, np.ndarray]:
    splits = np.zeros(len(neighbours) + 1, np.int64)
    np.cumsum([len(row) for row in neighbours], out=splits[1:])
    return splits, np.concatenate([np.asarray(row, np.int32) for row in neighbours])


PEERS: dict[str, tuple[str, Search]] = {
    "SciPy": ("scipy", scipy_search),
    "scikit-learn": ("sklearn", sklearn_search),
    "Open3D": ("open3d", open3d_search),
    "torch_cluster": ("torch_cluster", torch_cluster_search),
}


def peers() -> dict[str, Search]:
    searches = {}
    for name, (module, search) in PEERS.items():
        try:
            __import__(module)
            searches[name] = search
        except ImportError:
            print(f"{name} is not installed: left out")
    return searches


def peer_chain(search: Search, x: np.ndarray) -> list[tuple]:
    """The chain with a peer's search and our sampler."""
    radius = RADIUS
    near = search(x, x, radius)
    results = [near]
    for _ in range(3):
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
    plan = gl.models.point_resnet_large().plan
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
    others: dict[str, Callable[[], Any]] = {
        who: lambda search=search: [peer_chain(search, c) for c in some] for who, search in peers().items()
    }
    ours: dict[str, Callable[[], Any]] = {
        f"gridless, batch of {clouds}": lambda: plan(gl.Cloud(*batch)),
        "gridless, one cloud per call": lambda: [plan(t) for t in tensors],
        "gridless, one cloud per call, collated": lambda: gl.collate([plan(t) for t in tensors]),
    }
    took = in_turn(others | ours, 15, time.process_time)
    rates = {who: (len(some) if who in others else clouds) / s for who, s in took.items()}
    best = max(rates[who] for who in others)
    rows: list[dict[str, Any]] = []
    for who, rate in rates.items():
        more = (
            {}
            if who in others
            else {"ratio": rate / best, "of the batch": rate / rates[f"gridless, batch of {clouds}"]}
        )
        rows.append({"work": f"chain, {name}", "who": who, "clouds/s": rate, **more})
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
    """One large cloud with about 20 neighbours each: seconds, on the cores of this process."""
    from scipy.spatial import cKDTree

    (x, radius), count = evenly(points), cores()
    cloud = gl.Cloud.of(x)
    edges = gl.ball(cloud, cloud, radius)
    pairs = cKDTree(x).query_pairs(radius, output_type="ndarray")
    if abs(len(edges) - (2 * len(pairs) + points)) > 1e-5 * len(edges):
        raise AssertionError(f"{len(edges)} edges, but SciPy finds {2 * len(pairs) + points}")
    some = np.random.default_rng(1).integers(0, points, 1000)
    splits, source = edges.splits.numpy(), edges.source.numpy()
    neighbours = cKDTree(x.astype(np.float64)).query_ball_point(x[some].astype(np.float64), radius)
    wrong = sum(sorted(f) != source[splits[i] : splits[i + 1]].tolist() for i, f in zip(some, neighbours, strict=True))
    if wrong > 5:
        raise AssertionError(f"{wrong} of 1000 rows differ from SciPy's")

    works: dict[str, Callable[[], Any]] = {
        "SciPy query_pairs": lambda: cKDTree(x).query_pairs(radius, output_type="ndarray"),
        "gridless": lambda: gl.ball(cloud, cloud, radius),
    }
    if "Open3D" in peers():
        works["Open3D"] = lambda: open3d_search(x, x, radius)
    took = in_turn(works, 5, time.process_time if count == 1 else time.perf_counter)
    ours, about = took["gridless"], {"work": f"{points:,} points, {len(edges):,} edges", "cores": count}
    ratios = {f"ratio to {who.split()[0]}": other / ours for who, other in took.items() if who != "gridless"}
    rows = [{**about, "who": who, "seconds": s, **(ratios if who == "gridless" else {})} for who, s in took.items()]
    floor = (edges.source.nbytes + edges.splits.nbytes) / floors()["copy_bytes_per_s"]
    return [*rows, {**about, "who": "floor: writing the edges", "seconds": floor}]


def run_chain(given: argparse.Namespace) -> None:
    rows = on_cores(1, chain, given.clouds)
    report(given.out / f"geometry_chain{given.suffix}.json", rows, floors=on_cores(1, floors))


def run_large(given: argparse.Namespace) -> None:
    rows = [row for count in dict.fromkeys((1, cores())) for row in on_cores(count, large, given.points)]
    report(given.out / f"geometry_large{given.suffix}.json", rows)


def run_farthest(given: argparse.Namespace) -> None:
    import samplers

    keep(given.out / f"samplers{given.suffix}.json", on_cores(1, samplers.measure))


def run_gpu(given: argparse.Namespace) -> None:
    import geometry_gpu

    if not torch.cuda.is_available():
        print("gpu: torch sees none: left out")
        return
    if not (given.inputs / "clouds.npz").exists():
        geometry_gpu.pack(given.inputs)
    geometry_gpu.check(given.inputs)
    keep(given.out / f"geometry_gpu{given.suffix}.json", geometry_gpu.measure(given.inputs))


def run_pack(given: argparse.Namespace) -> None:
    import geometry_gpu

    geometry_gpu.pack(given.inputs)


PARTS = {"chain": run_chain, "large": run_large, "farthest": run_farthest, "gpu": run_gpu, "pack": run_pack}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--clouds", type=int, default=128, help="of the chain, in a batch")
    parser.add_argument("--points", type=int, default=1_000_000, help="of the large cloud")
    parser.add_argument("--inputs", type=Path, default=ROOT / "carry", help="what was packed for a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--suffix", default="", help="of the names of the results")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    for part in given.parts or [name for name in PARTS if name != "pack"]:
        PARTS[part](given)


if __name__ == "__main__":
    main()
