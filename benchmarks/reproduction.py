"""The paper's tables and figures: run what this machine can run, and write docs/reproduction.md and docs/ablations.md.

    python benchmarks/reproduction.py                      write the two pages from benchmarks/results
    python benchmarks/reproduction.py run --data DIR       run what is missing first; `make reproduce DATA=DIR`

A step is run when its file is not there, or with `--only NAME`; every script goes on where it ended. Steps that need a
GPU are left out on machines without one. Times and machines of the runs are kept in results/reproduction/runs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = RESULTS / "reproduction"
Results = dict[str, Any]


class Step(NamedTuple):
    """One command: the file it writes, whether it needs a GPU, and about how many minutes it takes."""

    name: str
    command: str
    gpu: bool
    minutes: int


STEPS = (
    Step("figures", "python docs/images/make.py paper", False, 1),
    Step("stats", "python benchmarks/stats.py --data DIR", False, 3),
    Step("update_orders", "python benchmarks/update_orders.py --data DIR", False, 1),
    Step("edge_counts", "python benchmarks/edge_counts.py", False, 2),
    Step("nmnist_cnn", "python benchmarks/nmnist_cnn.py --data DIR", True, 1),
    Step("orders", "python benchmarks/orders.py", True, 1),
    Step("table2", "python benchmarks/table2.py", True, 3),
    Step("table3", "python benchmarks/table3.py --data DIR", True, 25),
    Step("table4", "python benchmarks/table4.py --data DIR", True, 45),
    Step("ablations", "python benchmarks/ablations.py --data DIR", True, 25),
    Step("density", "python benchmarks/ablations.py --data DIR --density", True, 12),
)


class Row(NamedTuple):
    """A line of the page: what of the paper, the command, the paper's figure, and ours with a status from results."""

    what: str
    command: str
    step: str
    paper: str
    ours: Callable[[Results], tuple[str, str]]


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def table1(r: Results) -> tuple[str, str]:
    rows = [row for row in r["orders"]["rows"] if row["device"] == "cuda"] or r["orders"]["rows"]
    by_layer: dict[str, list[dict]] = {}
    for row in rows:
        by_layer.setdefault(row["layer"], []).append(row)
    unequal = [each for each in by_layer.values() if len({row["multiply_adds"] for row in each}) > 1]
    agree = sum(min(each, key=lambda row: row["torch_ms"])["cheaper"] for each in unequal)
    result = f"the order with fewer multiply-adds is faster for {agree} of {len(unequal)} layers (sparse products)"
    return result, "reproduced" if agree == len(unequal) else "not reproduced"


def table2(key: str, unit: str, digits: int) -> Callable[[Results], tuple[str, str]]:
    def row(r: Results) -> tuple[str, str]:
        rows = {row["method"]: row for row in r["table2"]["rows"] if row["precision"] == "IEEE float32"}
        ours, flex = rows["ours, FlexConv's"][key], rows["FlexConv"][key]
        result = f"{ours:.{digits}f} {unit}; FlexConv in torch {flex:.{digits}f} {unit}"
        return result, "better" if ours < flex else "not reproduced"

    return row


def table3(r: Results) -> tuple[str, str]:
    rows = {(row["part"], row["network"], row["batch"], row["points"]): row for row in r["table3"]["rows"]}
    seconds = {
        part: rows[part, "modelnet40-large", 128, "dropped"]["seconds_per_epoch"]
        for part in ("online", "workers", "files")
        if "seconds_per_epoch" in rows.get((part, "modelnet40-large", 128, "dropped"), {})
    }
    if not seconds:
        raise KeyError("modelnet40-large")
    # 576 points on average, as the authors trained.
    better = seconds.get("online", 0.0) < 11.2 and seconds.get("files", 0.0) < 4.13
    result = ", ".join(f"{part} {s:.2f} s" for part, s in seconds.items())
    return f"{result} (dropped points)", "better" if better else "not reproduced"


def memory(r: Results) -> tuple[str, str]:
    rows = [row for row in r["table3"]["rows"] if row["part"] == "limit"]
    if not rows:
        raise KeyError("limit")
    parts = [
        f"{row['network']}, {row['points']} points: "
        + (row.get("error") or f"{row['seconds_per_epoch']:.2f} s, {row['peak_mib']:,.0f} MiB")
        for row in rows
    ]
    failing = {row["points"] for row in rows if "error" in row}
    status = "not reproduced" if "dropped" in failing else "reproduced with dropped points" if failing else "reproduced"
    return "; ".join(parts), status


