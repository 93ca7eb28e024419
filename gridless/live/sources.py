"""Where live packets come from: a recording, a byte stream, a socket, a camera. Each source is an iterator of Events.

The byte stream is a sequence of frames, little-endian: the four bytes GLE1, a uint32 that counts frames from 0, the
number of events as a uint32, then 16 bytes per event: int64 time in microseconds, uint16 x, uint16 y, uint8 polarity
(1 is ON), and three bytes of no meaning. Over UDP one datagram is one frame. Events are in order of time, within a
frame and from frame to frame.

Every source takes `sensor`, the size of the camera, and `fit`, what is done to its events before they are packets (see
`Fit`); without it they are packets as they are.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from gridless.augment.events import Crop, PoolPixels
from gridless.live.table import LONGEST
from gridless.structures import Events

MAGIC = b"GLE1"
RECORD = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1"), ("pad", "V3")])
HEADER = struct.Struct("<4sII")
TIME = struct.Struct("<q")
MOST = 1 << 20  # events per frame
SIDE = 1 << 16  # pixels along a side of the largest sensor that frames can tell of

# Microseconds by which a socket's times may jump.
JUMP = 10_000_000
# Late frames in a row, each the next of the one before it, after which their sender has begun again.
AGAIN = 16

# Seconds of silence after which a socket may end, at most.
SILENCE = 10**9

# Seconds that are waited at a time: on Windows, Ctrl-C ends no wait.
MOMENT = 1.0

# Datagrams, and their bytes, that are read from a socket before any of them is worked on, at most: they are one packet,
# which is worked on, dropped or thinned as a whole.
BURST, BURST_BYTES = 64, 1 << 16

# Frames that can have been lost at once; numbers that are further apart were counted by another sender.
GAP = 1 << 20


def encode(events: Events, number: int = 0) -> bytes:
    """One frame."""
    end = len(events) - events.padding
    if end > MOST:
        raise ValueError(f"a frame holds at most {MOST} events, not {end}: send several")
    if events.num_examples != 1:
        raise ValueError(f"a frame is part of one recording, not of {events.num_examples}: encode them one by one")
    if events.polarity is None:
        raise ValueError("only events with a polarity can be sent")
    events.check("encode")
    pixel = events.pixel[:end].numpy()
    if end and pixel.max() >= SIDE:
        row = int((pixel >= SIDE).any(1).argmax())
        raise ValueError(
            f"encode: event {row} is at pixel {tuple(pixel[row].tolist())}, but a frame has 16 bits for x and for y: "
            "crop or pool the events first (gl.augment.Crop, gl.augment.PoolPixels)"
        )
    record = np.zeros(end, RECORD)
    record["t"], record["p"] = events.time[:end].numpy(), events.polarity[:end].numpy()
    record["x"], record["y"] = pixel.T
    return HEADER.pack(MAGIC, number & 0xFFFFFFFF, end) + record.tobytes()


def _header(data: bytes, where: str) -> tuple[int, int]:
    magic, number, count = HEADER.unpack(data)
    if magic != MAGIC:
        raise ValueError(f"{where}: expected a frame that begins with {MAGIC!r}, found {magic!r}")
    if count > MOST:
        raise ValueError(f"{where}: frame {number} claims {count} events; at most {MOST} are allowed")
    return number, count


def _events(parts: Sequence[bytes | memoryview], sensor: tuple[int, int]) -> Events:
    """The events of the records of several frames, checked: one copy, from the bytes to the columns."""
    records = [np.frombuffer(part, RECORD) for part in parts]
    ends = np.cumsum([0, *map(len, records)])
    pixel, time = np.empty((ends[-1], 2), np.int32), np.empty(ends[-1], np.int64)
    polarity = np.empty(ends[-1], np.uint8)
    for part, at, end in zip(records, ends, ends[1:], strict=False):
        pixel[at:end, 0], pixel[at:end, 1], time[at:end], polarity[at:end] = part["x"], part["y"], part["t"], part["p"]
    if len(polarity) and polarity.max() > 1:
        raise ValueError(f"event {int((polarity > 1).argmax())} has the polarity {polarity.max()}, which is not 0 or 1")
    columns = torch.from_numpy(pixel), torch.from_numpy(time), torch.from_numpy(polarity.view(np.bool_))
    events = Events(*columns, torch.tensor([0, len(time)]), sensor)
    events.check("Events.of")
    if len(events) and int(time[-1]) >= LONGEST:
        raise ValueError(f"its events reach to {int(time[-1])} us, but times end at {LONGEST}")
    return events


def _as_it_is(events: Events) -> Events:
    return events


@dataclass(frozen=True)
class Fit:
    """Events of a camera as events of a network with another sensor.

    Camera pixel `crop` (x, y) becomes the network's pixel (0, 0), and `pool` x `pool` camera pixels become one. Events
    that then lie outside the network's sensor are left out where `crop` or `drop` says so, and are refused otherwise.
    """

    sensor: tuple[int, int]
    crop: tuple[int, int] | None = None
    pool: int = 1
    drop: bool = False

    def __call__(self, events: Events) -> Events:
        width, height = (self.pool * side for side in self.sensor)
        if self.crop is not None or self.drop:
            events = Crop(*(self.crop or (0, 0)), width, height)(events)
        elif events.sensor != (width, height):
            x, y = (int(v) for v in events.pixel.amax(0)) if len(events) else (0, 0)
            if x >= width or y >= height:
                raise ValueError(
                    f"events reach to pixel ({x}, {y}), outside the {width} x {height} pixels that the network sees: "
                    "choose its part of the sensor with --crop X,Y, make N x N pixels one with --pool N, or leave out "
                    "what is outside with --repair drop"
                )
            events = replace(events, sensor=(width, height))
        return PoolPixels(self.pool)(events) if self.pool > 1 else events


def recording(
    path: str | Path,
    sensor: tuple[int, int] | None,
    packet: int = 1000,
    realtime: bool = False,
    repair: str | Sequence[str] = (),
    fit: Callable[[Events], Events] = _as_it_is,
) -> Iterator[Events]:
    """A recorded file in packets of `packet` microseconds; with `realtime`, each when its time has come.

    `sensor`: None for what the file says. `repair`: as of `gl.read_events`.
    """
    from gridless.data import read_events

    events = fit(read_events(path, sensor, repair))
    times = events.time.numpy()
    begin, first = time.monotonic(), int(times[0]) if len(times) else 0
    at = 0
    while at < len(times):
        # Packets without events are passed over.
        edge = first + (int(times[at]) - first) // packet * packet + packet
        end = len(times) if edge > int(times[-1]) else int(np.searchsorted(times, edge))
        if realtime:
            # A packet exists once its last event has happened.
            time.sleep(max(0.0, (int(times[end - 1]) - first) * 1e-6 - (time.monotonic() - begin)))
        yield events[at:end]
        at = end


def frames(
    stream: BinaryIO,
    sensor: tuple[int, int],
    name: str = "standard input",
    fit: Callable[[Events], Events] = _as_it_is,
) -> Iterator[Events]:
    """Frames one behind the other, until the stream ends. One that is cut off is an error."""
    at = 0
    while header := stream.read(HEADER.size):
        if len(header) < HEADER.size:
            raise ValueError(f"{name}: ends inside a frame's header, at byte {at}")
        number, count = _header(header, f"{name}, byte {at}")
        data = stream.read(count * RECORD.itemsize)
        if len(data) < count * RECORD.itemsize:
            raise ValueError(f"{name}: ends inside a frame of {count} events, at byte {at}")
        try:
            events = fit(_events([data], sensor))
        except ValueError as error:
            raise ValueError(f"{name}, byte {at}: frame {number}: {error}") from None
        at += len(header) + len(data)
        yield events


class NewStream:
    """Comes between two packets of a source: those after it belong to another stream, whose clock began anew."""


class _Frame(NamedTuple):
    number: int
    events: Events
    first: int
    last: int
    heard: float


def _jumps(first: int, last: int, before: int, passed: float, limit: int) -> bool:
    """Whether the times of a frame are over `limit` away from a clock that showed `before`, `passed` seconds ago."""
    return first < before - limit or last > before + int(1e6 * passed) + limit


class Datagrams:
    """Frames from a UDP socket. Ends after `idle` seconds of silence, and never because of what was sent.

    What does not become a packet is counted: `lost`, frames that did not come in their turn; `late`, those that came
    after a later one, or again; `bad`, datagrams that are no frame; `refused`, frames with an event outside the sensor,
    before its predecessor, or at a time that jumps. `reason` says what was wrong with the last of these.

    Times jump where they go back, or further ahead than the time that has passed since the last frame, by more than
    `jump` microseconds. Such a frame is refused by itself: the clock stays that of the frames before it. With
    `restart`, two such frames in a row of which the second continues the first begin a new stream, as when the sender
    was started again: `NewStream` is yielded, then the two. `restarts` counts these. (One alone is refused: a stray
    datagram does not end a stream.) They do so without `restart` as well while no frame has continued the very first
    one, which may have been the stray itself. A sender that was started again and whose clock is less than `jump`
    behind is known by its late frames: after AGAIN of them, each the next of the one before, they are refused, or begin
    a new stream.
    """

    def __init__(
        self,
        host: str,
        port: int,
        sensor: tuple[int, int],
        idle: float | None = None,
        jump: int = JUMP,
        restart: bool = False,
        fit: Callable[[Events], Events] = _as_it_is,
    ) -> None:
        self.sensor, self.idle, self.jump, self.restart, self.fit = sensor, idle, jump, restart, fit
        self.lost = self.late = self.bad = self.refused = self.restarts = 0
        self.reason = ""
        self._expected: int | None = None  # the number of the next frame
        self._time: int | None = None  # of the last event that was taken
        self._heard = 0.0  # when it was
        self._settled = False  # whether a frame continued the first one
        self._held: _Frame | None = None  # a frame that jumps, until the next one tells what it was
        self._last_late: _Frame | None = None
        self._in_a_row = 0  # late frames that follow each other
        if idle is not None and not 0 < idle <= SILENCE:
            raise ValueError(f"udp: idle must be more than 0 seconds and at most {SILENCE}, not {idle}")
        if not 0 <= port < 1 << 16:
            raise ValueError(f"udp: there is no port {port}: ports go from 0 to 65535")
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        try:
            self.socket.bind((host, port))
        except OSError as error:
            self.socket.close()
            raise OSError(f"udp: cannot listen at {host}, port {port}: {error.strerror}") from None
        self.port = self.socket.getsockname()[1]

    def __iter__(self) -> Iterator[Events | NewStream]:
        try:
            while True:
                burst = self._first()
                if not burst:
                    return
                self.socket.settimeout(0)
                with suppress(BlockingIOError):
                    while len(burst) < BURST and sum(map(len, burst)) < BURST_BYTES:
                        burst.append(self.socket.recv(1 << 16))
                events = self._together(burst)
                if events is not None:
                    yield from [events] if len(events) else []
                    continue
                for data in burst:
                    yield from self._packets(data)
        finally:
            self._refuse_held()
            self.socket.close()

    def _first(self) -> list[bytes]:
        """The next datagram, or none after `idle` seconds without one."""
        end = math.inf if self.idle is None else time.monotonic() + self.idle
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(min(left, MOMENT))
            with suppress(TimeoutError):
                return [self.socket.recv(1 << 16)]
        return []

    def _together(self, burst: list[bytes]) -> Events | None:
        """All frames of a burst as one packet, where each simply follows the one before it; None where one does not.

        Most of what a frame costs is the same for one event and for thousands.
        """
        expected, before, now, lost = self._expected, self._time, time.monotonic(), 0
        heard = now if before is None else self._heard
        if self._held is not None:
            return None
        for data in burst:
            if len(data) <= HEADER.size or (len(data) - HEADER.size) % RECORD.itemsize:
                return None
            magic, number, count = HEADER.unpack_from(data)
            ahead = 0 if expected is None else (number - expected) & 0xFFFFFFFF
            if magic != MAGIC or len(data) != HEADER.size + count * RECORD.itemsize or ahead >= GAP:
                return None
            first, last = _ends(data)
            before = first if before is None else before
            if first < before or _jumps(first, last, before, now - heard, self.jump):
                return None
            expected, before, lost = (number + 1) & 0xFFFFFFFF, last, lost + ahead
        try:
            events = self.fit(_events([memoryview(data)[HEADER.size :] for data in burst], self.sensor))
        except ValueError:
            return None
        self._settled = self._time is not None or len(burst) > 1
        self._expected, self._time, self._heard, self.lost = expected, before, now, self.lost + lost
        self._in_a_row, self._last_late = 0, None
        return events

    def _packets(self, data: bytes) -> Iterator[Events | NewStream]:
        """The packets that a datagram brings: none where there is nothing to take from it."""
        try:
            number = _number(data)
        except ValueError as error:
            self.bad, self.reason = self.bad + 1, str(error)
            return
        try:
            events = _events([memoryview(data)[HEADER.size :]], self.sensor)
            fitted = self.fit(events)
        except ValueError as error:
            self._refuse(number, str(error))
            self._count(number)
            return
        if not len(events):
            self._count(number)
            return
        (first, last), now, held = _ends(data), time.monotonic(), self._held
        frame = _Frame(number, fitted, first, last, now)
        if self._time is not None and _jumps(first, last, self._time, now - self._heard, self.jump):
            if held and first >= held.last and not _jumps(first, last, held.last, now - held.heard, self.jump):
                self._held, self._expected, self.restarts = None, None, self.restarts + 1
                yield NewStream()
                yield from self._take(held)
                yield from self._take(frame)
                return
            self._refuse_held()
            if self.restart or not self._settled:
                self._held = frame
            else:
                self._refuse(number, self._jumped(frame))
            return
        behind = self._behind(number)
        if self._time is not None and first < self._time and not behind:
            self._refuse(number, f"event 0 is at {first} us, before the last one at {self._time} us")
            self._count(number)
        elif self._time is not None and behind and first <= self._time:
            yield from self._late(frame)
        else:
            self._refuse_held()
            yield from self._take(frame)

    def _late(self, frame: _Frame) -> Iterator[Events | NewStream]:
        """A frame behind its time is late; after many that follow each other it is one of a sender that began again."""
        before = self._last_late
        follows = before is not None and frame.number == (before.number + 1) & 0xFFFFFFFF and frame.first >= before.last
        self._in_a_row, self._last_late = (self._in_a_row + 1 if follows else 1), frame
        if self._in_a_row <= AGAIN:
            self.late += 1
        elif self.restart:
            self._expected, self.restarts = None, self.restarts + 1
            yield NewStream()
            yield from self._take(frame)
        else:
            self._refuse(frame.number, f"its sender began again, {AGAIN} late frames before it")

    def _take(self, frame: _Frame) -> Iterator[Events]:
        self._count(frame.number)
        self._settled = self._time is not None
        self._time, self._heard = frame.last, frame.heard
        # While frames come in their turn, late ones are copies of them, and their sender has not begun again.
        self._in_a_row, self._last_late = 0, None
        if len(frame.events):
            yield frame.events

    def _behind(self, number: int) -> bool:
        # Numbers begin again after 2^32: the nearer way around tells what came early from what came late.
        return self._expected is not None and (number - self._expected) & 0xFFFFFFFF >= 1 << 31

    def _count(self, number: int) -> None:
        """A frame that came in its turn, after those that are missing, or as the first of another count."""
        ahead = 0 if self._expected is None else (number - self._expected) & 0xFFFFFFFF
        self.lost += ahead if ahead < GAP else 0
        self._expected = (number + 1) & 0xFFFFFFFF

    def _refuse(self, number: int, reason: str) -> None:
        self.refused, self.reason = self.refused + 1, f"udp: frame {number}: {reason}"

    def _refuse_held(self) -> None:
        if self._held is not None:
            self._refuse(self._held.number, self._jumped(self._held))
            self._held = None

    def _jumped(self, frame: _Frame) -> str:
        return (
            f"its events are at {frame.first} to {frame.last} us, over {self.jump} us away from the last one at "
            f"{self._time} us"
        )


def _ends(data: bytes) -> tuple[int, int]:
    """The times of the first and of the last event of a frame."""
    return TIME.unpack_from(data, HEADER.size)[0], TIME.unpack_from(data, len(data) - RECORD.itemsize)[0]


def _number(data: bytes) -> int:
    """The number of the frame that a datagram is."""
    if len(data) < HEADER.size:
        raise ValueError(f"udp: a datagram of {len(data)} bytes is no frame")
    number, count = _header(data[: HEADER.size], "udp")
    if len(data) != HEADER.size + count * RECORD.itemsize:
        raise ValueError(f"udp: frame {number} says {count} events but has {len(data)} bytes")
    return number


class Camera:
    """A live camera, through `neuromorphic-drivers` (pip install neuromorphic-drivers).

    Without `device` the first camera that is plugged in. Anything that yields (status, packet) pairs whose packets have
    `polarity_events` will do; `overflows` counts the times the computer was too slow for the camera's own queue.
    """

    def __init__(
        self,
        sensor: tuple[int, int],
        device: Iterable[tuple[Any, Any]] | None = None,
        fit: Callable[[Events], Events] = _as_it_is,
    ) -> None:
        if device is None:
            try:
                import neuromorphic_drivers  # pyright: ignore[reportMissingImports]
            except ImportError as error:
                raise ImportError("cameras need a package: pip install neuromorphic-drivers") from error
            device = neuromorphic_drivers.open()
        self.device, self.sensor, self.fit, self.overflows = device, sensor, fit, 0

    def __iter__(self) -> Iterator[Events]:
        for _, packet in self.device:  # type: ignore[union-attr]
            lost = getattr(packet, "polarity_events_overflow_indices", None)
            self.overflows += 0 if lost is None else len(lost)
            if packet is not None and packet.polarity_events is not None and len(packet.polarity_events):
                yield self.fit(Events.of(packet.polarity_events, sensor=self.sensor))
