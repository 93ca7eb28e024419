"""Figures on hand-written pages are those of benchmarks/results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADS = ("voxel", "stream")

Results = dict[str, Any]  # benchmarks/results/*.json and results/reproduction/*.json by name


@pytest.fixture(scope="module")
def results() -> Results:
    return {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").rglob("*.json")}


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def going_live(r: Results) -> Iterator[str]:
    medians = [network[head]["p50 us"] for network in r["latency"]["results"].values() for head in HEADS]
    yield f"A call with one event takes {min(medians):.1f} to {max(medians):.1f} us (median"
    live = r["streaming"]["results"]
    stream = live["n_mnist"]["stream"]
    yield f"N-MNIST network takes {stream['MB']:.0f} MB, of which {stream['state MB']:.1f} MB are state"
    sizes = [network[head]["MB"] for name, network in live.items() if name != "n_mnist" for head in HEADS]
    yield f"other networks and N-Cars take {min(sizes):.0f} to {max(sizes):.0f} MB"
    loads = r["overload"]["rows"]
    yield row("load", *(f"{load['load']:g}" for load in loads))
    events = [f"{load['events a recording']:,.0f}" for load in loads]
    yield row(f"events kept, of {events[0]}", "all", *events[1:])
    yield row("accuracy, %", *(f"{100 * load['accuracy']:.1f}" for load in loads))
    error = max(network["error"]["engine"] for network in live.values())
    yield f"the difference is {error:.1e} at most"
    longest = max(load["p99 ms"] for load in r["overload"]["lag"]["rows"])
    yield f"99 of 100 packets have a lag below {math.ceil(longest)} ms"


def fast(r: Results) -> Iterator[str]:
    steps = {step["who"]: step for step in r["captured"]["rows"]}
    for name, who in {
        "eager": "eager",
        "eager, backward in the caller's thread": "eager, backward in one thread",
        "`gl.capture`": "gl.capture",
    }.items():
        yield row(name, f"{steps[who]['kept, ms']:.1f}", f"{steps[who]['anew, ms']:.1f}")
    padded = steps["torch.compile, reduce-overhead, two batches padded to powers of two"]["kept, ms"]
    yield f"| {padded:.1f} | |"
    yield f"`gl.training.Loader` | | {steps['gl.capture, gl.training.Loader']['anew, ms']:.1f} |"
    one_thread = steps["eager, backward in one thread"]["kept, ms"]
    yield f"{one_thread:.1f} instead of {steps['eager']['kept, ms']:.1f} ms a step"
    small = [steps[f"the N-MNIST network, 32 recordings of 1,999 events, {how}"] for how in ("captured", "eager")]
    large = "the N-Cars network, stream head, 32 recordings of 17,492 events"
    busy = [steps[f"{large}, {how}"] for how in ("captured", "eager")]
    yield "takes {:.1f} ms instead of {:.1f} ms".format(*(step["kept, ms"] for step in small))
    yield "takes {:.0f} ms instead of {:.0f} ms".format(*(step["kept, ms"] for step in busy))
    scan = r["scenes"]["rows"]["network"]["64 channels, TF32"]
    eager, captured = scan["ours, raw scan both ms"], scan["ours, raw scan, captured both ms"]
    ahead = scan["ours, raw scan, captured both ms, ahead"]
    yield f"A step takes {eager:.1f} ms eager, {captured:.1f} ms captured and {ahead:.1f} ms with `ahead`"
    convolutions = r["event_conv_cpu"]["network"]
    scan_s, edges_s = convolutions["scan"]["ms"] / 1000, convolutions["paper"]["ms"] / 1000
    yield f"takes {scan_s:.2f} s. Sparse products over edges take {edges_s:.1f} s"
    first = r["calls"]["rows"]["large: first plan and step, s"]
    yield f"it takes {first['step_s']:.1f} s, and the first plan {first['plan_s']:.1f} s"


def export(r: Results) -> Iterator[str]:
    shipped = {"n_cars": "`n-cars-stream` (shipped)", "n_cars_small": "`n-cars-small` (shipped)"}
    networks = r["export"]["results"]
    for name, ways in networks.items():
        times = (ways[way]["us/event"] for way in ("engine", "portable", "fused", "16 bits"))
        yield row(shipped.get(name, f"`{name}`"), *(f"{time:.2g}" for time in times))
    medians, rare = ([ways["portable"][f"call {p} us"] for ways in networks.values()] for p in ("p50", "p99"))
    yield f"A call of C with one event takes {min(medians):.2f} to {max(medians):.2f} us in the median"
    yield f"the 99th percentile is {min(rare):.0f} to {max(rare):.0f} us"
    full, half = (max(ways[way]["error"] for ways in networks.values()) for way in ("portable", "16 bits"))
    yield f"C differs from the engine by {full:.0e} at most"
    yield f"and with 16 bits by {half:.0e}"
    for name, sizes in r["export"]["memory"].items():
        cells = [sizes[bits][part] / 1e6 for bits in ("32", "16") for part in ("constants", "state")]
        text = row(f"`{name}`", *(f"{size:.1f} MB" if size > 10 else f"{size:.2f} MB" for size in cells))
        yield text.replace("0.65 MB", "**0.65 MB**").replace("0.93 MB", "**0.93 MB**")
    largest, least = networks["n_cars_small"]["portable"]["state MB"], r["export"]["memory"]["n-cars-small"]["32"]
    yield f"{least['state'] / 1e6:.2f} MB instead of {largest:.1f} MB"


def tracking(r: Results) -> Iterator[str]:
    networks = r["track"]["rms in pixels"]
    for name, who in {
        "constant position of each stream": "constant: the mean of each stream",
        "published first-order filter": "published first-order filter",
    }.items():
        yield f"| {name} | | | {networks[who]['rms']:.2f} | |"
    for name, who in {
        "exported C": "C, 32 bits",
        "exported C, 16 bits": "C, 16 bits",
        "`gl.stream`": "gl.stream",
        "CNN, counts of the last 10, 20 and 40 ms": "CNN, 10, 20, 40 ms, a frame every 10 ms",
        "CNN, counts of the last 10 ms": "CNN, 10 ms, a frame every 10 ms",
    }.items():
        figures = networks[who]
        times = f"{figures['packet us'] / 1000:g}", f"{figures['us per answer']:.0f}"
        yield row(name, *times, f"{figures['rms']:.3f}", f"{figures['rms with latency']:.3f}")
    full, half = networks["C, 32 bits"], networks["C, 16 bits"]
    for part in ("state", "weights"):
        sizes = [figures[f"{part.rstrip('s')} bytes"] / 1000 for figures in (full, half)]
        yield "{:.0f} kB (16 bits: {:.0f} kB)".format(*sizes)
    yield f"{full['us per event']:.2f} us in C, with 16 bits {half['us per event']:.2f} us"


def comparison(r: Results) -> Iterator[str]:
    weights = r["official"]["weights"]
    yield f"our stream network has {100 * weights['n-cars-stream']['accuracy']:.1f} %"
    yield f"`n-cars` have {100 * weights['n-cars']['accuracy']:.1f} %"


def install(r: Results) -> Iterator[str]:
    seconds = {row["cache"]: row["s"] for row in r["first_call"]["rows"]}
    yield f"takes {seconds['empty']:.0f} s without the cache, {seconds['full']:.0f} s with it"
    first = r["calls"]["rows"]["large: first plan and step, s"]
    yield f"the paper's large network take {first['plan_s'] + first['step_s']:.0f} s together"


def data(r: Results) -> Iterator[str]:
    large = r["out_of_core"]["large"]
    yield f"packing took {large['packing_s']:.0f} s with two processes, the pack has {large['pack_mb'] / 1024:.1f} GiB"
    assert max(large["packing_mb_above_empty"], large["training_mb_above_empty"]) < 1024
    voxel = json.loads((ROOT / "gridless/pretrained/n-cars-voxel.json").read_text())
    accuracies = [100 * voxel[part]["accuracy"] for part in ("held_out", "test")]
    yield "has {:.1f} % on one, and {:.1f} % on the official test split".format(*accuracies)


def paper_to_code(r: Results) -> Iterator[str]:
    lines = r["stats"]["rows"]["modelnet40-large"]["lines"]
    for level in range(4):
        points = next(line["rows"]["median"] for name, line in lines.items() if name.startswith(f"X{level} "))
        inside = lines[f"N{level}{level} ball"]["neighbours"]["mean"]
        down = f"{lines[f'N{level - 1}{level} ball']['neighbours']['mean']:.1f}" if level else ""
        yield " ".join(row(str(level), f"{points:,.0f}", f"{inside:.1f}", down).split())
    orders = r["update_orders"]["rows"]
    target, updating = orders["at the target"], orders["while updating"]
    yield f"{target['multiply_adds_per_event']:,.0f} multiply-adds per input event and {target['state_mb']:.1f} MB"
    yield f"{updating['multiply_adds_per_event']:,.0f} and {updating['state_mb']:.1f} MB"


def notes(r: Results) -> Iterator[str]:
    steps = {step["who"]: step.get("kept, ms") for step in r["captured"]["rows"]}
    small = "the N-MNIST network, 32 recordings of 1,999 events"
    yield f"{steps['gl.capture']:.1f} ms a step instead of {steps['eager']:.1f}"
    yield f"N-MNIST {steps[f'{small}, captured']:.1f} instead of {steps[f'{small}, eager']:.1f}"
    up = {layer["order"]: layer["ms"] for layer in r["orders"]["rows"] if layer["layer"] == "up-sample"}
    yield f"{up['transform_first']:.3f} ms with `transform_first` instead of {up['gather_first']:.3f}"


@pytest.mark.parametrize(
    ("page", "phrases"),
    [
        ("docs/tutorials/going-live.md", going_live),
        ("docs/tutorials/fast.md", fast),
        ("docs/tutorials/export.md", export),
        ("docs/tutorials/tracking.md", tracking),
        ("docs/comparison.md", comparison),
        ("docs/install.md", install),
        ("docs/data.md", data),
        ("docs/paper-to-code.md", paper_to_code),
        ("benchmarks/NOTES.md", notes),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_of_a_page_are_those_of_the_results(page: str, phrases: Any, results: Results):
    text = " ".join((ROOT / page).read_text().split())
    assert [phrase for phrase in phrases(results) if phrase not in text] == []
