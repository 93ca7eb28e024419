"""Write the table of results in README.md, between its two marks, from benchmarks/results and the shipped weights.

python benchmarks/readme.py. A row whose figures are not there is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- results: python benchmarks/readme.py -->\n", "<!-- end of results -->\n"

Row = tuple[str, str, str]


Results = dict[str, Any]  # benchmarks/results/*.json by name; a KeyError leaves a row out


def by_who(r: Results, file: str, what: str) -> dict[str, float]:
    """A figure of a file's rows, of each `who` the first."""
    return {row["who"]: row[what] for row in reversed(r[file]["rows"]) if what in row}


def chain(r: Results) -> Row:
    rates = {row["who"]: row["clouds/s"] for row in r["geometry_chain"]["rows"]}
    ours = rates["gridless, batch of 128"]
    peers = {who: rate for who, rate in rates.items() if not who.startswith(("gridless", "floor"))}
    fastest = ", ".join(f"{who} {peers[who]:,.0f}" for who in sorted(peers, key=lambda who: -peers[who])[:3])
    what = "the paper's 7 searches and 3 samplings, ModelNet40 clouds in batches, one busy CPU core"
    return what, f"{ours:,.0f} clouds/s", f"{fastest}; the paper: over 800"


def chain_gpu(r: Results) -> Row:
    device = r["geometry_gpu"]["machine"].split(",")[0]
    return f"the same on an {device}, 1,024 clouds at once", f"{r['geometry_gpu']['results']['chain']:.2f} ms", ""


def ball(r: Results) -> Row:
    seconds = by_who(r, "geometry_large", "seconds")
    ours, peer = seconds["gridless"], seconds["SciPy query_pairs"]
    what = "ball search, a million points, 20.6 million edges, one busy core"
    return what, f"{ours:.2f} s", f"SciPy `query_pairs` (each pair once) {peer:.2f} s"


def farthest(r: Results) -> Row:
    row = r["samplers"]["rows"]["exact farthest, 1024 to 256, clouds/s"]
    peer = max(rate for name, rate in row.items() if name.startswith("fpsample"))
    return "exact farthest points, 1,024 to 256, one core", f"{row['gridless']:,.0f} clouds/s", f"fpsample {peer:,.0f}"


def conv(r: Results) -> Row:
    rows = r["conv_cuda_float32"]["clouds"]
    ours, peer, pyg = (rows[name] for name in ("ours", "compiled index_add", "pyg"))
    what = "point convolution, 128 clouds of 1,024, H200, captured as graphs, forward / with gradients"
    figures = [f"{row['forward']:,.0f} / {row['both']:,.0f}" for row in (ours, peer, pyg)]
    return what, f"{figures[0]} us", f"compiled `index_add` {figures[1]}, PyG {figures[2]}"


def conv_eager(r: Results) -> Row:
    rows = r["calls"]["rows"]
    figures = []
    for width in (32, 64, 128):
        forward, both = (rows[f"PointConv {width}, {what}"] for what in ("forward", "both"))
        figures.append(" / ".join(f"{max(row['host_ms'], row['device_ms']):.2f}" for row in (forward, both)))
    what = "a point convolution in eager code, 32; 64; 128 channels, H200, the longer of host and GPU"
    return what, f"{'; '.join(figures)} ms", ""


def city(r: Results) -> Row:
    name, row = max(r["scale"]["sample"]["results"].items(), key=lambda item: int(item[0].split()[0].replace(",", "")))
    beside = r["scale"]["peers"]["results"]["10,000,000 points"]
    ours, open3d = (beside[who] for who in beside if "balls" in who)
    what = f"a city of scans, {name.split(' points')[0]} points searched and sampled in tiles on two ARM cores"
    figures = f"{row['points/s'] / 1e6:.2f} million points/s; {row['peak, MiB'] / 1024:.1f} GiB, "
    figures += f"{row['held, MiB'] / 1024:.1f} with what processes share counted once"
    rates = [f"{each['points/core second'] / 1e6:.2f}" for each in (ours, open3d)]
    peer = f"10 million points on one ARM core: ours {rates[0]} million/s; Open3D, without samples, {rates[1]}"
    return what, figures, f"{peer}, {open3d['peak, MiB'] / 1024:.1f} GiB"


