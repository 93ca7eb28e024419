"""The paper's tables and figures: run what this machine can run, and write docs/reproduction.md and docs/ablations.md.

    python benchmarks/reproduction.py                      write the two pages from benchmarks/results
    python benchmarks/reproduction.py run --data DIR       run what is missing first; `make reproduce DATA=DIR`

A script that measures several rows is always run, and leaves out those in its file; others are run if their file is not
there. `--anew` removes the files first. Steps that need a GPU are left out on machines without one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from table4 import ROWS as TABLE4

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = RESULTS / "reproduction"
Results = dict[str, Any]
# Part of Table 3 -> name on the page.
WAYS = {"online": "GPU", "workers": "workers", "files": "files"}


class Step(NamedTuple):
    """One command: the file it writes, whether it leaves out rows that are there, whether it needs a GPU, and about how
    many minutes it takes as a whole (None: not known)."""

    name: str
    command: str
    file: Path
    goes_on: bool
    gpu: bool
    minutes: int | None


STEPS = (
    Step("figures", "python docs/images/make.py paper", ROOT / "docs" / "images" / "paper-5b.png", True, False, 1),
    Step("stats", "python benchmarks/stats.py --data DIR", FOLDER / "stats.json", True, False, 2),
    Step("update_orders", "python benchmarks/update_orders.py --data DIR", FOLDER / "update_orders.json",
         False, False, 1),
    Step("edge_counts", "python benchmarks/edge_counts.py", FOLDER / "edge_counts.json", False, False, 1),
    Step("geometry_chain", "python benchmarks/geometry.py chain", RESULTS / "geometry_chain.json", False, False, 5),
    Step("streaming", "python benchmarks/streaming.py --data DIR", RESULTS / "streaming.json", False, False, 5),
    Step("nmnist_cnn", "python benchmarks/nmnist_cnn.py --data DIR", FOLDER / "nmnist_cnn.json", True, False, 26),
    Step("nmnist_folds", "python benchmarks/nmnist_folds.py --data DIR --out runs/folds --jobs 10 --set epochs=50 "
         "--row n-mnist", RESULTS / "nmnist_folds.json", False, True, None),
    Step("orders", "python benchmarks/orders.py", FOLDER / "orders.json", True, True, 1),
    Step("table2", "python benchmarks/table2.py", FOLDER / "table2.json", True, True, 3),
    Step("table3", "python benchmarks/table3.py --data DIR", FOLDER / "table3.json", True, True, 25),
    Step("table4", "python benchmarks/table4.py --data DIR", FOLDER / "table4.json", True, True, 25),
    Step("ablations", "python benchmarks/ablations.py --data DIR", FOLDER / "ablations.json", True, True, 25),
    Step("density", "python benchmarks/ablations.py --data DIR --density", FOLDER / "density.json", True, True, 12),
)  # fmt: skip


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
    return result, "time reproduced; memory below" if agree == len(unequal) else "not reproduced"


def table2(key: str, paper: float) -> Callable[[Results], tuple[str, str]]:
    def row(r: Results) -> tuple[str, str]:
        rows = {row["method"]: row for row in r["table2"]["rows"] if row["precision"] == "IEEE float32"}
        ours, flex = rows["ours, FlexConv's"][key], rows["FlexConv"][key]
        result = f"{ours:.2f} ms; FlexConv in torch {flex:.2f} ms"
        return result, "better" if ours < min(flex, paper) else "not reproduced"

    return row


def table2_memory(r: Results) -> tuple[str, str]:
    rows = {row["method"]: row for row in r["table2"]["rows"] if row["precision"] == "IEEE float32"}
    ours, flex = rows["ours, FlexConv's"]["both, MiB"], rows["FlexConv"]["both, MiB"]
    status = "less than the paper's, more than FlexConv's own kernel" if 8.7 < ours < 49 else "not reproduced"
    return f"{ours:.0f} MiB; FlexConv in torch {flex:.0f} MiB", status


def table3(network: str, online: float, offline: float) -> Callable[[Results], tuple[str, str]]:
    def row(r: Results) -> tuple[str, str]:
        # 576 points on average, as the authors trained.
        seconds = {
            (row["part"], row["batch"]): row["seconds_per_epoch"]
            for row in r["table3"]["rows"]
            if row["network"] == f"modelnet40-{network}" and row["points"] == "dropped" and "seconds_per_epoch" in row
        }
        result = ", ".join(f"{WAYS[part]} {seconds[part, 128]:.2f} s" for part in WAYS) + " (dropped points)"
        if seconds["workers", 128] >= online or seconds["files", 128] >= offline:
            return result, "not reproduced"
        # The paper's point: geometry that was made before saves time.
        both = [batch for part, batch in seconds if part == "files" and ("workers", batch) in seconds]
        wins = sum(seconds["files", batch] < seconds["workers", batch] for batch in both)
        return result, f"faster; files beat workers at {wins} of {len(both)} batch sizes"

    return row


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
        status = "one network: better than the paper's mean" if official["accuracy"] > mean else "not reproduced"
        for name, runs in r.get("table4", {}).get("rows", {}).items():
            if name.startswith(network):
                each, several = runs["valid_accuracy"], len(runs["seeds"]) > 1
                seeds = f"{len(runs['seeds'])} seeds" if several else "one seed"
                result += f"; {name}, {seeds} on held-out clouds: {percent(each['mean'])}"
                result += f" ± {percent(each['deviation'])}, best {percent(each['best'])}" if several else ""
        for name in TABLE4.keys() - r.get("table4", {}).get("rows", {}).keys():
            result += f"; {name}: not run" if name.startswith(network) else ""
        return result, status

    return row


def table5(r: Results) -> tuple[str, str]:
    folds = r["nmnist_folds"]["rows"]["n-mnist"]
    result = f"{100 * folds['accuracy']:.1f} ± {100 * folds['spread over folds']:.1f}, ten folds, our recipe"
    return result, "not reproduced: 1,000 of 60,000 recordings, 50 of 500 epochs"


def table5_initialised(r: Results) -> tuple[str, str]:
    (folds,) = (row for name, row in r["nmnist_folds"]["rows"].items() if "initialised" in name)
    result = f"{100 * folds['accuracy']:.1f} ± {100 * folds['spread over folds']:.1f}, the same folds"
    return result, "for comparison"


def frames(r: Results) -> tuple[str, str]:
    cnn = r["nmnist_cnn"]
    return f"{100 * cnn['mean']:.1f} ± {100 * cnn['spread']:.1f}, the same folds", "for comparison"


def table7(r: Results) -> tuple[str, str]:
    stats = r["stats"]["rows"]["n-mnist"]
    events = stats["lines"]["X0 events"]["rows"]
    counts = f"N-MNIST, {stats['examples']:,} recordings: {events['median']:,.0f}, {events['mean']:,.0f}, "
    return f"{counts}{events['max']:,.0f}", "close, on a sixtieth of N-MNIST; four sets: no data"


def densities(r: Results) -> tuple[str, str]:
    lines = r["stats"]["rows"]["modelnet40-large"]["lines"]
    points = ", ".join(f"{v['rows']['median']:,.0f}" for k, v in lines.items() if k.startswith("X"))
    near = {k.split()[0]: v["neighbours"]["mean"] for k, v in lines.items() if k.startswith("N")}
    place, down = (", ".join(f"{near[k]:.1f}" for k in names.split()) for names in ("N00 N11 N22 N33", "N01 N12 N23"))
    result = f"{points} points (medians); {place} neighbours in place, {down} when down-sampling (means)"
    return result, "more neighbours than the paper's at the first level, fewer at the others"


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
    rate = rates["gridless, batch of 128"]
    return f"{rate:,.0f} clouds/s, one core", "better" if rate > 800 else "not reproduced"


def streaming(r: Results) -> tuple[str, str]:
    errors = [row["error"]["engine"] for row in r["streaming"]["results"].values() if "error" in row]
    status = "built and measured here" if max(errors) < 1e-4 else "not reproduced"
    return f"relative difference at most {max(errors):.0e}, {len(errors)} networks", status


def drawn(r: Results) -> tuple[str, str]:
    names = ("1", "2a", "2b", "3a", "3b", "4a", "4b", "4c", "5a", "5b")
    if not all((ROOT / "docs" / "images" / f"paper-{n}.png").is_file() for n in names):
        raise KeyError("figures")
    return ", ".join(f"[{n}](images/paper-{n}.png)" for n in names), "reproduced; 4c is of a chair that we made"


ROWS = (
    Row("Table 1, cost of the two orders", "python benchmarks/orders.py", "orders",
        "multiply-adds and memory, counted only", table1),
    Row("Table 2, forward, eager, IEEE float32", "python benchmarks/table2.py", "table2",
        "2.7 ms; FlexConv's own kernel 24 ms (GTX 1080 Ti)", table2("forward, eager ms", 2.7)),
    Row("Table 2, forward and backward, eager, IEEE float32", "python benchmarks/table2.py", "table2",
        "2.7 + 4.1 ms; FlexConv's own kernel 24 + 265 ms (GTX 1080 Ti)", table2("both, eager ms", 6.8)),
    Row("Table 2, memory, eager, IEEE float32", "python benchmarks/table2.py", "table2",
        "49 MB; FlexConv's own kernel 8.7 MB", table2_memory),
    Row("Table 3, seconds an epoch, large network, batches of 128, captured, TF32",
        "python benchmarks/table3.py --data DIR", "table3",
        "online 11.2 s, offline 4.13 s (GTX 1080 Ti)", table3("large", 11.2, 4.13)),
    Row("Table 3, seconds an epoch, small network, batches of 128, captured, TF32",
        "python benchmarks/table3.py --data DIR", "table3",
        "online 11.2 s, offline 2.06 s (GTX 1080 Ti)", table3("small", 11.2, 2.06)),
    Row("Results, batches of 4,096 on a card of 11 GB, captured, TF32",
        "python benchmarks/table3.py --data DIR --part limit", "table3", "fit", memory),
    Row("Results, 7 searches and 3 samplings on the CPU", "python benchmarks/geometry.py chain",
        "geometry_chain", "over 800 clouds/s, 8 cores", geometry),
    Row("Table 4, ModelNet40, large network, %", "python benchmarks/table4.py --data DIR", "table4",
        "90.34 mean of ten, 91.08 best", table4("large", 0.9034)),
    Row("Table 4, ModelNet40, small network, %", "python benchmarks/table4.py --data DIR", "table4",
        "87.94 mean of ten, 88.77 best", table4("small", 0.8794)),
    Row("Table 5, N-MNIST, %", "python benchmarks/nmnist_folds.py --data DIR --out OUT --jobs 10 --set epochs=50 "
        "--row n-mnist", "nmnist_folds", "99.2, trained on 60,000", table5),
    Row("Table 5, N-MNIST, initialised from weights of moving glyphs, %",
        "python benchmarks/nmnist_folds.py --data DIR --out OUT --set epochs=50 --set start=WEIGHTS --row NAME",
        "nmnist_folds", "", table5_initialised),
    Row("Table 5, N-MNIST, a small CNN on frames, %", "python benchmarks/nmnist_cnn.py --data DIR", "nmnist_cnn", "",
        frames),
    Row("Table 5, other event sets, %", "gridless train paper/mnist-dvs --data DIR", "",
        "MNIST-DVS 99.1, CIFAR10-DVS 56.6, N-Caltech101 63.0, ASL-DVS 94.6", lambda r: ("", "not reproduced: no data")),
    Row("Table 7, events per recording (median, mean, maximum)", "gridless stats n-mnist --data DIR", "stats",
        "N-MNIST, 60,000 recordings: 4,196, 4,171, 8,183", table7),
    Row("Experiments, densities of the large network", "gridless stats modelnet40-large --data DIR", "stats",
        "25 % of the points at each level; about 10 neighbours in place, 20 when down-sampling", densities),
    Row("Method, rejection samples are more even (coefficient of variation)", "python benchmarks/edge_counts.py",
        "edge_counts", "claimed, no figure", evenness),
    Row("Method, live features equal those of training", "python benchmarks/streaming.py --data DIR",
        "streaming", "proposed", streaming),
    Row("Figures 1 to 5", "python docs/images/make.py paper", "figures", "", drawn),
)  # fmt: skip

HEAD = """# Reproduction

