"""A city of any size: real scans side by side, generated on the fly, searched, sampled and labelled tile by tile.

    python benchmarks/scale.py sample --points 1e7 1e8 1e9 --processes 2
    python benchmarks/scale.py label --points 1e8 --device cuda --seconds 20
    python benchmarks/scale.py precompute --processes 1 2 4 8 16 --seconds 15
    python benchmarks/scale.py scans --device cuda --epochs 60
    python benchmarks/scale.py peers --points 1e7

    sample      one point of each 5 cm cell, a ball of 20 cm around each, and a rejection sample over it
    label       the network of the recipe `semantickitti`, with random weights, for `--seconds` or the whole scene
    precompute  `gl.Precomputed` of the scans, the same ones for each process, medians of three runs; ideal is
                the work of one times processes: of the whole call, and without its beginning and end, from a quarter
                of the files to three quarters.
                Beside it what the machine allows: a loop in registers, copying, plans alone, and those with files, each
                in as many processes that know nothing of each other
    scans       the recipe `semantickitti` trained on 18 scans, and judged on 4: mIoU, time and memory of each
    peers       Open3D's cells and balls on one scene in memory, laspy reading alone, and ours, on one core each

It is checked that tiles of two sizes and the whole scene give the same samples, or labels. Each number of points is a
process, or processes, of its own. `peak` adds up the most memory that each of them ever had, shared libraries once for
each; `held` is what they have together, with the server that they are forked from, a page that several share once: the
most that was seen at the end of a task. `reading` is the first pass. A core second is one of CPU time, over all
processes and threads: what others do on the machine matters less. Nothing needs laspy but `peers`. What is found is
kept in `--out`, beside what is there already, after each number of points.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import DATA, machine, on_cores
from numba import njit

import gridless as gl
from gridless.data.precompute import ShardWriter
from gridless.data.prepare import Preparation, turned
from gridless.data.readers.clouds.base import Parts, Points
from gridless.data.sets.semantickitti import PACK
from gridless.kernels.memory import one_heap, trim
from gridless.kernels.pool import run
from gridless.scenes import Scene, Tiles
from gridless.scenes.label import Labeller

# Scans are this far apart, and cut where the next begins.
APART = 160.0
GRID, RADIUS = 0.05, 0.2
ROUNDS = 3
HOW = Preparation(up="z", features=("intensity",))
Rows = dict[str, Any]


def city(scans: str, points: float) -> Parts:
    """So many points of whole scans, row by row of a square; piece k is scan k."""
    data = gl.data.SemanticKITTI(scans, "train")
    each = []
    for i in range(len(data)):
        cloud = data.example(i)
        cloud = cloud[(cloud.coords[:, :2].abs() < APART / 2).all(1)]
        each.append((cloud.coords.numpy(), cloud.rows["intensity"].numpy()))
    del data, cloud
    trim()
    sizes: list[int] = []
    total = 0
    while total < points:
        sizes.append(len(each[len(sizes) % len(each)][0]))
        total += sizes[-1]
    side = math.ceil(len(sizes) ** 0.5)

    def read(k: int) -> Points:
        coords, intensity = each[k % len(each)]
        place = np.array([(k // side + 0.5) * APART, (k % side + 0.5) * APART, 0.0])
        return Points(coords + place, {"intensity": intensity}, np.dtype(np.float64))

    return Parts(sizes, read)


def plan() -> gl.Plan:
    plan = gl.Plan()
    cloud = plan.points()
    plan.rejection_sample(plan.ball(cloud, cloud, RADIUS))
    return plan


def peak() -> int:
    """The most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def held(*processes: int) -> int:
    """The memory that this process and others have, in MiB; a page that several share counts once (Linux)."""
    # Others may be forked from a server, which is one more.
    every = {os.getpid(), *processes, *(_number(f"/proc/{process}/status", "PPid:") for process in processes)}
    kib = sum(_number(f"/proc/{process}/smaps_rollup", "Pss:") for process in every)
    # The process that started this one has nothing to do but a share in the same libraries.
    return (kib + _number(f"/proc/{os.getppid()}/smaps_rollup", "Pss_File:")) >> 10


