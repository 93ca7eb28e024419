"""LAS through `laspy`, and LAZ and COPC through `lazrs`: versions 1.0 to 1.4, point formats 0 to 10.

laspy reads the header and the fields of the points. Chunks of LAZ are unpacked one by one, by several threads, which
laspy cannot do. Everything that the decoder believes (counts, the table of chunks, the sizes of their layers) is
checked against the file first, because the decoder ends the process when memory is short.
"""

# lazrs says nothing of its types.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import IO, Any

import numpy as np

from gridless.data.errors import library
from gridless.data.limits import Limits
from gridless.data.readers.clouds.base import PART, Parts, Points, Source, part_sizes

_PROCESS = os.getpid()

# Dimensions that are no rows: those that are joined to others, and waveforms.
NO_ROWS = {
    "X", "Y", "Z", "red", "green", "blue", "wavepacket_index", "wavepacket_offset", "wavepacket_size",
    "return_point_wave_location", "x_t", "y_t", "z_t",
}  # fmt: skip
# Degrees of one step.
SCAN_ANGLE = {"scan_angle_rank": 1.0, "scan_angle": 0.006}
# Byte of the header with the place of the waveforms, and the bit that says that they are in the file.
WAVES, INTERNAL_WAVES = 227, 2
# Layers of each kind of item in a chunk of LAZ 1.4; extra bytes have one each.
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}
EXTRA_BYTES_ITEM = 14
UNCHUNKED, POINTWISE, LAYERED = 1, 2, 3
# Sizes of chunks that say that each has its own.
VARIABLE = (0, 2**32 - 1)


def read(source: Source) -> Points:
    file = LasFile.of(source)
    if not file.packed:
        return file.points(source.stored("points", file.count, file.size, file.start))
    source.limits.unpacked("the points", file.count * file.size, file.start)
    return file.points(file.unpack(source, file.start + 8, file.chunks(source)))


def parts(source: Source) -> Parts:
    """A LAS file in pieces of as many points as PART; a LAZ or COPC file in its chunks."""
    file = LasFile.of(source)
    sizes, raw = file.pieces(source)
    return Parts(sizes, lambda k: file.points(raw(k)))


def relabelled(source: Source, out: IO[bytes], packed: bool, labels: Callable[[int, int], np.ndarray]) -> None:
    """Write the same file with other classes: labels(first, count) are those of its points; COPC becomes plain LAZ.

    Whatever else the file says of its points stays, and so do its records.
    """
    file = LasFile.of(source)
    sizes, raw = file.pieces(source)
    size = struct.unpack_from("<H", source.data, 94)[0]
    head = bytearray(source.data[:size])
    records = [record for user, _, record in file.records if user not in ("laszip encoded", "copc")]
    late = [(at, length) for user, at, length in _late_records(source) if user != "copc"]
    vlr = None
    if packed:
        laspy, lazrs = library("laspy", source.path), library("lazrs", source.path)
        extra = file.size - laspy.PointFormat(file.format).size
        way = bytearray(file.way or lazrs.LazVlr.new_for_compression(file.format, extra).record_data())
        # Chunks with sizes of their own are made again, all alike.
        if struct.unpack_from("<I", way, 12)[0] in VARIABLE:
            struct.pack_into("<I", way, 12, 50_000)
        vlr = lazrs.LazVlr(bytes(way))
        records.append(struct.pack("<H16sHH32s", 0, b"laszip encoded", 22204, len(way), b"") + way)
    struct.pack_into(
        "<IIB", head, 96, size + sum(map(len, records)), len(records), file.format | (128 if packed else 0)
    )
    if head[25] >= 4:
        struct.pack_into("<QI", head, 235, 0, len(late))
    waves = _waves(source)
    if waves is not None and waves not in [at for at, _ in late]:
        # The header says where waveforms are, and they are not there.
        head[6] &= ~INTERNAL_WAVES
        struct.pack_into("<Q", head, WAVES, 0)
    begin = out.tell()
    out.write(head + b"".join(records))
    disk, first = _Disk(out), 0
    compressor = library("lazrs", source.path).LasZipCompressor(disk, vlr) if packed else None
    write: Any = out.write if compressor is None else compressor.compress_many
    try:
        for k, count in enumerate(sizes):
            table = np.array(np.frombuffer(raw(k), np.uint8)).reshape(count, file.size)
            classes = labels(first, count).astype(np.uint8)
            if file.format < 6:
                table[:, 15] = table[:, 15] & 0xE0 | classes
            else:
                table[:, 16] = classes
            write(table.reshape(-1))
            first += count
        if compressor is not None:
            compressor.done()
    except RuntimeError as error:
        raise disk.error or error from None
    end = out.seek(0, 2)
    for at, length in late:
        if at == waves:
            _overwrite(out, begin + WAVES, out.seek(0, 2) - begin)
            out.seek(0, 2)
        # Waveforms may be many times as large as the points.
        for place in range(at, at + length, 1 << 24):
            out.write(source.data[place : min(place + (1 << 24), at + length)])
    if late and head[25] >= 4:
        _overwrite(out, begin + 235, end - begin)
    out.seek(0, 2)


