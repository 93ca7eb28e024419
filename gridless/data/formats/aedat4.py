"""AEDAT4 (DV): a FlatBuffers header with an XML description, then packets, each compressed on its own.

Packets of the type EVTS hold events of 16 bytes: time (int64), x and y (int16), polarity (one byte). Compression is
none, LZ4 or ZSTD, unpacked by the packages `lz4` and `zstandard` (both BSD), which `pip install gridless[data]` brings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

import numpy as np

from gridless.data.formats.base import File, Recording, columns

MAGIC = b"#!AER-DAT4.0\r\n"
EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "u1"), ("pad", "V3")])
# More than a packet of events ever shrinks; LZ4 cannot reach it, ZSTD could be made to.
MAX_RATIO = 256


def sniff(head: bytes) -> bool:
    return head.startswith(b"#!AER-DAT4")


def read(file: File) -> Recording:
    if file.bytes(0, len(MAGIC)) != MAGIC:
        raise file.error("only version 4.0 of AEDAT4 can be read", 0)
    header = Table(file, file.bytes(len(MAGIC), len(MAGIC) + 4 + _size(file, len(MAGIC))), b"IOHE", len(MAGIC))
    compression = header.integer(0, "<i", 0)
    end = header.integer(1, "<q", -1)
    streams, start = _streams(file, header.string(2)), len(MAGIC) + 4 + _size(file, len(MAGIC))
    if end > len(file):
        raise file.error(f"truncated: the header places a table at byte {end}, but the file has {len(file)}", len(file))
    if 0 <= end < start:
        raise file.error(f"the header places a table at byte {end}, inside itself", len(MAGIC))
    stream = _chosen(file, streams)
    unpack = _unpacker(file, compression)
    parts, places = [], []
    for identity, at, stop in _packets(file, start, end if end >= 0 else len(file)):
        if identity == stream:
            parts.append(_events(file, unpack(file, at, stop), at))
            places.append(at)
    return _joined(file, parts, places, streams[stream])


def _size(file: File, at: int) -> int:
    if at + 4 > len(file):
        raise file.error("truncated: a length is missing", at)
    size = int(file.data[at : at + 4].copy().view("<u4")[0])
    if at + 4 + size > len(file):
        raise file.error(f"truncated: {size} bytes should follow", at)
    return size


class Table:
    """A FlatBuffers table behind its size, read with every offset checked."""

    def __init__(self, file: File, data: bytes, identifier: bytes, at: int) -> None:
        self.file, self.data, self.at = file, data, at
        if data[8:12] != identifier:
            raise file.error(f"expected a table {identifier.decode()}, found {data[8:12]!r}", at)
        self.root = 4 + self._get("<I", 4)
        self.vtable = self.root - self._get("<i", self.root)
        self.fields = (self._get("<H", self.vtable) - 4) // 2

    def _get(self, form: str, at: int) -> int:
        if at < 0 or at + struct.calcsize(form) > len(self.data):
            raise self.file.error("a table points outside itself", self.at)
        return struct.unpack_from(form, self.data, at)[0]

    def field(self, number: int) -> int | None:
        """Where a field is stored, or None where it has its default."""
        offset = self._get("<H", self.vtable + 4 + 2 * number) if number < self.fields else 0
        return self.root + offset if offset else None

    def integer(self, number: int, form: str, default: int) -> int:
        at = self.field(number)
        return default if at is None else self._get(form, at)

    def vector(self, number: int, itemsize: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        at = self.field(number)
        if at is None:
            return 0, 0
        at += self._get("<I", at)
        count = self._get("<I", at)
        if at + 4 + count * itemsize > len(self.data):
            raise self.file.error(f"a table says it holds {count} elements, more than its bytes", self.at)
        return at + 4, count

    def string(self, number: int) -> str:
        start, count = self.vector(number, 1)
        return self.data[start : start + count].decode("utf-8", "replace")


def _streams(file: File, text: str) -> dict[int, tuple[int, int] | None]:
    """The event streams that the description names, each with its sensor if that is told."""
    # No entities: they can be made to grow without bound.
    if "<!" in text:
        raise file.error("the description declares a document type, which no camera does", len(MAGIC))
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise file.error(f"the description is not XML: {error}", len(MAGIC)) from None
    streams: dict[int, tuple[int, int] | None] = {}
    for info in root.iter("node"):
        for node in info.findall("node") if info.get("name") == "outInfo" else ():
            values = {a.get("key"): a.text or "" for a in node.iter("attr")}
            name = node.get("name") or ""
            if values.get("typeIdentifier") == "EVTS" and name.isascii() and name.isdecimal() and len(name) < 10:
                size = [values.get(k, "") for k in ("sizeX", "sizeY")]
                told = all(v.isascii() and v.isdecimal() and 0 < len(v) < 6 and int(v) for v in size)
                streams[int(name)] = (int(size[0]), int(size[1])) if told else None
    return streams


def _chosen(file: File, streams: dict[int, tuple[int, int] | None]) -> int:
    if file.stream is not None and file.stream not in streams:
        raise file.error(f"has no event stream {file.stream}, only {', '.join(map(str, streams)) or 'none'}")
    if not streams:
        raise file.error("the description names no event stream", len(MAGIC))
    if file.stream is None and len(streams) > 1:
        raise file.error(f"has the event streams {', '.join(map(str, streams))}: choose one with stream=...")
    return next(iter(streams)) if file.stream is None else file.stream


def _packets(file: File, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(stream, first byte, byte after the last) of each packet."""
    while start < end:
        if start + 8 > end:
            raise file.error("truncated: the header of a packet is missing", start)
        identity, size = struct.unpack("<ii", file.bytes(start, start + 8))
        if size < 0 or start + 8 + size > end:
            raise file.error(f"truncated: a packet of {size} bytes does not fit", start)
        yield identity, start + 8, start + 8 + size
        start += 8 + size