def labels(r: Results) -> Row:
    found = r["scale"]["label"]["results"]
    words = [f"{row['points/s'] / 1e6:.1f} million/s, {row['held, MiB'] / 1024:.1f} GiB" for row in found.values()]
    return f"the same labelled by a network on a busy H200: {'; '.join(found)}", f"{'; '.join(words)}, of the host", ""


def epochs(r: Results) -> Row:
    measured = [row for row in r["epochs"]["rows"] if "error" not in row]
    rows = {(row["network"], row["batch"], row["points"], row["geometry"]): row for row in measured}
    ours, offline, peer, dgcnn = (
        rows[key]["seconds_per_epoch"]
        for key in (
            ("modelnet40-large", 128, "full", "online"),
            ("modelnet40-large", 128, "full", "offline"),
            ("PointNet2", 128, "full", "online"),
            ("DGCNN", 128, "full", "online"),
        )
    )
    what = "an epoch of ModelNet40, the paper's large network, batches of 128, H200, `gridless train` (captured steps)"
    return what, f"{ours:.2f} s; geometry kept, {offline:.2f}", f"PointNet++ {peer:.1f}, DGCNN {dgcnn:.1f} s (PyG)"


def plain_loop(r: Results) -> Row:
    epochs, busy = by_who(r, "captured", "anew, s/epoch"), r["calls"]["rows"]["large: step, batch 128"]["device_ms"]
    eager, one = epochs["eager"], epochs["eager, backward in one thread"]
    what = "the same in a plain eager loop: plan, forward, backward, AdamW; its backward pass in the caller's thread"
    return what, f"{eager:.2f}; {one:.2f} s; the GPU works {busy:.1f} ms of a step", ""


def own_step(r: Results) -> Row:
    kept = by_who(r, "captured", "kept, ms")
    ours, eager = kept["gl.capture"], kept["eager"]
    compiled, peer = next((who, ms) for who, ms in kept.items() if who.startswith("torch.compile"))
    # Where it is of another run, a date ends its name.
    run = " in an earlier run" if compiled.endswith(")") else ""
    what = "a step of your own, the same network and batch, captured by `gl.capture`, H200"
    return what, f"{ours:.1f} ms", f"eager {eager:.1f}, `torch.compile` {peer:.1f}{run}"


def event_step(r: Results) -> Row:
    kept = {who: ms for who, ms in by_who(r, "captured", "kept, ms").items() if who.startswith("the N-MNIST network")}
    eager, ours = (next(ms for who, ms in kept.items() if who.endswith(how)) for how in ("eager", "captured"))
    return f"the same of {next(iter(kept)).rpartition(', ')[0]}", f"{ours:.1f} ms", f"eager {eager:.1f}"


def scan(r: Results) -> Row:
    names = ("5 cm, 64, IEEE float32", "5 cm, 128, float16")
    rows = [r["taps"]["rows"][name] for name in names]
    ours, theirs = (
        "; ".join(f"{row[f'{who} forward']:.2f} / {row[f'{who} both']:.2f}" for row in rows)
        for who in ("ours", "spconv")
    )
    what = (
        "a layer of 27 taps on a LiDAR scan, 91,660 voxels, eager, forward / with gradients: 64 channels IEEE float32; "
        "128 channels float16, H200"
    )
    return what, f"{ours} ms", f"spconv 2.3.8, same precision, {theirs}"


def scan_network(r: Results) -> Row:
    row = r["scenes"]["rows"]["network"]["64 channels, float32"]
    names = ("ours both ms", "ours, captured both ms", "ours, captured both ms, ahead")
    eager, captured, ahead = (row[name] for name in names)
    what = (
        "a U-Net of five levels of *point* convolutions (10 monomials, TF32) on it, every search, forward and "
        "backward: eager; captured; geometry made ahead"
    )
    peer = f"spconv {row['spconv both ms']:.0f} (27 taps, IEEE float32, eager)"
    return what, f"{eager:.0f}; {captured:.0f}; {ahead:.0f} ms", peer


def event_conv(r: Results) -> Row:
    network = r["event_conv_cpu"]["network"]
    ours, peer = network["scan"]["ms"] / 1000, network["paper"]["ms"] / 1000
    what = "CIFAR10-DVS network, a training pass of 200,000 events, one core"
    return what, f"{ours:.2f} s", f"along edges, as sparse products in torch, {peer:.1f} s"