def _overwrite(out: IO[bytes], at: int, number: int) -> None:
    out.seek(at)
    out.write(struct.pack("<Q", number))


class _Disk:
    """A file that a compressor writes to, which says of an error only that there was one: here it is kept."""

    error: OSError | None = None

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise


def most_classes(source: Source) -> int:
    """The number of classes that its points can have."""
    return 32 if LasFile.of(source).format < 6 else 256


@dataclass(frozen=True)
class LasFile:
    """The header of a file: its points, records and rows."""

    header: Any  # laspy.LasHeader
    count: int
    records: list[tuple[str, int, bytes]]  # who wrote each, its number, and its bytes
    dimensions: list[str]  # those that become rows

    @classmethod
    def of(cls, source: Source) -> LasFile:
        begin = source.stored("bytes of a header", 227, 1, 0)
        if not begin.startswith(b"LASF") or begin[24] != 1:
            raise source.error("not a LAS file: it does not begin with LASF, or has a version other than 1", 0)
        size, start, count = struct.unpack_from("<HII", begin, 94)
        records = _records(source, size, start, count)
        laspy = library("laspy", source.path)
        try:
            header = laspy.LasHeader.read_from(io.BytesIO(source.data[:start]))
            names = _row_names(header)
            # Names and types that do not go together are found here, not when points are read.
            no_points = laspy.PackedPointRecord.empty(header.point_format)
            [no_points[name] for name in names]
        except MemoryError:
            raise
        except Exception as error:
            raise source.error(f"its header cannot be read: {str(error)[:200]}", 0) from None
        if not (np.isfinite(header.scales) & np.isfinite(header.offsets)).all():
            raise source.error("the scale or the offset is not finite", 131)
        # Files of version 1.4 may have the number of points in the place of older ones only.
        points = header.point_count or struct.unpack_from("<I", begin, 107)[0]
        return cls(header, points, records, names)

    @property
    def format(self) -> int:
        return self.header.point_format.id

    @property
    def size(self) -> int:
        """Bytes of a point."""
        return self.header.point_format.size

    @property
    def start(self) -> int:
        """The byte where the points begin."""
        return self.header.offset_to_point_data

    @property
    def packed(self) -> bool:
        return self.header.are_points_compressed

    def points(self, raw: bytes | np.ndarray) -> Points:
        """The points that are stored in `raw`, one after the other, uncompressed."""
        laspy = library("laspy", "LAS")
        record: Any = laspy.PackedPointRecord.from_buffer(raw, self.header.point_format)
        rows: dict[str, np.ndarray] = {}
        for name in self.dimensions:
            values = np.asarray(record[name])
            if name in SCAN_ANGLE:
                name, values = "scan_angle", (values * SCAN_ANGLE[name]).astype(np.float32)
            rows.setdefault(name.strip().lower(), values)
        if "red" in (record.array.dtype.names or ()):
            rows["rgb"] = _together(record.array, "red")
        with np.errstate(over="ignore"):
            coords = _together(record.array, "X") * self.header.scales + self.header.offsets
        return Points(coords, rows, np.dtype(np.float64))

    def pieces(self, source: Source) -> tuple[list[int], Callable[[int], bytes | np.ndarray]]:
        """The number of points of each piece, and a function that reads piece k as LAS stores it."""
        if not self.packed:
            source.limits.stored("points", self.count, self.size, len(source.data) - self.start, self.start)
            sizes = part_sizes(self.count)
            return sizes, lambda k: source.stored("points", sizes[k], self.size, self.start + k * PART * self.size)
        chunks = [chunk for chunk in self.chunks(source) if chunk[0]]
        places = np.cumsum([self.start + 8, *(length for _, length in chunks)]).tolist()

        def unpack(k: int) -> np.ndarray:
            Limits(source.path).unpacked("a chunk", chunks[k][0] * self.size, places[k])
            return self.unpack(source, places[k], chunks[k : k + 1])

        return [points for points, _ in chunks], unpack

    @property
    def way(self) -> bytes:
        """The record that says how the points are compressed."""
        return _content(self.records, "laszip encoded", 22204)

    def chunks(self, source: Source) -> list[tuple[int, int]]:
        """Points and bytes of each chunk of a LAZ file; they are one after the other, from eight bytes behind `start`.

        All that the decoder will believe is checked here.
        """
        lazrs, record, at, count = library("lazrs", source.path), self.way, self.start, self.count
        if len(record) < 34:
            raise source.error("compressed, but the record of the compression is missing", at)
        way, _, _, _, _, _, chunk = struct.unpack_from("<HHBBHII", record)
        items = [struct.unpack_from("<HHH", record, 34 + 6 * i) for i in range((len(record) - 34) // 6)]
        declared = struct.unpack_from("<H", record, 32)[0]
        if way == UNCHUNKED:
            remedy = "Convert it with a newer LASzip: laszip -i old.laz -o new.laz"
            raise source.error(f"compressed point by point, a format from before 2011. {remedy}", at)
        if way not in (POINTWISE, LAYERED) or declared != len(items) or sum(s for _, s, _ in items) != self.size:
            raise source.error(f"unknown compression ({way}) or point format", at)
        if not count:
            return []
        start = at + 8
        table = struct.unpack("<q", source.stored("bytes of a place", 8, 1, at))[0]
        if table <= at:
            table = struct.unpack_from("<q", source.data, len(source.data) - 8)[0]
        if not start <= table <= len(source.data) - 8:
            raise source.error(f"truncated: the table of chunks should be at byte {table}", at)
        number = struct.unpack_from("<I", source.data, table + 4)[0]
        # An empty chunk has four bytes; others begin with a whole point.
        source.limits.stored("chunks", number, 4, table - start, table)
        if chunk not in VARIABLE and number * chunk < count:
            raise source.error(f"{number} chunks of {chunk} points cannot hold {count}", table)
        try:
            stream = io.BytesIO(source.data[table:])
            chunks = lazrs.read_chunk_table_only(stream, lazrs.LazVlr(record))
        except BaseException as error:
            raise _foreign(source, error, table) from None
        if chunk not in VARIABLE:
            chunks = [(min(chunk, max(count - i * chunk, 0)), length) for i, (_, length) in enumerate(chunks)]
        if sum(n for n, _ in chunks) != count or sum(length for _, length in chunks) > table - start:
            raise source.error(f"the chunks are not {count} points in {table - start} bytes", table)
        place = start
        for points, length in chunks:
            if points:
                _check_chunk(source, place, length, points, self.size, items if way == LAYERED else [])
            place += length
        return chunks

    def unpack(self, source: Source, at: int, chunks: list[tuple[int, int]]) -> np.ndarray:
        """The points of consecutive chunks, of which the first is at byte `at`, as LAS would store them."""
        if len(chunks) > 1 and os.getpid() != _PROCESS:
            # Threads of the decoder do not survive a fork, and it would wait for them for ever: one chunk needs none.
            places = accumulate((length for _, length in chunks), initial=at)
            return np.concatenate([self.unpack(source, place, [chunk]) for place, chunk in zip(places, chunks)])
        out = np.empty(sum(points for points, _ in chunks) * self.size, np.uint8)
        if len(out):
            data = source.data[at : at + sum(length for _, length in chunks)]
            try:
                library("lazrs", source.path).decompress_points_with_chunk_table(data, self.way, out, chunks)
            except BaseException as error:
                raise _foreign(source, error, at) from None
        return out


def _together(points: np.ndarray, first: str) -> np.ndarray:
    """Three fields of points that lie side by side, as (S, 3) without a copy."""
    kind, offset = points.dtype.fields[first][:2]  # type: ignore[index]
    if not len(points):
        return np.empty((0, 3), kind)
    return np.ndarray((len(points), 3), kind, points, offset, (points.dtype.itemsize, kind.itemsize))


def _row_names(header: Any) -> list[str]:
    """The dimensions that become rows: all but places, colours, waveforms and undocumented bytes."""
    structs = [entry for record in header.vlrs.get("ExtraBytesVlr") for entry in record.extra_bytes_structs]
    undocumented = {"ExtraBytes", *(entry.format_name() for entry in structs if entry.data_type == 0)}
    return [name for name in header.point_format.dimension_names if name not in NO_ROWS | undocumented]


def _records(source: Source, at: int, end: int, count: int) -> list[tuple[str, int, bytes]]:
    """The variable length records between the header and the points."""
    if end > len(source.data) or at > end:
        raise source.error(f"truncated: the points begin at byte {end}, the file has {len(source.data)}", 96)
    source.limits.stored("variable length records", count, 54, end - at, 100)
    records = []
    for _ in range(count):
        source.limits.stored("variable length records", 1, 54, end - at, at)
        user, number, length = struct.unpack_from("<16sHH", source.data, at + 2)
        source.limits.stored("bytes of a record", length, 1, end - at - 54, at)
        records.append((_user(user), number, source.data[at : at + 54 + length]))
        at += 54 + length
    return records


def _content(records: list[tuple[str, int, bytes]], user: str, number: int) -> bytes:
    """The payload of the first such record; empty if there is none."""
    return next((record[54:] for *key, record in records if key == [user, number]), b"")


def _user(name: bytes) -> str:
    return name.split(b"\0")[0].decode("latin-1")


def _late_records(source: Source) -> Iterator[tuple[str, int, int]]:
    """User, offset and length of each record behind the points: LAS 1.4 has several, 1.3 waveforms."""
    at, count = struct.unpack_from("<QI", source.data, 235) if source.data[25] >= 4 else (_waves(source) or 0, 1)
    for _ in range(count if at else 0):
        source.limits.stored("records behind the points", 1, 60, len(source.data) - at, at)
        user, _, length = struct.unpack_from("<16sHQ", source.data, at + 2)
        source.limits.stored("bytes of a record", length, 1, len(source.data) - at - 60, at)
        yield _user(user), at, 60 + length
        at += 60 + length


def _waves(source: Source) -> int | None:
    """The byte where the record of waveforms begins, 0 if there is none; None in files that cannot have one."""
    if source.data[25] < 3 or struct.unpack_from("<H", source.data, 94)[0] < WAVES + 8:
        return None
    at = struct.unpack_from("<Q", source.data, WAVES)[0]
    if at + 60 > len(source.data):
        return 0
    user, number, length = struct.unpack_from("<16sHQ", source.data, at + 2)
    whole = (_user(user), number) == ("LASF_Spec", 65535) and at + 60 + length <= len(source.data)
    return at if whole else 0


def _check_chunk(source: Source, at: int, length: int, points: int, size: int, items: list) -> None:
    """A chunk is a point and the others coded; a layered one has between them its number of points and its sizes."""
    layers = sum(s if kind == EXTRA_BYTES_ITEM else LAYERS.get(kind, 0) for kind, s, _ in items)
    head = size + (4 + 4 * layers if items else 0)
    source.limits.stored("bytes of a chunk", head, 1, length, at)
    if items:
        said, *lengths = np.frombuffer(source.data, "<u4", 1 + layers, at + size).tolist()
        if said != points:
            raise source.error(f"a chunk of {points} points declares {said}", at + size)
        source.limits.stored("bytes of layers", sum(lengths), 1, length - head, at)


def _foreign(source: Source, error: BaseException, at: int) -> BaseException:
    """Turn an error of the decoder, its panics too, into ours. Interrupts and lack of memory stay what they are."""
    if isinstance(error, MemoryError) or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
        return error
    return source.error(f"the compressed points are damaged: {str(error)[:200]}", at)