This page compares each table and figure of the paper with our figure, and gives it a status. The paper is *Sparse
Convolutions on Continuous Domains for Point Cloud and Event Stream Networks* (Jack, Maire, Denman, Eriksson, ACCV 2020,
[arXiv 2012.01170](https://arxiv.org/abs/2012.01170)).

Terms: *in place* means from a cloud to itself. *Eager* is a plain PyTorch loop, *captured* a call as a CUDA graph.
Geometry of a batch is made on the *GPU* that trains, or by *workers* on the CPU (the paper's *online*), or is read from
*files* (the paper's *offline*).

Our GPU figures are from an H200, the paper's from a GTX 1080 Ti: read *better* with this in mind. FlexConv in torch ran
in the same run as ours. FlexConv's own kernel was not run here.

"""

COMMANDS = """## Run it again

`make reproduce DATA=DIR` measures what is missing in `benchmarks/results/` and can be measured on the machine;
`python benchmarks/reproduction.py run --data DIR --anew` measures everything again. The commands one by one:

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
    rows, commands, minutes = [], [], {step.name: step.minutes for step in STEPS}
    for row in ROWS:
        try:
            ours, status = row.ours(r)
        except (KeyError, StopIteration, ValueError, IndexError):
            ours, status = "", "not run yet"
        rows.append([row.what, row.paper, ours, status])
        commands.append([row.what, f"`{row.command}`", minutes.get(row.step), _machine(r, row.step)])
    again = COMMANDS + table(["result", "command", "minutes, about", "measured on"], commands)
    details = [part for part in (make(r) for make in DETAILS) if part]
    return "\n".join([HEAD + table(["result", "paper", "here", "status"], rows), *details, again, CITE])


def _machine(r: Results, name: str) -> str:
    results = r.get(name, {})
    machine = results.get("machine") or results.get("about", {}).get("device", "")
    return str(machine.get("gpu") or machine["cpu"]) if isinstance(machine, dict) else machine


def official(r: Results) -> str:
    rows = []
    for name, row in r["official"]["weights"].items():
        figures = f"{percent(row['instance_iou'])} / {percent(row['category_iou'])} instance / category mIoU" if (
            "instance_iou" in row) else percent(row["accuracy"])  # fmt: skip
        classes = f"{100 * row['mean_class_accuracy']:.1f}" if "mean_class_accuracy" in row else ""
        paper = ", ".join(f"{percent(v)} {k}" for k, v in row.get("paper", {}).items())
        rows.append([f"`{name}`", row["on"], figures, classes, paper])
    columns = ["weights", "judged on", "%", "mean over classes, %", "paper, %"]
    return f"## Shipped weights on official test splits\n\n{r['official']['how']}\n\n{table(columns, rows)}"


def orders(r: Results) -> str:
    if "orders" not in r:
        return ""
    from orders import LAYERS

    columns = ["layer", "order", "multiply-adds, millions", "the paper's count, MiB", "ours, ms", "ours, MiB"]
    columns += ["sparse products, ms", "sparse products, MiB"]
    rows = []
    for row in r["orders"]["rows"]:
        sources, targets, q, p = LAYERS[row["layer"]]
        counted = 4 * (targets * q if row["order"] == "gather_first" else sources * p) / 2**20
        order = row["order"] + (", chosen" if row["cheaper"] else "")
        rows.append([row["layer"], order, row["multiply_adds"] / 1e6, counted, row["ms"], row["mib"], row["torch_ms"],
                     row["torch_mib"]])  # fmt: skip
    caption = (
        "Forward pass. *Chosen*: the order that the layer takes. MiB: memory beyond inputs and result. The paper "
        "counts the intermediate features of one product; sparse products in torch keep more."
    )
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


# Seconds an epoch in the paper's Table 3, by batch: online, and offline where it is a network of its own.
PAPER_EPOCHS = {
    "PointNet2": {32: (56,), 64: (56,)},
    "PointCNN": {32: (35,), 64: (33,), 128: (33,)},
    "modelnet40-large": {32: (12.9, 6.8), 64: (11.8, 5.1), 128: (11.2, 4.13), 1024: (12.4, 3.6), 4096: (11.5, 3.35)},
    "modelnet40-small": {32: (12.0, 4.35), 64: (11.4, 2.83), 128: (11.2, 2.06), 1024: (11.4, 1.38), 4096: (11.5, 1.41),
                         9840: (13.0, 1.39)},
}  # fmt: skip


def unmeasured(rows: list[dict[str, Any]]) -> str:
    """A sentence that names the rows of Table 3 that are missing, if there are any."""
    from table3 import jobs

    names = ("part", "network", "batch", "points")
    done = {tuple(row[name] for name in names) for row in rows}
    wanted = [tuple(row[name] for name in names) for row in jobs(None)]
    missing = [f"{network}, {part}, {batch:,}" for part, network, batch, points in wanted
               if (part, network, batch, points) not in done]  # fmt: skip
    return f"Not measured: {'; '.join(missing)}. " if missing else ""


def plain_epochs(r: Results) -> str:
    """Seconds an epoch of the large network and of PointNet++ in a plain loop."""
    rows = {row["who"]: row["s/epoch"] for row in r["plain"]["rows"] if row["what"] == "epoch"}
    return f"{rows['ours, large']:.1f} and {rows['PointNet2']:.1f} s at batches of 128"


def epochs(r: Results) -> str:
    if "table3" not in r:
        return ""
    rows = []
    for row in r["table3"]["rows"]:
        geometry = "" if row["part"] == "peers" else WAYS.get(row["part"], row["part"])
        seconds = row.get("seconds_per_epoch", row.get("error"))
        # Its figures are with dropped points; those of other networks with all.
        counts = row["part"] == "peers" or (row["part"] in ("workers", "files") and row["points"] == "dropped")
        paper = PAPER_EPOCHS[row["network"]].get(row["batch"], ()) if counts else ()
        paper = paper[-1 if row["part"] == "files" else 0] if paper else None
        cells = [row["network"], row["batch"], geometry, row["points"], seconds, paper]
        rows.append([*cells, row.get("peak_mib"), row.get("precompute_seconds")])
    columns = ["network", "batch", "geometry", "points", "s an epoch", "paper, s", "peak, MiB", "making the files, s"]
    caption = (
        f"An epoch has {r['table3']['examples']:,} clouds. *Full*: 1,024 points; *dropped*: 576 on average. Ours are "
        "captured steps in TF32, as `gridless train` runs; PointNet2 and PointCNN are PyG's layers over our searches, "
        "eager in TF32 (eager in IEEE float32, ours and PointNet2: "
        f"{plain_epochs(r)}). *Workers*: 8 processes on the CPU, which prepare whole batches: "
        "with one batch an epoch, one of them works. *Files*: read from files that were made before. *Limit*: "
        "on the GPU, where the allocator may use 11 GB. A peak of rows on the GPU may include up to 2 GiB that the row "
        f"before it left. {unmeasured(r['table3']['rows'])}On this machine making geometry on the GPU is faster than "
        "reading it or making it on the CPU. *Paper*: on a GTX 1080 Ti; SpiderCNN, which we have not run, took 196 s."
    )
    return f"## Table 3\n\n{caption}\n\n{table(columns, rows)}"


def statistics(r: Results) -> str:
    parts, named = [], {}
    for name, stats in r.get("stats", {}).get("rows", {}).items():
        named.setdefault(json.dumps(stats["lines"]), (stats, []))[1].append(name)
    for stats, names in named.values():
        name = names[0]
        rows = [[line, *(v[what][of] if what in v else "" for what in ("rows", "neighbours") for of in
                         ("median", "mean", "max"))] for line, v in stats["lines"].items()]  # fmt: skip
        columns = ["line", *(f"{what}, {of}" for what in ("rows", "neighbours") for of in ("median", "mean", "max"))]
        caption = f"`gridless stats {name} --data DIR`: {stats['examples']:,} examples, not augmented."
        caption += " Points are in random order, as in training." if "modelnet" in name else ""
        parts.append(f"### {', '.join(names)}\n\n{caption}\n\n{table(columns, rows)}")
    chart = "![Rows and neighbours of each line of the large network](images/stats.png)\n"
    return "## Table 7\n\n" + "\n".join([*parts, chart]) if parts else ""


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
- **Normalisation.** Without it, and without a limit of neighbours, features grow with the number of neighbours. That
  number is 15 on average in the first ball, but 1,024 in a few clouds. One such cloud decides the statistics of its
  batch, and accuracy depends on the seed. A limit of 64 neighbours, as in the authors' code, mends that (below).
- **Fall-off.** With normalised weights it makes no difference.
- **Ball or nearest** have the same accuracy. Nearest neighbours take 1.3 to 1.4 times the time and two to three times
  the memory.
- **Samplers.** Rejection keeps points at a fixed distance, however many points a cloud has. The others keep a fifth of
  them (`model.fraction=0.2`), and training drops points. Radii were not tuned again for them.
- **Self-edges** can be left out; with them the network takes less memory.
"""

DENSITY = """Accuracy in %, by points per cloud. Ours is on held-out training clouds,
the authors' on the test split: compare the shapes of the curves, not their values. As in the authors' code, a point has
at most 64 neighbours (`model.limit=64`), or 128 when down-sampling. Mean and deviation of the seeds. Ours trained for
100 epochs, the authors' for 400. With this limit normalisation and fall-off make little difference; training with
dropped points is what helps clouds of few points."""


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
            "points. An epoch has 8,858 clouds; the recipe itself takes 360 epochs. Captured steps, TF32, "
            f"{machine['gpu']}.\n\n" + table(columns, rows)
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
        caption += "samples within twice the radius. A lower coefficient of variation means more even neighbourhoods.\n"
        caption += "Points are in random order, as in training. With the ball of rejection, approximate farthest\n"
        caption += "sampling takes the same points ([why](paper-to-code.md))."
        parts.append(f"## Evenness of samples\n\n{caption}\n\n{table(columns, rows)}")
        parts.append("![Neighbours of a sample](images/edge_counts.png)\n")
    parts.append("Next: [Reproduction](reproduction.md), or [Making it fast](tutorials/fast.md).\n")
    return "\n".join(parts)


PAGES = {"reproduction.md": page, "ablations.md": ablations}


def charts() -> dict[str, Callable[[Path], None]]:
    """Name of a chart of docs/ablations.md -> a function that draws it, for the results that there are."""
    import ablations
    import edge_counts

    from gridless.pictures.figures import levels

    r, drawn = load(), {}
    for name in ("ablations", "density"):
        if name in r:
            drawn[f"{name}.png"] = partial(ablations.draw, r[name]["rows"], name == "density")
    if "edge_counts" in r:
        drawn["edge_counts.png"] = partial(edge_counts.draw, r["edge_counts"]["rows"])
    if "modelnet40-large" in r.get("stats", {}).get("rows", {}):
        stats = r["stats"]["rows"]["modelnet40-large"]
        title = f"modelnet40-large, {stats['examples']:,} examples"
        drawn["stats.png"] = lambda out: levels(stats["lines"], title).savefig(out, dpi=80)
    return drawn


def write() -> None:
    for name, make in PAGES.items():
        (ROOT / "docs" / name).write_text(make())
    for name, draw in charts().items():
        draw(ROOT / "docs" / "images" / name)


def run(data: str | None, only: list[str] | None, anew: bool) -> int:
    """Run the steps that are missing; returns how many failed."""
    import torch

    failed, environment = 0, os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment |= {} if data is None else {"GRIDLESS_DATA": str(Path(data).resolve())}
    for step in STEPS:
        if (only and step.name not in only) or (step.file.is_file() and not step.goes_on and not anew):
            continue
        about = "" if step.minutes is None else f" (at most about {step.minutes} minutes)"
        if step.gpu and not torch.cuda.is_available():
            print(f"{step.name}: left out, it needs a GPU{about}", flush=True)
            continue
        if "DIR" in step.command and data is None:
            print(f"{step.name}: left out, it needs --data DIR", flush=True)
            continue
        if anew:
            step.file.unlink(missing_ok=True)
        command = [sys.executable, *shlex.split(step.command.replace("DIR", shlex.quote(str(data))))[1:]]
        print(f"{step.name}: {step.command}{about}", flush=True)
        if status := subprocess.run(command, cwd=ROOT, env=environment).returncode:
            failed += 1
            print(f"{step.name}: failed, status {status}", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run"], help="run what is missing first")
    parser.add_argument("--data", help="the folder of the data sets")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], help="these steps")
    parser.add_argument("--anew", action="store_true", help="remove what was measured before")
    arguments = parser.parse_args()
    failed = run(arguments.data, arguments.only, arguments.anew) if arguments.what == "run" else 0
    write()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