def _unpacker(file: File, compression: int) -> Callable[[File, int, int], bytes]:
    if compression == 0:
        return lambda file, start, end: file.bytes(start, end)
    if compression not in (1, 2, 3, 4):
        raise file.error(f"unknown compression {compression}", len(MAGIC))
    package = "lz4" if compression <= 2 else "zstandard"
    try:
        if package == "lz4":
            from lz4 import frame as library
        else:
            import zstandard as library  # type: ignore[no-redef]
    except ImportError:
        raise ImportError(f"{file.path} is compressed: pip install {package}, or gridless[data]") from None
    return _unpack_lz4(library) if package == "lz4" else _unpack_zstd(library)


def _unpack_lz4(library) -> Callable[[File, int, int], bytes]:  # type: ignore[no-untyped-def]
    def unpack(file: File, start: int, end: int) -> bytes:
        stream = library.LZ4FrameDecompressor()
        try:
            data = stream.decompress(file.bytes(start, end), max_length=MAX_RATIO * (end - start))
        except (RuntimeError, EOFError, ValueError) as error:
            raise file.error(f"a packet cannot be unpacked: {error}", start) from None
        if not stream.eof:
            raise file.error("a packet is cut short or unpacks to too much", start)
        return data

    return unpack


def _unpack_zstd(library) -> Callable[[File, int, int], bytes]:  # type: ignore[no-untyped-def]
    def unpack(file: File, start: int, end: int) -> bytes:
        limit = MAX_RATIO * (end - start)
        try:
            with library.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file.bytes(start, end)) as reader:
                data = reader.read(limit + 1)
        except (library.ZstdError, ValueError) as error:
            raise file.error(f"a packet cannot be unpacked: {error}", start) from None
        if len(data) > limit:
            raise file.error("a packet unpacks to too much", start)
        return data

    return unpack


def _events(file: File, data: bytes, at: int) -> np.ndarray:
    table = Table(file, data, b"EVTS", at)
    start, count = table.vector(0, EVENT.itemsize)
    return np.frombuffer(data, EVENT, count, start)


def _joined(file: File, parts: list[np.ndarray], places: list[int], sensor: tuple[int, int] | None) -> Recording:
    ends = np.cumsum([len(p) for p in parts], dtype=np.int64) if parts else np.zeros(1, np.int64)
    count = int(ends[-1])
    pixel, time, polarity = np.empty((count, 2), np.int32), np.empty(count, np.int64), np.empty(count, np.uint8)

    def locate(row: int) -> int:
        return places[int(np.searchsorted(ends, row, side="right"))]

    for part, end in zip(parts, ends):
        at = slice(int(end) - len(part), int(end))
        pixel[at] = columns(part["x"], part["y"])
        time[at], polarity[at] = part["t"], part["p"]
    if count and polarity.max() > 1:
        row = int(np.flatnonzero(polarity > 1)[0])
        raise file.error(f"event {row} has polarity {polarity[row]}, which must be 0 or 1", locate(row))
    return Recording(pixel, time, polarity.view(bool), sensor, locate=locate)
