"""Readers of users' own clouds: PLY, PCD, LAS and LAZ, NPY, and text with a point per line.

    cloud = gl.read_cloud("scan.ply")

Only coordinates are read. A file that ends too early, or is not what its name says, raises `FormatError` with its name.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gridless.compiled import njit
from gridless.data.formats.base import FormatError
from gridless.structures import Cloud

# The points of a file, and the type of number it declares for them.
_Points = tuple[np.ndarray, np.dtype]
MESHES = (".off", ".obj", ".stl", ".glb", ".gltf")


def read_cloud(path: str | Path, dtype: torch.dtype | None = None) -> Cloud:
    """The points of a file, as one example.

    PLY (ASCII and binary; vertices x, y, z), PCD (ASCII, binary, compressed), LAS and LAZ (needs `laspy`), NPY (an
    array (S, 2) or (S, 3 or more), of which the first three columns are taken), XYZ, TXT, CSV and PTS (numbers apart by
    blanks, commas or semicolons; lines of words, and those that begin with # or //, are passed over).

    Coordinates are float32, or float64 where the file declares doubles and for LAS, whose coordinates are often too
    large for float32; `dtype` overrides. Points that are not finite are kept: what uses them will say so.
    """
    path = Path(path)
    read = _READERS.get(path.suffix.lower())
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix.lower() in MESHES:
        raise FormatError(path, "a mesh has no points of its own: use gl.data.sample_mesh(path, points=1024)")
    if read is None:
        raise FormatError(path, f"unknown kind {path.suffix!r}: there are readers for {', '.join(sorted(_READERS))}")
    coords, declared = read(path)
    natural = np.float64 if declared.kind == "f" and declared.itemsize > 4 else np.float32
    wanted = natural if dtype is None else torch.empty(0, dtype=dtype).numpy().dtype
    return Cloud.of(np.ascontiguousarray(coords, wanted))


# Text.


def _read_text(path: Path) -> _Points:
    text = path.read_bytes()
    if b"\0" in text[:4096]:
        raise FormatError(path, "not text: it holds zero bytes")
    rows = text.translate(bytes.maketrans(b",;\t", b"   ")).split(b"\n")
    kept = [r for r in rows if r.strip() and r.lstrip()[:1] in b"+-.0123456789nNiI" and not _is_words(r)]
    if path.suffix.lower() == ".pts" and kept and len(kept[0].split()) == 1:
        kept = kept[1:]  # the number of points
    return _columns(path, _table(path, kept)), np.dtype(np.float32)


def _is_words(row: bytes) -> bool:
    try:
        float(row.split()[0])
    except ValueError:
        return True
    return False


def _table(path: Path, rows: list[bytes]) -> np.ndarray:
    if not rows:
        return np.empty((0, 3))
    width = len(rows[0].split())
    for n, row in ((0, rows[0]), (len(rows) - 1, rows[-1])):
        if len(row.split()) != width:
            raise FormatError(path, f"truncated? the first point has {width} numbers, point {n} {len(row.split())}")
    try:
        return np.loadtxt(io.BytesIO(b"\n".join(rows)), np.float64, ndmin=2)
    except ValueError as error:
        raise FormatError(path, f"not a table of numbers: {error}") from None


def _columns(path: Path, table: np.ndarray) -> np.ndarray:
    if table.ndim != 2 or table.shape[1] < 2:
        raise FormatError(path, f"points are rows of two or more numbers, but the file holds {table.shape}")
    return table[:, :3]


def _read_npy(path: Path) -> _Points:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FormatError(path, f"not a whole .npy file: {error}") from None
    if array.dtype.kind not in "fiu":
        raise FormatError(path, f"points are numbers, not {array.dtype}")
    return np.array(_columns(path, array)), array.dtype


# PLY.

_PLY_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8",
}  # fmt: skip
# Of an element: its name, how many, and its properties: name, type, and the type of the count of a list.
_Element = tuple[str, int, list[tuple[str, str, str | None]]]


def _read_ply(path: Path) -> _Points:
    data = path.read_bytes()
    order, elements, start = _ply_header(path, data)
    if order == "ascii":
        return _ply_ascii(path, data[start:], elements)
    for name, count, properties in elements:
        lists = any(kind for _, _, kind in properties)
        if name != "vertex":
            start = _ply_skip(path, data, start, order, count, properties)
            continue
        if lists:
            raise FormatError(path, "vertices with lists are not supported")
        record = np.dtype([(p, order + t) for p, t, _ in properties])
        if start + count * record.itemsize > len(data):
            whole = (len(data) - start) // record.itemsize
            raise FormatError(path, f"truncated: the header promises {count} points, the file holds {whole}", len(data))
        return _xyz(path, np.frombuffer(data, record, count, start))
    raise FormatError(path, "there is no element 'vertex'")


def _ply_header(path: Path, data: bytes) -> tuple[str, list[_Element], int]:
    end = data.find(b"end_header")
    newline = data.find(b"\n", end)
    if not data.startswith(b"ply") or end < 0 or newline < 0:
        raise FormatError(path, "not a PLY file: it does not begin with 'ply' and a header")
    order, elements = "", []
    for line in data[:end].decode("latin-1").splitlines():
        match line.split():
            case ["format", kind, *_]:
                order = {"ascii": "ascii", "binary_little_endian": "<", "binary_big_endian": ">"}.get(kind, "")
            case ["element", name, count]:
                elements.append((name, int(count), []))
            case ["property", "list", count, kind, name] if elements and {count, kind} <= _PLY_TYPES.keys():
                elements[-1][2].append((name, _PLY_TYPES[kind], _PLY_TYPES[count]))
            case ["property", kind, name] if elements and kind in _PLY_TYPES:
                elements[-1][2].append((name, _PLY_TYPES[kind], None))
            case ["property", *rest]:
                raise FormatError(path, f"unknown property {' '.join(rest)!r}")
    if not order:
        raise FormatError(path, "the header names no known format")
    return order, elements, newline + 1


def _ply_skip(path: Path, data: bytes, at: int, order: str, count: int, properties: list) -> int:
    """Where the element ends that has `count` entries from byte `at` on."""
    if not any(kind for _, _, kind in properties):
        return at + count * sum(np.dtype(t).itemsize for _, t, _ in properties)
    for _ in range(count):
        for _, kind, counter in properties:
            if counter:
                if at >= len(data):
                    raise FormatError(path, "truncated inside an element before the points", at)
                size = np.dtype(order + counter)
                at += size.itemsize + int(np.frombuffer(data, size, 1, at)[0]) * np.dtype(kind).itemsize
            else:
                at += np.dtype(kind).itemsize
    return at


def _ply_ascii(path: Path, body: bytes, elements: list[_Element]) -> _Points:
    lines = [line for line in body.split(b"\n") if line.strip()]
    at = 0
    for name, count, properties in elements:
        if name == "vertex":
            if at + count > len(lines):
                message = f"truncated: the header promises {count} points, the file holds {len(lines) - at}"
                raise FormatError(path, message)
            table = _table(path, lines[at : at + count])
            if count and table.shape[1] < len(properties):
                raise FormatError(path, f"truncated? points have {table.shape[1]} numbers, not {len(properties)}")
            names = [p for p, _, _ in properties]
            _need_xyz(path, names)
            coords = np.stack([table[:, names.index(axis)] for axis in "xyz"], 1)
            return coords, np.dtype(properties[names.index("x")][1])
        at += count
    raise FormatError(path, "there is no element 'vertex'")


def _need_xyz(path: Path, names: list[str] | tuple[str, ...]) -> None:
    missing = [axis for axis in "xyz" if axis not in names]
    if missing:
        raise FormatError(path, f"the points have no {missing[0]!r}, only {', '.join(names)}")


def _xyz(path: Path, records: np.ndarray) -> _Points:
    _need_xyz(path, records.dtype.names or ())
    return np.stack([records[axis] for axis in "xyz"], 1), records.dtype["x"]


# PCD.


def _read_pcd(path: Path) -> _Points:
    data = path.read_bytes()
    header: dict[str, list[str]] = {}
    at = 0
    while "DATA" not in header:
        end = data.find(b"\n", at)
        if end < 0 or len(header) > 64:
            raise FormatError(path, "not a PCD file: its header has no line DATA")
        words = data[at:end].decode("latin-1").split("#")[0].split()
        header |= {words[0]: words[1:]} if words else {}
        at = end + 1
    try:
        fields, count = header["FIELDS"], int(header["POINTS"][0])
        kinds = [{"F": "f", "I": "i", "U": "u"}[t] + s for t, s in zip(header["TYPE"], header["SIZE"], strict=True)]
        repeats = [int(c) for c in header.get("COUNT", ["1"] * len(fields))]
        columns = [(name, np.dtype("<" + kind), n) for name, kind, n in zip(fields, kinds, repeats, strict=True)]
        way = header["DATA"][0]
    except (KeyError, ValueError, IndexError) as error:
        raise FormatError(path, f"not a whole PCD header: {error}") from None
    _need_xyz(path, fields)
    declared = columns[fields.index("x")][1]
    if way == "ascii":
        return _pcd_ascii(path, data[at:], columns, count), declared
    if way == "binary_compressed":
        packed, size = np.frombuffer(_exactly(path, data, at, 8), "<u4").tolist()
        raw = _decompress(path, _exactly(path, data, at + 8, packed), size)
        return _pcd_columns(path, raw, columns, count), declared
    if way != "binary":
        raise FormatError(path, f"unknown DATA {way!r}")
    # Names may repeat ("_" for padding), so only the offsets count.
    offsets, place = {}, 0
    for name, kind, n in columns:
        offsets.setdefault(name, (kind, place))
        place += kind.itemsize * n
    raw = _exactly(path, data, at, count * place)
    parts = [np.ndarray(count, offsets[a][0], raw, offsets[a][1], place) for a in "xyz"] if count else []
    return np.stack(parts, 1) if parts else np.empty((0, 3), np.float32), declared


def _exactly(path: Path, data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise FormatError(path, f"truncated: {at + size} bytes are promised, the file has {len(data)}", len(data))
    return data[at : at + size]


def _pcd_ascii(path: Path, body: bytes, columns: list, count: int) -> np.ndarray:
    lines = [line for line in body.split(b"\n") if line.strip()]
    if len(lines) < count:
        raise FormatError(path, f"truncated: the header promises {count} points, the file holds {len(lines)}")
    table = _table(path, lines[:count])
    starts = np.cumsum([0] + [n for _, _, n in columns])
    if count and table.shape[1] < starts[-1]:
        raise FormatError(path, f"truncated? points have {table.shape[1]} numbers, not {starts[-1]}")
    names = [name for name, _, _ in columns]
    return np.stack([table[:, starts[names.index(axis)]] for axis in "xyz"], 1)


def _pcd_columns(path: Path, raw: bytes, columns: list, count: int) -> np.ndarray:
    """Compressed data holds all values of a field together."""
    at, found = 0, {}
    for name, kind, n in columns:
        found.setdefault(name, np.frombuffer(_exactly(path, raw, at, count * n * kind.itemsize), kind))
        at += count * n * kind.itemsize
    return np.stack([found[axis] for axis in "xyz"], 1)


def _decompress(path: Path, packed: bytes, size: int) -> bytes:
    out = np.empty(size, np.uint8)
    if _lzf(np.frombuffer(packed, np.uint8), out) != size:
        raise FormatError(path, "the compressed points are damaged")
    return out.tobytes()


@njit(nogil=True, cache=True)
def _lzf(packed, out):
    """LZF: runs of bytes, and copies of what came before. The number of bytes written, -1 if they do not fit."""
    i, o = 0, 0
    while i < len(packed):
        control = int(packed[i])
        i += 1
        if control < 32:
            run = control + 1
            if i + run > len(packed) or o + run > len(out):
                return -1
            out[o : o + run] = packed[i : i + run]
            i += run
            o += run
            continue
        length = control >> 5
        if length == 7:
            if i >= len(packed):
                return -1
            length += int(packed[i])
            i += 1
        if i >= len(packed):
            return -1
        back = o - ((control & 31) << 8) - int(packed[i]) - 1
        i += 1
        if back < 0 or o + length + 2 > len(out):
            return -1
        for _ in range(length + 2):
            out[o] = out[back]
            o += 1
            back += 1
    return o


# LAS.


def _read_las(path: Path) -> _Points:
    try:
        import laspy
    except ImportError:
        raise ImportError(f"{path}: LAS and LAZ need laspy: pip install 'gridless[data]'") from None
    try:
        with laspy.open(path) as reader:
            promised, las = reader.header.point_count, reader.read()
    except Exception as error:  # laspy and its decompressors raise many kinds
        raise FormatError(path, f"not a whole LAS file: {error}") from None
    if len(las.points) != promised:
        raise FormatError(path, f"truncated: the header promises {promised} points, the file holds {len(las.points)}")
    return np.array(las.xyz, np.float64), np.dtype(np.float64)


_READERS: dict[str, Callable[[Path], _Points]] = {
    ".csv": _read_text, ".las": _read_las, ".laz": _read_las, ".npy": _read_npy, ".pcd": _read_pcd, ".ply": _read_ply,
    ".pts": _read_text, ".txt": _read_text, ".xyz": _read_text,
}  # fmt: skip
