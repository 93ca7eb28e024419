"""Where live packets come from: a recording, a byte stream, a socket, a camera. Each source is an iterator of Events.

The byte stream is a sequence of frames, little-endian: the four bytes GLE2, a uint32 that counts frames from 0, the
number of events as a uint32, the number of the session as a uint32, then 16 bytes per event: int64 time in
microseconds, uint16 x, uint16 y, uint8 polarity (1 is ON), and three bytes of no meaning. A sender draws a session
number when it starts. Frames of the first version begin with GLE1 and have no session number: all of them are one
session. Over UDP one datagram is one frame. Events of a session are in order of time, within a frame and from frame to
frame.

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

MAGIC, MAGIC_2 = b"GLE1", b"GLE2"
RECORD = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1"), ("pad", "V3")])
HEADER, HEADER_2 = struct.Struct("<4sII"), struct.Struct("<4sIII")
TIME = struct.Struct("<q")
MOST = 1 << 20  # events per frame
SIDE = 1 << 16  # pixels along a side of the largest sensor that frames can tell of

# Microseconds by which a socket's times may jump.
JUMP = 10_000_000
# Microseconds that a frame may be ahead of the clock without another one that continues it.
AHEAD = 100_000

# Seconds of silence after which a socket may end, at most.
SILENCE = 10**9

# Seconds that are waited at a time: on Windows, Ctrl-C ends no wait.
MOMENT = 1.0

# Datagrams, and their bytes, that are read from a socket before any of them is worked on, at most: they are one packet,
# which is worked on, dropped or thinned as a whole.
BURST, BURST_BYTES = 64, 1 << 16

# Frames that can have been lost at once; numbers that are further apart were counted by another sender.
GAP = 1 << 20


def encode(events: Events, number: int = 0, session: int | None = None) -> bytes:
    """One frame; of the first version where no session number is given."""
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
    if session is None:
        return HEADER.pack(MAGIC, number & 0xFFFFFFFF, end) + record.tobytes()
    return HEADER_2.pack(MAGIC_2, number & 0xFFFFFFFF, end, session & 0xFFFFFFFF) + record.tobytes()


class _Header(NamedTuple):
    """Of a frame: its session, None in the first version, and the bytes before its events."""

    session: int | None
    number: int
    count: int
    size: int


def _header(data: bytes, where: str) -> _Header:
    magic, number, count = HEADER.unpack_from(data)
    if magic not in (MAGIC, MAGIC_2):
        raise ValueError(f"{where}: expected a frame that begins with {MAGIC!r} or {MAGIC_2!r}, found {magic!r}")
    if count > MOST:
        raise ValueError(f"{where}: frame {number} claims {count} events; at most {MOST} are allowed")
    if magic == MAGIC:
        return _Header(None, number, count, HEADER.size)
    if len(data) < HEADER_2.size:
        raise ValueError(f"{where}: frame {number} ends inside its header")
    return _Header(HEADER_2.unpack_from(data)[3], number, count, HEADER_2.size)


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
    topic: str | None = None,
) -> Iterator[Events]:
    """A recorded file in packets of `packet` microseconds; with `realtime`, each when its time has come.

    `sensor`: None for what the file says. `repair` and `topic`: as of `gl.read_events`. Of a bag, one message is in
    memory at a time.
    """
    from gridless.data.readers.events import read_packets

    begin, first = 0.0, None
    for events in _in_packets(map(fit, read_packets(path, sensor, repair, topic)), packet):
        if first is None:
            begin, first = time.monotonic(), int(events.time[0])
        if realtime:
            # A packet exists once its last event has happened.
            time.sleep(max(0.0, (int(events.time[-1]) - first) * 1e-6 - (time.monotonic() - begin)))
        yield events


def _in_packets(pieces: Iterable[Events], packet: int) -> Iterator[Events]:
    """Pieces of a recording cut anew, into packets of `packet` microseconds from its first event on. Packets without
    events are passed over."""
    started, first, rest = False, 0, None
    for piece in pieces:
        events = piece if rest is None else _joined(rest, piece)
        times, at = events.time.numpy(), 0
        if not started and len(times):
            started, first = True, int(times[0])
        while at < len(times):
            edge = first + (int(times[at]) - first) // packet * packet + packet
            end = int(np.searchsorted(times, edge))
            # The last packet may go on in the next piece.
            if edge > int(times[-1]):
                break
            yield events[at:end]
            at = end
        rest = events[at:] if at < len(times) else None
    if rest is not None:
        yield rest


def _joined(first: Events, second: Events) -> Events:
    """One recording after the other. Times that step back from one to the other are refused."""
    if len(first) and len(second) and int(second.time[0]) < int(first.time[-1]):
        raise ValueError(
            f"the events of a message begin at {int(second.time[0])} us, before those of the last one end, at "
            f"{int(first.time[-1])} us: put them in order, repair='sort'"
        )
    columns = [np.concatenate(pair) for pair in zip(_columns_of(first), _columns_of(second))]
    return Events.of(dict(zip("xytp", columns)), first.sensor)


def _columns_of(events: Events) -> list[np.ndarray]:
    array = events.numpy()
    return [array[name] for name in "xytp"]


def frames(
    stream: BinaryIO,
    sensor: tuple[int, int],
    name: str = "standard input",
    fit: Callable[[Events], Events] = _as_it_is,
) -> Iterator[Events | NewStream]:
    """Frames one behind the other, until the stream ends. One that is cut off is an error. Before another session:
    `NewStream`."""
    at, session = 0, None
    while header := stream.read(HEADER.size):
        if header[:4] == MAGIC_2:
            header += stream.read(HEADER_2.size - HEADER.size)
        if len(header) < (HEADER_2 if header[:4] == MAGIC_2 else HEADER).size:
            raise ValueError(f"{name}: ends inside a frame's header, at byte {at}")
        begun, number, count, _ = _header(header, f"{name}, byte {at}")
        if at and begun != session:
            yield NewStream()
        session = begun
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
    session: int | None
    number: int
    events: Events
    first: int
    last: int
    heard: float

    def continues(self, before: _Frame, limit: int) -> bool:
        """Whether it is a later frame of the same sender, whose times do not jump."""
        later = 0 < (self.number - before.number) & 0xFFFFFFFF < GAP and self.first >= before.last
        passed = self.heard - before.heard
        return self.session == before.session and later and not _jumps(*self.times, before.last, passed, limit)

    @property
    def times(self) -> tuple[int, int]:
        return self.first, self.last


def _jumps(first: int, last: int, before: int, passed: float, limit: int) -> bool:
    """Whether the times of a frame are over `limit` away from a clock that showed `before`, `passed` seconds ago."""
    return first < before - limit or last > before + int(1e6 * passed) + limit


class Datagrams:
    """Frames from a UDP socket. Ends after `idle` seconds of silence, and never because of what was sent.

    What does not become a packet is counted: `lost`, frames that did not come in their turn; `late`, those that came
    after a later one, or again; `bad`, datagrams that are no frame; `refused`, frames with an event outside the sensor,
    before its predecessor, or at a time that jumps. `reason` says what was wrong with the last of these.

    No single frame moves the clock. One that is further ahead than the time that has passed since the last frame, or of
    another session, waits for the next one. If that continues it, both are taken; otherwise it is refused. The two
    begin a new stream where they are of another session: `NewStream` is yielded before them, and `restarts` counts it.
    Times jump where they go back, or ahead of the time that has passed, by more than `jump` microseconds: such a frame
    is refused. While no frame has continued the very first one, which may have been a stray, two frames that jump and
    continue each other begin a new stream, too.
    """

    def __init__(
        self,
        host: str,
        port: int,
        sensor: tuple[int, int],
        idle: float | None = None,
        jump: int = JUMP,
        fit: Callable[[Events], Events] = _as_it_is,
    ) -> None:
        self.sensor, self.idle, self.jump, self.fit = sensor, idle, jump, fit
        self.lost = self.late = self.bad = self.refused = self.restarts = 0
        self.reason = ""
        self._expected: int | None = None  # the number of the next frame
        self._time: int | None = None  # of the last event that was taken
        self._heard = 0.0  # when it was
        self._settled = False  # whether a frame continued the first one
        self._session: int | None = None
        self._held: _Frame | None = None  # a frame that would move the clock, until the next one tells what it was
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
                    yield from self._last()
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

    def _last(self) -> Iterator[Events]:
        """A frame of this stream that waits for the next one, where none comes."""
        held = self._held
        if held is not None and held.session == self._session and not self._jumps(held):
            self._held = None
            yield from self._take(held)

    def _together(self, burst: list[bytes]) -> Events | None:
        """All frames of a burst as one packet, where each simply follows the one before it; None where one does not.

        Most of what a frame costs is the same for one event and for thousands.
        """
        expected, before, now, lost = self._expected, self._time, time.monotonic(), 0
        heard, session, ahead_of_time = (now if before is None else self._heard), self._session, False
        if self._held is not None:
            return None
        bodies = []
        for data in burst:
            try:
                begun, number, _, size = _whole(data)
            except ValueError:
                return None
            session = begun if before is None else session
            ahead = 0 if expected is None else (number - expected) & 0xFFFFFFFF
            if begun != session or ahead >= GAP or len(data) == size:
                return None
            first, last = _ends(data, size)
            before = first if before is None else before
            if first < before or _jumps(first, last, before, now - heard, self.jump):
                return None
            ahead_of_time = last > before + int(1e6 * (now - heard)) + AHEAD
            expected, before, lost = (number + 1) & 0xFFFFFFFF, last, lost + ahead
            bodies.append(memoryview(data)[size:])
        if ahead_of_time and self._time is not None:
            return None
        try:
            events = self.fit(_events(bodies, self.sensor))
        except ValueError:
            return None
        self._settled = self._time is not None or len(burst) > 1
        self._expected, self._time, self._heard, self._session = expected, before, now, session
        self.lost += lost
        return events

    def _packets(self, data: bytes) -> Iterator[Events | NewStream]:
        """The packets that a datagram brings: none where there is nothing to take from it."""
        try:
            session, number, _, size = _whole(data)
        except ValueError as error:
            self.bad, self.reason = self.bad + 1, str(error)
            return
        mine = self._time is None or session == self._session
        try:
            events = _events([memoryview(data)[size:]], self.sensor)
            fitted = self.fit(events)
        except ValueError as error:
            self._refuse(number, str(error))
            self._count(number, mine)
            return
        if not len(events):
            self._count(number, mine)
            return
        yield from self._judged(_Frame(session, number, fitted, *_ends(data, size), time.monotonic()), mine)

    def _judged(self, frame: _Frame, mine: bool) -> Iterator[Events | NewStream]:
        """A whole frame, which is of this session or not: taken, with the one that waited for it or without, held,
        late or refused."""
        held = self._held
        if held is not None and frame.continues(held, self.jump):
            self._held = None
            if held.session != self._session or self._jumps(held):
                self._expected, self.restarts = None, self.restarts + 1
                yield NewStream()
            yield from self._take(held)
            yield from self._take(frame)
        elif held is not None and (*frame[:2], *frame.times) == (*held[:2], *held.times):
            self.late += 1
        elif not mine:
            self._hold(frame)
        elif self._time is not None and self._jumps(frame):
            if self._settled:
                self._refuse(frame.number, self._wrong(frame))
            else:
                self._hold(frame)
        elif self._time is not None and frame.first < self._time and not self._behind(frame.number):
            self._refuse(frame.number, f"event 0 is at {frame.first} us, before the last one at {self._time} us")
            self._count(frame.number)
        elif self._time is not None and self._behind(frame.number) and frame.first <= self._time:
            self.late += 1
        elif self._time is not None and _jumps(*frame.times, self._time, frame.heard - self._heard, AHEAD):
            self._hold(frame)
        else:
            self._refuse_held()
            yield from self._take(frame)

    def _hold(self, frame: _Frame) -> None:
        self._refuse_held()
        self._held = frame

    def _take(self, frame: _Frame) -> Iterator[Events]:
        self._count(frame.number)
        self._settled = self._time is not None
        self._session, self._time, self._heard = frame.session, frame.last, frame.heard
        if len(frame.events):
            yield frame.events

    def _jumps(self, frame: _Frame) -> bool:
        return _jumps(*frame.times, self._time or 0, frame.heard - self._heard, self.jump)

    def _behind(self, number: int) -> bool:
        # Numbers begin again after 2^32: the nearer way around tells what came early from what came late.
        return self._expected is not None and (number - self._expected) & 0xFFFFFFFF >= 1 << 31

    def _count(self, number: int, mine: bool = True) -> None:
        """A frame of this session that came in its turn, after those that are missing, or as the first of another
        count."""
        if not mine:
            return
        ahead = 0 if self._expected is None else (number - self._expected) & 0xFFFFFFFF
        self.lost += ahead if ahead < GAP else 0
        self._expected = (number + 1) & 0xFFFFFFFF

    def _refuse(self, number: int, reason: str) -> None:
        self.refused, self.reason = self.refused + 1, f"udp: frame {number}: {reason}"

    def _refuse_held(self) -> None:
        if self._held is not None:
            self._refuse(self._held.number, self._wrong(self._held))
            self._held = None

    def _wrong(self, frame: _Frame) -> str:
        if frame.session != self._session:
            return f"it is of session {frame.session}, and no other frame continues it"
        if self._jumps(frame):
            away = f"over {self.jump} us away from"
        else:
            away = "and no other frame continues it, ahead of"
        return f"its events are at {frame.first} to {frame.last} us, {away} the last one at {self._time} us"


def _ends(data: bytes, header: int) -> tuple[int, int]:
    """The times of the first and of the last event of a frame."""
    return TIME.unpack_from(data, header)[0], TIME.unpack_from(data, len(data) - RECORD.itemsize)[0]


def _whole(data: bytes) -> _Header:
    """The header of the frame that a datagram is."""
    if len(data) < HEADER.size:
        raise ValueError(f"udp: a datagram of {len(data)} bytes is no frame")
    header = _header(data, "udp")
    if len(data) != header.size + header.count * RECORD.itemsize:
        raise ValueError(f"udp: frame {header.number} says {header.count} events but has {len(data)} bytes")
    return header


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
