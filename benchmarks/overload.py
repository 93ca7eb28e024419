"""Accuracy and lag against load: what thinning costs when events come faster than they can be worked on.

    python benchmarks/overload.py --data DIR --weights RUN/weights [--recordings 600] [--only accuracy|lag]

At a load of k times what the engine can do, `gridless stream --overload thin` keeps every k-th event, evenly.
Recordings of N-Cars of the fold that the weights have not seen are thinned so and judged: those of a run of
n-cars, because the shipped ones have seen all folds.

Lag is that of n-cars-stream, whose engine works on what the buffer hands it, while a source puts in a packet every
millisecond at so many times the rate that the engine can do. The clock is the processor time that the engine takes, so
that other processes do not count. Writes results/overload.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, keep, machine

import gridless as gl
from gridless.data import NCars
from gridless.live.overload import Buffered, Overload, joined, thinned

LOADS = (1, 1.5, 2, 3, 5, 10, 20)


def lags(engine, events: gl.Events, load: float, seconds: float = 2.0) -> dict[str, float]:
    """Lag of each packet in milliseconds, at `load` times what the engine can do, for so many seconds of its clock."""
    begin = time.process_time()
    engine.reset()
    for a in range(0, len(events), 1000):
        engine(events[a : a + 1000])
    rate = load * len(events) / (time.process_time() - begin)
    engine.reset()
    now, lags, came, at, events_kept = 0.0, [], 0, 0, 0
    source = Buffered(iter(()), Overload.thin, clock=lambda: now)
    packets = iter(source)
    while now < seconds:
        now = max(now, 1e-3 * came)
        while 1e-3 * came <= now:
            end = round(1e-3 * rate * (came + 1))
            rows = torch.arange(at, end) % len(events)
            again = torch.arange(at, end) // len(events) * (int(events.time[-1]) + 1)
            splits = torch.tensor([0, len(rows)])
            times = events.time[rows] + again
            source._put(gl.Events(events.pixel[rows], times, events.polarity[rows], splits, events.sensor), 1e-3 * came)
            came, at = came + 1, end
        packet = next(packets)
        begin = time.process_time()
        engine(packet)
        now += time.process_time() - begin
        events_kept += len(packet)
        lags.append(1e3 * (now - source.received))
    p50, p99 = np.percentile(lags, [50, 99])
    return {"load": load, "events kept of each": events_kept / at, "p50 ms": p50, "p99 ms": p99, "most ms": max(lags)}


def lag(data: Path) -> dict:
    """At every load, with the engine of n-cars-stream."""
    torch.set_num_threads(1)
    recordings, parts, end = NCars(data, split="validation", fold=1), [], 0
    for k in range(0, 2000, 50):
        events = recordings[k][0]
        times = events.time + end - int(events.time[0])
        end = int(times[-1]) + 1
        parts.append(gl.Events(events.pixel, times, events.polarity, events.splits, events.sensor))
    engine = gl.stream(gl.load("n-cars-stream"))
    rows = []
    for load in LOADS:
        rows.append(lags(engine, joined(parts), load))
        print(rows[-1], flush=True)
    return {"machine": machine(), "about": "n-cars-stream, a packet every ms, bound 5 ms; processor time", "rows": rows}


@torch.no_grad()
def accuracy(options: argparse.Namespace) -> dict:
    """At every load, of a network that has not seen the recordings."""
    model = gl.load(options.weights)
    fold = model.about["recipe"]["data_options"]["fold"]
    data = NCars(options.data, split="validation", fold=fold)
    rows = np.linspace(0, len(data) - 1, min(options.recordings, len(data))).astype(np.int64)
    results = []
    for load in LOADS:
        right = events = 0
        for part in np.array_split(rows, -(-len(rows) // 50)):
            whole = [data[int(i)] for i in part]
            some = [thinned(recording, max(round(len(recording) / load), 1)) for recording, _ in whole]
            logits = model(model.plan(gl.collate(some)))
            right += int((logits.argmax(1) == torch.tensor([label for _, label in whole])).sum())
            events += sum(map(len, some))
        row = {"load": load, "events kept of each": 1 / load, "accuracy": right / len(rows)}
        results.append(row | {"events a recording": events / len(rows)})
        print(results[-1], flush=True)
    about = f"n-cars without fold {fold}, {len(rows)} recordings of that fold, thinned evenly"
    return {"machine": machine(), "about": about, "rows": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of N-Cars, or of its packs")
    parser.add_argument("--recordings", type=int, default=600)
    parser.add_argument("--weights", help="of a run of n-cars that held a fold out")
    parser.add_argument("--only", choices=("accuracy", "lag"), help="keep the other as it is")
    options = parser.parse_args()
    if options.weights is None and options.only != "lag":
        parser.error("--weights: those of a run that held a fold out; or --only lag")
    path = RESULTS / "overload.json"
    results = json.loads(path.read_text()) if options.only else {}
    if options.only != "lag":
        results |= accuracy(options)
    if options.only != "accuracy":
        results |= {"lag": lag(options.data)}
    keep(path, results)


if __name__ == "__main__":
    main()
