"""gridless.compat.torch_cluster beside compiled torch_cluster: python benchmarks/as_torch_cluster.py

CPU, one thread, seconds of the processor (not of the clock, so that other work on the machine counts little), the least
of several runs, each after the other. The results are compared before they are timed. Without torch_cluster, which has
to be compiled for the PyTorch that is installed, only ours are timed.
"""

import os
import sys
import time

for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

import torch  # noqa: E402

import gridless.compat.torch_cluster as ours  # noqa: E402

try:
    import torch_cluster as theirs
except ImportError:
    theirs = None
torch.set_num_threads(1)


def pairs(edges: torch.Tensor) -> torch.Tensor:
    return edges[:, (edges[0] * (int(edges.max()) + 1) + edges[1]).argsort()]


def seconds(function, repeats: int) -> float:
    least = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        function()
        least = min(least, time.process_time() - begin)
    return least


def main() -> None:
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
    print(f"torch {torch.__version__}, one thread; milliseconds")
    print("| | gridless | torch_cluster | ratio |\n|---|---|---|---|")
    for what, run in cases.items():
        mine = run(ours)
        if theirs is not None:
            other = run(theirs)
            same = pairs(mine).equal(pairs(other)) if mine.ndim == 2 else mine.equal(other)
            if not same:
                print(f"{what}: {mine.shape} and {other.shape} differ", file=sys.stderr)
        first = seconds(lambda: run(ours), 5)  # noqa: B023
        second = seconds(lambda: run(theirs), 2) if theirs is not None else float("nan")  # noqa: B023
        print(f"| {what} | {first * 1e3:.1f} | {second * 1e3:.1f} | {second / first:.1f} |", flush=True)


if __name__ == "__main__":
    main()
