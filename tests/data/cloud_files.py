"""Small files of clouds and meshes in every format, made by hand or by the library that owns the format."""

from __future__ import annotations

import base64
import io
import json
import struct
from itertools import pairwise

import bag_files
import numpy as np
import pytest
from fuzz import Seed

import gridless as gl

POINTS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def ply(points: np.ndarray, way: str, kind: str = "float", leading_list: bool = False) -> bytes:
    """With a colour before and a normal behind the coordinates, and faces behind, or before, the vertices."""
    vertex = f"element vertex {len(points)}\n" + "".join(f"property uchar {c}\n" for c in ("red", "green", "blue"))
    vertex += "".join(f"property {kind} {name}\n" for name in "xyz")
    vertex += "".join(f"property float {name}\n" for name in ("nx", "ny", "nz", "Quality"))
    face = "element face 2\nproperty list uchar int vertex_indices\n"
    head = f"ply\nformat {way} 1.0\ncomment made by hand\n" + (face + vertex if leading_list else vertex + face)
    letter = {"float": "f", "double": "d"}[kind]
    if way == "ascii":
        rows = [f"7 8 {i % 256} {p[0]:.9g} {p[1]:.9g} {p[2]:.9g} 0 0 1 0.5\n" for i, p in enumerate(points.tolist())]
        faces = ["3 0 1 2\n", "4 0 1 2 3\n"]
        body = "".join(faces + rows if leading_list else rows + faces).encode()
    else:
        order = "<" if way == "binary_little_endian" else ">"
        record = f"{order}3B3{letter}4f"
        rows = b"".join(struct.pack(record, 7, 8, i % 256, *p, 0, 0, 1, 0.5) for i, p in enumerate(points.tolist()))
        faces = struct.pack(f"{order}B3i", 3, 0, 1, 2) + struct.pack(f"{order}B4i", 4, 0, 1, 2, 3)
        body = faces + rows if leading_list else rows + faces
    return (head + "end_header\n").encode() + body


def lzf(data: bytes) -> bytes:
    """LZF with long and short copies: repeats of 3 bytes or more of the last 8 kB become references."""
    out, literal, i = bytearray(), bytearray(), 0

    def flush() -> None:
        for at in range(0, len(literal), 32):
            part = literal[at : at + 32]
            out.append(len(part) - 1)
            out.extend(part)
        literal.clear()

    while i < len(data):
        back = data.rfind(data[i : i + 3], max(0, i - 8191), i + 2) if i + 3 <= len(data) else -1
        if back < 0 or back >= i:
            literal.append(data[i])
            i += 1
            continue
        length = 3
        while i + length < len(data) and length < 264 and data[back + length] == data[i + length]:
            length += 1
        flush()
        offset, short = i - back - 1, length - 2
        out.append(min(short, 7) << 5 | offset >> 8)
        if short >= 7:
            out.append(short - 7)
        out.append(offset & 255)
        i += length
    flush()
    return bytes(out)


def pcd(points: np.ndarray, way: str) -> bytes:
    """With an intensity before the coordinates, padding of three bytes between, and a colour behind."""
    n = len(points)
    head = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS intensity _ x y z rgb\nSIZE 4 1 4 4 4 4\nTYPE U U F F F U\n"
        f"COUNT 1 3 1 1 1 1\nWIDTH {n}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {n}\nDATA {way}\n"
    ).encode()
    if way == "ascii":
        return head + "".join(f"9 0 0 0 {p[0]:.9g} {p[1]:.9g} {p[2]:.9g} 66051\n" for p in points.tolist()).encode()
    if way == "binary":
        return head + b"".join(struct.pack("<I3x3fI", 9, *p, 0x010203) for p in points.tolist())
    columns = np.full(n, 9, "<u4").tobytes() + bytes(3 * n) + np.ascontiguousarray(points.T, "<f4").tobytes()
    columns += np.full(n, 0x010203, "<u4").tobytes()
    packed = lzf(columns)
    assert len(packed) < len(columns)
    return head + struct.pack("<II", len(packed), len(columns)) + packed


