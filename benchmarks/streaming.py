"""The live engine: exactness on real recordings, then events per second, latency and memory, on one core.

    python benchmarks/streaming.py [--data ../shared/data] [--soak EVENTS | --latency]

Recordings: dvs128_objects (128 x 128) for the CIFAR10-DVS and MNIST-DVS networks, N-MNIST for its own, N-Cars for its
own; for the two networks of half-resolution sensors the DVS128 recordings, cut to their sensor. Weights are random,
with statistics as after training: speed and exactness do not depend on what was learned, only on how many events fire,
and that is decided by the recordings and the LIF settings alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from common import DATA, RESULTS, commit, cpu, keep
from rich.console import Console
from rich.table import Table

import gridless as gl
from gridless.kernels.progress import track
from gridless.live import Session, stream
from gridless.models import events as networks
from gridless.nn.norm import BatchNorm

# Windows of the voxel head: about as long as the recordings of each data set.
DURATION = {
    "n_mnist": 300_000, "mnist_dvs": 2_000_000, "cifar10_dvs": 1_280_000, "n_caltech101": 300_000, "asl_dvs": 100_000,
    "n_cars": 100_000,
}  # fmt: skip


def trained_like(name: str, **options) -> networks.EventResNet:
    torch.manual_seed(7)
    model = getattr(networks, name)(**options)
    for layer in model.modules():
        if isinstance(layer, BatchNorm):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    return model.eval()


def recordings(data: Path) -> dict[str, list[gl.Events]]:
    """Real recordings for each network, as single examples."""
    sys.path.insert(0, str(data))
    import read

    def events(pack: dict, i: int, sensor: tuple[int, int]) -> gl.Events:
        a, b = pack["offsets"][i : i + 2]
        x, y, t, p = (pack[k][a:b] for k in "xytp")
        inside = (x < sensor[0]) & (y < sensor[1])
        pixel = torch.from_numpy(np.stack([x, y], 1)[inside].astype(np.int32))
        ends = torch.tensor([0, len(pixel)])
        return gl.Events(pixel, torch.from_numpy(t[inside]), torch.from_numpy(p[inside] > 0), ends, sensor)

    objects = read.events(data / "dvs128_objects.npz.xz")
    digits = read.events(data / "nmnist_small_train.npz.xz")
    cars = read.events(data / "ncars_train_0.npz.xz")
    return {
        "n_mnist": [events(digits, i, (34, 34)) for i in range(0, 1000, 10)],
        "mnist_dvs": [events(objects, i, (128, 128)) for i in (0, 6)],
        "cifar10_dvs": [events(objects, i, (128, 128)) for i in (0, 6)],
        "n_caltech101": [events(objects, 0, (117, 87))],
        "asl_dvs": [events(objects, 0, (120, 90))],
        "n_cars": [events(cars, i, (120, 100)) for i in range(0, 400, 4)],
    }


def exactness(name: str, recording: gl.Events) -> dict[str, float]:
    """Largest relative error over all events of all levels: engine and session against the batch forward."""
    recording = recording[:20_000]
    differences: dict[str, float] = {}
    for head in ("voxel", "stream"):
        model = trained_like(name, head=head, duration=10**9)
        with torch.no_grad():
            geometry = model.plan(recording)
            levels, logits = model.trunk(geometry), model(geometry)[0]
            cropped = trained_like(name, head=head, duration=10**9, form="edges")
            cropped.load_state_dict(model.state_dict())
            window = cropped.trunk(cropped.plan(recording))
        names = [f"blocks.{k}" for k in range(len(levels))]
        for kind, live in (("engine", stream(model, names)), ("session", Session(model, names))):
            parts: list[list[torch.Tensor]] = [[] for _ in levels]
            for a in range(0, len(recording), 997):
                live(recording[a : a + 997])
                for name_of, part in zip(names, parts, strict=True):
                    part.append(live.features(name_of)[1])
            errors = [_error(torch.cat(part), level) for part, level in zip(parts, levels, strict=True)]
            differences[kind] = max(differences.get(kind, 0.0), *errors, _error(live.predict(), logits))
        differences["window"] = max(_error(a, b) for a, b in zip(window, levels, strict=True))
    return differences


def _long(recorded: list[gl.Events], count: int = 70_000) -> gl.Events:
    """Recordings one after the other, until there are enough events."""
    parts, end = [], 0
    for events in itertools.cycle(recorded):
        parts.append((events, end - int(events.time[0])))
        end += int(events.time[-1] - events.time[0]) + 1
        if sum(len(events) for events, _ in parts) >= count:
            break
    time = torch.cat([events.time + shift for events, shift in parts])
    pixel, polarity = (torch.cat([getattr(events, part) for events, _ in parts]) for part in ("pixel", "polarity"))
    return gl.Events(pixel, time, polarity, torch.tensor([0, len(time)]), recorded[0].sensor)


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max() / b.abs().max()) if b.numel() else 0.0


def speed(name: str, recorded: list[gl.Events], head: str, packet: int = 10_000) -> dict[str, float]:
    """Million events per second of processor time over the recordings, one thread: the best round of 2.5 s of them."""
    model = trained_like(name, head=head, duration=DURATION[name])
    engine = stream(model)
    engine(recorded[0][:2000])
    best, count, rounds, spent = np.inf, sum(map(len, recorded)), 0, 0.0
    # Short rounds need more of them: the best of three of 0.15 s differed by half from run to run on a shared machine.
    while rounds < 3 or spent < 2.5:
        seconds = 0.0
        for events in recorded:
            engine.reset()
            packets = [events[a : a + packet] for a in range(0, len(events), packet)]
            begin = time.process_time()
            for part in packets:
                engine(part)
            seconds += time.process_time() - begin
        best, rounds, spent = min(best, seconds), rounds + 1, spent + seconds
    cost = model.cost(model.plan(recorded[0]))["total"]
    return {
        "Mev/s": count / best / 1e6, "multiply-adds/event": cost, "MB": engine.memory_bytes / 1e6,
        "state MB": sum(v.numel() * v.element_size() for v in engine.state_dict().values()) / 1e6,
    }  # fmt: skip


def latency(name: str, recording: gl.Events, head: str = "stream") -> dict[str, float]:
    """Microseconds of `engine(packet)`, packets of one event each, made before."""
    engine = stream(trained_like(name, head=head, duration=DURATION[name]))
    engine(recording[:50_000])
    packets = [recording[k : k + 1] for k in range(50_000, min(70_000, len(recording)))]
    took = np.zeros(len(packets), np.int64)
    for k, packet in enumerate(packets):
        begin = time.perf_counter_ns()
        engine(packet)
        took[k] = time.perf_counter_ns() - begin
    p50, p99 = np.percentile(took, [50, 99]) / 1000
    return {"p50 us": p50, "p99 us": p99}


def soak(recording: gl.Events, total: int) -> dict[str, float]:
    """The same recording again and again: memory, speed at the start and the end, a fresh engine on the last part."""
    # Three levels: deep enough for the recording to reach the last of them.
    model = trained_like("cifar10_dvs", head="stream", levels=3, pooled=0)
    engine, fresh = stream(model), stream(model)
    span = int(recording.time[-1] - recording.time[0]) + 1
    before, rates, done, turn = engine.memory_bytes, [], 0, 0
    turns = -(-total // len(recording))
    for turn in track(range(turns), "soak"):
        again = gl.Events(
            recording.pixel, recording.time + turn * span, recording.polarity, recording.splits, recording.sensor
        ).trusted()
        begin = time.process_time()
        engine(again)
        rates.append(len(again) / (time.process_time() - begin) / 1e6)
        if turn >= turns - 3:
            fresh(again)
        done += len(again)
    a, b = engine.predict(), fresh.predict()
    tenth = max(len(rates) // 10, 1)
    return {
        "events": done, "bytes before": before, "bytes after": engine.memory_bytes,
        "Mev/s first tenth": float(np.max(rates[:tenth])), "Mev/s last tenth": float(np.max(rates[-tenth:])),
        "difference from a fresh engine": _error(a, b),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--soak", type=int, default=0, help="push so many events through one engine, and nothing else")
    parser.add_argument("--latency", action="store_true", help="one event per call, and nothing else")
    parser.add_argument("--only", nargs="*", default=None, help="names of networks")
    choice = parser.parse_args()
    torch.set_num_threads(1)
    real = recordings(choice.data)
    kind = "soak" if choice.soak else "latency" if choice.latency else "streaming"
    if choice.soak:
        results: dict = soak(real["cifar10_dvs"][0], choice.soak)
    elif choice.latency:
        results = {
            name: {head: latency(name, _long(real[name]), head) for head in ("voxel", "stream")}
            for name in choice.only or real
        }
        print(json.dumps(results, indent=1))
    else:
        results = {}
        table = Table(
            "network", "engine error", "session error", "window differs by", "head", "Mev/s", "MAC/event", "state MB"
        )
        for name in choice.only or real:
            entry = {"error": exactness(name, real[name][0])}
            assert entry["error"]["engine"] < 1e-5, entry
            for head in ("voxel", "stream"):
                entry[head] = speed(name, real[name], head)
                errors = [f"{entry['error'][k]:.1e}" for k in ("engine", "session", "window")]
                rate = entry[head]
                table.add_row(
                    name,
                    *errors,
                    head,
                    f"{rate['Mev/s']:.2f}",
                    f"{rate['multiply-adds/event']:,.0f}",
                    f"{rate['state MB']:.1f}",
                )
            results[name] = entry
        Console().print(table)
    about = {"machine": cpu(), "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    keep(RESULTS / f"{kind}.json", {**about, "results": results})
    if choice.soak:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
