"""Training from the disk: an epoch from a pack beside an epoch in memory, and a run over more events than memory holds.

    python benchmarks/out_of_core.py --data DIR                     N-Cars and ModelNet40: memory, warm and cold disk
    python benchmarks/out_of_core.py --events 2000000000            pack and train generated recordings, memory drawn

Epochs in memory and from the pack take turns, so that a change of the machine's load meets both. Warm: the pack is in
the page cache. Cold: its pages are dropped before each epoch (posix_fadvise). Both ways see the same batches, which is
checked first. `--events` packs recordings of CIFAR10-DVS's shape (128 x 128 pixels, 200,000 events each, 10 classes),
trains its recipe on them for `--seconds`, and writes the memory of the process, and of those that pack, over time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import DATA, RESULTS, ROOT, cores, keep, machine
from direct import Run

import gridless as gl
from gridless.tasks import find
from gridless.tasks.storage import Storage, load_splits
from gridless.training import PackedSet, TrainingSet, load_recipe
from gridless.training.step import begin_step

CUDA = torch.cuda.is_available()
OUT, IMAGE = RESULTS / "out_of_core.json", ROOT / "docs" / "images" / "out_of_core.png"
SENSOR, CLASSES, EVENTS = (128, 128), 10, 200_000
MB = 2**20
# Samples of memory over time in the file, at most.
SAMPLES = 300


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def drop_pages(pack: gl.data.Pack) -> None:
    """Take a pack out of the page cache."""
    for file in pack.path.iterdir():
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def timed_epoch(run: Run, epoch: int) -> float:
    sync()
    begin = time.perf_counter()
    run.epoch(epoch)
    sync()
    return time.perf_counter() - begin


def check_same(memory: TrainingSet, disk: TrainingSet) -> None:
    index = torch.linspace(0, len(memory) - 1, 64).long()
    parts = zip(memory.cut(index).parts(), disk.cut(index).parts(), strict=True)
    if not all(torch.equal(a, b) for (_, a), (_, b) in parts):
        raise AssertionError("examples from the pack are not those in memory")


def epochs(name: str, root: Path, folder: Path, count: int, device: str, limit: int | None) -> dict[str, Any]:
    """Seconds of an epoch of a recipe in memory, from a warm and from a cold disk: medians of `count` each."""
    recipe = load_recipe(name, {"epochs": 3 * count + 3})
    task = find(recipe.task_name)
    (memory,) = load_splits(task, recipe, root, ["train"])
    (disk,) = load_splits(task, recipe, root, ["train"], Storage("disk", folder))
    assert isinstance(disk, PackedSet)
    pack = disk.pack
    if limit is not None:
        memory, disk = (data.take(torch.arange(min(limit, len(data)))) for data in (memory, disk))
    memory, disk = memory.to(device), disk.to(device)
    check_same(memory, disk)
    runs = {"memory": Run(recipe, memory), "disk": Run(recipe, disk)}
    # Kernels are compiled, sizes of batches learned and graphs captured.
    for run in runs.values():
        run.epoch(0)
        run.epoch(1)
    times: dict[str, list[float]] = {"memory": [], "warm": [], "cold": []}
    for epoch in range(2, 2 + count):
        times["memory"].append(timed_epoch(runs["memory"], epoch))
        times["warm"].append(timed_epoch(runs["disk"], 2 * epoch - 2))
        drop_pages(pack)
        times["cold"].append(timed_epoch(runs["disk"], 2 * epoch - 1))
    row: dict[str, Any] = {
        "recipe": name,
        "examples": len(disk),
        "pack_mb": pack_bytes(pack) / MB,
        "epochs": count,
    }
    row |= {f"{way}_s": statistics.median(seconds) for way, seconds in times.items()}
    return row | {f"{way}_ratio": row[f"{way}_s"] / row["memory_s"] for way in ("warm", "cold")} | {"times_s": times}


def pack_bytes(pack: gl.data.Pack) -> int:
    return sum(file.stat().st_size for file in pack.path.iterdir())


class Generated:
    """Recordings of a spot that runs on a Lissajous curve, another one for each class."""

    class_names = [f"curve {k}" for k in range(CLASSES)]

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[gl.Events, int]:
        rng, label = np.random.default_rng(i), i % CLASSES
        time = np.cumsum(rng.integers(0, 14, EVENTS, np.int64))
        angle = (time * (2e-5 * rng.uniform(0.8, 1.2))).astype(np.float32)
        pixel = rng.standard_normal((EVENTS, 2), np.float32) * 6 + 64
        pixel[:, 0] += 40 * np.cos(angle * (label % 5 + 1) / 2)
        pixel[:, 1] += 40 * np.sin(angle * (label // 5 + 1))
        np.clip(pixel, 0, 127, out=pixel)
        polarity = rng.integers(0, 2, EVENTS, np.uint8).astype(bool)
        place, times, on = map(torch.from_numpy, (pixel.astype(np.int32), time, polarity))
        return gl.Events(place, times, on, torch.tensor([0, EVENTS]), SENSOR), label


class Memory:
    """Memory over time, looked at twice a second by a thread: of this process, of those it started, of the GPU."""

    def __init__(self) -> None:
        self.begin, self.rows, self.phase = time.perf_counter(), [], "start"
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.stop.wait(0.5):
            own, others = proportional_mb(os.getpid()), sum(map(proportional_mb, children(os.getpid())))
            gpu = torch.cuda.memory_allocated() / MB if CUDA else 0.0
            self.rows.append([time.perf_counter() - self.begin, own, others, gpu, self.phase])

    def peak(self, phase: str, column: int = 1) -> float:
        return max((row[column] for row in self.rows if row[4] == phase), default=float("nan"))

    def close(self) -> None:
        self.stop.set()
        self.thread.join()


def proportional_mb(process: int) -> float:
    """Memory of a process; pages that several share are divided among them."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) / 1024


