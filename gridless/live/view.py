"""Live views of `gridless stream --view`: a local page, the terminal, or Rerun.

The thread of the network only records events and answers; another thread draws them.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import threading
import time
import webbrowser
from collections import deque
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gridless.kernels.progress import shown
from gridless.structures import Events

# Pictures per second, and the longest side of one in pixels.
RATE = 20
SIDE = 320

PAGE = Path(__file__).with_name("view.html")


def script(value: Any) -> str:
    """A value as JavaScript inside a page, which no text in it can end."""
    return json.dumps(value).replace("<", "\\u003c")


class Kind(StrEnum):
    page = "page"
    terminal = "terminal"
    rerun = "rerun"


class View:
    """Events as a frame that builds up and fades, the newest prediction, rate and lag, `RATE` times a second.

    Subclasses write `show(picture)`. A picture is a dict: `time` and `seconds` of the sensor, `events` so far, `rate`
    per second, `lag` in milliseconds or None, `probabilities` or None, `on` and `off` (H, W) uint8: events since the
    last picture. Without `names` of classes the network tracks: `point` is then (x, y) on the picture, or None.
    """

    def __init__(self, sensor: tuple[int, int], names: list[str], meter: Any) -> None:
        self.names, self.meter = [shown(name) for name in names], meter
        self.pool = -(-max(sensor) // SIDE)
        self.size = (-(-sensor[0] // self.pool), -(-sensor[1] // self.pool))
        self._came: deque[Events] = deque()
        self._logits: Tensor | None = None
        self._events = 0
        self._last: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="gridless-view")
        self._thread.start()

    def add(self, events: Events | None, logits: Tensor | None) -> None:
        """A packet was worked on; the newest prediction that it brought."""
        if events is not None and len(events):
            self._came.append(events)
        if logits is not None:
            self._logits = logits

    def close(self) -> None:
        """Show what is left, and end."""
        self._ended.set()
        self._thread.join()

    def open(self, seconds: float) -> None:
        """Say where the view is, and wait at most so long until someone watches."""

    def show(self, picture: dict[str, Any]) -> None:
        raise NotImplementedError

    def _work(self) -> None:
        before = time.perf_counter()
        while True:
            ended = self._ended.wait(1 / RATE)
            now = time.perf_counter()
            self.show(self._picture(now - before) | {"ended": ended})
            before = now
            if ended:
                return

    def _picture(self, seconds: float) -> dict[str, Any]:
        packets = [self._came.popleft() for _ in range(len(self._came))]
        width, height = self.size
        counts = np.zeros((2, height * width), np.int64)
        fresh = 0
        for events in packets:
            x, y = (events.pixel // self.pool).numpy().T.astype(np.int64)
            on = np.zeros(len(x), bool) if events.polarity is None else events.polarity.numpy()
            for kind in (0, 1):
                counts[kind] += np.bincount((y * width + x)[on == kind], minlength=height * width)
            fresh += len(x)
            self._last = int(events.time[-1])
        self._events += fresh
        off, on = counts.clip(max=255).astype(np.uint8).reshape(2, height, width)
        answer = self._logits
        probabilities = answer.softmax(0).tolist() if answer is not None and self.names else None
        # The middle of the first of `pool` pixels is not that of the pixel that they become.
        point = ((answer + 0.5) / self.pool - 0.5).tolist() if answer is not None and not self.names else None
        return {
            "time": self._last,
            "seconds": self.meter.sensor,
            "events": self._events,
            "rate": fresh / max(seconds, 1e-9),
            "lag": None if self.meter.offset is None else 1e3 * self.meter.lag,
            "probabilities": probabilities,
            "point": point,
            "on": on,
            "off": off,
        }


class LivePage(View):
    """A page that this process serves to this machine alone: `url`. Pictures go to every browser that has it open."""

    def __init__(self, sensor: tuple[int, int], names: list[str], meter: Any, port: int = 0) -> None:
        self._news = threading.Condition()
        self._message, self._last_one, self._number = "", False, 0
        self._watched = threading.Event()
        self._watching: set[threading.Thread] = set()
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        except OSError as error:
            raise ValueError(
                f"--view-port {port} cannot be used ({error.strerror}). Give another port, or 0 for any."
            ) from error
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True, name="gridless-page").start()
        super().__init__(sensor, names, meter)

    def open(self, seconds: float) -> None:
        """Ask for a browser, and wait for one to look, but not for ever."""
        print(f"view: {self.url}", file=sys.stderr, flush=True)
        if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            webbrowser.open(self.url)
        self._watched.wait(seconds)

    def show(self, picture: dict[str, Any]) -> None:
        frames = {name: base64.b64encode(picture[name].tobytes()).decode() for name in ("on", "off")}
        with self._news:
            self._message, self._last_one = json.dumps(picture | frames), picture["ended"]
            self._number += 1
            self._news.notify_all()

    def close(self) -> None:
        super().close()
        for thread in list(self._watching):
            thread.join(1)
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        view = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                # A page from elsewhere must not read the stream through a name that leads here.
                if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
                    self.send_error(403)
                elif self.path == "/":
                    about = {"width": view.size[0], "height": view.size[1], "names": view.names}
                    self._send("text/html; charset=utf-8", PAGE.read_text("utf-8").replace("{about}", script(about)))
                elif self.path == "/live":
                    self._live()
                else:
                    self.send_error(404)

            def _send(self, kind: str, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(text.encode())

            def _live(self) -> None:
                view._watching.add(threading.current_thread())
                view._watched.set()
                try:
                    self._send("text/event-stream", "")
                    seen, ended = 0, False
                    while not ended:
                        with view._news:
                            while view._number == seen:
                                view._news.wait()
                            message, seen, ended = view._message, view._number, view._last_one
                        self.wfile.write(f"data: {message}\n\n".encode())
                        self.wfile.flush()
                except OSError:
                    pass  # the page was closed
                finally:
                    view._watching.discard(threading.current_thread())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


class Terminal(View):
    """The same in the terminal, two pixels to a character."""

    FADE = 0.7

    def __init__(self, sensor: tuple[int, int], names: list[str], meter: Any) -> None:
        self._level: np.ndarray | None = None
        super().__init__(sensor, names, meter)

    def open(self, seconds: float) -> None:
        print("\x1b[2J", end="", file=sys.stderr)

    def show(self, picture: dict[str, Any]) -> None:
        fresh = picture["on"].astype(np.float32) - picture["off"]
        self._level = fresh if self._level is None else self.FADE * self._level + fresh
        print("\x1b[H" + "\n".join(self.lines(picture)), file=sys.stderr, flush=True)

    def lines(self, picture: dict[str, Any]) -> list[str]:
        columns, rows = shutil.get_terminal_size()
        height, width = self._level.shape  # type: ignore[union-attr]
        step = max(-(-width // max(columns - 1, 1)), -(-height // max(2 * (rows - 4), 2)), 1)
        level = np.pad(self._level, ((0, -height % (2 * step)), (0, -width % step)))  # type: ignore[arg-type]
        small = level.reshape(level.shape[0] // step, step, -1, step).sum((1, 3))
        colours = np.where(small > 0.3, 33, np.where(small < -0.3, 203, 235))
        lines = []
        for upper, lower in zip(colours[::2], colours[1::2], strict=True):
            cells = (f"\x1b[38;5;{a}m\x1b[48;5;{b}m\u2580" for a, b in zip(upper, lower, strict=True))
            lines.append("".join(cells) + "\x1b[0m\x1b[K")
        answer = "no prediction yet"
        if picture["probabilities"]:
            best = int(np.argmax(picture["probabilities"]))
            answer = f"{self.names[best]} {100 * picture['probabilities'][best]:.1f} %"
        if picture.get("point"):
            answer = "x {:.1f}, y {:.1f}".format(*picture["point"])
        lag = "" if picture["lag"] is None else f", lag {picture['lag']:.1f} ms"
        lines.append(f"{answer}\x1b[K")
        lines.append(f"{picture['seconds']:.2f} s, {picture['events']:,} events, {picture['rate']:,.0f}/s{lag}\x1b[K")
        return lines


class Rerun(View):
    """The same in the Rerun viewer, on the timeline `time`: `events`, `probability` or `position`, `rate` and `lag`.

    Without a display the pictures are served to a viewer that is started elsewhere.

    Args:
        sensor: width and height.
        names: of the classes.
        meter: tells time and lag, as `gridless stream` measures them.
        port: where the viewer listens, or where pictures are served; 0: Rerun's own, 9876.
        recording: a `rerun.RecordingStream` to log to instead of a viewer.
    """

    def __init__(
        self, sensor: tuple[int, int], names: list[str], meter: Any, port: int = 0, recording: Any = None
    ) -> None:
        from gridless.pictures.rerun_viewer import NAME, has_display, load_rerun, log_axes, log_names

        self._rerun = load_rerun()
        self._recording = self._rerun.RecordingStream(f"{NAME} stream") if recording is None else recording
        self.url = ""
        if recording is None and has_display():
            self._recording.spawn(port=port or 9876)
        elif recording is None:
            self.url = self._recording.serve_grpc(grpc_port=port or None)
        super().__init__(sensor, names, meter)
        if self.names:
            log_names(self._recording, self.names)
        else:
            log_axes(self._recording)

    def open(self, seconds: float) -> None:
        if self.url:
            print(f"view: rerun {self.url}", file=sys.stderr, flush=True)

    def show(self, picture: dict[str, Any]) -> None:
        from gridless.pictures.rerun_viewer import log_position

        self._recording.set_time("time", duration=picture["seconds"])
        # OFF is dark, ON is bright, and grey is between them.
        change = picture["on"].astype(np.int64) - picture["off"]
        self._recording.log("events", self._rerun.Image((128 + 42 * change).clip(0, 255).astype(np.uint8)))
        if picture["probabilities"]:
            self._recording.log("probability", self._rerun.Scalars(picture["probabilities"]))
        if picture["point"]:
            x, y = picture["point"]
            position = [(v + 0.5) * self.pool - 0.5 for v in (x, y)]
            log_position(self._recording, position, (x, y))
        self._recording.log("rate", self._rerun.Scalars(picture["rate"]))
        if picture["lag"] is not None:
            self._recording.log("lag", self._rerun.Scalars(picture["lag"]))
        if picture["ended"]:
            self._recording.flush()


def open_view(kind: Kind, sensor: tuple[int, int], names: list[str], meter: Any, port: int, seconds: float) -> View:
    """Open a view. A page waits at most `seconds` for a browser; the other arguments are those of `Rerun`."""
    if kind is Kind.terminal:
        view: View = Terminal(sensor, names, meter)
    else:
        view = (LivePage if kind is Kind.page else Rerun)(sensor, names, meter, port)
    view.open(seconds)
    return view
