"""AEDAT4 (DV): a FlatBuffers header with an XML description, then packets, each compressed on its own.

Packets of the type EVTS hold events of 16 bytes: time (int64), x and y (int16), polarity (one byte). Compression is
none, LZ4 or ZSTD, unpacked by the packages `lz4` and `zstandard` (both BSD).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np

from gridless.data.readers.events.base import File, FormatError, Recording, columns

MAGIC = b"#!AER-DAT4.0\r\n"
EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "u1"), ("pad", "V3")])
STEP = 1 << 20


def sniff(head: bytes) -> bool:
    return head.startswith(b"#!AER-DAT4")


def read(file: File) -> Recording:
    if file.bytes(0, len(MAGIC)) != MAGIC:
        raise file.error("only version 4.0 of AEDAT4 can be read", 0)
    start = len(MAGIC) + 4 + _size(file, len(MAGIC))
    header = FlatTable(file, file.bytes(len(MAGIC), start), b"IOHE", len(MAGIC))
    compression = header.integer(0, "<i", 0)
    end = header.integer(1, "<q", -1)
    streams = _streams(file, header.string(2))
    if end > len(file):
        file.truncated(f"the header places a table at byte {end}, but the file has {len(file)}", len(file))
        end = -1
    if 0 <= end < start:
        raise file.error(f"the header places a table at byte {end}, inside itself", len(MAGIC))
    stream = _chosen(file, streams)
    unpack = _unpacker(file, compression)
    parts, places = [], []
    for identity, at, stop in _packets(file, start, end if end >= 0 else len(file)):
        if identity == stream:
            parts.append(_events(file, unpack(at, stop), at))
            places.append(at)
    return _joined(file, parts, places, streams[stream])


def _size(file: File, at: int) -> int:
    if at + 4 > len(file):
        raise file.error("truncated: a length is missing", at)
    size = int(file.data[at : at + 4].copy().view("<u4")[0])
    if at + 4 + size > len(file):
        raise file.error(f"truncated: {size} bytes should follow", at)
    return size


class FlatTable:
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
        """The byte of a field, or None if it has its default."""
        offset = self._get("<H", self.vtable + 4 + 2 * number) if number < self.fields else 0
        return self.root + offset if offset else None

    def integer(self, number: int, form: str, default: int) -> int:
        at = self.field(number)
        return default if at is None else self._get(form, at)

    def vector(self, number: int, itemsize: int) -> tuple[int, int]:
        """The first byte of the elements of a vector, and their number."""
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
        raise file.error("the description declares a document type, which is not allowed", len(MAGIC))
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise file.error(f"the description is not XML: {error}", len(MAGIC)) from None
    streams: dict[int, tuple[int, int] | None] = {}
    for info in root.iter("node"):
        for node in info.findall("node") if info.get("name") == "outInfo" else ():
            # No deeper than this, or what is nested would be read once for each level.
            values = {a.get("key"): a.text or "" for place in ("attr", "node/attr") for a in node.findall(place)}
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
        raise file.error(f"has the event streams {', '.join(map(str, streams))}. Choose one with stream=...")
    return next(iter(streams)) if file.stream is None else file.stream


def _packets(file: File, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(stream, first byte, byte after the last) of each packet."""
    while start < end:
        if start + 8 > end:
            return file.truncated("the header of a packet is missing", start)
        identity, size = struct.unpack("<ii", file.bytes(start, start + 8))
        if size < 0 or start + 8 + size > end:
            return file.truncated(f"a packet of {size} bytes does not fit", start)
        yield identity, start + 8, start + 8 + size
        start += 8 + size


def _unpacker(file: File, compression: int) -> Callable[[int, int], bytes]:
    if compression == 0:
        return file.bytes
    if compression not in (1, 2, 3, 4):
        raise file.error(f"unknown compression {compression}", len(MAGIC))
    package = "lz4" if compression <= 2 else "zstandard"
    try:
        if package == "lz4":
            import lz4.frame as library
        else:
            import zstandard as library  # type: ignore[no-redef]
    except ImportError:
        raise ImportError(f"{file.path} is compressed. Run pip install {package}.") from None
    pieces = _lz4_pieces if package == "lz4" else _zstd_pieces

    def unpack(start: int, end: int) -> bytes:
        out = bytearray()
        try:
            for piece in pieces(library, file.bytes(start, end)):
                file.limits.unpacked("a packet", len(piece), start)
                out += piece
        except (FormatError, MemoryError):
            raise
        except Exception as error:  # each library has kinds of its own
            raise file.error(f"a packet cannot be unpacked: {error}", start) from None
        return bytes(out)

    return unpack


def _lz4_pieces(library: Any, data: bytes) -> Iterator[bytes]:
    stream = library.LZ4FrameDecompressor()
    while not stream.eof:
        piece = stream.decompress(data, max_length=STEP)
        data = b""
        if not piece and stream.needs_input:
            raise EOFError("it is cut short")
        yield piece


def _zstd_pieces(library: Any, data: bytes) -> Iterator[bytes]:
    # Both the events of a packet and a window of over 128 MB are more than any camera writes at once.
    with library.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as reader:
        while piece := reader.read(STEP):
            yield piece


def _events(file: File, data: bytes, at: int) -> np.ndarray:
    table = FlatTable(file, data, b"EVTS", at)
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
