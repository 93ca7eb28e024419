"""Exported C beside the live engine, on real recordings and one core: time per event, and of calls with one event.

    python benchmarks/export.py [--data ../shared/data] [--only n_cars ...]

Compiled with this machine's compiler: at -O3 as it is ("portable": the same bits everywhere); for this machine
("native": the same bits); so with -DNET_FUSED; so with 16 bits. Its logits are held to the engine's before anything is
timed. Weights are random, those of N-Cars shipped.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import DATA, RESULTS, commit, cpu, keep
from streaming import _error, _long, recordings, trained_like

import gridless as gl
from gridless.live.compiled import RECORD
from gridless.live.export.check import FUSED, NATIVE, compilers
from gridless.live.lowering import lines
from gridless.nn.events import EventConv

PLAIN = ("-std=c99", "-O3")
WAYS = {"portable": (32, PLAIN), "native": (32, NATIVE), "fused": (32, (*NATIVE, FUSED)), "16 bits": (16, NATIVE)}

# One event per call, as a C program would.
CALLS = """
#define _POSIX_C_SOURCE 199309L
#include <time.h>
#include "network.h"
void calls(void *state, const net_event *events, size_t n, int64_t *took) {
    struct timespec a, b;
    for (size_t i = 0; i < n; i++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        net_push(state, events + i, 1, 0, 0);
        clock_gettime(CLOCK_MONOTONIC, &b);
        took[i] = (b.tv_sec - a.tv_sec) * 1000000000ll + (b.tv_nsec - a.tv_nsec);
    }
}
"""


def records(events: gl.Events) -> np.ndarray:
    records = np.zeros(len(events), RECORD)
    records["t"], records["p"] = events.time.numpy(), events.polarity.numpy()  # type: ignore[union-attr]
    records["x"], records["y"] = events.pixel.numpy().T
    return records


def apart(model: torch.nn.Module) -> torch.nn.Module:
    """Rates as after training. They begin the same at all taps, and C would let these share their traces."""
    for layer in model.modules():
        if isinstance(layer, EventConv):
            layer.log_rate.data += 0.1 * torch.randn_like(layer.log_rate)
    return model


def prepare(model: torch.nn.Module, folder: Path) -> None:
    """The network as a library, in all ways."""
    jobs = []
    for bits in {bits for bits, _ in WAYS.values()}:
        (gl.export(model, folder / str(bits), bits=bits) / "calls.c").write_text(CALLS)
    for way, (bits, flags) in WAYS.items():
        command = [*compilers()[0], *flags, "-fPIC", "-shared", "network.c", "calls.c", "-o", f"{way}.so"]
        jobs.append(subprocess.Popen(command, cwd=folder / str(bits)))
    assert [job.wait() for job in jobs] == [0] * len(jobs)


def measure(model: torch.nn.Module, events: gl.Events, folder: Path, packet: int = 1000) -> dict[str, dict]:
    """Microseconds of processor time per event in packets, best of some rounds; of calls the median and two tails."""
    ways: dict[str, dict] = {}
    engine = gl.stream(model)
    parts = [events[a : a + packet] for a in range(0, len(events), packet)]
    raw, libraries, states = records(events), {}, {}
    for way, (bits, _) in WAYS.items():
        library = libraries[way] = ctypes.CDLL(str(folder / str(bits) / f"{way}.so"))
        library.net_bytes.restype = ctypes.c_size_t
        library.net_push.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] + [ctypes.c_void_p] * 2
        library.calls.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_void_p]
        states[way] = lines(library.net_bytes())
        ways[way] = {"state MB": states[way].nbytes / 1e6}
    rounds: dict[str, list[float]] = {"engine": [], **{way: [] for way in WAYS}}
    # One after the other in every round, so that all see the same load.
    for _ in range(5):
        engine.reset()
        begin = time.process_time()
        for part in parts:
            engine(part)
        rounds["engine"].append(time.process_time() - begin)
        for way, library in libraries.items():
            state = ctypes.c_void_p(states[way].ctypes.data)
            library.net_reset(state)
            begin = time.process_time()
            for a in range(0, len(raw), packet):
                assert library.net_push(state, raw[a:].ctypes.data, min(packet, len(raw) - a), None, None) == 0
            rounds[way].append(time.process_time() - begin)
    for way, library in libraries.items():
        logits = np.zeros(len(engine.predict()), np.float32)
        state = ctypes.c_void_p(states[way].ctypes.data)
        library.net_predict(state, ctypes.c_void_p(logits.ctypes.data))
        # Before the last stream has fired, both are the bias.
        same = np.array_equal(logits, engine.predict().numpy())
        ways[way]["error"] = 0.0 if same else _error(torch.from_numpy(logits), engine.predict())
        assert ways[way]["error"] < (1e-5 if WAYS[way][0] == 32 else 1e-2), (way, ways)
        took = np.zeros(len(raw), np.int64)
        library.net_reset(state)
        library.calls(state, raw.ctypes.data, len(raw), took.ctypes.data)
        ways[way] |= late(took)
    ones = [events[k : k + 1] for k in range(min(20_000, len(events)))]
    took = np.zeros(len(ones), np.int64)
    engine.reset()
    for k, one in enumerate(ones):
        begin = time.perf_counter_ns()
        engine(one)
        took[k] = time.perf_counter_ns() - begin
    ways["engine"] = late(took)
    for way, seconds in rounds.items():
        ways[way]["us/event"] = 1e6 * float(np.min(seconds)) / len(events)
    return ways


def late(took: np.ndarray) -> dict[str, float]:
    p50, p90, p99 = np.percentile(took[len(took) // 4 :], [50, 90, 99]) / 1000
    return {"call p50 us": p50, "call p90 us": p90, "call p99 us": p99}


def memory() -> dict[str, dict[str, dict[str, int]]]:
    """Bytes of the shipped event networks with the least working memory (`chunk=1`), by bits."""
    sizes: dict[str, dict[str, dict[str, int]]] = {}
    for name in ("n-cars-stream", "n-cars-voxel", "n-cars", "n-cars-small"):
        for bits in (32, 16):
            with tempfile.TemporaryDirectory() as folder:
                text = (gl.export(gl.load(name), folder, bits=bits, chunk=1) / "README.md").read_text()
            rows = re.findall(r"^\| (constants|state: [a-z ]+) \| ([\d,]+) \|$", text, re.MULTILINE)
            constants, *state = (int(number.replace(",", "")) for _, number in rows)
            sizes.setdefault(name, {})[str(bits)] = {"constants": constants, "state": sum(state)}
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="*", default=None, help="names of networks")
    parser.add_argument("--memory", action="store_true", help="bytes of the shipped networks only")
    choice = parser.parse_args()
    out = RESULTS / "export.json"
    earlier = json.loads(out.read_text()) if out.is_file() else {}
    if choice.memory:
        keep(out, earlier | {"memory": memory()})
        return
    torch.set_num_threads(1)
    real = recordings(choice.data)
    results = {}
    for name in choice.only or [*real, "n_cars_small"]:
        if name == "n_cars_small":
            events, model = gl.augment.PoolPixels(2)(_long(real["n_cars"])), gl.load("n-cars-small")
        else:
            events = _long(real[name])
            model = gl.load("n-cars-stream") if name == "n_cars" else apart(trained_like(name, head="stream"))
        with tempfile.TemporaryDirectory() as folder:
            prepare(model, Path(folder))
            results[name] = measure(model, events[:60_000], Path(folder))
        print(name, json.dumps(results[name], indent=1), flush=True)
    keep(out, earlier | {"machine": cpu(), "commit": commit(), "results": results})


if __name__ == "__main__":
    main()
