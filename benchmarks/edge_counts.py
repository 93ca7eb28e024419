"""Evenness of samples: neighbours in a ball of rejection, farthest, approximate farthest and random samples.

    python benchmarks/edge_counts.py [--out results/reproduction/edge_counts.json]     (2 minutes on one core)

The paper says that rejection sampling leads to a more consistent number of edges. A cloud is sampled by rejection with
a ball; by each other sampler, as many points are taken. Then all samples within twice that radius of a sample are its
neighbours, itself included: the in-place neighbourhoods of the next level. The coefficient of variation is deviation
over mean of the neighbours of a cloud's samples, averaged over clouds. Points are in random order, as in training.
ModelNet40's clouds are even already (its points are farthest-point samples); LiDAR scans are not.
`python benchmarks/reproduction.py` draws the chart.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import DATA, RADIUS, RESULTS, keep, machine, modelnet

import gridless as gl

# Bars of a histogram of neighbours, at most.
BARS = 40


def samples(cloud: gl.Cloud, radius: float, exact: bool) -> dict[str, gl.Cloud]:
    near = gl.ball(cloud, cloud, radius)
    rejected = gl.rejection_sample(cloud, near)
    sizes = rejected.sizes
    return {
        "rejection": rejected,
        **({"farthest": gl.farthest_sample(cloud, sizes)} if exact else {}),
        "approximate farthest": gl.farthest_sample(cloud, sizes, near=near),
        "random": gl.random_sample(cloud, sizes, seed=0),
    }


def rows_of(data: str, cloud: gl.Cloud, radius: float, exact: bool) -> list[dict[str, Any]]:
    """A row for each sampler."""
    rows, counts = [], []
    for name, sample in samples(cloud, radius, exact).items():
        edges, held = gl.ball(sample, sample, 2 * radius), gl.ball(cloud, sample, radius)
        neighbours = [each.double() for each in edges.counts.split(sample.sizes.tolist())]
        covered = torch.zeros(len(cloud), dtype=torch.bool)
        covered[held.source.long()] = True
        rows.append({
            "data": data,
            "sampler": name,
            "samples": len(sample) / cloud.num_examples,
            "neighbours": edges.counts.double().mean().item(),
            "neighbours_cv": sum((each.std() / each.mean()).item() for each in neighbours) / len(neighbours),
            "points_without_a_sample": 1 - covered.double().mean().item(),
        })  # fmt: skip
        counts.append(edges.counts.long())
        print(rows[-1], flush=True)
    # The last bar holds all larger counts too.
    most = int(max(each.double().quantile(0.98) for each in counts))
    width = most // BARS + 1
    for row, each in zip(rows, counts, strict=True):
        shares = torch.bincount(each.clamp(max=most) // width, minlength=most // width + 1) / len(each)
        row |= {"bar_width": width, "histogram": [round(share, 5) for share in shares.tolist()]}
    return rows


def scans(count: int) -> gl.Cloud:
    """Whole LiDAR scans."""
    import read

    clouds = read.scans(DATA / "semantickitti_22_scans.npz")
    return shuffled([clouds[k][0] for k in np.linspace(0, 21, count).astype(int)])


def shuffled(clouds: Iterable[np.ndarray]) -> gl.Cloud:
    random = np.random.default_rng(0)
    return gl.Cloud.of([torch.from_numpy(random.permutation(x)) for x in clouds])


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Histograms of neighbours, a chart for each data set."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(6 * len(names), 4), layout="constrained", squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        for row, line in zip((row for row in rows if row["data"] == name), ("-", "--", ":", "-."), strict=False):
            label = f"{row['sampler']}: coefficient of variation {row['neighbours_cv']:.2f}"
            bars, width = np.array(row["histogram"]), row["bar_width"]
            ax.stairs(bars / width, np.arange(len(bars) + 1) * width, linewidth=1.8, linestyle=line, label=label)
        ax.set(xlabel="neighbours of a sample", ylabel="share", title=name)
        ax.set_ylim(top=1.3 * ax.get_ylim()[1])
        ax.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clouds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "edge_counts.json")
    arguments = parser.parse_args()
    name, clouds = modelnet(arguments.clouds)
    # Several points at one place, as a few clouds of the release have, are no fault of a sampler.
    rich = [x for x in clouds if len(set(map(tuple, x.tolist()))) > 900]
    rows = rows_of(f"{name}, {len(rich)} clouds", shuffled(rich), RADIUS, True)
    if (DATA / "semantickitti_22_scans.npz").exists():
        rows += rows_of("LiDAR scans (SemanticKITTI), 4, balls of 0.5 m", scans(4), 0.5, False)
    keep(arguments.out, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
