"""Write docs/benchmarks.md, docs/models.md, docs/reproduction.md and docs/ablations.md from what was measured.

python benchmarks/page.py; the built site is always as new as the results, through `on_page_markdown`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "benchmarks"))

import charts  # noqa: E402
import reproduction  # noqa: E402

# Results on other pages.
ELSEWHERE = {"official", "first_call"}

HEAD = """# Benchmarks

This page compares gridless with other libraries (*peers*), and lists our own times. Each script checks its results
before it times anything. Peers were measured in the same run.

- *Ratio* is the best peer's time over ours, or our rate over the best peer's. Above 1, gridless is faster.
- *Eager* is a plain Python loop. *Captured* is a step or a call as a CUDA graph (`gl.capture`, `gridless train`).
- *With gradients* is a forward and a backward pass. *Geometry* is the result of searches and samplings.
- *TF32* is a 19-bit format of NVIDIA's matrix units. PyTorch's default is IEEE float32; rows name their precision.
- An eager step waits for the host, whose speed varies between runs. Compare times within one table only.
- Other work ran on the two-core machine. Compare its ratios, not its times.

`python benchmarks/page.py` makes this page from `benchmarks/results/*.json`. `benchmarks/NOTES.md` has the reasons.
"""

NEXT = """Next: [Reproduction](reproduction.md) of the paper's tables, or [Making it fast](tutorials/fast.md).
"""


def number(value: Any) -> str:
    """A number of at least three digits, or `not measured`."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "not measured"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "/")
    if isinstance(value, int) or (abs(value) >= 1000 and math.isfinite(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([number(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every number of a nested dict with the names that lead to it; a list of numbers is kept together."""
    if isinstance(value, dict):
        return [leaf for name, part in value.items() for leaf in leaves(part, (*path, str(name)))]
    if isinstance(value, list):
        known = [v for v in value if not (isinstance(v, float) and math.isnan(v))]
        return [(path, ", ".join(number(v) for v in known))]
    return [(path, value)]


def origin(content: dict[str, Any]) -> str:
    """Machine, versions, date and commit of a result, in a line."""
    values = {**content, **content.get("about", {})} if isinstance(content.get("about"), dict) else dict(content)
    machine = values.get("machine", values.get("device", ""))
    if isinstance(machine, dict):
        values, machine = {**values, **machine}, machine.get("gpu") or machine.get("device") or machine.get("cpu")
        machine = machine or values.get("processor", "")
    machine = {
        "x86_64": "2-core Xeon",
        "Intel(R) Xeon(R) Processor": "2-core Xeon",
        ", 1 threads": "2-core Xeon, 1 thread",
    }.get(str(machine), str(machine))
    commit = str(values.get("commit", ""))
    parts = [
        machine,
        f"PyTorch {values['torch']}" if "torch" in values else "",
        str(values.get("date") or _date(commit))[:10],
    ]
    return ", ".join(word for word in [*parts, f"commit {commit}" if commit else ""] if word) + "."


@cache
def _date(commit: str) -> str:
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs", commit]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() if commit else ""


Table = tuple[str, str, list[str], list[list[Any]]]  # title, caption, columns, rows


PEERS = {
    "csr": "CSR products",
    "pyg": "PyG",
    "scipy": "SciPy",
    "open3d": "Open3D",
    **{f"fpsample_h{height}": f"fpsample (height {height})" for height in range(10)},
}


def best(ours: float, peers: dict[str, float], more_is_better: bool) -> list[Any]:
    """Our figure, those of the peers (best first), and the ratio."""
    order = sorted(peers, key=lambda name: peers[name], reverse=more_is_better)
    if not order:
        return [ours, "", ""]
    first = peers[order[0]]
    return [
        ours,
        ", ".join(f"{PEERS.get(name, name)} {number(peers[name])}" for name in order),
        ours / first if more_is_better else first / ours,
    ]


COLUMNS = ["", "unit", "gridless", "others", "ratio"]


def chains(r: dict[str, Any]) -> Table:
    rows = []
    machines = {"": "AVX-512", "_x86-64": "plain x86-64 code", "_neoverse-n1": "Neoverse-N1"}
    for name, machine in ((f"geometry_chain{suffix}", machine) for suffix, machine in machines.items()):
        rates = {row["who"]: row["clouds/s"] for row in r[name]["rows"]}
        peers = {who: rate for who, rate in rates.items() if not who.startswith(("gridless", "floor"))}
        for who, rate in rates.items():
            # One cloud per call was measured on x86-64 with slower code: those rows are left out.
            if who.startswith("gridless") and ("one by one" not in who or name.endswith("n1")):
                rows.append([f"{who.removeprefix('gridless, ')}, {machine}", "clouds/s", *best(rate, peers, True)])
    caption = "The paper's 7 searches and 3 samplings, ModelNet40 clouds of 1,024 points, one core."
    origins = f"{origin(r['geometry_chain'])} The last rows: {origin(r['geometry_chain_neoverse-n1'])}"
    return "Geometry on the CPU", f"{caption} {origins}", COLUMNS, rows


def large(r: dict[str, Any]) -> Table:
    rows = []
    for cores in (1, 2):
        timed = [row for row in r["geometry_large"]["rows"] if row.get("cores") == cores and "seconds" in row]
        times = {row["who"]: row["seconds"] for row in timed if not row["who"].startswith("floor")}
        ours = times.pop("gridless")
        rows.append([f"{cores} core{'s' * (cores > 1)}", "s", *best(ours, times, False)])
    caption = "All pairs within a radius, a million points, 20.6 million edges (SciPy's `query_pairs`: each pair once)."
    return "Ball search", f"{caption} {origin(r['geometry_large'])}", COLUMNS, rows


def samplers(r: dict[str, Any]) -> Table:
    rows = []
    for name, row in r["samplers"]["rows"].items():
        what, _, unit = name.rpartition(", ")
        peers = {who: value for who, value in row.items() if who != "gridless"}
        rows.append([what, unit, *best(row["gridless"], peers, unit != "seconds")])
    return "Samplings and nearest points", f"One core. {origin(r['samplers'])}", COLUMNS, rows


def as_torch_cluster(r: dict[str, Any]) -> Table:
    rows = []
    for row in r["torch_cluster"]["rows"]:
        ours, theirs = (row[f"{who}, ms"] for who in ("gridless", "torch_cluster"))
        rows.append([row["work"], "ms", *best(ours, {"torch_cluster": theirs}, more_is_better=False)])
    caption = "`gridless.compat.torch_cluster` beside torch_cluster 1.6.3, compiled. Processor time on one thread."
    return "Functions of torch_cluster", f"{caption} {origin(r['torch_cluster'])}", COLUMNS, rows


def backbones(r: dict[str, Any]) -> Table:
    rows = []
    for row in r["backbones"]["rows"]:
        ours, theirs = row["gridless"], row.get("spconv", {})
        apart, exact, spconv = (ours.get(key, {}) for key in ("from spconv", "from float64", "spconv from float64"))
        gradients = [facts.get("gradients", "") for facts in (apart, exact, spconv, theirs.get("again", {}))]
        rows.append(
            [
                row["network"],
                "CPU" if "NVIDIA" not in row["device"] else row["device"].removeprefix("NVIDIA "),
                row["precision"],
                row["voxels"],
                apart.get("output", ""),
                *gradients,
                "yes" if all(ours["same bits"].values()) else "output" if ours["same bits"]["output"] else "no",
                *(side.get(what, "") for what in ("forward ms", "both ms", "both MiB") for side in (ours, theirs)),
            ]
        )
    caption = (
        "Networks of other projects, unchanged, with `gl.compat.enable()` and with spconv 2.3.8: the same random "
        "weights, and voxels of a LiDAR scan. Only spconv differs: torch_scatter and flash_attn are those of gridless "
        "on both sides. Differences are relative to the largest value. Empty cells were not measured, or the precision "
        "is not that network's.\n\n"
        "- *MiB*: the peak of a training step above weights, voxels and features.\n"
        "- *Gradients*: of all parameters, in a training step. *From float64*: each library from gridless in float64. "
        "*spconv's, two runs*: gradients of spconv from each other.\n"
        "- *Same bits*, of two runs of gridless: *yes*, or of the *output* only.\n"
        "- Times are eager, in ms, with new indices in each call; CPU: two Xeon cores. They vary: Sonata and Concerto "
        "are one network. In small networks, such as SECOND's, launching kernels on a GPU takes longer than the "
        "kernels: spconv does it in C++, gridless in Python.\n"
        "- Gradients differ more than outputs: rounding changes which side of 0 an input of ReLU is on, or which value "
        "of a pool is the largest. On the H200 those of the two libraries differ by up to 4e-3, and two runs of "
        "spconv by up to 2e-3. In float64 they agree. In float32 on the CPU both are equally far from float64, but "
        "where a sign changes (CenterPoint: spconv 6e-3, gridless 1e-6).\n"
        "- Float16: rounding what goes into and comes out of each layer, with exact sums, changes the gradients of "
        "SpUNet by 0.23 and of CenterPoint by 0.17 (4,000 voxels). Differences of this size come from rounding alone.\n"
        "- spconv's layers stay in training mode on the H200: in evaluation it finds no kernel for 5 x 5 x 5 taps.\n\n"
    )
    columns = ["network", "machine", "precision", "voxels", "output", "gradients", "gradients from float64"]
    columns += ["spconv's from float64", "spconv's, two runs", "same bits"]
    columns += ["forward", "spconv forward", "with gradients", "spconv with gradients", "MiB", "spconv MiB"]
    return "Networks of other projects", f"{caption} {origin(r['backbones'])}", columns, rows


GEOMETRY = {
    "chain": "the paper's 7 searches and 3 samplings",
    "chain, ragged": "the same, clouds of 128 to 1,024 points",
    "ball": "ball search",
    "nearest 16": "the 16 nearest points",
    "farthest 256": "256 farthest points",
    "rejection": "rejection sampling",
    "ugly": "all searches and samplings of clouds of ugly shapes",
    "transpose": "transposed edges",
    "1M random": "a million random points",
    "1M scene": "a million points of a scene",
    "cross": "to other points",
    "limit 16": "at most 16 neighbours",
    "100k": "100,000 points",
}


def geometry_gpu(r: dict[str, Any]) -> Table:
    rows = [
        [GEOMETRY.get(name) or ", ".join(GEOMETRY.get(word, word) for word in name.split(", ")), v]
        for name, v in r["geometry_gpu"]["results"].items()
    ]
    rows += [[f"exact farthest points, {name}", v] for name, v in r["farthest_gpu"]["results"].items()]
    caption = "1,024 clouds of 1,024 points at once, unless a row says otherwise. Median, host time included."
    origins = f"{origin(r['geometry_gpu'])} The last rows: {origin(r['farthest_gpu'])}"
    return "Geometry on the GPU", f"{caption} {origins}", ["", "ms"], rows


SETTINGS = {"paper": "the paper's setting", "clouds": "128 clouds of 1,024 points", "million": "a million points"}


def convolutions(r: dict[str, Any]) -> Table:
    rows = []
    files = [name for name in ("conv_cuda_float32", "conv_cuda_bfloat16", "conv_cpu_float32") if name in r]
    for file in files:
        where, dtype = file.split("_")[1:]
        for setting, setting_name in SETTINGS.items():
            for pass_, named in (("forward", "forward"), ("both", "with gradients")):
                measured = {who: row.get(pass_) for who, row in r[file].get(setting, {}).items() if who != "floors"}
                known = {who: t / 1000 for who, t in measured.items() if isinstance(t, float) and not math.isnan(t)}
                if "ours" in known:
                    ours = known.pop("ours")
                    device = f"H200, {tf32(dtype)}" if where == "cuda" else f"CPU, {dtype}"
                    what = f"{setting_name}, {named}, {device}"
                    rows.append([what, "ms", *best(ours, known, False)])
    caption = (
        "One layer. GPU rows are captured, with TF32 on both sides. `index_add`, CSR and PyG compute the same function "
        "with stored edge values."
    )
    return "Point convolution", f"{caption} {origin(r[files[0]])}", COLUMNS, rows


def eager(r: dict[str, Any]) -> Table:
    rows = [
        [name.replace(", both", ", with gradients"), row["host_ms"], row["device_ms"], row["kernels"]]
        for name, row in r["calls"]["rows"].items()
        if "host_ms" in row
    ]
    caption = "One call of the public interface, TF32. A call costs the longer of its host and GPU times."
    return "Eager calls", f"{caption} {origin(r['calls'])}", ["", "host, ms", "GPU, ms", "kernels"], rows


def captured(r: dict[str, Any]) -> Table:
    kinds = ("kept, ms", "anew, ms", "anew, s/epoch")
    rows = [[row["who"], *(row.get(kind, "") for kind in kinds)] for row in r["captured"]["rows"]]
    caption = (
        f"`point_resnet_large`, batches of 128 clouds of {r['captured']['data']}, 1,024 points each, TF32. The first "
        "column reuses the geometry, the others compute it for each batch. Event networks run on simulated recordings."
    )
    columns = ["", "a step, ms", "with new geometry, ms", "s an epoch of 9,843 clouds"]
    return "A training step", f"{caption} {origin(r['captured'])}", columns, rows


def tf32(name: str) -> str:
    """The name of a row that was measured with TF32 allowed."""
    return name.replace("bfloat16", "bf").replace("float32", "TF32").replace("bf", "bfloat16")


def lidar(r: dict[str, Any]) -> Table:
    rows = []
    for name, row in r["scenes"]["rows"]["convolutions"].items():
        for key, unit, label in (
            ("kept", "ms", "forward"),
            ("both", "ms", "with gradients"),
            ("both", "MiB", "with gradients, peak memory"),
            ("anew", "ms", "forward, new geometry"),
        ):
            rows.append([f"{name}, {label}", unit, *beside_spconv(row, f"{key} {unit}")])
    for name, ms in r["scenes"]["rows"]["raw scan"].items():
        rows.append([f"raw scan of 124,668 points, {name}", "ms", ms, "", ""])
    for name, row in r["scenes"]["rows"]["network"].items():
        what = f"U-Net, {name}, with gradients and all geometry"
        rows.append([f"{what}, eager", "ms", *beside_spconv(row, "both ms")])
        rows.append([f"{what}, kernels alone", "ms", *beside_spconv(row, "both, device busy ms")])
        for key, label in (("ours, captured both ms", "captured"), ("ours, captured both ms, ahead", "ahead")):
            rows.append([f"{what}, {label}", "ms", row[key], "", ""])
    scans, few = r["scenes"]["rows"]["scans"], r["scenes"]["rows"]["scans of the network"]
    caption = (
        f"One layer over scans of SemanticKITTI with voxels of 5 and 10 cm, eager, medians over {scans} scans. The "
        f"U-Net has five levels and voxels of 5 cm, over {few} scans. *Ahead*: captured, while the geometry of the "
        "next scan is computed (`gl.training.ahead`). *Kernels alone*: the time in which the GPU works. Ours is the "
        "point convolution with 10 monomials; spconv's has 27 taps, eager, in the same precision. The table Voxels "
        "compares the same operator. Of spconv's U-Net in TF32 only the kernels were measured."
    )
    return "A LiDAR scan", f"{caption} {origin(r['scenes'])}", COLUMNS, rows


def beside_spconv(row: dict[str, Any], key: str) -> list[Any]:
    """Ours, spconv's and the ratio; without spconv where it was not measured."""
    theirs = {"spconv": row[f"spconv {key}"]} if f"spconv {key}" in row else {}
    return best(row[f"ours {key}"], theirs, False)


def worst_errors(r: dict[str, Any], precision: str) -> str:
    """The largest error of all layers of a precision, of ours and of spconv."""
    cells = [row for cell, row in r["taps"]["rows"].items() if cell.endswith(precision)]
    return " and ".join(f"{max(row[f'{who} error'] for row in cells):.0e}" for who in ("ours", "spconv"))


def taps(r: dict[str, Any]) -> Table:
    kinds = (
        ("forward", "ms", "forward"),
        ("both", "ms", "with gradients"),
        ("anew", "ms", "forward, new indices"),
        ("MiB", "MiB", "with gradients, peak memory"),
    )
    rows = []
    for cell, row in r["taps"]["rows"].items():
        for key, unit, label in kinds:
            peers = {"spconv": row[f"spconv {key}"]}
            rows.append([f"{cell}, {label}", unit, *best(row[f"ours {key}"], peers, False)])
        for key, label in (("forward", "forward"), ("both", "with gradients")):
            rows.append([f"{cell}, {label}, as a CUDA graph", "ms", row[f"ours captured {key}"], "", ""])
    for cell, row in r["taps"]["unet"].items():
        name = f"SparseUNet, {cell}"
        for key, unit, label in kinds:
            if f"ours {key}" in row:
                peer = {"spconv": row[f"spconv {key}"]}
                rows.append([f"{name}, {label}", unit, *best(row[f"ours {key}"], peer, False)])
        for key, label in (("captured", "ours as CUDA graphs"), ("ahead", "ours as CUDA graphs, ahead")):
            graph = r["taps"]["graphs"].get(cell, {})
            if key in graph:
                figures = best(graph[key], {"spconv, eager": row["spconv both"]}, False)
                rows.append([f"{name}, with gradients, {label}", "ms", *figures])
    for cell, row in r["taps"]["triton"].items():
        for key, unit, label in kinds[:3]:
            if f"ours {key}" in row:
                peer = {"spconv-triton": row[f"spconv-triton {key}"]}
                rows.append([f"{cell}, one scan, {label}", unit, *best(row[f"ours {key}"], peer, False)])
    for name, row in r["taps"]["cpu"].items():
        for key, label in (("forward", "forward"), ("both", "with gradients")):
            peer = {"a loop over taps in torch": row[f"plain {key} s"]}
            cell = f"{name}, {row['voxels']:,} voxels, two Xeon cores, {label}"
            rows.append([cell, "s", *best(row[f"ours {key} s"], peer, False)])
    first = {who: row["first s"] for who, row in r["taps"]["first"].items() if isinstance(row, dict)}
    what = "SparseUNet, first step from an empty cache"
    errors = ", ".join(f"{precision} {worst_errors(r, precision)}" for precision in ("IEEE float32", "TF32", "float16"))
    rows.append([what, "s", *best(first.pop("ours"), first, False)])
    has_ahead = any("ahead" in row for row in r["taps"]["graphs"].values())
    ahead = " *Ahead*: the next scan's indices are made meanwhile." if has_ahead else ""
    caption = (
        "`TapConv` beside spconv 2.3.8's `SubMConv3d`: 27 taps (voxel offsets), voxels of 5 or 10 cm, 32 to 256 "
        "channels; medians over 22 scans of SemanticKITTI. The network has the widths and depths of Pointcept's "
        "SpUNet-v1m1, and is run on 6 scans.\n\n"
        "- Eager. Indices (the neighbours of each voxel) are known, unless a row says *new indices*; the network makes "
        "them anew.\n"
        "- Rows name the precision of both sides. IEEE float32 of gridless is three products of TF32. Relative errors "
        f"against float64, ours and spconv's: {errors}.\n"
        f"- Eager times of gridless are limited by the host: as CUDA graphs the same work takes less.{ahead}\n"
        "- spconv-triton 1.0.0 tunes itself at the first call of a layer: 7 to 8 s in TF32 and float16, after its "
        "kernels were compiled. In IEEE float32 it had not finished after 380 s, beside other work. Its times were not "
        "measured alone. FlexGEMM has no wheel and was not run.\n"
        "- On the CPU a loop over taps calls the same products of PyTorch as gridless, which take most of the time.\n\n"
    )
    return "Voxels", f"{caption} {origin(r['taps'])}", COLUMNS, rows


def plain(r: dict[str, Any]) -> Table:
    named = {"ours": "gridless", "ours, large": "gridless", "pyg": "PyG", "PointNet2": "PointNet++"}
    by_what: dict[str, dict[str, dict[str, float]]] = {}
    for row in r["plain"]["rows"]:
        by_what.setdefault(row["what"], {})[named.get(row["who"], row["who"])] = row
    rows = []
    for what, key, unit, label in (
        ("layer", "forward, ms", "ms", "one layer, 128 clouds of 1,024 points, 32 channels, forward"),
        ("layer", "both, ms", "ms", "the same with gradients"),
        ("epoch", "s/epoch", "s", "ModelNet40 epoch, batches of 128, searches included"),
    ):
        figures = {who: row[key] for who, row in by_what[what].items()}
        rows.append([label, unit, *best(figures.pop("gridless"), figures, False)])
    caption = (
        "A plain loop: eager code, public names, PyTorch's default precision, IEEE float32. PyG and `index_add` "
        "compute the same function. PointNet++ and DGCNN are torch-geometric's layers over our searches."
    )
    return "Plain eager code", f"{caption} {origin(r['plain'])}", COLUMNS, rows


def cities(r: dict[str, Any]) -> Table:
    columns, rows = ["points/s", "points/core second", "peak, MiB", "held, MiB"], []
    parts = ("sample", "sample, CUDA build", "sample, busy", "label", "label, busy", "peers")
    for part in [part for part in parts if part in r["scale"]]:
        where, results = r["scale"][part]["machine"]["cpu"], r["scale"][part]["results"]
        if part != "peers":
            how = "searched and sampled" if part.startswith("sample") else "labelled"
            named = {(points, how): row for points, row in results.items()}
        else:
            named = {(points, who): row for points, each in results.items() for who, row in each.items()}
        for (points, what), row in named.items():
            rows.append([what, points, where, *(row.get(column, "") for column in columns)])
    caption = (
        "Scans of SemanticKITTI side by side, in tiles. *Searched and sampled*: one point per 5 cm, balls of 20 cm, "
        "rejection samples. *Labelled*: by the recipe `semantickitti`. *Peak* is the memory of all processes; *held* "
        "counts shared memory once. *Busy*: ten to twenty other processes on two cores."
    )
    return "A city", caption, ["", "", "machine", *columns], rows


def processes(r: dict[str, Any]) -> Table:
    results = r["scale"]["precompute"]
    columns = ["scans/s", "of linear"]
    columns += [name for name in next(iter(results["results"].values())) if name.endswith(", of linear")]
    rows = [[name.split()[0], *(row[column] for column in columns)] for name, row in results["results"].items()]
    caption = (
        "Precomputed geometry of scans in several processes, as a share of linear speed. The last columns are "
        f"independent processes: the most that the machine allows. {origin(results)}"
    )
    return "Processes", caption, ["processes", *columns], rows


def scans(r: dict[str, Any]) -> Table:
    results = r["scale"]["scans"]
    caption = "The recipe `semantickitti` on 18 whole scans, with 4 held out. This only checks that the network learns."
    rows = [[" ".join(path), leaf] for path, leaf in leaves(results["results"])]
    return "SemanticKITTI", f"{caption} {origin(results)}", ["", ""], rows


def from_disk(r: dict[str, Any]) -> Table:
    rows = [
        [row["recipe"], row["examples"], row["pack_mb"], row["memory_s"], row["warm_s"], row["cold_s"]]
        for row in r["out_of_core"]["epochs"]["rows"]
    ]
    columns = ["recipe", "examples", "pack, MiB", "memory, s", "disk, s", "disk, cold, s"]
    caption = (
        "Seconds of an epoch with the examples in GPU memory and read from a pack, whose pages are in memory or "
        "(*cold*) are not. Captured steps, IEEE float32. Medians of seven epochs, one way after the other. Single "
        "epochs of N-Cars took 0.45 to 0.83 s. N-Cars: two of its five packs."
    )
    return "Training from disk", f"{caption} {origin(r['out_of_core']['epochs'])}", columns, rows


def event_layers(r: dict[str, Any]) -> Table:
    rows = []
    for file, label in (
        ("event_conv_cpu", "200,000 events, one core"),
        ("event_conv_cuda", "16 x 200,000 events, H200"),
    ):
        times = {form: part["ms"] for form, part in r[file]["network"].items()}
        peers = {"as sparse products in torch": times["paper"]}
        rows.append([label, "ms", *best(times["scan"], peers, False)])
    caption = 'Forward and backward of the CIFAR10-DVS network\'s 15 convolutions alone, by scan (`form="scan"`).'
    return "Event convolutions", f"{caption} {origin(r['event_conv_cuda'])}", COLUMNS, rows


def live(r: dict[str, Any]) -> Table:
    results = r["streaming"]["results"]
    rows = [
        [name, row["voxel"]["Mev/s"], row["stream"]["Mev/s"], row["stream"]["state MB"], row["error"]["engine"]]
        for name, row in results.items()
        if "error" in row
    ]
    late = [row[head] for row in r["latency"]["results"].values() for head in ("voxel", "stream")]
    median, most = ([one[key] for one in late] for key in ("p50 us", "p99 us"))
    soak, soak_machine = r["soak"]["results"], r["soak"].get("machine", "")
    caption = (
        f"One core, packets of 10,000 events, random weights. One event per call takes {min(median):.1f} to "
        f"{max(median):.1f} us in the median, over six networks and two heads ({r['latency']['machine']}). The 99th "
        f"percentile is {min(most):.0f} to {max(most):.0f} us: an event that fires through all levels. *State* is what "
        "`state_dict` saves. The difference to the network on a whole recording is relative. After "
        f"{soak['events']:,} events an engine still held {soak['bytes after']:,} bytes ({soak_machine})."
    )
    columns = [
        "network",
        "voxel head, M events/s",
        "stream head, M events/s",
        "state, MB",
        "difference",
    ]
    return "Live", f"{caption} {origin(r['streaming'])}", columns, rows


def exported(r: dict[str, Any]) -> Table:
    ways = {
        "portable": "C, same bits everywhere",
        "native": "`-march=native`",
        "fused": "`-DNET_FUSED`",
        "16 bits": "16 bits",
    }
    rows = [
        [name, row["engine"]["us/event"], *(row[way]["us/event"] for way in ways), *(row["portable"][k] for k in CALLS)]
        for name, row in r["export"]["results"].items()
    ]
    caption = "Microseconds of processor time per event in packets of 1,000. Last columns: one event per call."
    columns = ["network", "engine", *ways.values(), *CALLS.values()]
    return "Exported C", f"{caption} {origin(r['export'])}", columns, rows


def tracked(r: dict[str, Any]) -> Table:
    columns = ["rms", "rms with latency", "packet us", "us per answer", "us per event", "state bytes", "weight bytes"]
    rows = [[name, *(row.get(key, "") for key in columns)] for name, row in r["track"]["rms in pixels"].items()]
    caption = (
        "The position of a laser spot (`gl.data.Spots`), RMS error in pixels, mean over 7 held-out streams. "
        "With latency: the latest answer that was finished at each true time, one after each packet (or frame). "
        "*us per answer*: median time of an answer on one core. *us per event*: median time to take in an event."
    )
    return "Tracking", f"{caption} {origin(r['track'])}", ["", *columns], rows


CALLS = {"call p50 us": "a call, median", "call p99 us": "99 of 100 calls"}


def thinned(r: dict[str, Any]) -> Table:
    rows = [
        [row["load"], 100 * row["events kept of each"], 100 * row["accuracy"], row["events a recording"]]
        for row in r["overload"]["rows"]
    ]
    caption = f"Accuracy under `--overload thin`: {r['overload']['about']}."
    return (
        "Overload, accuracy",
        caption,
        ["times the load", "events kept, %", "accuracy, %", "events a recording"],
        rows,
    )


def lag(r: dict[str, Any]) -> Table:
    kinds = {"p50 ms": "median lag, ms", "p99 ms": "99 of 100 packets, ms", "most ms": "longest, ms"}
    results = r["overload"]["lag"]
    rows = [[row["load"], 100 * row["events kept of each"], *(row[kind] for kind in kinds)] for row in results["rows"]]
    caption = f"`--overload thin`: {results['about']}, ARM Neoverse-N1, busy."
    return "Overload, lag", caption, ["times the load", "events kept, %", *kinds.values()], rows


def event_files(r: dict[str, Any]) -> Table:
    rows = []
    for name, row in r["event_files"]["speed"].items():
        peers = {who: value for who, value in row.items() if who != "gridless"}
        rows.append([name, "M events/s", *best(row["gridless"], peers, True)])
    return "Reading event files", f"One core. {origin(r['event_files'])}", COLUMNS, rows


def fewer_points(r: dict[str, Any]) -> Table:
    name = next(key for key in r["accuracy"] if key.startswith("by number"))
    rows = [[row["points"], *(100 * row[k] for k in list(row)[1:])] for row in r["accuracy"][name]]
    where = {"authors": "authors, test split, %"}
    columns = ["points", *(where.get(key, f"{key}, held out, %") for key in list(r["accuracy"][name][0])[1:])]
    caption = (
        "Accuracy by number of points: ours on held-out training clouds, the authors' on the test split. These "
        "differ by a few points, so compare the shape of the curves only."
    )
    return "Fewer points", f"{caption} {origin(r['accuracy'])}", columns, rows


# Variants of benchmarks/ncars_variants.py and their descriptions.
VARIANTS = {
    "shipped": "the recipe `n-cars-voxel`",
    "swap": "the same, moved to the origin, random polarity swaps",
    "dense": "the row above, more events on deep levels",
    "count": "3 x 3 convolutions of voxel grids and of event counts",
    "count-even": "the row above, random thinning",
    "count2-even": "the row above, two blocks",
    "count-erase": "voxel grids and counts, a rectangle of each recording erased",
    "count-half-erase": "the row above, half the resolution",
    "stream": "stream head",
    "small": "stream head, half the resolution, shared rates",
    "small-erase": "the recipe `n-cars-small`: the row above, a rectangle erased",
    "half-erase": "the row above, wider, own rates for each tap",
    "leaky-fit": "the recipe `n-cars`: decaying counts, magnified to one size",
    "leaky-last": "the row above, not magnified",
    "leaky-one": "the row above, averaged weights",
    "leaky": "the row above, decays of 10, 30 and 100 ms",
    "leaky-half": "the row above, half the resolution",
    "leaky-large": "the row above, larger rectangles erased",
}


def drives(r: dict[str, Any]) -> Table:
    folds = [f"fold {k}" for k in range(5)]
    by_name = {row["name"]: row for row in r["ncars_variants"]["table"]}
    rows = []
    for name, description in VARIANTS.items():
        # One run has no spread.
        figures = {k: 100 * v for k, v in by_name[name].items() if k in ("mean", "spread", *folds) and v}
        rows.append([description, *(figures.get(k, "") for k in ("mean", "spread", *folds))])
    cnn = {f"fold {run['fold']}": 100 * run["accuracy"] for run in r["ncars_cnn"]["runs"]}
    rows.append(["a plain CNN on event counts", 100 * r["ncars_cnn"]["mean"], 100 * r["ncars_cnn"]["spread"]])
    rows[-1] += [cnn.get(k, "") for k in folds]
    caption = (
        "Accuracy, %, on held-out drives, for variants of the network. A fold is a fifth of the drives; empty folds "
        "did not run. *Mean* is over the folds shown, *spread* the standard deviation over runs."
    )
    return "N-Cars by drives", f"{caption} {origin(r['ncars_cnn'])}", ["", "mean", "spread", *folds], rows


def digits(r: dict[str, Any]) -> Table:
    rows, table_rows = r["nmnist_folds"]["rows"], []
    for name, row in rows.items():
        each = ", ".join(f"{100 * v:.0f}" for v in row["by fold"])
        table_rows.append([name, 100 * row["accuracy"], 100 * row["spread over folds"], each])
    caption = (
        "Accuracy, %, over ten folds of the first 1,000 training recordings, 50 epochs. *Spread* is the standard "
        "deviation over folds."
    )
    facts = r["nmnist_folds"] | {"commit": rows["n-mnist"]["commit"]}
    return "N-MNIST by folds", f"{caption} {origin(facts)}", ["", "mean", "spread", "by fold"], table_rows


# table -> scripts, and the results of each that the table shows
TABLES: dict[Any, dict[str, tuple[str, ...]]] = {
    plain: {"plain": ("plain",)},
    chains: {"geometry": ("geometry_chain", "geometry_chain_x86-64", "geometry_chain_neoverse-n1")},
    large: {"geometry": ("geometry_large",)},
    samplers: {"geometry": ("samplers",)},
    as_torch_cluster: {"as_torch_cluster": ("torch_cluster",)},
    backbones: {"backbones": ("backbones",)},
    geometry_gpu: {"geometry": ("geometry_gpu",), "farthest_gpu": ("farthest_gpu",)},
    convolutions: {"conv": ("conv_cuda_float32", "conv_cuda_bfloat16", "conv_cpu_float32")},
    eager: {"calls": ("calls",)},
    captured: {"captured": ("captured",)},
    lidar: {"scenes": ("scenes",)},
    taps: {"taps": ("taps",)},
    cities: {"scale": ("scale",)},
    processes: {"scale": ("scale",)},
    scans: {"scale": ("scale",)},
    from_disk: {"out_of_core": ("out_of_core",)},
    event_layers: {"event_conv": ("event_conv_cpu", "event_conv_cuda")},
    live: {"streaming": ("streaming", "soak", "latency")},
    exported: {"export": ("export",)},
    tracked: {"track": ("track",)},
    thinned: {"overload": ("overload",)},
    lag: {"overload": ("overload",)},
    event_files: {"event_files": ("event_files",)},
    fewer_points: {"accuracy": ("accuracy",)},
    drives: {"ncars_variants": ("ncars_variants",), "ncars_cnn": ("ncars_cnn",)},
    digits: {"nmnist_folds": ("nmnist_folds",)},
}


CARDS = """# Shipped weights

One card for each of the weights that come with the package. `gl.load(NAME)` loads them. The recipe is in the JSON file
beside the weights, the training log in the CSV file. Cards are made by `python benchmarks/page.py`.

*Official test* is the official test split, which was not available during development. *Held out* is the same recipe on
training examples that it did not see; the shipped weights may have seen them. *mIoU* is the mean intersection over
union of parts ([how](data.md#cloud-data-sets)). *Multiply-adds* are those of a forward pass.
"""
CARDS_NEXT = """Next: [Fine-tuning](tutorials/fine-tuning.md), or [Reproduction](reproduction.md).
"""
# name in a recipe -> (title, terms)
DATA = {
    "modelnet40": ("ModelNet40, PointNet++'s release, xyz of the first 1,024 points", "for research (Princeton)"),
    "n_cars": ("N-Cars, 100 ms recordings", "for research (Prophesee); ask Prophesee for anything else"),
    "shapenetpart": ("ShapeNetPart, xyz of 2,048 points", "for research (ShapeNet's terms)"),
}
FIGURES = {
    "accuracy": "accuracy",
    "mean_class_accuracy": "mean over classes",
    "instance_iou": "instance mIoU",
    "category_iou": "category mIoU",
}


def figures(result: dict[str, Any]) -> str:
    """The figures of a result and their deviation over seeds."""
    # Official means over classes are known to one digit.
    digits = {"mean_class_accuracy": 1}
    parts = [f"{100 * result[k]:.{digits.get(k, 2)}f} % {label}" for k, label in FIGURES.items() if k in result]
    if "spread" in result:
        parts.append(f"standard deviation {100 * result['spread']:.2f} over {len(result['seeds'])} seeds")
    elif "seeds" in result:
        parts.append("one seed" if len(result["seeds"]) == 1 else f"mean of {len(result['seeds'])} seeds")
    return ", ".join(parts)


def card(name: str, about: dict[str, Any]) -> str:
    recipe, results = about["recipe"], about["results"]
    title, terms = DATA[recipe["data"]]
    everything = " --all-data" if about.get("split") == "train" else ""
    start = f", initialised from `{recipe['start']}`" if recipe.get("start") else ""
    split = {"train": "all official training examples", "fit": "the part `fit` of the training examples"}
    trained = f"{split.get(about.get('split', ''), 'training examples')}, {results['examples']:,} of them"
    rows = [
        ["network", f"{about['model']['model']}, {about['cost']['parameters']:,} parameters"],
        ["data", title],
        ["terms", terms],
        ["trained on", trained],
        ["training", f"{results['epochs']} epochs, {results['seconds']:.0f} s, seed {recipe['seed']}{start}"],
        ["official test", figures(about["test"])],
        ["official test examples", about["test"]["how"].removeprefix("official test split, ")],
        ["held out", figures(about["held_out"])],
        ["held-out examples", about["held_out"]["how"]],
        *([what, value] for what, value in about["cost"].items() if what != "parameters"),
    ]
    chosen = "".join(f" --set data_options.{k}={v}" for k, v in recipe["data_options"].items())
    commands = [f"gridless train {name} --data DIR{everything}{chosen} --out runs/{name}"]
    commands.append(f"gridless evaluate {name} --data DIR --split test")
    return f"## {name}\n\n{table(['', ''], rows)}\n```sh\n" + "\n".join(commands) + "\n```\n"


def cards() -> str:
    abouts = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "gridless/pretrained").glob("*.json"))}
    return "\n".join([CARDS, *(card(name, about) for name, about in abouts.items()), CARDS_NEXT])


# Most lanes of a chart by row; larger charts have a lane for each kind of row.
LANES = 16


def compared(columns: list[str], rows: list[list[Any]]) -> list[tuple[str, float]]:
    """Names and ratios of the rows with a peer."""
    if columns != COLUMNS:
        return []
    return [(str(row[0]), row[4]) for row in rows if isinstance(row[4], float) and math.isfinite(row[4])]


def lanes(ratios: list[tuple[str, float]]) -> list[charts.Lane]:
    """A lane for each row, or, if there are many, for each kind (the name behind its last comma)."""
    if len(ratios) <= LANES:
        return [(name, [ratio]) for name, ratio in ratios]
    kinds: dict[str, list[float]] = {}
    for name, ratio in ratios:
        first, _, kind = name.rpartition(", ")
        if kind in ("peak memory", "new geometry", "new indices", "eager", "captured", "ahead"):
            kind = f"{first.rpartition(', ')[2]}, {kind}"
        kinds.setdefault(kind, []).append(ratio)
    return list(kinds.items())


def slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def tables() -> tuple[list[tuple[Any, Table]], dict[str, str]]:
    """Every table with its scripts, and the charts: name of a file to SVG."""
    files = {path.stem: path for path in sorted((ROOT / "benchmarks" / "results").glob("*.json"))}
    results = {name: json.loads(path.read_text()) for name, path in files.items()}
    all_tables = [(scripts, make(results)) for make, scripts in TABLES.items()]
    named = {name for scripts, _ in all_tables for group in scripts.values() for name in group}
    if left := sorted(files.keys() - named - ELSEWHERE):
        raise ValueError(f"no table shows {left}: write one, and name it in TABLES")
    with_peers = {title: compared(columns, rows) for _, (title, _, columns, rows) in all_tables}
    with_peers = {title: ratios for title, ratios in with_peers.items() if ratios}
    overview = [(title, [ratio for _, ratio in ratios]) for title, ratios in with_peers.items()]
    svg = {"overview.svg": charts.ratios(overview, "Ratios by table")}
    svg |= {f"{slug(title)}.svg": charts.ratios(lanes(ratios), title) for title, ratios in with_peers.items()}
    return all_tables, svg


def benchmarks() -> str:
    all_tables, svg = tables()
    parts = [HEAD, CHARTS]
    for _, (title, *_) in all_tables:
        if f"{slug(title)}.svg" in svg:
            parts.append(f"**{title}**\n\n![{title}: ratios]({IMAGES}/{slug(title)}.svg)\n")
    parts.append("## Tables\n")
    for scripts, (title, caption, columns, rows) in all_tables:
        by = " and ".join(f"`benchmarks/{script}.py`" for script in scripts)
        parts.append(f"### {title}\n\nBy {by}. {caption}\n\n{table(columns, rows)}")
    return "\n".join([*parts, NEXT])


# Folder of the charts, relative to the pages.
IMAGES = "images/benchmarks"
CHARTS = f"""## Ratios

Each dot is one row of a table below that has a ratio: ours beside the best peer. Right of 1, in blue, gridless is
better; left of it, in red, the peer. The black line is the median.

![Tables with a ratio]({IMAGES}/overview.svg)
"""


def write_charts() -> None:
    """Write the charts that changed (writing all of them would make `mkdocs serve` build again and again)."""
    folder = DOCS / IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables()[1].items():
        if not (folder / name).is_file() or (folder / name).read_text() != text:
            (folder / name).write_text(text)


def on_pre_build(**_: Any) -> None:
    """Hook of mkdocs: draws the charts from the results."""
    write_charts()


PAGES = {"benchmarks.md": benchmarks, "models.md": cards, **reproduction.PAGES}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Hook of mkdocs: writes the page from the results."""
    return PAGES[page.file.src_uri]() if page.file.src_uri in PAGES else markdown


if __name__ == "__main__":
    write_charts()
    for name, text in PAGES.items():
        (DOCS / name).write_text(text())