def event_conv_gpu(r: Results) -> Row:
    layers = r["event_conv_cuda"]["layers"]
    ours, peer = (sum(layer[form][0] for layer in layers) for form in ("scan", "paper"))
    what = "its 15 convolutions, a training pass of 16 x 200,000 events, H200"
    return what, f"{ours:.1f} ms", f"as sparse products in torch, {peer:.0f} ms"


def live(r: Results) -> Row:
    results = r["streaming"]["results"]
    rates = [row[head]["Mev/s"] for row in results.values() for head in ("voxel", "stream")]
    what = f"live, one core of an {r['streaming']['machine']}, packets of 10,000 events, six networks (random weights)"
    rate = results["cifar10_dvs"]["stream"]["Mev/s"]
    return what, f"{min(rates):.1f} to {max(rates):.1f} million events/s; the CIFAR10-DVS network {rate:.1f}", ""


def live_calls(r: Results) -> Row:
    late = [row[head]["p50 us"] for row in r["latency"]["results"].values() for head in ("voxel", "stream")]
    what = f"live, one event per call of `engine(packet)` from Python, six networks, median, {r['latency']['machine']}"
    return what, f"{min(late):.1f} to {max(late):.1f} us", ""


def exact(r: Results) -> Row:
    errors = [row["error"] for row in r["streaming"]["results"].values() if "error" in row]
    engine, window = ([error[who] for error in errors] for who in ("engine", "window"))
    what = f"live against the whole recording at once, relative difference, {len(errors)} networks"
    cut = f"a history cut after 4 decay times: {min(window):.2f} to {max(window):.2f}"
    return what, f"{min(engine):.0e} to {max(engine):.0e}", cut


ROWS: tuple[Callable[[Results], Row], ...] = (
    chain, chain_gpu, ball, farthest, conv, conv_eager, scan, scan_network, city, labels, epochs, plain_loop, own_step,
    event_step, event_conv, event_conv_gpu, live, live_calls, exact,
)  # fmt: skip
# Others on the same test splits.
NCARS = "HATS 90.2, AEGNN 94.5, EVA encoder 96.3, best without pre-training 96.7, MEM (pre-trained) 98.55"
OTHERS = {
    "modelnet40-large": "the paper: 90.34 mean of ten runs, 91.08 best",
    "modelnet40-small": "the paper: 87.94 mean of ten runs, 88.77 best",
    "modelnet40-plus": "PointNeXt-S 93.7 ± 0.3, DeLA 93.75 ± 0.18, PointMLP 94.1 best run",
    "n-cars-voxel": NCARS,
    "n-cars-stream": NCARS,
    "n-cars": f"a plain CNN 92.7 (93.5 on the same folds), {NCARS}",
    "shapenetpart": "PointNet++ 85.1 / 81.9, KPConv 86.4 / 85.1, PointNeXt-S 87.0 / 85.2, DeLA 86.94 / 85.41",
}


def accuracy() -> list[Row]:
    """Of the shipped weights on the official test splits, or, where that is not known, on what was held out: last."""
    rows = []
    paths = sorted((ROOT / "gridless" / "pretrained").glob("*.json"))
    for path in sorted(paths, key=lambda path: "test" not in json.loads(path.read_text())):
        about = json.loads(path.read_text())
        where = "test" if "test" in about else "held_out"
        what = "official test split" if where == "test" else "held out of the training split"
        beside = OTHERS.get(path.stem, "")
        beside = f"on the test split: {beside}" if beside and where != "test" else beside
        beside = about[where].get("beside", beside)
        rows.append((f"weights `{path.stem}`, {what}", figure(about[where]), beside))
    return rows


def figure(result: dict[str, float]) -> str:
    if "instance_iou" in result:
        return f"{100 * result['instance_iou']:.1f} / {100 * result['category_iou']:.1f} mIoU (instance / category)"
    mean = result.get("mean_class_accuracy")
    return f"{100 * result['accuracy']:.1f} %" + ("" if mean is None else f" ({100 * mean:.1f} over classes)")


def table() -> str:
    files = (ROOT / "benchmarks" / "results").glob("*.json")
    results, rows = {path.stem: json.loads(path.read_text()) for path in files}, []
    for make in ROWS:
        try:
            rows.append(make(results))
        except KeyError:
            print(f"{make.__name__}: no figures")
    lines = [("what", "gridless", "beside it"), ("---", "---", "---"), *accuracy(), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2])
