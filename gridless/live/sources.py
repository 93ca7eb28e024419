"""Sources of live packets: a recording, a byte stream, a socket, a camera. Each source is an iterator of `Events`.

The byte stream is a sequence of frames, little-endian: the four bytes GLE2, a uint32 that counts frames from 0, the
number of events as a uint32, the number of the session as a uint32, then 16 bytes per event: int64 time in
microseconds, uint16 x, uint16 y, uint8 polarity (1 is ON), and three bytes of padding. A sender draws a session number
when it starts. Frames of the first version begin with GLE1 and have no session number: all of them are one session.
Over UDP one datagram is one frame. Events of a session are in order of time, within a frame and from frame to frame.

Every source takes `sensor`, the size of the camera, and `fit`, a function that makes its events fit the network (see
`Fit`). Frames are checked once, after `fit`; the engine does not check them again.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from gridless.augment.events import Crop
from gridless.live.packets import checked_by_source
from gridless.live.table import LONGEST
from gridless.structures import Events
from gridless.structures.events import as_sensor

MAGIC, MAGIC_2 = b"GLE1", b"GLE2"
RECORD = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1"), ("pad", "V3")])
HEADER, HEADER_2 = struct.Struct("<4sII"), struct.Struct("<4sIII")
TIME = struct.Struct("<q")
MOST = 1 << 20  # events per frame
SIDE = 1 << 16  # pixels along a side of the largest sensor that a frame can describe

# Microseconds by which a socket's times may jump.
JUMP = 10_000_000
# Microseconds that a frame may be ahead of the clock without another one that continues it.
AHEAD = 100_000

# The longest silence, in seconds, after which a socket may end.
SILENCE = 10**9

# Seconds of one wait: on Windows, Ctrl-C does not interrupt a wait.
MOMENT = 1.0

# Limits of a burst: datagrams, and their bytes, that are read from a socket before any of them is worked on.
BURST, BURST_BYTES = 64, 1 << 16

# Frames that can have been lost at once. A larger gap means that another sender counted.
GAP = 1 << 20


def encode(events: Events, number: int = 0, session: int | None = None) -> bytes:
    """Encode events as one frame; without a session number, as a frame of the first version."""
    end = len(events) - events.padding
    if end > MOST:
        raise ValueError(f"encode: a frame holds at most {MOST} events, not {end}. Send several frames.")
    if events.num_examples != 1:
        raise ValueError(f"encode: a frame is part of one recording, not of {events.num_examples}. Encode one by one.")
    if events.polarity is None:
        raise ValueError("encode: the events have no polarity. A frame needs one.")
    events.check("encode")
    pixel = events.pixel[:end].numpy()
    if end and pixel.max() >= SIDE:
        row = int((pixel >= SIDE).any(1).argmax())
        raise ValueError(
            f"encode: event {row} is at pixel {tuple(pixel[row].tolist())}, but a frame has 16 bits for x and for y. "
            "Crop or pool the events first (gl.augment.Crop, gl.augment.PoolPixels)."
        )
    record = np.zeros(end, RECORD)
    record["t"], record["p"] = events.time[:end].numpy(), events.polarity[:end].numpy()
    record["x"], record["y"] = pixel.T
    if session is None:
        return HEADER.pack(MAGIC, number & 0xFFFFFFFF, end) + record.tobytes()
    return HEADER_2.pack(MAGIC_2, number & 0xFFFFFFFF, end, session & 0xFFFFFFFF) + record.tobytes()


class _Header(NamedTuple):
    """Header of a frame: session (None in the first version), number, events, and its own bytes."""

    session: int | None
    number: int
    count: int
    size: int


def _header(data: bytes, where: str) -> _Header:
    magic, number, count = HEADER.unpack_from(data)
    if magic not in (MAGIC, MAGIC_2):
        raise ValueError(
            f"{where}: no frame begins with {magic!r}. Send frames that begin with {MAGIC!r} or {MAGIC_2!r}."
        )
    if count > MOST:
        raise ValueError(f"{where}: frame {number} claims {count} events. Send at most {MOST}.")
    if magic == MAGIC:
        return _Header(None, number, count, HEADER.size)
    if len(data) < HEADER_2.size:
        raise ValueError(f"{where}: frame {number} ends inside its header. Send whole frames.")
    return _Header(HEADER_2.unpack_from(data)[3], number, count, HEADER_2.size)


def _events(parts: Sequence[bytes | memoryview], sensor: tuple[int, int], fit: Callable[[Events], Events]) -> Events:
    """The records of several frames as a batch with one recording for each frame: copied once, then checked."""
    records = [np.frombuffer(part, RECORD) for part in parts]
    splits = np.cumsum([0, *map(len, records)])
    pixel, time = np.empty((splits[-1], 2), np.int32), np.empty(splits[-1], np.int64)
    polarity = np.empty(splits[-1], np.uint8)
    for part, at, end in zip(records, splits, splits[1:], strict=False):
        pixel[at:end, 0], pixel[at:end, 1], time[at:end], polarity[at:end] = part["x"], part["y"], part["t"], part["p"]
    if len(polarity) and polarity.max() > 1:
        raise ValueError(f"event {int((polarity > 1).argmax())} has the polarity {polarity.max()}. Send 0 or 1.")
    if len(time) and int(time.max()) >= LONGEST:
        raise ValueError(f"its last event is at {int(time.max())} us. Send times below {LONGEST} us.")
    columns = [torch.from_numpy(column) for column in (pixel, time, polarity.view(np.bool_), splits)]
    events = fit(Events.made(**dict(zip(("pixel", "time", "polarity", "splits"), columns)), sensor=as_sensor(sensor)))
    events.check("Events.of")
    return events


def _as_it_is(events: Events) -> Events:
    return events


@dataclass(frozen=True)
class Fit:
    """Makes the events of a camera fit a network with another sensor, and checks them.

    Camera pixel `crop` (x, y) becomes the network's pixel (0, 0), and `pool` x `pool` camera pixels become one. Events
    that then lie outside the network's sensor are left out with `crop` or `drop`, and refused otherwise.
    """

    sensor: tuple[int, int]
    crop: tuple[int, int] | None = None
    pool: int = 1
    drop: bool = False

    def __call__(self, events: Events) -> Events:
        width, height = (self.pool * side for side in self.sensor)
        if self.crop is not None or self.drop:
            events = Crop(*(self.crop or (0, 0)), width, height)(events)
        elif self.pool == 1 and events.sensor == self.sensor:
            return events
        columns = {name: getattr(events, name) for name in ("time", "polarity", "splits", "rows")}
        pixel = events.pixel // self.pool if self.pool > 1 else events.pixel
        fitted = Events.made(pixel=pixel, sensor=as_sensor(self.sensor), **columns)
        try:
            fitted.check("Fit")
        except ValueError:
            x, y = (int(v) for v in events.pixel.amax(0))
            if x < width and y < height:
                raise
            raise ValueError(
                f"Fit: events reach pixel ({x}, {y}), but the network sees {width} x {height} pixels. Choose a part of "
                "the sensor (--crop X,Y), pool pixels (--pool N), or drop the events outside (--repair drop)."
            ) from None
        return fitted


def recording(
    path: str | Path,
    sensor: tuple[int, int] | None,
    packet: int = 1000,
    realtime: bool = False,
    repair: str | Sequence[str] = (),
    fit: Callable[[Events], Events] = _as_it_is,
    topic: str | None = None,
) -> Iterator[Events]:
    """Read a file in packets of `packet` microseconds; with `realtime`, each packet when its last event has happened.

    `sensor`: None for the size that the file names. `repair` and `topic`: see `gl.read_events`. A bag is read message
    by message.
    """
    from gridless.data.readers.events import read_packets

    begin, first = 0.0, None
    for events in _in_packets(map(fit, read_packets(path, sensor, repair, topic)), packet):
        if first is None:
            begin, first = time.monotonic(), int(events.time[0])
        if realtime:
            time.sleep(max(0.0, (int(events.time[-1]) - first) * 1e-6 - (time.monotonic() - begin)))
        yield events


def _in_packets(pieces: Iterable[Events], packet: int) -> Iterator[Events]:
    """Cut pieces of a recording into packets of `packet` microseconds from its first event on. Empty packets are
    skipped."""
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
    """Two pieces of a recording as one. Times that step back between them are refused."""
    if len(first) and len(second) and int(second.time[0]) < int(first.time[-1]):
        raise ValueError(
            f"recording: a message begins at {int(second.time[0])} us, before the end of the previous one at "
            f"{int(first.time[-1])} us. Sort the events with repair='sort'."
        )
    columns = np.concatenate([first.numpy(), second.numpy()])
    return Events.of({name: columns[name] for name in "xytp"}, first.sensor)


def frames(
    stream: BinaryIO,
    sensor: tuple[int, int],
    name: str = "standard input",
    fit: Callable[[Events], Events] = _as_it_is,
) -> Iterator[Events | NewStream]:
    """Read frames until the stream ends. A frame that is cut off is an error. `NewStream` comes before another
    session."""
    at, last_session = 0, None
    while header := stream.read(HEADER.size):
        if header[:4] == MAGIC_2:
            header += stream.read(HEADER_2.size - HEADER.size)
        if len(header) < (HEADER_2 if header[:4] == MAGIC_2 else HEADER).size:
            raise ValueError(f"{name}: ends inside a frame's header, at byte {at}. Send whole frames.")
        session, number, count, _ = _header(header, f"{name}, byte {at}")
        if at and session != last_session:
            yield NewStream()
        last_session = session
        data = stream.read(count * RECORD.itemsize)
        if len(data) < count * RECORD.itemsize:
            raise ValueError(f"{name}: ends inside a frame of {count} events, at byte {at}. Send whole frames.")
        try:
            events = _events([data], sensor, fit)
        except ValueError as error:
            raise ValueError(f"{name}, byte {at}: frame {number}: {error}") from None
        at += len(header) + len(data)
        yield checked_by_source(events)


class NewStream:
    """Comes between two packets of a source: those after it belong to another stream, whose clock began anew."""


class _Frame(NamedTuple):
    """A whole frame whose events are good: its events are rows `begin` to `end` of a checked batch."""

    session: int | None
    number: int
    first: int
    last: int
    heard: float
    batch: Events
    begin: int
    end: int

    def continues(self, before: _Frame, limit: int) -> bool:
        """True for a later frame of the same sender, whose times do not jump."""
        later = 0 < (self.number - before.number) & 0xFFFFFFFF < GAP and self.first >= before.last
        passed = self.heard - before.heard
        return self.session == before.session and later and not _jumps(self, before.last, passed, limit)

    def is_next_to(self, before: _Frame) -> bool:
        return self.batch is before.batch and self.begin == before.end and self.first >= before.last


def _jumps(frame: _Frame, clock: int, passed: float, limit: int) -> bool:
    """True if the times of a frame are over `limit` away from a clock that showed `clock`, `passed` seconds ago."""
    return frame.first < clock - limit or frame.last > clock + int(1e6 * passed) + limit


class Datagrams:
    """Frames from a UDP socket. Ends after `idle` seconds of silence, counted from the first frame on.

    Whatever is sent, the socket goes on. Frames that become no packet are counted:

    - `lost`: frames that did not come in their turn;
    - `late`: frames that came after a later one, or again;
    - `bad`: datagrams that are no frame;
    - `refused`: frames with an event outside the sensor, before its predecessor, or at a time that jumps. `reason` is
      the reason for the last one.

    No single frame moves the clock. A frame that is further ahead than the time that has passed since the last one, or
    of another session, waits for the next frame. If that continues it, both are taken; otherwise it is refused. Two
    such frames of another session begin a new stream: `NewStream` is yielded before them, and `restarts` counts it.
    Times that go back, or ahead of the time that has passed, by more than `jump` microseconds are a jump: the frame is
    refused. The very first frame may be a stray: until another frame has continued it, two frames that jump and
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
        self._expected: int | None = None  # number of the next frame
        self._time: int | None = None  # time of the last event that was taken
        self._heard = 0.0  # host time at which it was taken
        self._settled = False  # whether a frame has continued the first one
        self._session: int | None = None
        self._held: _Frame | None = None  # a frame that would move the clock, until the next one decides
        if idle is not None and not 0 < idle <= SILENCE:
            raise ValueError(f"udp: idle is {idle}. Give more than 0 and at most {SILENCE} seconds.")
        if not 0 <= port < 1 << 16:
            raise ValueError(f"udp: port is {port}. Give 0 to 65535.")
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
            while burst := self._burst():
                if frames := [whole for data in burst if (whole := self._whole(data))]:
                    yield from self._packets(frames)
            held = self._held
            if held is not None and held.session == self._session and not self._far(held):
                self._held = None
                yield from _packets_of(self._take(held))
        finally:
            self._refuse_held()
            self.socket.close()

    def _burst(self) -> list[bytes]:
        """The next datagram and those that wait behind it; none after `idle` seconds of silence."""
        counts = self.idle is not None and self._expected is not None
        burst, end = [], time.monotonic() + (self.idle or 0.0) if counts else math.inf
        while not burst and (left := end - time.monotonic()) > 0:
            self.socket.settimeout(min(left, MOMENT))
            with suppress(TimeoutError):
                burst.append(self.socket.recv(1 << 16))
        self.socket.settimeout(0)
        with suppress(BlockingIOError):
            while burst and len(burst) < BURST and sum(map(len, burst)) < BURST_BYTES:
                burst.append(self.socket.recv(1 << 16))
        return burst

    def _whole(self, data: bytes) -> tuple[_Header, bytes] | None:
        """A datagram that is a frame, with its header; others are counted."""
        try:
            if len(data) < HEADER.size:
                raise ValueError(f"udp: a datagram of {len(data)} bytes is no frame")
            header = _header(data, "udp")
            if len(data) != header.size + header.count * RECORD.itemsize:
                raise ValueError(f"udp: frame {header.number} claims {header.count} events but has {len(data)} bytes")
        except ValueError as error:
            self.bad, self.reason = self.bad + 1, str(error)
            return None
        return header, data

    def _packets(self, burst: Sequence[tuple[_Header, bytes]]) -> Iterator[Events | NewStream]:
        """The packets of a burst. Frames that follow one another are one packet: most of the cost of a frame is the
        same for one event and for thousands."""
        try:
            batch = _events([memoryview(data)[header.size :] for header, data in burst], self.sensor, self.fit)
        except ValueError as error:
            if len(burst) == 1:
                self._refuse(burst[0][0].number, str(error))
                self._count(burst[0][0])
            else:
                for one in burst:
                    yield from self._packets([one])
        else:
            yield from _packets_of(self._taken(burst, batch))

    def _taken(self, burst: Sequence[tuple[_Header, bytes]], batch: Events) -> Iterator[_Frame | NewStream]:
        """The frames of a burst that are taken, in their order."""
        splits, heard = batch.splits.tolist(), time.monotonic()
        for (header, data), begin, end in zip(burst, splits, splits[1:], strict=False):
            if not header.count:
                self._count(header)
                continue
            first, last = TIME.unpack_from(data, header.size)[0], TIME.unpack_from(data, len(data) - RECORD.itemsize)[0]
            frame = _Frame(header.session, header.number, first, last, heard, batch, begin, end)
            yield from self._judged(frame, self._is_own(header))

    def _judged(self, frame: _Frame, own: bool) -> Iterator[_Frame | NewStream]:
        """Take a frame, with the one that waited for it or without; or hold it, or count it as late or refused."""
        held = self._held
        if held is not None and frame.continues(held, self.jump):
            self._held = None
            if held.session != self._session or self._far(held):
                self._expected, self.restarts = None, self.restarts + 1
                yield NewStream()
            yield from self._take(held)
            yield from self._take(frame)
        elif held is not None and frame[:4] == held[:4]:
            self.late += 1
        elif not own:
            self._hold(frame)
        elif self._time is None:
            yield from self._take(frame)
        elif self._far(frame):
            if self._settled:
                self._refuse(frame.number, self._reason_of(frame))
            else:
                self._hold(frame)
        elif frame.first < self._time and not self._is_behind(frame.number):
            self._refuse(frame.number, f"event 0 is at {frame.first} us, before the last one at {self._time} us")
            self._count(frame)
        elif self._is_behind(frame.number) and frame.first <= self._time:
            self.late += 1
        elif _jumps(frame, self._time, frame.heard - self._heard, AHEAD):
            self._hold(frame)
        else:
            self._refuse_held()
            yield from self._take(frame)

    def _hold(self, frame: _Frame) -> None:
        self._refuse_held()
        self._held = frame

    def _take(self, frame: _Frame) -> Iterator[_Frame]:
        self._settled = self._time is not None
        self._session, self._time, self._heard = frame.session, frame.last, frame.heard
        self._count(frame)
        yield frame

    def _far(self, frame: _Frame) -> bool:
        return _jumps(frame, self._time or 0, frame.heard - self._heard, self.jump)

    def _is_own(self, frame: _Header | _Frame) -> bool:
        return self._time is None or frame.session == self._session

    def _is_behind(self, number: int) -> bool:
        # Numbers begin again after 2^32: the shorter way around decides.
        return self._expected is not None and (number - self._expected) & 0xFFFFFFFF >= 1 << 31

    def _count(self, frame: _Header | _Frame) -> None:
        """Count the frames that are missing before one of this session."""
        if not self._is_own(frame):
            return
        missing = 0 if self._expected is None else (frame.number - self._expected) & 0xFFFFFFFF
        self.lost += missing if missing < GAP else 0
        self._expected = (frame.number + 1) & 0xFFFFFFFF

    def _refuse(self, number: int, reason: str) -> None:
        self.refused, self.reason = self.refused + 1, f"udp: frame {number}: {reason}"

    def _refuse_held(self) -> None:
        if self._held is not None:
            self._refuse(self._held.number, self._reason_of(self._held))
            self._held = None

    def _reason_of(self, frame: _Frame) -> str:
        if frame.session != self._session:
            return f"it is of session {frame.session}, and no other frame continues it"
        if self._far(frame):
            away = f"over {self.jump} us away from"
        else:
            away = "and no other frame continues it, ahead of"
        return f"its events are at {frame.first} to {frame.last} us, {away} the last one at {self._time} us"


