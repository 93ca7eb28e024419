"""`gridless stream`: a trained event network on a file, a byte stream, a socket or a camera, as JSON lines."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import torch
import typer

from gridless.cli.options import Weights
from gridless.kernels.progress import is_terminal
from gridless.live.meter import Meter
from gridless.live.overload import Buffered, Overload
from gridless.live.packets import Prediction
from gridless.live.view import Kind, View, open_view

# Seconds that a recording waits for a browser to show it.
PATIENCE = 10.0

# Exit status if a socket was sent frames that were not taken.
REFUSED = 3

# Seconds after which a thread must hand the interpreter over: Python's default of 5 ms is as long as the whole lag.
SWITCH = 1e-4


Repair = StrEnum("Repair", "cut unwrap drop hold sort shift")


class Tell(Protocol):
    """Reports predictions; those that are not final are asked for before they are due."""

    def __call__(self, predictions: list[Prediction], *, final: bool) -> None: ...


def stream(
    weights: Weights,
    source: Annotated[
        str, typer.Option("--input", help="A recording, - for frames on standard input, udp://HOST:PORT, or camera.")
    ],
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Play a recording at the speed it was recorded.")
    ] = False,
    overload: Annotated[
        Overload,
        typer.Option(help="When events come too fast: let the source wait, drop packets, or thin events evenly."),
    ] = Overload.wait,
    lag: Annotated[float, typer.Option(min=0.1, help="Milliseconds of lag that --overload thin keeps to.")] = 5.0,
    packet: Annotated[int, typer.Option(min=1, help="Microseconds per packet of a recording.")] = 1000,
    idle: Annotated[
        float | None, typer.Option(help="Seconds of silence after which a socket ends, from the first frame on.")
    ] = None,
    crop: Annotated[
        str | None, typer.Option(metavar="X,Y", help="The camera's pixel that becomes the network's first one.")
    ] = None,
    pool: Annotated[int, typer.Option(min=1, help="Make N x N pixels of the camera one.", metavar="N")] = 1,
    repair: Annotated[
        list[Repair] | None,
        typer.Option(help="drop: leave out events outside the network's sensor; others for recordings only."),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Of a recording of ROS, where several topics have events.")] = None,
    jump: Annotated[float, typer.Option(min=0, help="Seconds by which the times of a socket may jump.")] = 10.0,
    view: Annotated[
        Kind | None, typer.Option(help="Show events, prediction, rate and lag: on a local page, here, or in Rerun.")
    ] = None,
    view_port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0: any that is free.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No throughput and latency on standard error.")] = False,
) -> int:
    """Predictions as JSON lines on standard output: time in microseconds, class and probability, or x and y.

    Throughput, latency per packet and lag are shown on standard error; they count from the first packet on, when all is
    compiled and loaded. Nothing is dropped without being counted. A socket goes on whatever it is sent, and counts the
    frames that were lost, late (after a later one, or again), bad (no frame), or refused (an event outside the sensor,
    back in time, or at a time that jumps). In a file and on standard input these are errors. The exit status is 3 where
    a socket was sent frames that were bad or refused.
    """
    from gridless.live import stream as engine_of
    from gridless.live.sources import Fit
    from gridless.tasks import task_of
    from gridless.weights import class_names, load

    repairs = [str(name) for name in repair or []]
    _check_source(source, repairs, crop, topic)
    model: Any = load(weights)
    engine, task = engine_of(model), task_of(model)
    names = class_names(model, task.classes(model.config) or 0)
    live = realtime or _is_live(source)
    options = {"jump": int(min(jump, 1e12) * 1e6), "idle": idle} if _is_live(source) else {"topic": topic}
    corner = None if crop is None else tuple(map(int, crop.split(",")))
    fit = Fit(engine.sensor, corner, pool, "drop" in repairs)  # type: ignore[arg-type]
    raw = _source(source, fit, repairs, packet, realtime, options, engine)
    packets: Iterable[Any] = Buffered(raw, overload, lag=1e-3 * lag) if live else raw
    meter = Meter(quiet or view is Kind.terminal, lambda: _counts(packets, raw))
    patience = 0.0 if live and not realtime else PATIENCE
    viewer = None if view is None else open_view(view, engine.sensor, names, meter, view_port, patience)
    # Printed lines would overwrite a view in the terminal.
    tell = (
        _ignore
        if view is Kind.terminal and is_terminal(sys.stdout)
        else partial(_print, partial(task.live, names=names))
    )
    with _closing(raw, packets, meter, viewer), _quick_switches():
        _run(packets, engine, tell, meter, viewer)
        if not engine.events_seen and not quiet:
            print("no events arrived. Check the input, --crop and --repair.", file=sys.stderr)
    return REFUSED if getattr(raw, "bad", 0) or getattr(raw, "refused", 0) else 0


def _run(packets: Iterable[Any], engine: Any, tell: Tell, meter: Meter, viewer: View | None) -> None:
    """Pass all packets through the engine, and report predictions as they are due; at the end the newest one."""
    from gridless.live.sources import NewStream

    for events in packets:
        if isinstance(events, NewStream):
            if engine.events_seen:
                tell([Prediction(engine.time, engine.predict())], final=False)
            engine.reset()
            meter.restart()
            continue
        begin = time.perf_counter()
        predictions = list(engine.push(events))
        tell(predictions, final=True)
        meter.tick(events, begin, getattr(packets, "received", None))
        if viewer is not None:
            viewer.add(events, predictions[-1].logits if predictions else None)
    if engine.events_seen:
        newest = engine.predict()
        tell([Prediction(engine.time, newest)], final=False)
        if viewer is not None:
            viewer.add(None, newest)


@contextmanager
def _closing(raw: Any, packets: Iterable[Any], meter: Meter, viewer: View | None) -> Iterator[None]:
    """Close all at the end of the block. It also ends if the reader of the predictions closes the pipe."""
    try:
        yield
    except BrokenPipeError:
        # The rest of the buffer is written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if isinstance(packets, Buffered):
            packets.close()
        if viewer is not None:
            viewer.close()
        meter.close(getattr(raw, "reason", ""))


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Let threads wait at most `SWITCH` seconds for the interpreter while the block runs."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _check_source(source: str, repairs: list[str], crop: str | None, topic: str | None = None) -> None:
    """Refuse options that do not fit the source, before anything is loaded and compiled for it."""
    from gridless.data.readers.bags import SUFFIXES, is_bag

    if source == "-" and sys.stdin is None:
        raise ValueError("standard input is closed, but --input - reads it. Give another --input.")
    if sys.stdout is None:
        raise ValueError("standard output is closed. Keep it open for the predictions.")
    if crop is not None and not re.fullmatch(r"\d+,\d+", crop):
        raise ValueError(f"--crop is {crop!r}. Give two whole numbers X,Y, such as 100,60.")
    live = _is_live(source)
    if live and set(repairs) - {"drop"}:
        raise ValueError(f"--repair {min(set(repairs) - {'drop'})} needs a recording. For a live stream use drop.")
    is_recording_of_ros = not live and is_bag(Path(source))
    if topic is not None and not is_recording_of_ros:
        raise ValueError(f"--topic: {source} is no recording of ROS ({', '.join(SUFFIXES)}). Leave it out.")
    if not live and not Path(source).is_file() and not is_recording_of_ros:
        raise FileNotFoundError(f"--input: there is no file {source}. Give a recording, -, udp://HOST:PORT or camera.")
    if is_recording_of_ros:
        from gridless.data.readers.events.ros import check_topic

        check_topic(Path(source), topic)
    host, port = _address(source)
    if source.startswith("udp://") and (not host or not port.isdigit()):
        raise ValueError(f"--input is {source!r}. Give udp://HOST:PORT.")


def _is_live(source: str) -> bool:
    return source in ("-", "camera") or source.startswith("udp://")


def _address(source: str) -> tuple[str, str]:
    host, _, port = source.removeprefix("udp://").rpartition(":")
    return host, port


def _source(
    source: str, fit: Any, repairs: list[str], packet: int, realtime: bool, options: dict[str, Any], engine: Any
) -> Any:
    """The source that `--input` names, opened when the engine is ready: a socket would fill up while it compiles."""
    from gridless.live.sources import SIDE, Camera, Datagrams, frames, recording

    largest = SIDE, SIDE
    _warm_up(engine)
    if not _is_live(source):
        return recording(source, None, packet, realtime, repairs, fit, **options)
    if source == "camera":
        return Camera(largest, fit=fit)
    if source == "-":
        # A reader of its own: at its end the interpreter waits for standard input if a thread still reads from it.
        return frames(os.fdopen(os.dup(sys.stdin.fileno()), "rb"), largest, fit=fit)
    # An address of IPv6 stands in brackets.
    host, port = _address(source)
    return Datagrams(host.strip("[]"), int(port), largest, **options, fit=fit)


def _warm_up(engine: Any) -> None:
    """Compile and load everything that a packet, a window and a prediction need."""
    zeros, last = np.zeros(2, np.int64), 2 * (engine.duration or 1)
    engine({"x": zeros, "y": zeros, "t": np.array([0, last]), "p": zeros})
    engine.predict()
    engine.reset()


def _counts(*sources: Any) -> dict[str, int]:
    """Events and frames that were not worked on, by reason."""
    names = ("dropped_packets", "dropped_events", "thinned_events", "lost", "late", "bad", "refused", "restarts")
    names += ("overflows",)
    return {k: getattr(s, k) for s in sources for k in names if hasattr(s, k)}


def _ignore(predictions: list[Prediction], *, final: bool) -> None:
    """Report nothing."""


def _print(answers: Callable[..., Any], predictions: list[Prediction], *, final: bool) -> None:
    """Print a JSON line for each prediction, all in one write: one by one they would cost more than the network."""
    if not predictions:
        return
    records = answers(torch.stack([p.logits for p in predictions]))
    lines = (json.dumps({"time": p.time, **r, "final": final}) for p, r in zip(predictions, records, strict=True))
    print("\n".join(lines), flush=True)