def children(process: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    try:
        tasks = Path(f"/proc/{process}/task").iterdir()
        own = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return own + [each for child in own for each in children(child)]


def train_for(run: Run, seconds: float, most: int | None = None) -> tuple[int, int, float]:
    """Batches and events of part of an epoch, and the seconds it took."""
    run.model.train()
    run.loader.epoch, run.loader.start = 0, 0
    batches, events, begin = 0, 0, time.perf_counter()
    for number, batch in enumerate(islice(run.loader, most)):
        begin_step(run.recipe, run.schedule, run.optimiser, 0, number, len(run.loader))
        run.step(batch)
        batches, events = batches + 1, events + len(next(iter(batch.geometry.values())))
        if number % 4 == 3:
            sync()
            if time.perf_counter() - begin > seconds:
                break
    sync()
    return batches, events, time.perf_counter() - begin


def large(events: int, folder: Path, seconds: float, device: str, batch: int | None, workers: int) -> dict[str, Any]:
    """Pack generated recordings and train on them for some seconds, with the memory over time."""
    count = max(events // EVENTS, 4 * CLASSES)
    changes = {"batch_size": batch} if batch else {}
    recipe = load_recipe("cifar10-dvs", {"epochs": 1, **changes})
    memory = Memory()
    # The same run over 40 recordings, in which kernels are compiled: what an empty run takes.
    few = gl.data.pack(Generated(4 * CLASSES), folder / "few", progress=False)
    train_for(Run(recipe, PackedSet.of_pack(few, keep="disk").to(device)), seconds, most=4 if CUDA else 1)
    memory.phase = "empty"
    time.sleep(1.5)
    memory.phase, begin = "pack", time.perf_counter()
    pack = gl.data.pack(Generated(count), folder / "large", workers=workers, progress=False)
    packing = time.perf_counter() - begin
    drop_pages(pack)
    memory.phase = "train"
    run = Run(recipe, PackedSet.of_pack(pack, keep="disk").to(device))
    batches, seen, training = train_for(run, seconds)
    memory.close()
    loss, accuracy = run.step.read()
    empty = memory.peak("empty")
    return {
        "events": int(pack.splits[-1]),
        "recordings": count,
        "pack_mb": pack_bytes(pack) / MB,
        "in_memory_mb": 17 * int(pack.splits[-1]) / MB,
        "workers": workers,
        "packing_s": packing,
        "packing_mb_above_empty": max(row[1] + row[2] for row in memory.rows if row[4] == "pack") - empty,
        "batch_size": recipe.batch_size,
        "batches": batches,
        "events_trained": seen,
        "training_s": training,
        "events_per_s": seen / training,
        "loss": loss,
        "accuracy": accuracy,
        "empty_mb": empty,
        "training_mb_above_empty": memory.peak("train") - empty,
        "gpu_peak_mb": memory.peak("train", 3),
        "memory": over_time(memory.rows),
    }


def over_time(rows: list[list[Any]]) -> dict[str, Any]:
    """Columns of at most `SAMPLES` numbers, the largest of each span of time, and begin and end of each phase."""
    each = -(-len(rows) // SAMPLES)
    spans = [rows[i : i + each] for i in range(0, len(rows), each)]
    names = ("seconds", "own_mb", "others_mb", "gpu_mb")
    columns = {name: [round(max(row[k] for row in span), 1) for span in spans] for k, name in enumerate(names)}
    times = {phase: [round(row[0], 1) for row in rows if row[4] == phase] for phase in ("pack", "train")}
    return {**columns, "phases": {phase: [min(inside), max(inside)] for phase, inside in times.items() if inside}}


def draw(result: dict[str, Any], file: Path) -> None:
    """Memory over time, beside what the examples would take in memory."""
    import matplotlib.pyplot as plt

    memory = result["memory"]
    seconds, own, others, gpu = (np.array(memory[name]) for name in ("seconds", "own_mb", "others_mb", "gpu_mb"))
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.plot(seconds, own / 1024, label="the process that trains")
    axes.plot(seconds, others / 1024, label="processes that pack")
    if gpu.any():
        axes.plot(seconds, gpu / 1024, label="GPU, allocated")
    axes.axhline(result["in_memory_mb"] / 1024, color="grey", linestyle="--", label="all events, were they in memory")
    axes.axhline(result["pack_mb"] / 1024, color="grey", linestyle=":", label="the pack on disk")
    for phase, (begin, end) in memory["phases"].items():
        axes.axvspan(begin, end, alpha=0.08, color="tab:blue" if phase == "pack" else "tab:green")
        axes.text(begin, axes.get_ylim()[1] * 0.85, f" {phase}")
    axes.set(xlabel="seconds", ylabel="GiB", title=f"{result['events'] / 1e9:.2g} billion events")
    axes.set_ylim(bottom=0)
    axes.legend(loc="center right", fontsize=8)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--recipes", nargs="*", default=["n-cars", "modelnet40-large"])
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs of each way")
    parser.add_argument("--limit", type=int, help="use only so many examples, for a trial")
    parser.add_argument("--events", type=int, help="pack and train on so many generated events")
    parser.add_argument("--seconds", type=float, default=60, help="of training with --events")
    parser.add_argument("--batch", type=int, help="recordings of a step, with --events")
    parser.add_argument("--workers", type=int, default=cores(), help="processes that pack")
    parser.add_argument("--device", default="cuda" if CUDA else "cpu")
    parser.add_argument("--folder", type=Path, help="where packs are written, and removed afterwards")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    # The two halves are measured by two calls, on two machines.
    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {}
    try:
        if options.events:
            settings = options.seconds, options.device, options.batch, options.workers
            result["large"] = {"machine": machine(), **large(options.events, folder, *settings)}
            draw(result["large"], IMAGE if options.out == OUT else options.out.with_suffix(".png"))
            print({k: v for k, v in result["large"].items() if k != "memory"}, flush=True)
        else:
            settings = folder, options.epochs, options.device, options.limit
            rows = [epochs(name, options.data, *settings) for name in options.recipes]
            result["epochs"] = {"machine": machine(), "rows": rows}
            for row in rows:
                print({k: v for k, v in row.items() if k != "times_s"}, flush=True)
        keep(options.out, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
