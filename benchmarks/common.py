"""Common to the benchmarks: clocks, facts about the machine, floors, and results as a table and as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
# benchmarks/reproduction.py names another folder by this variable.
DATA = Path(os.environ.get("GRIDLESS_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "benchmarks" / "results"
# The gridless of this tree, installed or not: scripts import this module before it.
sys.path.insert(0, str(ROOT))
# Radius of the first ball of the paper's large network.
RADIUS = 0.1125
# A list without lists, objects and strings in it, in JSON.
NUMBERS = re.compile(r'\[[^][{}"]+\]')


def seconds(work: Callable[[], Any], repeat: int = 7, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median time of `work`, after one run that does not count."""
    work()
    times = []
    for _ in range(repeat):
        begin = clock()
        work()
        times.append(clock() - begin)
    return statistics.median(times)


def cpu_seconds(work: Callable[[], Any], repeat: int = 7) -> float:
    """As `seconds`, of the CPU time of all threads: the work of one core, on a machine that others use too."""
    return seconds(work, repeat, time.process_time)


def in_turn(works: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The least time of each work over some rounds of all of them: what other processes do then matters least."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for who, work in works.items():
            begin = clock()
            work()
            best[who] = min(best[who], clock() - begin)
    return best


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def on_cores(count: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """work(*words) in a fresh process that is held to `count` cores, and torch to as many threads.

    Whatever a peer starts there, threads that only wait included, has those cores and no others.
    """
    with multiprocessing.get_context("spawn").Pool(1, _hold, (count,)) as pool:
        return pool.apply(work, arguments)


def _hold(count: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    torch.set_num_threads(count)


def machine(with_commit: bool = True) -> dict[str, Any]:
    """Machine, versions and commit of a result; the commit is left out where each row has its own."""
    from numba.core.registry import cpu_target

    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "compiled for": name,
        "avx512": "+avx512f" in str(features),
        "load": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **({"commit": commit()} if with_commit else {}),
    }


def cpu() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    lscpu = subprocess.run(["lscpu"], capture_output=True, text=True).stdout if shutil.which("lscpu") else ""
    names = [line.split(":")[1].strip() for line in lscpu.splitlines() if line.startswith("Model name")]
    return f"ARM {names[0]}" if names else platform.processor()


def commit() -> str:
    """The commit that is measured, with a + where the package has been changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "gridless") else "")


def floors() -> dict[str, float]:
    """Rates of one core that no kernel beats: bytes copied per second (counted once), and multiply-adds in cache."""
    from numba import njit

    @njit
    def multiply(x, rounds):
        for _ in range(rounds):
            for i in range(len(x)):
                x[i] = x[i] * np.float32(0.999) + np.float32(0.001)

    a = np.ones(1 << 25, np.int32)
    b = np.empty_like(a)
    b[:] = 0
    copy = a.nbytes / cpu_seconds(lambda: np.copyto(b, a), 5)
    x = np.ones(2048, np.float32)
    flops = 2 * len(x) * 5000 / cpu_seconds(lambda: multiply(x, 5000), 5)
    return {"copy_bytes_per_s": copy, "flops_per_s": flops}


def mps() -> str:
    """Let the kernels of several processes run side by side, where NVIDIA's daemon is installed: what it said."""
    try:
        command = ["nvidia-cuda-mps-control", "-d"]
        started = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "not available"
    return started.stderr.strip() or "started"


def modelnet(count: int) -> tuple[str, np.ndarray]:
    """Real clouds (count, 1024, 3) where the data lie beside the project, else points on random ellipsoids."""
    random = np.random.default_rng(0)
    if (DATA / "modelnet40_train.npz").exists():
        sys.path.insert(0, str(DATA))
        import read

        clouds = read.points(DATA / "modelnet40_train.npz")[0]
        return "ModelNet40", np.ascontiguousarray(clouds[random.permutation(len(clouds))[:count]])
    x = random.normal(size=(count, 1024, 3))
    x *= random.uniform(0.3, 1, (count, 1, 3)) / np.linalg.norm(x, axis=2, keepdims=True)
    return "ellipsoids", x.astype(np.float32)


def evenly(points: int) -> tuple[np.ndarray, float]:
    """Uniform points, and the radius within which each has about 20."""
    x = np.random.default_rng(0).random((points, 3), np.float32)
    return x, float((20 / (4 / 3 * np.pi * points)) ** (1 / 3))


def report(file: Path, rows: list[dict[str, Any]], **facts: Any) -> None:
    """Print the rows as a table, and keep them with the machine's facts."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=file.stem)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(column, justify="left" if column in ("work", "who") else "right")
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    Console(width=160).print(table)
    keep(file, {"machine": machine(), **facts, "rows": rows})


def keep(file: Path, content: dict[str, Any]) -> None:
    """Write a result as JSON, each list of numbers on one line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, default=float)
    file.write_text(NUMBERS.sub(lambda match: json.dumps(json.loads(match[0])), text) + "\n")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