def text(points: np.ndarray, comma: str = " ", header: str = "# a comment\nx y z\n") -> bytes:
    rows = [comma.join(f"{x:.9g}" for x in p) for p in points.tolist()]
    return (header + "\n".join(rows) + "\n").encode()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(pack: bool = True, **arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if pack else np.savez)(out, **arrays)
    return out.getvalue()


def las(points: np.ndarray, format: int, compress: bool, version: str = "1.4") -> bytes:
    """By laspy, with two further fields."""
    import laspy

    header = laspy.LasHeader(point_format=format, version=version)
    header.scales, header.offsets = [0.001] * 3, [4_500_000, 0, 0]
    header.add_extra_dim(laspy.ExtraBytesParams("Height", np.float32))
    header.add_extra_dim(laspy.ExtraBytesParams("gain", np.int16, offsets=np.array([1.0]), scales=np.array([0.5])))
    data = laspy.LasData(header)
    data.x, data.y, data.z = points[:, 0] + np.float64(4_500_000), points[:, 1], points[:, 2]
    data.intensity, data.classification = np.arange(len(points)) * 300, np.arange(len(points)) % 32
    data.return_number, data.number_of_returns = np.arange(len(points)) % 4 + 1, np.full(len(points), 5)
    data.Height, data.gain = points[:, 2], np.full(len(points), 2.5)
    if "red" in data.point_format.dimension_names:
        data.red, data.green, data.blue = (np.full(len(points), v) for v in (1, 300, 65535))
    if "gps_time" in data.point_format.dimension_names:
        data.gps_time = np.arange(len(points)) / 8
    out = io.BytesIO()
    data.write(out, do_compress=compress)
    return out.getvalue()


def laz_in_chunks(points: np.ndarray, format: int) -> bytes:
    """With chunks of different sizes, as in COPC files."""
    import lazrs

    plain, packed = las(points, format, False), las(points, format, True)
    at, size = struct.unpack_from("<I", plain, 96)[0], struct.unpack_from("<H", plain, 105)[0]
    record = lazrs.LazVlr.new_for_compression(format, 6, True)  # six extra bytes
    out = io.BytesIO()
    out.write(packed[: packed.index(b"laszip encoded") - 2 + 54] + record.record_data())
    compressor = lazrs.LasZipCompressor(out, record)
    compressor.reserve_offset_to_chunk_table()
    ends = (0, 5, 30, len(points))
    compressor.compress_chunks([plain[at + a * size : at + b * size] for a, b in pairwise(ends)])
    compressor.done()
    return out.getvalue()


CUBE = np.array([[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], np.float32)
SIDES = ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7))
CORNERS = [[s[0], s[i], s[i + 1]] for s in SIDES for i in (1, 2)]


def off(header: str = "OFF\n") -> bytes:
    rows = [" ".join(map(str, v)) for v in CUBE.tolist()] + [f"4 {a} {b} {c} {d}" for a, b, c, d in SIDES]
    return (f"{header}8 6 0\n# vertices\n" + "\n".join(rows) + "\n").encode()


def obj() -> bytes:
    rows = ["v " + " ".join(map(str, v)) for v in CUBE.tolist()] + ["vn 0 0 1", "o cube", "usemtl none"]
    rows += ["f " + " ".join(f"{i + 1}//1" for i in side) for side in SIDES[:3]]
    return ("\n".join(rows + ["f " + " ".join(f"{i - 8}/-1/-1" for i in side) for side in SIDES[3:]]) + "\n").encode()


def stl(binary: bool) -> bytes:
    triangles = CUBE[np.array(CORNERS)]
    if binary:
        head = b"solid, or so it seems".ljust(80) + struct.pack("<I", len(triangles))
        return head + b"".join(struct.pack("<12fH", 0, 0, 1, *t.ravel().tolist(), 0) for t in triangles)
    out = "solid cube\n"
    for t in triangles.tolist():
        rows = "".join(f"      vertex {x} {y} {z}\n" for x, y, z in t)
        out += f"  facet normal 0 0 1\n    outer loop\n{rows}    endloop\n  endfacet\n"
    return (out + "endsolid cube\n").encode()