def table4(network: str, mean: float) -> Callable[[Results], tuple[str, str]]:
    def row(r: Results) -> tuple[str, str]:
        official = r["official"]["weights"][f"modelnet40-{network}"]
        result = f"{percent(official['accuracy'])} (shipped weights, official test split)"
        status = "better than the paper's mean (one network)" if official["accuracy"] > mean else "not reproduced"
        for name, runs in r.get("table4", {}).get("rows", {}).items():
            if name.startswith(network):
                each = runs["valid_accuracy"]
                result += f"; {name}, {len(runs['seeds'])} seeds on held-out clouds: {percent(each['mean'])} "
                result += f"± {percent(each['deviation'])}, best {percent(each['best'])}"
        return result, status

    return row


def table5(r: Results) -> tuple[str, str]:
    folds = r["nmnist_folds"]["rows"]["n-mnist"]
    result = f"{100 * folds['accuracy']:.1f} ± {100 * folds['spread over folds']:.1f}, ten folds of 1,000 recordings"
    if "nmnist_cnn" in r and len(r["nmnist_cnn"]["runs"]) == 10:
        cnn = r["nmnist_cnn"]
        result += f"; a small CNN on frames {100 * cnn['mean']:.1f} ± {100 * cnn['spread']:.1f}"
    return result, "not reproduced: few data"


def table7(r: Results) -> tuple[str, str]:
    stats = r["stats"]["rows"]["n-mnist"]
    events = stats["lines"]["X0 events"]["rows"]
    counts = f"N-MNIST, {stats['examples']:,} recordings: {events['median']:,.0f}, {events['mean']:,.0f}, "
    return f"{counts}{events['max']:,.0f}", "reproduced for N-MNIST; four sets: no data"


def densities(r: Results) -> tuple[str, str]:
    lines = r["stats"]["rows"]["modelnet40-large"]["lines"]
    points = [f"{v['rows']['median']:,.0f}" for k, v in lines.items() if k.startswith("X")]
    near = [f"{lines[k]['neighbours']['mean']:.1f}" for k in lines if k.split()[0] in ("N00", "N11", "N22", "N33")]
    return f"{', '.join(points)} points (medians); {', '.join(near)} neighbours (means)", "roughly reproduced"


def evenness(r: Results) -> tuple[str, str]:
    parts, rows = [], r["edge_counts"]["rows"]
    for data in dict.fromkeys(row["data"] for row in rows):
        variation = {row["sampler"]: row["neighbours_cv"] for row in rows if row["data"] == data}
        parts.append(
            f"{data.split(',')[0].split(' (')[0]} {variation['rejection']:.2f}, random {variation['random']:.2f}"
        )
    even = all(
        row["neighbours_cv"] < other["neighbours_cv"]
        for row in rows
        for other in rows
        if row["data"] == other["data"] and (row["sampler"], other["sampler"]) == ("rejection", "random")
    )
    status = "reproduced" if even else "not reproduced"
    return "; ".join(parts), status


def geometry(r: Results) -> tuple[str, str]:
    rates = {row["who"]: row["clouds/s"] for row in r["geometry_chain"]["rows"]}
    return f"{rates['gridless, batch of 128']:,.0f} clouds/s, one core", "better"


def streaming(r: Results) -> tuple[str, str]:
    errors = [row["error"]["engine"] for row in r["streaming"]["results"].values() if "error" in row]
    return f"relative difference at most {max(errors):.0e}, {len(errors)} networks", "built and measured here"


def drawn(r: Results) -> tuple[str, str]:
    names = ("1", "2a", "2b", "3a", "3b", "4a", "4b", "4c", "5a", "5b")
    if not all((ROOT / "docs" / "images" / f"paper-{n}.png").is_file() for n in names):
        raise KeyError("figures")
    return "`docs/images/paper-1.png` to `paper-5b.png`", "reproduced"


