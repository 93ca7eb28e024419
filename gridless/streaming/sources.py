"""Where live packets come from: a recording, a byte stream, a socket, a camera. Each source is an iterator of Events.

The byte stream is a sequence of frames, little-endian: the four bytes GLE1, a uint32 that counts frames from 0, the
number of events as a uint32, then 16 bytes per event: int64 time in microseconds, uint16 x, uint16 y, uint8 polarity
(1 is ON), and three bytes of no meaning. Over UDP one datagram is one frame. Events are in order of time, within a
frame and from frame to frame.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gridless.structures import Events

MAGIC = b"GLE1"
RECORD = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1"), ("pad", "V3")])
HEADER = struct.Struct("<4sII")
MOST = 1 << 20  # events per frame


def encode(events: Events, number: int = 0) -> bytes:
    """One frame."""
    if len(events) > MOST:
        raise ValueError(f"a frame holds at most {MOST} events, not {len(events)}: send several")
    if events.polarity is None:
        raise ValueError("only events with a polarity can be sent")
    record = np.zeros(len(events), RECORD)
    record["t"], record["p"] = events.time.numpy(), events.polarity.numpy()
    record["x"], record["y"] = events.pixel.numpy().T
    return HEADER.pack(MAGIC, number & 0xFFFFFFFF, len(events)) + record.tobytes()


def _header(data: bytes, where: str) -> tuple[int, int]:
    magic, number, count = HEADER.unpack(data)
    if magic != MAGIC:
        raise ValueError(f"{where}: expected a frame that begins with {MAGIC!r}, found {magic!r}")
    if count > MOST:
        raise ValueError(f"{where}: frame {number} claims {count} events; at most {MOST} are allowed")
    return number, count


def _events(data: bytes, sensor: tuple[int, int]) -> Events:
    return Events.of(np.frombuffer(data, RECORD)[["x", "y", "t", "p"]], sensor=sensor)


def recording(
    path: str | Path, sensor: tuple[int, int], packet: int = 1000, realtime: bool = False
) -> Iterator[Events]:
    """A recorded file in packets of `packet` microseconds; with `realtime`, each when its time has come."""
    from gridless.data import read_events

    events = read_events(path, sensor=sensor)
    if not len(events):
        return
    times = events.time.numpy()
    begin, first = time.monotonic(), int(times[0])
    edges = np.searchsorted(times, np.arange(first + packet, int(times[-1]) + packet + 1, packet))
    at = 0
    for edge in edges.tolist():
        if edge == at:
            continue
        if realtime:
            # A packet exists once its last event has happened.
            time.sleep(max(0.0, (int(times[edge - 1]) - first) * 1e-6 - (time.monotonic() - begin)))
        yield events[at:edge]
        at = edge


def frames(stream: BinaryIO, sensor: tuple[int, int], name: str = "standard input") -> Iterator[Events]:
    """Frames one behind the other, until the stream ends. One that is cut off is an error."""
    at = 0
    while header := stream.read(HEADER.size):
        if len(header) < HEADER.size:
            raise ValueError(f"{name}: ends inside a frame's header, at byte {at}")
        _, count = _header(header, f"{name}, byte {at}")
        data = stream.read(count * RECORD.itemsize)
        if len(data) < count * RECORD.itemsize:
            raise ValueError(f"{name}: ends inside a frame of {count} events, at byte {at}")
        at += len(header) + len(data)
        yield _events(data, sensor)


class Datagrams:
    """Frames from a UDP socket. Ends after `idle` seconds of silence, and never because of what was sent.

    What does not become a packet is counted: `lost`, frames that did not come in their turn; `late`, those that came
    after a later one, or again; `bad`, datagrams that are no frame; `refused`, frames with an event outside the sensor
    or before its predecessor. `reason` says what was wrong with the last of these.
    """

    def __init__(self, host: str, port: int, sensor: tuple[int, int], idle: float | None = None) -> None:
        self.sensor, self.idle, self.reason = sensor, idle, ""
        self.lost = self.late = self.bad = self.refused = 0
        self._expected: int | None = None
        self._time = -(2**63)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.socket.bind((host, port))
        self.port = self.socket.getsockname()[1]

    def __iter__(self) -> Iterator[Events]:
        self.socket.settimeout(self.idle)
        try:
            while True:
                try:
                    data = self.socket.recv(1 << 16)
                except TimeoutError:
                    return
                events = self._packet(data)
                if events is not None:
                    yield events
        finally:
            self.socket.close()

    def _packet(self, data: bytes) -> Events | None:
        """The events of a datagram, or None where there is nothing to take from it."""
        try:
            number = _number(data)
        except ValueError as error:
            self.bad, self.reason = self.bad + 1, str(error)
            return None
        ahead = 0 if self._expected is None else (number - self._expected) & 0xFFFFFFFF
        # Numbers begin again after 2^32: the nearer way around tells what came early from what came late.
        if ahead >= 1 << 31:
            self.late += 1
            return None
        self.lost += ahead
        self._expected = (number + 1) & 0xFFFFFFFF
        try:
            events = _events(data[HEADER.size :], self.sensor)
            if len(events) and int(events.time[0]) < self._time:
                raise ValueError(f"event 0 is at {int(events.time[0])} us, before the last one at {self._time} us")
        except ValueError as error:
            self.refused, self.reason = self.refused + 1, f"udp: frame {number}: {error}"
            return None
        self._time = int(events.time[-1]) if len(events) else self._time
        return events


def _number(data: bytes) -> int:
    """The number of the frame that a datagram is."""
    if len(data) < HEADER.size:
        raise ValueError(f"udp: a datagram of {len(data)} bytes is no frame")
    number, count = _header(data[: HEADER.size], "udp")
    if len(data) != HEADER.size + count * RECORD.itemsize:
        raise ValueError(f"udp: frame {number} says {count} events but has {len(data)} bytes")
    return number


class Camera:
    """A live camera, through `neuromorphic-drivers` (pip install 'gridless[camera]').

    Without `device` the first camera that is plugged in. Anything that yields (status, packet) pairs whose packets have
    `polarity_events` will do; `overflows` counts the times the computer was too slow for the camera's own queue.
    """

    def __init__(self, sensor: tuple[int, int], device: Iterable[tuple[Any, Any]] | None = None) -> None:
        if device is None:
            try:
                import neuromorphic_drivers  # pyright: ignore[reportMissingImports]
            except ImportError as error:
                raise ImportError("cameras need neuromorphic-drivers: pip install 'gridless[camera]'") from error
            device = neuromorphic_drivers.open()
        self.device, self.sensor, self.overflows = device, sensor, 0

    def __iter__(self) -> Iterator[Events]:
        for _, packet in self.device:  # type: ignore[union-attr]
            lost = getattr(packet, "polarity_events_overflow_indices", None)
            self.overflows += 0 if lost is None else len(lost)
            if packet is not None and packet.polarity_events is not None and len(packet.polarity_events):
                yield Events.of(packet.polarity_events, sensor=self.sensor)


class Buffered:
    """A source read by a thread of its own, with room for `room` packets.

    When the reader is ahead of the consumer by that much it either waits (back-pressure, nothing is lost) or, with
    `drop`, throws the packet away and counts it in `dropped_packets` and `dropped_events`.
    """

    def __init__(self, source: Iterable[Events], room: int = 64, drop: bool = False) -> None:
        self.dropped_packets = self.dropped_events = 0
        self._queue: queue.Queue[Any] = queue.Queue(room)
        self._source, self._drop = source, drop
        self._thread = threading.Thread(target=self._read, daemon=True, name="gridless-source")

    def _read(self) -> None:
        last: Any = None
        try:
            for packet in self._source:
                if not self._drop:
                    self._queue.put(packet)
                    continue
                try:
                    self._queue.put_nowait(packet)
                except queue.Full:
                    self.dropped_packets += 1
                    self.dropped_events += len(packet)
        except BaseException as error:
            last = error
        self._queue.put(last)

    def __iter__(self) -> Iterator[Events]:
        self._thread.start()
        while True:
            item = self._queue.get()
            if isinstance(item, Events):
                yield item
            elif item is None:
                return
            else:
                raise item