def gltf(binary: bool) -> bytes:
    """A cube twice as wide, turned and moved by its node."""
    data = CUBE.astype("<f4").tobytes() + np.array(CORNERS, "<u2").tobytes()
    document = {
        "asset": {"version": "2.0"}, "scene": 0, "scenes": [{"nodes": [0]}],
        "nodes": [{"children": [1], "translation": [5, 0, 0]},
                  {"mesh": 0, "scale": [2, 1, 1], "rotation": [0, 0, 0.5**0.5, 0.5**0.5]}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "accessors": [{"bufferView": 0, "componentType": 5126, "count": 8, "type": "VEC3"},
                      {"bufferView": 1, "componentType": 5123, "count": 36, "type": "SCALAR"}],
        "bufferViews": [{"buffer": 0, "byteLength": 96}, {"buffer": 0, "byteOffset": 96, "byteLength": 72}],
        "buffers": [{"byteLength": len(data)}],
    }  # fmt: skip
    if not binary:
        document["buffers"][0]["uri"] = "data:application/octet-stream;base64," + base64.b64encode(data).decode()
        return json.dumps(document).encode()
    head = json.dumps(document).encode()
    head += b" " * (-len(head) % 4)
    parts = struct.pack("<II", len(head), 0x4E4F534A) + head + struct.pack("<II", len(data), 0x004E4942) + data
    return b"glTF" + struct.pack("<II", 2, 12 + len(parts)) + parts


def _crc32c(data: bytes) -> int:
    code = 0xFFFFFFFF
    for byte in data:
        code ^= byte
        for _ in range(8):
            code = code >> 1 ^ (0x82F63B78 if code & 1 else 0)
    return code ^ 0xFFFFFFFF


def e57(*scans: dict[str, np.ndarray]) -> bytes:
    """By hand: of each scan its fields, float32, or uint8 from 0 to 255."""
    pytest.importorskip("e57")

    def place(logical: int) -> int:
        """Pages of 1024 bytes hold 1020 and a checksum."""
        return logical + logical // 1020 * 4

    body, children = bytearray(48), ""
    for fields in scans:
        at, count = len(body), len(next(iter(fields.values())))
        streams = [np.ascontiguousarray(values).tobytes() for values in fields.values()]
        packet = struct.pack("<BBHH", 1, 0, 0, len(streams)) + b"".join(struct.pack("<H", len(s)) for s in streams)
        packet = bytearray(packet + b"".join(streams))
        packet += bytes(-len(packet) % 4)
        struct.pack_into("<H", packet, 2, len(packet) - 1)
        body += struct.pack("<B7xQQQ", 1, 32 + len(packet), place(at + 32), 0) + packet
        types = {"f": 'type="Float" precision="single"', "u": 'type="Integer" minimum="0" maximum="255"'}
        prototype = "".join(f"<{name} {types[values.dtype.kind]}/>" for name, values in fields.items())
        children += (
            f'<vectorChild type="Structure"><guid type="String">{at}</guid><points type="CompressedVector" '
            f'fileOffset="{place(at)}" recordCount="{count}"><prototype type="Structure">{prototype}</prototype>'
            '<codecs type="Vector" allowHeterogeneousChildren="1"/></points></vectorChild>'
        )
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><e57Root type="Structure" '
        'xmlns="http://www.astm.org/COMMIT/E57/2010-e57-v1.0">'
        '<formatName type="String">ASTM E57 3D Imaging Data File</formatName><guid type="String">all</guid>'
        '<versionMajor type="Integer">1</versionMajor><versionMinor type="Integer"/>'
        f'<data3D type="Vector" allowHeterogeneousChildren="1">{children}</data3D></e57Root>'
    ).encode()
    at = len(body)
    body += xml
    pages = [bytes(body[i : i + 1020]).ljust(1020, b"\0") for i in range(0, len(body), 1020)]
    head = struct.pack("<8sIIQQQQ", b"ASTM-E57", 1, 0, 1024 * len(pages), place(at), len(xml), 1024)
    pages[0] = head + pages[0][48:]
    return b"".join(page + struct.pack(">I", _crc32c(page)) for page in pages)