ROWS = (
    Row("Table 1, cost of the two orders", "python benchmarks/orders.py", "orders",
        "multiply-adds and memory, counted only", table1),
    Row("Table 2, forward", "python benchmarks/table2.py", "table2",
        "2.7 ms; FlexConv's own kernel 24 ms (GTX 1080 Ti)", table2("forward, eager ms", "ms", 2)),
    Row("Table 2, forward and backward", "python benchmarks/table2.py", "table2",
        "2.7 + 4.1 ms; FlexConv's own kernel 24 + 265 ms (GTX 1080 Ti)", table2("both, eager ms", "ms", 2)),
    Row("Table 2, memory", "python benchmarks/table2.py", "table2",
        "49 MB; FlexConv's own kernel 8.7 MB", table2("both, MiB", "MiB", 0)),
    Row("Table 3, seconds an epoch, large network, batches of 128", "python benchmarks/table3.py --data DIR", "table3",
        "online 11.2 s, offline 4.13 s (GTX 1080 Ti)", table3),
    Row("Results, batches of 4,096 on a card of 11 GB", "python benchmarks/table3.py --data DIR --part limit",
        "table3", "fit", memory),
    Row("Results, 7 searches and 3 samplings on the CPU", "python benchmarks/geometry.py", "", "over 800 clouds/s, "
        "8 cores", geometry),
    Row("Table 4, ModelNet40, large network, %", "python benchmarks/table4.py --data DIR", "table4",
        "90.34 mean of ten, 91.08 best", table4("large", 0.9034)),
    Row("Table 4, ModelNet40, small network, %", "python benchmarks/table4.py --data DIR", "table4",
        "87.94 mean of ten, 88.77 best", table4("small", 0.8794)),
    Row("Table 5, N-MNIST, %", "python benchmarks/nmnist_folds.py", "nmnist_cnn", "99.2, trained on 60,000", table5),
    Row("Table 5, other event sets, %", "gridless train paper/mnist-dvs --data DIR", "",
        "MNIST-DVS 99.1, CIFAR10-DVS 56.6, N-Caltech101 63.0, ASL-DVS 94.6", lambda r: ("", "not reproduced: no data")),
    Row("Table 7, events per recording (median, mean, maximum)", "gridless stats n-mnist --data DIR", "stats",
        "N-MNIST, 60,000 recordings: 4,196, 4,171, 8,183", table7),
    Row("Experiments, densities of the large network", "gridless stats modelnet40-large --data DIR", "stats",
        "25 % of the points at each level, about 10 neighbours in place", densities),
    Row("Method, rejection samples are more even (coefficient of variation)", "python benchmarks/edge_counts.py",
        "edge_counts", "claimed, no figure", evenness),
    Row("Method, live features equal those of training", "python benchmarks/streaming.py", "",
        "proposed", streaming),
    Row("Figures 1 to 5", "python docs/images/make.py paper", "figures", "", drawn),
)  # fmt: skip

HEAD = """# Reproduction

This page compares each table and figure of the paper with our figure, and gives it a status. The paper is *Sparse
Convolutions on Continuous Domains for Point Cloud and Event Stream Networks* (Jack, Maire, Denman, Eriksson, ACCV 2020,
[arXiv 2012.01170](https://arxiv.org/abs/2012.01170)).

Terms: *in place* means from a cloud to itself. *Eager* is a plain PyTorch loop, *captured* a call as a CUDA graph.
*Online* makes the geometry of each batch on the device that trains, *workers* in processes beside it, *files* (the
paper's *offline*) reads it from disk.

Our GPU figures are from an H200, the paper's from a GTX 1080 Ti: read *better* with this in mind. FlexConv in torch ran
in the same run as ours. FlexConv's own kernel was not run here.

"""

COMMANDS = """## Run it again

`make reproduce DATA=DIR` runs everything that the machine can run. The commands one by one:

"""

CITE = """## Cite

```bibtex
@InProceedings{Jack_2020_ACCV,
  author    = {Jack, Dominic and Maire, Frederic and Denman, Simon and Eriksson, Anders},
  title     = {Sparse Convolutions on Continuous Domains for Point Cloud and Event Stream Networks},
  booktitle = {Proceedings of the Asian Conference on Computer Vision (ACCV)},
  year      = {2020},
  eprint    = {2012.01170},
  archivePrefix = {arXiv}
}
```

`CITATION.cff` has the same for tools. `python benchmarks/reproduction.py` writes this page from
`benchmarks/results/`.

Next: [Paper to code](paper-to-code.md), where code and paper differ, or [Ablations](ablations.md), each design choice
changed alone.
"""


def load() -> Results:
    files = [*RESULTS.glob("*.json"), *FOLDER.glob("*.json")]
    return {path.stem: json.loads(path.read_text()) for path in files}


