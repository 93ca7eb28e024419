"""Events in recordings of ROS: `event_camera_msgs/EventPacket` (encodings evt3, mono and libcaer), and the `EventArray`
of `dvs_msgs` and `prophesee_event_msgs`.

Times are those of the sensor in a packet, and those of ROS in an array. The state of the EVT3 decoder continues from
packet to packet. After lost packets, events up to the next row are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gridless.data.errors import FormatError
from gridless.data.readers.bags import MAGICS, Bag, Cursor
from gridless.data.readers.events.base import File, Recording, columns
from gridless.data.readers.events.evt import Evt3

PACKETS = ("event_camera_msgs/msg/EventPacket", "event_array_msgs/msg/EventArray")
TYPES = (*PACKETS, "dvs_msgs/msg/EventArray", "prophesee_event_msgs/msg/EventArray")
# libcaer counts microseconds in 31 bits.
WRAP = 1 << 31


def sniff(head: bytes) -> bool:
    return head.startswith(MAGICS)


def read(file: File) -> Recording:
    parts = list(packets(file))
    if not parts:
        return Recording(np.empty((0, 2), np.int32), np.empty(0, np.int64), np.empty(0, np.bool_))
    pixel, time, polarity = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("pixel", "time", "polarity")
    )
    return Recording(pixel, time, polarity, parts[0].sensor)


def check_topic(path: Path, topic: str | None) -> None:
    """Refuse a topic without events, or the choice between several that is left open.

    The bag is opened again to be read: a connection of SQLite stays in its thread, and `--realtime` reads in another.
    """
    with Bag.open(path) as bag:
        bag.topic(topic, TYPES, "events")


def packets(file: File) -> Iterator[Recording]:
    """The events of one message after the other."""
    with Bag.open(file.path) as bag:
        topic = bag.topic(file.topic, TYPES, "events")
        decoder = PacketDecoder(file.path)
        sensor = None
        for kind, raw in bag.messages(topic):
            recording = decoder(bag.decoded(kind, raw)) if kind in PACKETS else _array(bag, kind, raw)
            if sensor not in (None, recording.sensor):
                raise file.error(f"the topic {topic!r} has events of the sensors {sensor} and {recording.sensor}")
            sensor = recording.sensor
            yield recording
        if decoder.lost:
            warnings.warn(f"{file.path}: {decoder.lost} packets of {topic!r} are missing", stacklevel=2)


class PacketDecoder:
    """Decodes messages `event_camera_msgs/EventPacket` one after the other; `source` is what errors name.

    `lost` counts the packets whose numbers were passed over.
    """

    def __init__(self, source: str | Path) -> None:
        self.source, self.evt3, self.lost = source, Evt3(), 0
        self.number: int | None = None

    def __call__(self, message: Any) -> Recording:
        number, order = int(message.seq), ">" if message.is_bigendian else "<"
        if self.number is not None and number > self.number + 1:
            self.lost += number - self.number - 1
            self.evt3.forget_place()
        self.number = number
        # A message of rclpy has its bytes in an array of Python.
        data = np.frombuffer(memoryview(message.events), np.uint8)
        encoding = str(message.encoding)
        if encoding not in DECODERS:
            problem = f"the encoding of events is {encoding[:40]!r}. {', '.join(DECODERS)} can be read."
            raise FormatError(self.source, problem)
        size = 2 if encoding == "evt3" else 8
        if len(data) % size:
            raise FormatError(self.source, f"packet {number} has {len(data)} bytes, not a multiple of {size}")
        pixel, time, polarity = DECODERS[encoding](data, order, int(message.time_base), self.evt3)
        return Recording(pixel, time, polarity, (int(message.width), int(message.height)))


def _evt3(data: np.ndarray, order: str, base: int, evt3: Evt3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return evt3.decode(data.view(f"{order}u2").astype(np.uint16, copy=False))


def _mono(data: np.ndarray, order: str, base: int, evt3: Evt3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """64 bits: polarity, 15 of y, 16 of x, 32 of nanoseconds from the packet's own time on."""
    words = data.view(f"{order}u8").astype(np.uint64, copy=False)
    pixel = columns(words >> np.uint64(32) & np.uint64(0xFFFF), words >> np.uint64(48) & np.uint64(0x7FFF))
    time = (base + (words & np.uint64(0xFFFFFFFF)).astype(np.int64)) // 1000
    return pixel, time, words >> np.uint64(63) != 0


def _libcaer(data: np.ndarray, order: str, base: int, evt3: Evt3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two times 32 bits, little endian whatever the machine: 15 of x, 15 of y, polarity, validity; microseconds."""
    words = data.view("<u4").reshape(-1, 2)
    time = words[:, 1].astype(np.int64)
    wraps = np.concatenate([[0], np.cumsum(np.diff(time) < 0)])[: len(time)]
    pixel = columns(words[:, 0] >> 17 & 0x7FFF, words[:, 0] >> 2 & 0x7FFF)
    return pixel, base // 1000 + time + wraps * WRAP, words[:, 0] >> 1 & 1 != 0


DECODERS = {"evt3": _evt3, "mono": _mono, "libcaer": _libcaer}


def _array(bag: Bag, kind: str, raw: bytes) -> Recording:
    message = Cursor(bag.store(kind), raw, bag.is_ros1).message(kind)
    events = message["events"]
    time = events["ts.sec"].astype(np.int64) * 1_000_000 + events["ts.nanosec"] // 1000
    sensor = int(message["width"]), int(message["height"])
    return Recording(columns(events["x"], events["y"]), time, events["polarity"] != 0, sensor)