def e57_scan(points: np.ndarray) -> dict[str, np.ndarray]:
    axes = {f"cartesian{axis}": column for axis, column in zip("XYZ", points.T)}
    grey = {f"color{name}": np.arange(len(points), dtype=np.uint8) for name in ("Red", "Green", "Blue")}
    return axes | {"intensity": points[:, 0]} | grey


FEW = POINTS[:40]
RECORD = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", ">f8"), ("Label", "<u2")])
SEEDS = [
    Seed("ascii ply", lambda: ply(FEW, "ascii"), ".ply", gl.read_cloud),
    Seed("little ply", lambda: ply(FEW, "binary_little_endian"), ".ply", gl.read_cloud),
    Seed("big ply with faces first", lambda: ply(FEW, "binary_big_endian", "double", True), ".ply", gl.read_cloud),
    Seed("ascii ply with faces first", lambda: ply(FEW, "ascii", leading_list=True), ".ply", gl.read_cloud),
    Seed("ascii pcd", lambda: pcd(FEW, "ascii"), ".pcd", gl.read_cloud),
    Seed("binary pcd", lambda: pcd(FEW, "binary"), ".pcd", gl.read_cloud),
    Seed("packed pcd", lambda: pcd(FEW, "binary_compressed"), ".pcd", gl.read_cloud),
    Seed("blanks", lambda: text(FEW), ".xyz", gl.read_cloud),
    Seed("commas", lambda: text(FEW, ",", "X,Y,Z\n"), ".csv", gl.read_cloud),
    Seed("names in a comment", lambda: text(np.hstack([FEW, FEW]), ";", "//x;y;z;nx;ny;nz\n"), ".txt", gl.read_cloud),
    Seed("pts", lambda: text(FEW, " ", f"{len(FEW)}\n"), ".pts", gl.read_cloud),
    Seed("array", lambda: npy(FEW), ".npy", gl.read_cloud),
    Seed("records", lambda: npy(np.ones(20, RECORD)), ".npy", gl.read_cloud),
    Seed("archive", lambda: npz(xyz=FEW, label=np.arange(len(FEW))), ".npz", gl.read_cloud),
    Seed("open archive", lambda: npz(False, xyz=FEW, label=np.arange(len(FEW))), ".npz", gl.read_cloud),
    Seed("kitti", lambda: np.ones((20, 4), "<f4").tobytes(), ".bin", gl.read_cloud),
    Seed("nuscenes", lambda: np.ones((20, 5), "<f4").tobytes(), ".pcd.bin", gl.read_cloud),
    Seed("las 1.2", lambda: las(FEW, 3, False, "1.2"), ".las", gl.read_cloud),
    Seed("las 1.4", lambda: las(FEW, 7, False), ".las", gl.read_cloud),
    Seed("laz 1.2", lambda: las(FEW, 3, True, "1.2"), ".laz", gl.read_cloud),
    Seed("laz 1.4", lambda: las(FEW, 8, True), ".laz", gl.read_cloud),
    Seed("laz in chunks", lambda: laz_in_chunks(FEW, 7), ".laz", gl.read_cloud),
    Seed("clouds in bag", lambda: bag_files.seed("bag", False), ".bag", gl.read_cloud),
    Seed("clouds in db3", lambda: bag_files.seed("db3", False), ".db3", gl.read_cloud),
    Seed("clouds in mcap", lambda: bag_files.seed("mcap", False), ".mcap", gl.read_cloud),
    Seed("e57", lambda: e57(e57_scan(FEW)), ".e57", gl.read_cloud),
    Seed("off", off, ".off", gl.data.sample_mesh),
    Seed("obj", obj, ".obj", gl.data.sample_mesh),
    Seed("binary stl", lambda: stl(True), ".stl", gl.data.sample_mesh),
    Seed("ascii stl", lambda: stl(False), ".stl", gl.data.sample_mesh),
    Seed("glb", lambda: gltf(True), ".glb", gl.data.sample_mesh),
    Seed("gltf", lambda: gltf(False), ".gltf", gl.data.sample_mesh),
    Seed("ascii mesh in ply", lambda: ply(FEW, "ascii"), ".ply", gl.data.sample_mesh),
    Seed("big mesh in ply", lambda: ply(FEW, "binary_big_endian", leading_list=True), ".ply", gl.data.sample_mesh),
]