def _packets_of(frames: Iterable[_Frame | NewStream]) -> Iterator[Events | NewStream]:
    """Frames as packets: neighbours in a batch become one packet, without a copy."""
    group: list[_Frame] = []
    for item in (*frames, None):
        if isinstance(item, _Frame) and (not group or item.is_next_to(group[-1])):
            group.append(item)
            continue
        if group and group[0].begin < group[-1].end:
            batch, rows = group[0].batch, slice(group[0].begin, group[-1].end)
            columns = {name: getattr(batch, name)[rows] for name in ("pixel", "time", "polarity")}
            splits = torch.tensor([0, rows.stop - rows.start])
            yield checked_by_source(Events.made(**columns, splits=splits, sensor=batch.sensor).trusted())
        group = [item] if isinstance(item, _Frame) else []
        if isinstance(item, NewStream):
            yield item


class Camera:
    """A live camera, through `neuromorphic-drivers` (pip install neuromorphic-drivers).

    Without `device`, the first camera that is plugged in. A `device` yields (status, packet) pairs whose packets have
    `polarity_events`. `overflows` counts how often the computer was too slow for the camera's own queue.
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
                raise ImportError("Camera: a package is missing. pip install neuromorphic-drivers") from error
            device = neuromorphic_drivers.open()
        self.device, self.sensor, self.fit, self.overflows = device, sensor, fit, 0

    def __iter__(self) -> Iterator[Events]:
        for _, packet in self.device:  # type: ignore[union-attr]
            lost = getattr(packet, "polarity_events_overflow_indices", None)
            self.overflows += 0 if lost is None else len(lost)
            if packet is not None and packet.polarity_events is not None and len(packet.polarity_events):
                yield self.fit(Events.of(packet.polarity_events, sensor=self.sensor))
