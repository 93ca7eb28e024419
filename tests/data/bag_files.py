"""Small recordings of ROS 1 and ROS 2, written by `rosbags` with the real definitions of messages."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridless.data.readers.bags import DEFINITIONS

KINDS = ("bag", "db3", "mcap")


def store(ros1: bool) -> Any:
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    types = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)
    for name, text in DEFINITIONS.items():
        types.register(get_types_from_msg(text.replace("{time}", "time" if ros1 else "builtin_interfaces/Time"), name))
    return types


def header(types: Any, stamp: int = 0) -> Any:
    time = types.types["builtin_interfaces/msg/Time"](stamp // 10**9, stamp % 10**9)
    more = {"seq": 0} if "seq" in types.types["std_msgs/msg/Header"].__dataclass_fields__ else {}
    return types.types["std_msgs/msg/Header"](stamp=time, frame_id="cam", **more)


def packet(types: Any, events: bytes, encoding: str = "evt3", seq: int = 0, base: int = 0, big: bool = False) -> Any:
    kind = types.types["event_camera_msgs/msg/EventPacket"]
    data = np.frombuffer(events, np.uint8)
    return kind(header(types), 480, 640, seq, base, encoding, big, data)


def array(types: Any, package: str, rows: list[tuple[int, int, int, bool]]) -> Any:
    """Rows are x, y, nanoseconds, polarity."""
    event, time = types.types[f"{package}/msg/Event"], types.types["builtin_interfaces/msg/Time"]
    events = [event(x, y, time(ns // 10**9, ns % 10**9), p) for x, y, ns, p in rows]
    return types.types[f"{package}/msg/EventArray"](header(types), 480, 640, events)


def cloud(types: Any, table: np.ndarray, rows: int = 1, pad: int = 0, big: bool = False) -> Any:
    """A structured array as PointCloud2, in so many rows with `pad` bytes behind each."""
    numbers = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 8}
    field = types.types["sensor_msgs/msg/PointField"]
    fields = []
    for name in table.dtype.names or ():
        kind, offset = table.dtype.fields[name][:2]  # type: ignore[index]
        count = int(np.prod(kind.shape)) if kind.shape else 1
        fields.append(field(name, offset, numbers[kind.base.str[1:]], count))
    width = len(table) // rows
    lines = [table[i * width : (i + 1) * width].tobytes() + bytes(pad) for i in range(rows)]
    step = table.dtype.itemsize
    data = np.frombuffer(b"".join(lines), np.uint8)
    message = types.types["sensor_msgs/msg/PointCloud2"]
    return message(header(types), rows, width, fields, big, step, width * step + pad, data, False)


def write(path: Path, messages: list[tuple[str, Any]]) -> Path:
    """A bag of (topic, message), one a millisecond; the suffix says which kind."""
    from rosbags import rosbag1, rosbag2

    ros1 = path.suffix == ".bag"
    types = store(ros1)
    folder = path.with_name(path.stem + "-folder")
    if ros1:
        writer: Any = rosbag1.Writer(path)
    else:
        plugin = rosbag2.StoragePlugin.MCAP if path.suffix == ".mcap" else rosbag2.StoragePlugin.SQLITE3
        writer = rosbag2.Writer(folder, version=9, storage_plugin=plugin)
    with writer:
        connections: dict[str, Any] = {}
        for i, (topic, message) in enumerate(messages):
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=types)
            raw = types.serialize_ros1(message, kind) if ros1 else types.serialize_cdr(message, kind)
            writer.write(connections[topic], 10**15 + i * 10**6, raw)
    if not ros1:
        path.write_bytes(next(folder.glob(f"*{path.suffix}")).read_bytes())
    return path


def seed(kind: str, of_events: bool) -> bytes:
    """The bytes of a small bag, for fuzzers."""
    pytest.importorskip("rosbags")
    types = store(kind == "bag")
    payload = np.array([0x8001, 0x6002, 0x0003, 0x2804, 0x2005], "<u2").tobytes()
    table = np.ones(20, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("ring", "<u2")])
    messages: list[Any] = [("/p", cloud(types, table))]
    if of_events:
        messages = [("/e", packet(types, payload, seq=i)) for i in range(3)]
    if of_events and kind == "bag":
        messages = [
            ("/e", array(types, "dvs_msgs", [(i, i, 1000 * (i + 5 * k), True) for i in range(5)])) for k in range(2)
        ]
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder) / f"a.{kind}", messages).read_bytes()
