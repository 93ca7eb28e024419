"""Write the tables of README.md and of the page about other networks, each between its two marks, from the results.

python benchmarks/readme.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
NETWORKS = ROOT / "docs" / "tutorials" / "other-networks.md"
BEGIN, END = "<!-- results: python benchmarks/readme.py -->\n", "<!-- end of results -->\n"

Row = tuple[str, str, str, str]
Results = dict[str, Any]  # benchmarks/results/*.json by name


def accuracy(r: Results) -> Row:
    large = r["official"]["weights"]["modelnet40-large"]["accuracy"]
    what = "ModelNet40 accuracy, weights `modelnet40-large`, official test split"
    return what, "H200 (training)", f"**{100 * large:.1f} %**", "the paper: 90.3 % (mean of ten runs), 91.1 % (best)"


def geometry(r: Results) -> Row:
    rates = {row["who"]: row["clouds/s"] for row in r["geometry_chain"]["rows"]}
    what = "searches and samplings of the paper's large network, batches of 128 clouds"
    peers = f"torch_cluster {rates['torch_cluster']:,.0f}, Open3D {rates['Open3D']:,.0f}; the paper: over 800 (8 cores)"
    return what, "Xeon, one core", f"**{rates['gridless, batch of 128']:,.0f} clouds/s**", peers


def epoch(r: Results) -> Row:
    seconds = {row["who"]: row["s/epoch"] for row in r["plain"]["rows"] if row["what"] == "epoch"}
    captured = next(row["anew, s/epoch"] for row in r["captured"]["rows"] if row["who"] == "gridless train")
    what = "ModelNet40 epoch, the paper's large network, batches of 128, eager, IEEE float32"
    ours = f"**{seconds['ours, large']:.1f} s**; `gridless train` (captured, TF32) {captured:.2f} s"
    return what, "H200", ours, f"PointNet++ (PyG) {seconds['PointNet2']:.1f} s"


def convolution(r: Results) -> Row:
    layers = {row["who"]: row for row in r["plain"]["rows"] if row["what"] == "layer"}
    ours, pyg = (f"{layers[who]['forward, ms']:.2f} / {layers[who]['both, ms']:.2f} ms" for who in ("ours", "pyg"))
    what = "point convolution, 128 clouds of 1,024 points, forward / with gradients, eager, IEEE float32"
    return what, "H200", f"**{ours}**", f"PyG {pyg}"


def voxels(r: Results) -> Row:
    cell = r["taps"]["rows"]["5 cm, 64, IEEE float32"]
    ours, peer = (f"{cell[f'{who} forward']:.2f} / {cell[f'{who} both']:.2f} ms" for who in ("ours", "spconv"))
    what = "convolution over 27 voxel offsets, LiDAR scans, 64 channels, known neighbours, forward / with gradients, "
    what += "eager, IEEE float32"
    return what, "H200", f"**{ours}**", f"spconv {peer}"


def live(r: Results) -> Row:
    rates = [row[head]["Mev/s"] for row in r["streaming"]["results"].values() for head in ("voxel", "stream")]
    what = "live event networks (the paper's five and N-Cars), packets of 10,000 events"
    return what, "Arm Neoverse N1, one core", f"**{min(rates):.1f} to {max(rates):.1f} million events/s**", ""


def call(r: Results) -> Row:
    heads = [row[head] for row in r["latency"]["results"].values() for head in ("voxel", "stream")]
    median, late = ([head[key] for head in heads] for key in ("p50 us", "p99 us"))
    what = "the same networks, one event per call from Python, median (99th percentile)"
    ours = f"**{min(median):.1f} to {max(median):.1f} us** ({min(late):.0f} to {max(late):.0f})"
    return what, "Arm Neoverse N1, one core", ours, ""


def exact(r: Results) -> Row:
    errors = [row["error"] for row in r["streaming"]["results"].values() if "error" in row]
    engine, window = ([error[who] for error in errors] for who in ("engine", "window"))
    cut = f"{min(window):.2f} to {max(window):.2f} for the authors' convolutions, which end after four decay times"
    what = "relative difference of live predictions from those on whole recordings"
    return what, "Arm Neoverse N1", f"**{max(engine):.0e}** at most", cut


def tracking(r: Results) -> Row:
    errors, late = r["track"]["rms in pixels"], r["track"]["rms with latency by packet"]
    cnn = min(row["rms with latency"] for name, row in errors.items() if name.startswith("CNN"))
    what = "following a laser spot, error of the latest finished answer, recordings held out"
    return what, "Xeon, one core", f"**{min(late['C, 32 bits'].values()):.2f} px**", f"CNN on frames {cnn:.2f} px"


ROWS: tuple[Callable[[Results], Row], ...] = (
    accuracy,
    geometry,
    epoch,
    convolution,
    voxels,
    live,
    call,
    exact,
    tracking,
)


def read_results() -> Results:
    return {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json")}


def lines(rows: list[tuple[str, ...]]) -> str:
    """Rows of a table, of which the first holds the names of the columns."""
    rows = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def table() -> str:
    results = read_results()
    return lines([("what", "machine", "gridless", "others"), *(make(results) for make in ROWS)])


def networks() -> str:
    """The largest relative difference of each network's output from that with spconv, and the speed of a training step
    as a multiple of spconv's, by machine and precision."""
    cells: dict[str, dict[str, str]] = {}
    for row in read_results()["backbones"]["rows"]:
        machine = row["device"].removeprefix("NVIDIA ") if "NVIDIA" in row["device"] else "CPU"
        cell = cells.setdefault(row["network"], {"parameters": f"{row['parameters'] / 1e6:.1f} M"})
        column = f"{row['precision'].removeprefix('IEEE ')}, {machine}"
        if "from spconv" in row["gridless"]:
            cell[column] = f"{row['gridless']['from spconv']['output']:.0e}"
        if "both ms" in row.get("spconv", {}):
            speed = row["spconv"]["both ms"] / row["gridless"]["both ms"]
            cell[f"speed, {column}"] = f"{speed:.1f}"
    columns = sorted(dict.fromkeys(column for cell in cells.values() for column in cell), key=lambda c: "speed" in c)
    rows = [(name, *(cell.get(column, "") for column in columns)) for name, cell in cells.items()]
    return lines([("network", *columns), *rows])


def write(page: Path, text: str) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    write(README, table())
    write(NETWORKS, networks())
