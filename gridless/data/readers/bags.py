"""Recordings of ROS: ROS 1 `.bag`, ROS 2 `.db3` and `.mcap`, and the folder of a ROS 2 bag; read by `rosbags`.

    with Bag.open(path) as bag:
        topic = bag.topic(wanted=None, types=TYPES)
        for raw in bag.messages(topic): ...

Messages come one after the other, so memory does not grow with the bag. Definitions of messages are those that the bag
holds; where it holds none, those that are usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gridless.data.errors import FormatError

SUFFIXES = (".bag", ".db3", ".mcap")
MAGICS = (b"#ROSBAG V", b"SQLite format 3\0", b"\x89MCAP0\r\n")
ZSTD = b"\x28\xb5\x2f\xfd"
# Most topics that an error lists.
LISTED = 20

_EVENTS = "std_msgs/Header header\nuint32 height\nuint32 width\n{}/Event[] events\n"
_EVENT = "uint16 x\nuint16 y\n{time} ts\nbool polarity\n"
_PACKET = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nuint64 seq\nuint64 time_base\nstring encoding\n"
    "bool is_bigendian\nuint8[] events\n"
)
# Messages that ROS does not bring along.
DEFINITIONS = {
    "event_camera_msgs/msg/EventPacket": _PACKET,
    "event_array_msgs/msg/EventArray": _PACKET,
    "dvs_msgs/msg/Event": _EVENT,
    "dvs_msgs/msg/EventArray": _EVENTS.format("dvs_msgs"),
    "prophesee_event_msgs/msg/Event": _EVENT,
    "prophesee_event_msgs/msg/EventArray": _EVENTS.format("prophesee_event_msgs"),
}


def is_bag(path: Path) -> bool:
    """True if a path is a bag, or the folder of one."""
    if path.is_dir():
        return (path / "metadata.yaml").is_file()
    return path.suffix.lower() in SUFFIXES


@dataclass
class Bag:
    """An open bag."""

    path: Path
    reader: Any
    is_ros1: bool
    stores: dict[str, Any] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Bag]:
        """Open the bag, and close it at the end. Exceptions of the library become `FormatError`."""
        try:
            from rosbags.rosbag1 import Reader as Reader1
            from rosbags.rosbag2 import Reader as Reader2
        except ImportError:
            raise ImportError(f"{path} is a ROS recording. Run pip install 'gridless[ros]'.") from None
        is_ros1 = not path.is_dir() and path.open("rb").read(9) == MAGICS[0]
        try:
            reader = (Reader1 if is_ros1 else Reader2)(path)
            reader.open()
            try:
                yield cls(path, reader, is_ros1)
            finally:
                with suppress(Exception):
                    reader.close()
        except (FormatError, GeneratorExit):
            raise
        except MemoryError:
            raise FormatError(path, "declares more data than fits in memory") from None
        except Exception as error:  # rosbags and SQLite raise many kinds
            reason = f"{type(error).__name__} {str(error)[:200]}"
            raise FormatError(path, f"this ROS recording cannot be read: {reason}") from None

    def topics(self) -> dict[str, tuple[str, int]]:
        """The type and the number of messages of each topic."""
        topics: dict[str, tuple[str, int]] = {}
        for connection in self.reader.connections:
            before = topics.get(connection.topic, ("", 0))[1]
            topics[connection.topic] = connection.msgtype, before + int(connection.msgcount or 0)
        return topics

    def topic(self, wanted: str | None, types: Sequence[str], what: str) -> str:
        """The topic that is wanted, or else the only one with messages of these types."""
        topics = self.topics()
        usable = [name for name, (kind, _) in topics.items() if kind in types]
        if wanted is not None:
            if wanted in usable:
                return wanted
            kind = topics.get(wanted, ("", 0))[0].replace("/msg/", "/")
            problem = f"the topic {wanted!r} holds {kind}" if kind else f"no topic {wanted!r}"
            raise self._error(f"{problem}. Topics with {what}: {self._listed(usable) or 'none'}.")
        filled = [name for name in usable if topics[name][1]] or usable
        if len(filled) == 1:
            return filled[0]
        if filled:
            raise self._error(f"{what} are in several topics. Choose one with topic=...: {self._listed(filled)}.")
        kinds = ", ".join(kind.replace("/msg/", "/") for kind in types)
        raise self._error(f"no topic has {what} ({kinds}). There are {self._listed(topics) or 'no topics'}.")

    def messages(self, topic: str) -> Iterator[tuple[str, bytes]]:
        """Type and bytes of each message of a topic, in the order of their times."""
        connections = [connection for connection in self.reader.connections if connection.topic == topic]
        for connection, _, raw in self.reader.messages(connections):
            yield connection.msgtype, self._unpacked(bytes(raw))

    def decoded(self, kind: str, raw: bytes) -> Any:
        """The message by its definition."""
        store = self.store(kind)
        return store.deserialize_ros1(raw, kind) if self.is_ros1 else store.deserialize_cdr(raw, kind)

    def store(self, kind: str) -> Any:
        """Definitions of a type and of all that it is made of: those of the bag, or else the usual ones."""
        if kind not in self.stores:
            self.stores[kind] = self._embedded(kind) or self._usual()
        return self.stores[kind]

    def _embedded(self, kind: str) -> Any:
        from rosbags.interfaces import MessageDefinitionFormat
        from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

        defined = (c.msgdef for c in self.reader.connections if c.msgtype == kind)
        text = next((m for m in defined if m.format != MessageDefinitionFormat.NONE and m.data), None)
        if text is None:
            return None
        types: dict[str, Any] = {}
        if text.format == MessageDefinitionFormat.MSG:
            types = dict(get_types_from_msg(text.data, kind))
        else:
            rule = "=" * 80 + "\n"
            for part in text.data.split(rule):
                body = part.split("\n", 1)[-1] if part.startswith("IDL: ") else part
                types |= get_types_from_idl(body) if body.strip() else {}
        store = get_typestore(Stores.EMPTY)
        store.register({name: value for name, value in types.items() if name not in store.fielddefs})
        return store

    def _usual(self) -> Any:
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        store = get_typestore(Stores.ROS1_NOETIC if self.is_ros1 else Stores.ROS2_HUMBLE)
        time = "time" if self.is_ros1 else "builtin_interfaces/Time"
        for name, text in DEFINITIONS.items():
            store.register(get_types_from_msg(text.replace("{time}", time), name))
        return store

    def _unpacked(self, raw: bytes) -> bytes:
        """Messages that are packed one by one say so in a file beside them; their first bytes say it, too."""
        if self.is_ros1 or not raw.startswith(ZSTD):
            return raw
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(raw)

    def _listed(self, names: Any) -> str:
        topics = self.topics()
        labels = [f"{name} ({topics[name][1]} {topics[name][0].replace('/msg/', '/')})" for name in sorted(names)]
        return ", ".join(labels[:LISTED]) + (f" and {len(labels) - LISTED} more" if len(labels) > LISTED else "")

    def _error(self, message: str) -> FormatError:
        return FormatError(self.path, message)


BASES = {
    "bool": "u1", "byte": "u1", "char": "u1", "octet": "u1", "uint8": "u1", "int8": "i1", "uint16": "u2", "int16": "i2",
    "uint32": "u4", "int32": "i4", "uint64": "u8", "int64": "i8", "float32": "f4", "float64": "f8",
}  # fmt: skip
BASE, NAME, SEQUENCE = 1, 2, 4


class Cursor:
    """Fields of a message, one after the other, by their definition. CDR, of ROS 2, aligns numbers; ROS 1 does not.

    A sequence of structures of numbers becomes one array per field: as objects of Python, as `rosbags` gives them,
    events take a hundred times as long.
    """

    def __init__(self, store: Any, raw: bytes, is_ros1: bool) -> None:
        self.store, self.aligned = store, not is_ros1
        self.order = "<" if is_ros1 or (len(raw) > 1 and raw[1] & 1) else ">"
        # CDR aligns to the byte behind the four that name the encoding.
        self.data, self.at = (raw, 0) if is_ros1 else (raw[4:], 0)

    def message(self, kind: str) -> dict[str, Any]:
        """The fields of a message by name."""
        return {name: self._value(how) for name, how in self.store.fielddefs[kind][1]}

    def _value(self, how: Any) -> Any:
        node, about = int(how[0]), how[1]
        if node == NAME:
            return self.message(about)
        if node == BASE and about[0] in ("string", "wstring"):
            length = self._number("u4")
            text = self.data[self.at : self.at + length]
            self.at += length
            return text.rstrip(b"\0").decode("latin-1")
        if node == BASE:
            return self._number(BASES[about[0]])
        if node != SEQUENCE:
            raise ValueError(f"a field has the unknown kind {node}")
        return self._columns(self._number("u4"), self._flat(about[0]))

    def _number(self, kind: str) -> int:
        size = int(kind[1])
        self.at += -self.at % size if self.aligned else 0
        if self.at + size > len(self.data):
            raise ValueError(f"truncated: a number at byte {self.at} of {len(self.data)}")
        value = np.frombuffer(self.data, f"{self.order}{kind}", 1, self.at)[0]
        self.at += size
        return int(value)

    def _flat(self, how: Any, prefix: str = "") -> list[tuple[str, str]]:
        """Name and type of each number of a structure, those of structures in it as `ts.sec`."""
        node, about = int(how[0]), how[1]
        if node == BASE and about[0] in BASES:
            return [(prefix, BASES[about[0]])]
        if node != NAME:
            raise ValueError("a sequence does not hold numbers")
        fields = self.store.fielddefs[about][1]
        return [pair for name, sub in fields for pair in self._flat(sub, f"{prefix}.{name}" if prefix else name)]

    def _offsets(self, at: int, fields: list[tuple[str, str]]) -> tuple[list[int], int]:
        """The place of each number of a structure that begins at byte `at`, and the structure's end."""
        places = []
        for _, kind in fields:
            size = int(kind[1])
            at += -at % size if self.aligned else 0
            places.append(at)
            at += size
        return places, at

    def _columns(self, count: int, fields: list[tuple[str, str]]) -> dict[str, np.ndarray]:
        """The numbers of `count` structures. Their places repeat once two begin alike."""
        columns: dict[str, list[np.ndarray]] = {name: [] for name, _ in fields}
        widest = max(int(kind[1]) for _, kind in fields)
        while count:
            places, end = self._offsets(self.at, fields)
            stride = end - self.at
            many = count if not self.aligned or stride % widest == 0 else 1
            if end + stride * (many - 1) > len(self.data):
                raise ValueError(f"truncated: {count} entries of {stride} bytes at byte {self.at} of {len(self.data)}")
            for (name, kind), place in zip(fields, places, strict=True):
                columns[name].append(np.ndarray((many,), f"{self.order}{kind}", self.data, place, (stride,)))
            self.at += stride * many
            count -= many
        empty = {name: np.empty(0, kind) for name, kind in fields}
        return {name: np.concatenate(parts) if parts else empty[name] for name, parts in columns.items()}
