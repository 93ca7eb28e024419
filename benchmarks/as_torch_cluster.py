"""gridless.compat.torch_cluster beside a compiled torch_cluster: python benchmarks/as_torch_cluster.py

CPU, one thread, milliseconds of processor time, so that other work on the machine counts little: the least of several
runs, each after the other. The results are compared before they are timed. torch_cluster has to be compiled for the
PyTorch that is installed, and must be installed.
"""

import os

for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

import time  # noqa: E402
from functools import partial  # noqa: E402

import torch  # noqa: E402
import torch_cluster as theirs  # noqa: E402
from common import RESULTS, in_turn, report  # noqa: E402

import gridless.compat.torch_cluster as ours  # noqa: E402


def pairs(edges: torch.Tensor) -> torch.Tensor:
    return edges[:, (edges[0] * (int(edges.max()) + 1) + edges[1]).argsort()]


def check(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Raise an error if the edges, or the samples, are not the same."""
    if not (pairs(ours).equal(pairs(theirs)) if ours.ndim == 2 else ours.equal(theirs)):
        raise AssertionError(f"{what}: {tuple(ours.shape)} and {tuple(theirs.shape)} differ")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    many, batch = torch.rand(32 * 1024, 3), torch.arange(32 * 1024) // 1024
    large, wide = torch.rand(100_000, 3), torch.randn(8 * 1024, 64)
    eight = torch.arange(8 * 1024) // 1024
    cases = {
        "radius_graph, 32 clouds of 1,024, r 0.1": lambda m: m.radius_graph(many, 0.1, batch, max_num_neighbors=1000),
        "radius_graph, 100,000 points, r 0.03": lambda m: m.radius_graph(large, 0.03, max_num_neighbors=1000),
        "knn_graph, 32 clouds of 1,024, k 16": lambda m: m.knn_graph(many, 16, batch),
        "knn_graph, 100,000 points, k 16": lambda m: m.knn_graph(large, 16),
        "knn_graph, 8 clouds of 1,024, 64 dimensions, k 20": lambda m: m.knn_graph(wide, 20, eight),
        "fps, 32 clouds of 1,024 to 256": lambda m: m.fps(many, batch, 0.25, random_start=False),
        "fps, 100,000 points to 1,000": lambda m: m.fps(large, None, 0.01, random_start=False),
    }
    rows = []
    for what, run in cases.items():
        check(what, run(ours), run(theirs))
        works = {"gridless, ms": partial(run, ours), "torch_cluster, ms": partial(run, theirs)}
        times = in_turn(works, 5, time.process_time)
        rows.append({"work": what, **{who: 1e3 * seconds for who, seconds in times.items()}})
    report(RESULTS / "torch_cluster.json", rows)


if __name__ == "__main__":
    main()