def _number(file: str, name: str) -> int:
    """The number in a system file's line that begins with `name`; 0 without such a line."""
    with suppress(OSError):
        return sum(int(line.split()[1]) for line in Path(file).read_text().splitlines() if line.startswith(name))
    return 0


def note(begin: float, message: str) -> None:
    print(f"{time.perf_counter() - begin:6.1f} s  {message}", file=sys.stderr, flush=True)


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """work(*words) in a process of its own, which may have others."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


class Sampler:
    """Searches and samples tiles, given by their keys: how many points and samples are inside, and what it took."""

    def __init__(self, scans: str, points: float, folder: str, device: str = "cpu") -> None:
        scene, size = Scene(city(scans, points), rows=[]), APART / 2
        counts = scene.scan(size, Path(folder) / "scan.npz")
        self.tiles, self.device = Tiles(scene, size, plan().reach(), GRID, counts=counts), device

    def __call__(self, keys: tuple) -> tuple[int, int, float, int, int]:
        done = samples = 0
        begin = time.process_time()
        for key in keys:
            tile, geometry = self.tiles.tile(key).run(plan(), device=self.device)
            samples += int(geometry["X1"].rows["inside"].sum())
            done += int(tile.every.rows["inside"].sum())
        return done, samples, time.process_time() - begin, os.getpid(), peak()


def sampled(scans: str, points: float, device: str, processes: int) -> Rows:
    begin, before = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"scans": scans, "points": points, "folder": folder, "device": device}
        # The first pass, which the others find in the folder.
        tiles = Sampler(**settings).tiles
        total, reading = tiles.scene.count, time.perf_counter() - begin
        # A task is the tiles of a few scans that stand together: each scan is made once or twice.
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for i, j in tiles.keys:
            groups.setdefault((i // 2, j // 8), []).append((i, j))
        here = os.getpid()
        cores, peaks, together, done, kept_samples, shown = time.process_time() - before, {here: peak()}, 0, 0, 0, 0.0
        for _, (inside, samples, seconds, who, most) in run(Sampler, settings, map(tuple, groups.values()), processes):
            done, kept_samples, cores, peaks[who] = done + inside, kept_samples + samples, cores + seconds, most
            together = max(together, held(*peaks.keys() - {here}))
            if time.perf_counter() - shown > 20:
                shown = time.perf_counter()
                memory = f"{sum(peaks.values())} MiB at most, {together} together"
                note(begin, f"{done:,} of {total:,} points, {memory}")
    assert done == total, (done, total)
    seconds = time.perf_counter() - begin
    return {
        "points": total, "processes": processes, "tiles": len(tiles), "samples": kept_samples,
        "seconds": round(seconds, 1),
        "reading, points/s": round(total / reading), "points/s": round(total / seconds),
        "points/core second": round(total / cores), "peak, MiB": sum(peaks.values()), "held, MiB": together,
        "load": os.getloadavg()[1],
    }  # fmt: skip


def check_samples(scans: str, device: str) -> None:
    """Tiles of two sizes, none of which is a scan, and the whole scene at once give the same samples."""
    source, samples = city(scans, 4e5), []
    for size in (37.0, 93.0, math.inf):
        ours: list[int] = []
        for tile in Tiles(Scene(source, rows=[]), size, plan().reach(), GRID):
            rows = tile.run(plan(), device=device)[1]["X1"].rows
            ours += rows["index"][rows["inside"]].tolist()
        samples.append(sorted(ours))
    assert samples[0] == samples[1] == samples[2]
    print(
        f"checked: {len(samples[0]):,} samples of {sum(source.sizes):,} points are those of the whole, in two tilings"
    )


def network() -> Any:
    """With random weights."""
    from gridless.training.recipe import load_recipe

    torch.manual_seed(0)
    return load_recipe("semantickitti").make_model().eval()


def labelled(scans: str, points: float, device: str, limit: float) -> Rows:
    """The scene's tiles one after the other, for so many seconds; `points` are those that were labelled."""
    one_heap()  # as the command `predict` does
    source, on_gpu = city(scans, points), device.startswith("cuda")
    begin = started = time.perf_counter()
    worker = Labeller(source, network(), grid=GRID, how=HOW, device=device)
    tiles, total = worker.tiles, sum(source.sizes)
    result: Rows = {"of points": total, "of tiles": len(tiles), "of side, m": round(tiles.size)}
    result["reading, points/s"] = round(total / (time.perf_counter() - begin))
    note(started, f"{total:,} points were read")
    # Threads that cut tiles beside each other need none of their own.
    torch.set_num_threads(1 if on_gpu else torch.get_num_threads())
    # A first call compiles. Then each half of the work is timed alone.
    some = tiles.keys[len(tiles) // 2 :][:3]
    worker(some[0])
    note(started, "the first tile was labelled")
    begin = time.perf_counter()
    cut = [tiles.tile(key) for key in some]
    cutting = time.perf_counter() - begin
    begin = time.perf_counter()
    inside = sum(len(worker.label(tile)[0]) for tile in cut)
    result["cutting on one core, points/s"] = round(inside / cutting)
    result["labelling, points/s"] = round(inside / (time.perf_counter() - begin))
    note(started, f"{result}")
    del cut
    begin, before, done, ended, together, shown = time.perf_counter(), time.process_time(), 0, 0, held(), 0.0
    for _, (index, _) in worker.over(tiles.keys):
        done, ended, seconds = done + len(index), ended + 1, time.perf_counter() - begin
        if seconds > shown + 5 or ended == len(tiles):
            shown, together = seconds, max(together, held())
            note(
                started, f"{done:,} of {total:,} points, {done / seconds:,.0f} points/s, {peak()} MiB, {together} held"
            )
        if seconds > limit:
            break
    assert seconds > limit or done == total, (done, total)
    result |= {"points": done, "tiles": ended, "seconds": round(seconds, 1), "points/s": round(done / seconds)}
    result |= {"points/core second": round(done / (time.process_time() - before))}
    result |= {"peak, MiB": peak(), "held, MiB": together}
    if on_gpu:
        result["peak on the GPU, MiB"] = torch.cuda.max_memory_allocated() >> 20
    return result


def check_labels(scans: str, device: str) -> None:
    """Labels of two tilings are those of the whole but for ties within rounding; how many logits are, to the bit. On a
    GPU also in float64, where none may differ."""
    source, model = city(scans, 4e5 if device.startswith("cuda") else 1e5), network()
    some = turned(gl.data.SemanticKITTI(scans, "train").example(0)[:20_000], HOW, "a scan")
    with torch.no_grad():
        # No class wins everywhere.
        model.head.bias -= model(model.plan(some)).mean(0)
    many = sum(source.sizes)
    for double in (False, True) if device.startswith("cuda") else (False,):
        predictions = {}
        for size in (math.inf, 60.0, 150.0):
            worker = Labeller(source, model, size=size, grid=GRID, how=HOW, device=device, double=double)
            labels, logits = np.full(many, -1), np.full((many, 19), np.nan)
            for key in worker.tiles.keys:
                tile = worker.tiles.tile(key)
                tile, geometry = tile.run(model.plan, worker.layers, worker.device, worker.around, worker._prepared)
                rows = tile.cloud.rows
                with torch.no_grad():
                    logits[rows["index"][rows["inside"]]] = worker.model(geometry).cpu()[rows["inside"]]
                index, mine = worker.label(tile)
                labels[index] = mine
            assert labels.min() >= 0
            predictions[size] = labels, logits
        whole, known = predictions.pop(math.inf)
        best = np.sort(known, 1)
        for size, (labels, logits) in predictions.items():
            asked = ~np.isnan(known[:, 0])
            off = np.abs(logits - known)[asked].max(1)
            other = labels != whole
            tied = asked & (logits.argmax(1) != known.argmax(1))
            ahead = (best[tied, -1] - best[tied, -2]).max(initial=0.0)
            print(
                f"checked: in tiles of {size:g} m, in {'float64' if double else 'float32'}, {int(other.sum())} of "
                f"{many:,} labels are not those of the whole scene; of {len(off):,} points that the network saw, "
                f"{int((off == 0).sum()):,} have its logits to the bit, the others are off by {off.max():.1e} at most, "
                f"where logits are up to {np.abs(known[asked]).max():.2f}; of those with other labels the best two are "
                f"{ahead:.1e} apart at most",
                flush=True,
            )
            assert other.sum() <= (0 if double else 1e-5 * many), int(other.sum())
            assert ahead <= 2 * off.max(), (ahead, off.max())


class Repeated(torch.utils.data.Dataset):
    """For each of some processes the same scans: entry i is of number i // processes."""

    fingerprint = "scans"

    def __init__(self, scans: str, processes: int, each: int) -> None:
        self.data = gl.data.SemanticKITTI(scans, "train", grid=GRID)
        self.processes, self.each = processes, each

    def __len__(self) -> int:
        return self.processes * self.each

    def __getitem__(self, i: int) -> gl.Cloud:
        return self.data.example(i // self.processes % len(self.data))


def precomputed(scans: str, processes: int, each: int) -> tuple[float, float, float]:
    """Seconds for `each` scans in each of some processes; those before the first file, and from a quarter of the files
    to three quarters."""
    data = Repeated(scans, processes, each)
    with tempfile.TemporaryDirectory(dir=shared_memory(processes * each)) as folder:
        begin = time.time()
        gl.Precomputed(data, folder, plan(), shard=1, num_workers=processes)
        whole = time.time() - begin
        ended = sorted(file.stat().st_mtime for file in Path(folder).rglob("*.safetensors"))
    return whole, ended[0] - begin, ended[len(ended) * 3 // 4] - ended[len(ended) // 4]


@njit
def multiplied(x: np.ndarray, rounds: int) -> None:
    for _ in range(rounds):
        for i in range(len(x)):
            x[i] = x[i] * np.float32(0.999) + np.float32(0.001)


def controls(scans: str) -> dict[str, Callable[[int], Any]]:
    """Work of independent processes, `count` times each."""
    x, a, b = np.ones(2048, np.float32), np.ones(1 << 23, np.float32), np.ones(1 << 23, np.float32)
    data = Repeated(scans, 1, 1 << 20)
    multiplied(x, 1)

    def files(count: int) -> None:
        with tempfile.TemporaryDirectory(dir=shared_memory(count)) as folder:
            work = ShardWriter(
                data, plan(), 0, "", [(Path(folder) / f"{i}.safetensors", 0, range(i, i + 1)) for i in range(count)]
            )
            for i in range(count):
                work(i)

    return {
        "a loop in registers": lambda count: multiplied(x, 1000 * count),
        "copying 32 MiB": lambda count: [np.copyto(a, b) for _ in range(count)],
        "plans alone": lambda count: [plan()(data[i]) for i in range(count)],
        "plans and files": files,
    }


def shared_memory(scans: int) -> Path | None:
    """A folder in memory with room for files of 10 MB a scan, or None."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 2e7 * scans else None


def beside(processes: int, work: Callable[[int], Any], count: int) -> float:
    """Seconds of work(count) in each of some processes, that begin together: their mean."""
    context: Any = multiprocessing.get_context("fork")
    together, times = context.Barrier(processes), context.SimpleQueue()

    def begin() -> None:
        torch.set_num_threads(1)
        work(1)
        together.wait()
        start = time.perf_counter()
        work(count)
        times.put(time.perf_counter() - start)

    started = [context.Process(target=begin) for _ in range(processes)]
    for process in started:
        process.start()
    rates = [times.get() for _ in started]
    for process in started:
        process.join()
    return statistics.mean(rates)


def spent() -> np.ndarray:
    """CPU seconds of processes that have ended, outside and inside the kernel."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([used.ru_utime, used.ru_stime])


def in_turns(processes: list[int], work: Callable[[int], Any]) -> dict[int, list[Any]]:
    """Results of work(n) for each n, ROUNDS times, because single runs on a shared machine differ by a tenth."""
    seconds: dict[int, list[Any]] = {n: [] for n in processes}
    for n in processes * ROUNDS:
        seconds[n].append(work(n))
    return seconds


def precomputing(scans: str, processes: list[int], seconds: float) -> Rows:
    begin = time.perf_counter()
    # A first call compiles; the second decides how many scans to time.
    precomputed(scans, 1, 2)
    one = precomputed(scans, 1, 16)[2] / 8
    each, result = max(8, round(seconds / one)), {}
    note(begin, f"one process takes {one:.3f} s a scan; {each} scans for each")
    # The largest first, not counted: a virtual machine has its memory when it is written to for the first time.
    precomputed(scans, max(processes), each)

    def timed(n: int) -> tuple[float, ...]:
        before = spent()
        took = precomputed(scans, n, each)
        return (*took, *(1e3 * (spent() - before) / (n * each)).tolist())

    times = in_turns(processes, timed)
    first = [statistics.median(column) for column in zip(*times[processes[0]], strict=True)]
    for n, rounds in times.items():
        took, start, middle, user, system = (statistics.median(column) for column in zip(*rounds, strict=True))
        result[f"{n} processes"] = row = {
            "scans": n * each, "seconds": round(took, 2), "scans/s": round(n * each / took, 2),
            "seconds of each round": [round(whole, 2) for whole, *_ in rounds],
            "of linear": round(first[0] / took, 3), "without start and end, of linear": round(first[2] / middle, 3),
            "first file, s": round(start, 2),
            "user, ms/scan": round(user, 1), "system, ms/scan": round(system, 1),
        }  # fmt: skip
        note(begin, f"{n} processes: {row}")
    for name, work in controls(scans).items():
        count = max(2, round(seconds / 2 / beside(1, work, 2)))
        runs = in_turns(processes, partial(beside, work=work, count=count))
        shares = {n: statistics.median(runs[processes[0]]) / statistics.median(took) for n, took in runs.items()}
        for n, part in shares.items():
            result[f"{n} processes"][f"{name}, of linear"] = round(part, 3)
        note(begin, f"{name}: " + ", ".join(f"{n}: {part:.3f}" for n, part in shares.items()))
    return result


def trained(scans: str, device: str, epochs: int) -> Rows:
    """The recipe's mIoU, and what a held-out scan takes, searches, sampling and network."""
    from gridless.cli.main import main as command
    from gridless.tasks.segment import LabelScenes
    from gridless.training.recipe import load_recipe
    from gridless.weights import load

    recipe, on_gpu = load_recipe("semantickitti"), device.startswith("cuda")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        arguments = ["train", "semantickitti", "--data", scans, "--out", folder, "--device", device]
        assert command([*arguments, "--epochs", str(epochs)]) == 0
        seconds = time.perf_counter() - begin
        model: Any = load(Path(folder) / "weights.safetensors", device).eval()
    result: Rows = {"epochs": epochs, "training, s": round(seconds, 1), "s/epoch": round(seconds / epochs, 2)}
    if on_gpu:
        result["peak on the GPU in training, MiB"] = torch.cuda.max_memory_allocated() >> 20
    for split in ("fit", "validation"):
        task = LabelScenes()
        score = task.evaluate(model, task.load(recipe, Path(scans), split).to(device), recipe, 1)
        result[split] = {"scans": score["examples"], "mIoU": score["mean_iou"], "accuracy": score["accuracy"]}
    data, times = gl.data.SemanticKITTI(scans, "validation", grid=GRID), []
    clouds = [turned(data.example(i), HOW, "a scan").to(device) for i in range(len(data))]
    sync = torch.cuda.synchronize if on_gpu else lambda: None
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        for cloud in clouds * 6:
            sync()
            begin = time.perf_counter()
            model(model.plan(cloud)).argmax(1)
            sync()
            times.append(time.perf_counter() - begin)
    result["points of a scan"] = round(statistics.mean(map(len, clouds)))
    result["a scan, ms"] = round(1e3 * statistics.median(times[len(clouds) :]), 2)
    if on_gpu:
        result["peak on the GPU, MiB"] = torch.cuda.max_memory_allocated() >> 20
    return result


def rate(points: int, work: Callable[[], Any]) -> Rows:
    """Points in a core second, and the most memory of the process."""
    begin = time.process_time()
    work()
    return {"points/core second": round(points / (time.process_time() - begin)), "peak, MiB": peak()}


def open3d_search(scans: str, points: float) -> Rows:
    """A point of each cell, then the ball of each, of a scene in memory."""
    import open3d  # type: ignore[import-not-found]

    source = city(scans, points)
    coords = np.concatenate([source.read(k).coords for k in range(len(source.sizes))])
    coords = (coords - coords.mean(0)).astype(np.float32)
    cloud = open3d.t.geometry.PointCloud(open3d.core.Tensor.from_numpy(coords))

    def work() -> None:
        points = cloud.voxel_down_sample(GRID).point.positions
        index = open3d.core.nns.NearestNeighborSearch(points)
        index.fixed_radius_index(RADIUS)
        index.fixed_radius_search(points, RADIUS, sort=False)

    return rate(len(coords), work)


def our_search(scans: str, points: float) -> Rows:
    """The same, and the rejection sample, tile by tile; both passes."""
    with tempfile.TemporaryDirectory() as folder:
        # A first call compiles.
        Sampler(scans, 1.0, folder)(((0, 0),))
        (Path(folder) / "scan.npz").unlink()
        source = city(scans, points)

        def work() -> None:
            tiles = Tiles(Scene(source, rows=[]), APART / 2, plan().reach(), GRID)
            for key in tiles.keys:
                tiles.tile(key).run(plan())

        return rate(sum(source.sizes), work)


def laspy_read(file: str) -> Rows:
    """Every point once, a million at a time, and its three coordinates."""
    import laspy

    with laspy.open(file, laz_backend=laspy.LazBackend.Lazrs) as reader:

        def work() -> None:
            for part in reader.chunk_iterator(1_000_000):
                np.array(part.x), np.array(part.y), np.array(part.z)

        return rate(reader.header.point_count, work)


def our_read(file: str) -> Rows:
    """The first pass: every point once, and where it is."""
    scene = Scene(file, rows=[])
    return rate(scene.count, lambda: scene.scan(APART / 2))


def write_laz(scans: str, points: float, file: str) -> None:
    import laspy

    source, header = city(scans, points), laspy.LasHeader(version="1.4", point_format=6)
    header.scales, header.offsets = np.full(3, 0.001), np.zeros(3)
    with laspy.open(file, "w", header=header, laz_backend=laspy.LazBackend.Lazrs) as writer:
        for k in range(len(source.sizes)):
            read = source.read(k)
            part = laspy.ScaleAwarePointRecord.zeros(len(read.coords), header=header)
            part.x, part.y, part.z = read.coords.T
            part.intensity = (read.rows["intensity"] * 65535).astype(np.uint16)
            writer.write_points(part)


def peers(scans: str, points: float) -> Rows:
    result = {"gridless, cells, balls and samples, in tiles": on_cores(1, our_search, scans, points)}
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/city.laz"
        on_cores(1, write_laz, scans, points, file)
        result["laspy, reading a LAZ file alone"] = on_cores(1, laspy_read, file)
        result["gridless, the first pass over it"] = on_cores(1, our_read, file)
    if find_spec("open3d") is None:
        print("Open3D is not installed: pip install open3d", file=sys.stderr)
    else:
        result["Open3D, cells and balls, in memory"] = on_cores(1, open3d_search, scans, points)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sample", "label", "precompute", "scans", "peers"])
    parser.add_argument("--scans", default=str(DATA / PACK), help="the pack, or the folder of the release")
    parser.add_argument("--points", type=float, nargs="+", default=[1e7])
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=15.0, help="of label, and of precompute for each number")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows_by_name: Rows = {}

    def keep(rows: Rows) -> None:
        rows_by_name.update(rows)
        print(json.dumps(rows), flush=True)
        if options.out:
            known = json.loads(options.out.read_text()) if options.out.exists() else {}
            about = machine()
            if options.device == "cpu":
                about |= {"gpu": None, "cpu": f"{about['cores']}-core {about['compiled for']}"}
            known[options.what] = {"machine": about, "results": rows_by_name}
            options.out.write_text(json.dumps(known, indent=1) + "\n")

    if options.what == "sample":
        alone(check_samples, options.scans, options.device)
        for points in options.points:
            for processes in options.processes:
                row = alone(sampled, options.scans, points, options.device, processes)
                keep({f"{row.pop('points'):,} points, {processes} processes": row})
    elif options.what == "label":
        for points in options.points:
            row = alone(labelled, options.scans, points, options.device, options.seconds)
            keep({f"{row.pop('points'):,} points": row})
        alone(check_labels, options.scans, options.device)
    elif options.what == "precompute":
        keep(precomputing(options.scans, options.processes, options.seconds))
    elif options.what == "scans":
        keep(trained(options.scans, options.device, options.epochs))
    else:
        for points in options.points:
            keep({f"{points:,.0f} points": peers(options.scans, points)})


if __name__ == "__main__":
    main()