def table(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else f"{value:,}" if type(value) is int else str(value).replace("|", "/")


def page() -> str:
    """docs/reproduction.md."""
    r = load()
    rows, commands = [], []
    for row in ROWS:
        try:
            ours, status = row.ours(r)
        except (KeyError, StopIteration, ValueError, IndexError):
            ours, status = "", "not run yet"
        run = r.get("runs", {}).get(row.step, {})
        where = f"{run['minutes']:.0f} min, {run['machine']}" if run else "; ".join(_machine(r, row.step))
        rows.append([row.what, row.paper, ours, status])
        commands.append([row.what, f"`{row.command}`", where])
    again = COMMANDS + table(["result", "command", "measured on"], commands)
    details = [part for part in (make(r) for make in DETAILS) if part]
    return "\n".join([HEAD + table(["result", "paper", "here", "status"], rows), *details, again, CITE])


def _machine(r: Results, step: str) -> list[str]:
    machine = r.get(step, {}).get("machine")
    return [str(machine.get("gpu") or machine.get("cpu"))] if isinstance(machine, dict) else []


def official(r: Results) -> str:
    rows = []
    for name, row in r["official"]["weights"].items():
        figures = f"{percent(row['instance_iou'])} / {percent(row['category_iou'])} instance / category mIoU" if (
            "instance_iou" in row) else percent(row["accuracy"])  # fmt: skip
        classes = percent(row["mean_class_accuracy"]) if "mean_class_accuracy" in row else ""
        paper = ", ".join(f"{percent(v)} {k}" for k, v in row.get("paper", {}).items())
        rows.append([f"`{name}`", row["on"], figures, classes, paper])
    columns = ["weights", "judged on", "%", "mean over classes, %", "paper, %"]
    return f"## Shipped weights on official test splits\n\n{r['official']['how']}\n\n{table(columns, rows)}"


def orders(r: Results) -> str:
    if "orders" not in r:
        return ""
    columns = ["layer", "order", "multiply-adds, millions", "ours, ms", "ours, MiB", "sparse products, ms", "MiB"]
    rows = [[row["layer"], row["order"] + (", chosen" if row["cheaper"] else ""), row["multiply_adds"] / 1e6, row["ms"],
             row["mib"], row["torch_ms"], row["torch_mib"]] for row in r["orders"]["rows"]]  # fmt: skip
    caption = "Forward pass. *Chosen*: the order that the layer takes. MiB: memory beyond inputs and result."
    return f"## Table 1\n\n{caption}\n\n{table(columns, rows)}"


def operator(r: Results) -> str:
    if "table2" not in r:
        return ""
    keys = [f"{what}, {how}" for what in ("forward", "both") for how in ("eager ms", "captured ms", "MiB")]
    rows = [[row["method"], row["precision"], *(row.get(key) for key in keys)] for row in r["table2"]["rows"]]
    caption = (
        "8 clouds of 4,096 points, 9 neighbours, 64 to 64 channels. *Both*: forward and backward pass, with "
        "gradients of features and weights. *Ours, FlexConv's*: our operator with FlexConv's function, which the "
        "lines at the top compare."
    )
    return f"## Table 2\n\n{caption}\n\n{table(['method', 'precision', *keys], rows)}"


def epochs(r: Results) -> str:
    if "table3" not in r:
        return ""
    rows = []
    for row in r["table3"]["rows"]:
        geometry = "" if row["part"] == "peers" else row["part"]
        seconds = row.get("seconds_per_epoch", row.get("error"))
        cells = [row["network"], row["batch"], geometry, row["points"], seconds]
        rows.append([*cells, row.get("peak_mib"), row.get("precompute_seconds")])
    columns = ["network", "batch", "geometry", "points", "s an epoch", "peak, MiB", "making the files, s"]
    caption = (
        f"An epoch has {r['table3']['examples']:,} clouds. *Full*: 1,024 points; *dropped*: 576 on average. Ours are "
        "captured steps in TF32, as `gridless train` runs; PointNet2 and PointCNN are PyG's layers over our searches, "
        "eager in TF32. *Online*: geometry on the GPU. *Workers*: 8 processes on the CPU, which prepare whole batches: "
        "with one batch an epoch, one of them works. *Files*: read from files that were made before. *Limit*: "
        "online, where the allocator may use 11 GB. A peak of rows online may include up to 2 GiB that the row before "
        "it left. Five rows of workers and files of the small network have not been measured. "
        "On this machine making geometry on the GPU is faster than reading it or making it on the CPU."
    )
    return f"## Table 3\n\n{caption}\n\n{table(columns, rows)}"


def statistics(r: Results) -> str:
    parts = []
    for name, stats in r.get("stats", {}).get("rows", {}).items():
        rows = [[line, *(v[what][of] if what in v else "" for what in ("rows", "neighbours") for of in
                         ("median", "mean", "max"))] for line, v in stats["lines"].items()]  # fmt: skip
        columns = ["line", *(f"{what}, {of}" for what in ("rows", "neighbours") for of in ("median", "mean", "max"))]
        caption = f"`gridless stats {name} --data DIR`: {stats['examples']:,} examples, not augmented."
        parts.append(f"### {name}\n\n{caption}\n\n{table(columns, rows)}")
    return "## Table 7\n\n" + "\n".join(parts) if parts else ""


DETAILS = (official, orders, operator, epochs, statistics)

ABLATIONS = """# Ablations

This page changes one design choice of the paper at a time, in its large network on ModelNet40. A choice is a setting of
a recipe (`gridless train modelnet40-large --set model.order=1`) and of a network (`gl.nn.Choices`).

Terms: *monomials* are products of powers of the coordinates; *kernel points* are bumps around fixed points. The
*fall-off* weights a neighbour by its distance. *Normalised* weights of a neighbourhood add up to 1.

| setting | values | the paper's |
|---|---|---|
| `model.order` | 0, 1, 2, 3: the highest order of the monomials | 2 |
| `model.basis` | `monomials`, `kernel points` | `monomials` |
| `model.nearest` | null (balls), or the number of nearest neighbours | null |
| `model.limit` | null, or so many nearest neighbours of a ball at most (64 in the authors' code) | null |
| `model.falloff` | `linear`, null | `linear` |
| `model.normalise` | true, false | true |
| `model.sampler` | `rejection`, `farthest`, `approximate farthest`, `random` | `rejection` |
| `model.fraction` | points that samplers other than rejection keep | 0.25 |
| `model.self_edge` | true, false: whether a point is its own neighbour | true |

"""

FINDINGS = """- **Order.** The second order is worth 11 points over the first; a third adds nothing. A kernel of order 0
  is a mean: where all points have the same features, it sees nothing of the cloud.
- **Normalised weights matter, their fall-off does not.** Without normalisation features grow with the number of
  neighbours. A point has 15 neighbours on average in the first ball, but in a few clouds up to 1,024; one of these
  decides the statistics of its batch, and accuracy depends on the seed. A limit of 64 neighbours, as in the authors'
  code, mends that (below).
- **Ball or nearest** have the same accuracy. Nearest neighbours take 1.3 times the time and two to three and
  a half times the memory.
- **Samplers.** Rejection keeps points at a fixed distance, from a thinned cloud as from a whole one. The others keep a
  fifth of the points, so fewer of a thinned cloud, and training thins clouds. Radii were not tuned again for them.
- **Self-edges** can be left out.
"""

DENSITY = """Accuracy in %, by points per cloud. Ours is on held-out training clouds,
the authors' on the test split: compare the shapes of the curves, not their values. As in the authors' code, a point has
at most 64 neighbours (`model.limit=64`), or 128 where the cloud is thinned. Mean and deviation of the seeds."""


def ablations() -> str:
    """docs/ablations.md."""
    r = load()
    parts = [ABLATIONS, "## Accuracy, time and memory\n\n`python benchmarks/ablations.py --data DIR`. "]
    if "ablations" in r:
        rows = [[row["name"], 100 * row["1024"]["mean"], 100 * row["1024"]["deviation"], row["seeds"],
                 row.get("seconds_per_epoch"), row.get("peak_mib")] for row in r["ablations"]["rows"]]  # fmt: skip
        columns = ["", "accuracy, %", "deviation", "seeds", "s an epoch", "peak, MiB"]
        machine = r["ablations"]["machine"]
        parts[-1] += (
            f"Trained for {r['ablations']['epochs']} epochs with dropped points, judged on held-out clouds of 1,024 "
            f"points. The recipe itself takes 360 epochs. Captured steps, TF32, {machine['gpu']}.\n\n"
            + table(columns, rows)
        )
        parts.append(FINDINGS)
        parts.append("![Accuracy with each choice](images/ablations.png)\n")
    else:
        parts[-1] += "Not run yet.\n"
    parts.append("## Fewer points\n\n`python benchmarks/ablations.py --data DIR --density`. ")
    if "density" in r:
        counts = ("32", "64", "128", "256", "512", "1024")
        from ablations import AUTHORS

        rows = []
        for row in r["density"]["rows"]:
            figures = [row[count] for count in counts]
            several = row["seeds"] > 1
            spread = [f" ± {100 * v['deviation']:.1f}" if several else "" for v in figures]
            means = [f"{100 * v['mean']:.1f}{s}" for v, s in zip(figures, spread)]
            rows.append([f"{row['name']}, {row['seeds']} seed{'s' if several else ''}", *means])
            rows.append([f"{row['name']}, authors (test clouds)", *(f"{v:.1f}" for v in AUTHORS[row["name"]])])
        missing = [name for name in AUTHORS if name not in {row["name"] for row in r["density"]["rows"]}]
        if missing:
            rows.append([f"not run yet: {'; '.join(missing)}", *[""] * len(counts)])
        parts[-1] += f"{DENSITY}\n\n{table(['', *counts], rows)}"
        parts.append("![Accuracy by number of points](images/density.png)\n")
    else:
        parts[-1] += "Not run yet.\n"
    if "edge_counts" in r:
        keys = ("samples", "neighbours", "neighbours_cv", "points_without_a_sample")
        rows = [[row["data"], row["sampler"], *(row[key] for key in keys)] for row in r["edge_counts"]["rows"]]
        columns = ["", "sampler", "samples", "neighbours", "coefficient of variation", "points without a sample"]
        caption = "`python benchmarks/edge_counts.py`. Every sampler keeps the same number of samples. Neighbours are\n"
        caption += "samples within twice the radius. A lower coefficient of variation means more even neighbourhoods."
        parts.append(f"## Evenness of samples\n\n{caption}\n\n{table(columns, rows)}")
        parts.append("![Neighbours of a sample](images/edge_counts.png)\n")
    parts.append("Next: [Reproduction](reproduction.md), or [Making it fast](tutorials/fast.md).\n")
    return "\n".join(parts)


PAGES = {"reproduction.md": page, "ablations.md": ablations}


def charts() -> dict[str, Callable[[Path], None]]:
    """Name of a chart of docs/ablations.md -> a function that draws it, for the results that there are."""
    import ablations
    import edge_counts

    r, drawn = load(), {}
    for name in ("ablations", "density"):
        if name in r:
            drawn[f"{name}.png"] = partial(ablations.draw, r[name]["rows"], name == "density")
    if "edge_counts" in r:
        drawn["edge_counts.png"] = partial(edge_counts.draw, r["edge_counts"]["rows"])
    return drawn


def write() -> None:
    for name, make in PAGES.items():
        (ROOT / "docs" / name).write_text(make())
    for name, draw in charts().items():
        draw(ROOT / "docs" / "images" / name)


def run(data: str | None, only: list[str] | None) -> int:
    """Run the steps that are missing; returns how many failed."""
    import torch

    runs_file, failed = FOLDER / "runs.json", 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for step in STEPS:
        wanted = step.name in only if only else not (FOLDER / f"{step.name}.json").is_file()
        if step.name == "figures" and not only:
            wanted = not (ROOT / "docs" / "images" / "paper-5b.png").is_file()
        if not wanted:
            continue
        if step.gpu and not torch.cuda.is_available():
            print(f"{step.name}: left out, it needs a GPU (about {step.minutes} minutes)", flush=True)
            continue
        if "DIR" in step.command and data is None:
            print(f"{step.name}: left out, it needs --data DIR", flush=True)
            continue
        command = [sys.executable, *shlex.split(step.command.replace("DIR", str(data)))[1:]]
        print(f"{step.name}: {step.command} (about {step.minutes} minutes)", flush=True)
        began = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        if status:
            failed += 1
            print(f"{step.name}: failed, status {status}", flush=True)
            continue
        runs = json.loads(runs_file.read_text()) if runs_file.is_file() else {}
        from common import cpu

        where = torch.cuda.get_device_name() if step.gpu else cpu()
        runs[step.name] = {"minutes": (time.perf_counter() - began) / 60, "machine": where}
        runs_file.write_text(json.dumps(runs, indent=1) + "\n")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run"], help="run what is missing first")
    parser.add_argument("--data", help="the folder of the data sets")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], help="these steps, again")
    arguments = parser.parse_args()
    failed = run(arguments.data, arguments.only) if arguments.what == "run" else 0
    write()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
