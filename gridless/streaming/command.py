"""`gridless stream`: a trained event network on a file, a byte stream, a socket or a camera, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gridless.structures import Events


class Overload(StrEnum):
    wait = "wait"
    drop = "drop"


def stream(
    weights: Annotated[str, typer.Option(help="Shipped weights by name, or the path of a .safetensors file.")],
    source: Annotated[
        str, typer.Option("--input", help="A recording, - for frames on standard input, udp://HOST:PORT, or camera.")
    ],
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Play a recording at the speed it was recorded.")
    ] = False,
    overload: Annotated[
        Overload, typer.Option(help="When events come too fast: let the source wait, or drop and count.")
    ] = Overload.wait,
    packet: Annotated[int, typer.Option(min=1, help="Microseconds per packet of a recording.")] = 1000,
    idle: Annotated[float | None, typer.Option(help="Seconds of silence after which a socket ends.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No throughput and latency on standard error.")] = False,
) -> None:
    """Predictions as JSON lines on standard output: time in microseconds, class, probability.

    Throughput, latency per packet and lag behind the recording are shown on standard error. Nothing is dropped without
    being counted. A socket goes on whatever it is sent, and counts the frames that were lost, late (after a later one,
    or again), bad (no frame), or refused (an event outside the sensor, or back in time). In a file and on standard
    input these are errors.
    """
    from gridless.streaming import stream as engine_of
    from gridless.streaming.sources import Buffered, Camera, Datagrams, frames, recording
    from gridless.weights import load

    model: Any = load(weights)
    engine = engine_of(model, features=False)
    names = model.about.get("classes") or [str(k) for k in range(model.config["classes"])]
    raw: Any
    if source == "-":
        # A reader of its own: the interpreter waits at its end for one that a thread still reads from.
        raw = frames(os.fdopen(os.dup(sys.stdin.fileno()), "rb"), engine.sensor)
    elif source == "camera":
        raw = Camera(engine.sensor)
    elif source.startswith("udp://"):
        host, _, port = source.removeprefix("udp://").rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{source!r} is not of the form udp://HOST:PORT")
        raw = Datagrams(host, int(port), engine.sensor, idle)
    elif not Path(source).is_file():
        raise FileNotFoundError(f"no file {source}: --input takes a recording, -, udp://HOST:PORT or camera")
    else:
        raw = recording(source, engine.sensor, packet, realtime)
    live = realtime or not isinstance(source, str) or source == "-" or "://" in source or source == "camera"
    packets: Iterable[Events] = Buffered(raw, drop=overload is Overload.drop) if live else raw
    meter = Meter(quiet, lambda: _counts(packets, raw))
    try:
        for events in packets:
            begin = time.perf_counter()
            for prediction in engine.push(events):
                _print(prediction.time, prediction.logits, names, final=True)
            meter.tick(events, time.perf_counter() - begin)
        if engine.events_seen:
            _print(engine.time, engine.predict(), names, final=False)
    except BrokenPipeError:
        # The reader of the predictions has seen enough. What is left in the buffer is written at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        meter.close(getattr(raw, "reason", ""))


def _counts(*sources: Any) -> dict[str, int]:
    """What was not worked on."""
    names = ("dropped_packets", "dropped_events", "lost", "late", "bad", "refused", "overflows")
    return {k: getattr(s, k) for s in sources for k in names if hasattr(s, k)}


def _print(when: int, logits: Any, names: list[str], final: bool) -> None:
    share = logits.softmax(0)
    best = int(share.argmax())
    line = {"time": when, "class": names[best], "probability": round(float(share[best]), 6), "final": final}
    print(json.dumps(line), flush=True)


class Meter:
    """Throughput, latency and lag, once a second on standard error."""

    def __init__(self, quiet: bool, counts: Callable[[], dict[str, int]]) -> None:
        self.quiet, self.counts = quiet, counts
        self.begin = self.shown = time.perf_counter()
        self.events = 0
        self.busy = 0.0
        self.first: int | None = None
        self.lag = 0.0
        self.latency: list[float] = []

    def tick(self, events: Events, seconds: float) -> None:
        if not len(events):
            return
        now = time.perf_counter()
        if self.first is None:
            self.first, self.begin = int(events.time[0]), now
        self.events += len(events)
        self.busy += seconds
        self.latency.append(seconds)
        # Percentiles of the last hundred thousand packets: a stream may run for months.
        del self.latency[:-100_000]
        self.lag = (now - self.begin) - (int(events.time[-1]) - self.first) * 1e-6
        if not self.quiet and now - self.shown > 1:
            self.shown = now
            print("\r" + self.line(), end="", file=sys.stderr, flush=True)

    def line(self) -> str:
        p50, p99, p999 = np.percentile(self.latency or [0.0], [50, 99, 99.9]) * 1e6
        rate = self.events / max(self.busy, 1e-9) / 1e6
        return (
            f"{self.events:,} events, {rate:.2f} M events/s of work, "
            f"packet p50 {p50:.0f} us, p99 {p99:.0f} us, p99.9 {p999:.0f} us, lag {self.lag:+.3f} s"
        ) + "".join(f", {k.replace('_', ' ')} {v:,}" for k, v in self.counts().items())

    def close(self, reason: str) -> None:
        """The last line, and why something was not taken."""
        if not self.quiet:
            print("\r" + self.line() + (f"\nnot taken: {reason}" if reason else ""), file=sys.stderr, flush=True)
