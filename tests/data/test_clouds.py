"""Readers of users' own clouds."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.data import FormatError, read_cloud, sample_mesh

POINTS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def ply(points: np.ndarray, way: str, kind: str = "float", leading_list: bool = False) -> bytes:
    """With a colour before and a normal behind the coordinates, and faces behind, or before, the vertices."""
    vertex = f"element vertex {len(points)}\nproperty uchar red\n"
    vertex += "".join(f"property {kind} {axis}\n" for axis in "xyz") + "property float nx\n"
    face = "element face 2\nproperty list uchar int vertex_indices\n"
    head = f"ply\nformat {way} 1.0\ncomment made by hand\n" + (face + vertex if leading_list else vertex + face)
    letter = {"float": "f", "double": "d"}[kind]
    if way == "ascii":
        rows = [f"7 {p[0]:.9g} {p[1]:.9g} {p[2]:.9g} 0.5\n" for p in points.tolist()]
        faces = ["3 0 1 2\n", "4 0 1 2 3\n"]
        body = "".join(faces + rows if leading_list else rows + faces).encode()
    else:
        order = "<" if way == "binary_little_endian" else ">"
        rows = b"".join(struct.pack(f"{order}B3{letter}f", 7, *p, 0.5) for p in points.tolist())
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
    """With an intensity before the coordinates, and padding of three bytes between."""
    n = len(points)
    head = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS intensity _ x y z\nSIZE 4 1 4 4 4\nTYPE U U F F F\nCOUNT 1 3 1 1 1\n"
        f"WIDTH {n}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {n}\nDATA {way}\n"
    ).encode()
    if way == "ascii":
        return head + "".join(f"9 0 0 0 {p[0]:.9g} {p[1]:.9g} {p[2]:.9g}\n" for p in points.tolist()).encode()
    if way == "binary":
        return head + b"".join(struct.pack("<I3x3f", 9, *p) for p in points.tolist())
    columns = np.full(n, 9, "<u4").tobytes() + bytes(3 * n) + np.ascontiguousarray(points.T, "<f4").tobytes()
    packed = lzf(columns)
    assert len(packed) < len(columns)
    return head + struct.pack("<II", len(packed), len(columns)) + packed


def text(points: np.ndarray, comma: str = " ") -> bytes:
    rows = [comma.join(f"{x:.9g}" for x in p) for p in points.tolist()]
    return ("# a comment\nx y z\n" + "\n".join(rows) + "\n").encode()


FILES = {
    "ascii.ply": ply(POINTS, "ascii"),
    "little.ply": ply(POINTS, "binary_little_endian"),
    "big.ply": ply(POINTS, "binary_big_endian"),
    "list.ply": ply(POINTS, "binary_little_endian", leading_list=True),
    "list_ascii.ply": ply(POINTS, "ascii", leading_list=True),
    "ascii.pcd": pcd(POINTS, "ascii"),
    "binary.pcd": pcd(POINTS, "binary"),
    "packed.pcd": pcd(POINTS, "binary_compressed"),
    "blank.xyz": text(POINTS),
    "comma.txt": text(POINTS, ","),
    "semicolon.csv": text(POINTS, ";"),
    "counted.pts": str(len(POINTS)).encode() + b"\n" + text(POINTS),
}


@pytest.mark.parametrize("name", FILES)
def test_reads_the_points_of(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    cloud = gl.read_cloud(str(path))
    assert cloud.num_examples == 1
    assert torch.equal(cloud.coords, torch.from_numpy(POINTS))


def test_reads_arrays_and_keeps_doubles(tmp_path):
    np.save(tmp_path / "a.npy", POINTS)
    np.save(tmp_path / "wide.npy", np.concatenate([POINTS, POINTS], 1).astype(np.float64))
    np.save(tmp_path / "flat.npy", POINTS[:, :2])
    assert torch.equal(read_cloud(tmp_path / "a.npy").coords, torch.from_numpy(POINTS))
    wide = read_cloud(tmp_path / "wide.npy")
    assert wide.coords.dtype == torch.float64
    assert torch.equal(wide.coords.float(), torch.from_numpy(POINTS))
    assert read_cloud(tmp_path / "flat.npy").dim == 2


@pytest.mark.parametrize("way", ["ascii", "binary_little_endian"])
def test_doubles_in_a_ply_stay_doubles(way, tmp_path):
    far = POINTS.astype(np.float64) + 4_500_000
    (tmp_path / "far.ply").write_bytes(ply(far, way, "double"))
    cloud = read_cloud(tmp_path / "far.ply")
    assert cloud.coords.dtype == torch.float64
    assert np.allclose(cloud.coords.numpy(), far, rtol=0, atol=1e-2)
    assert read_cloud(tmp_path / "far.ply", dtype=torch.float32).coords.dtype == torch.float32


def test_text_can_be_read_with_all_its_digits(tmp_path):
    (tmp_path / "far.xyz").write_text("4500000.125 2.5 3.25\n")
    assert read_cloud(tmp_path / "far.xyz", dtype=torch.float64).coords[0, 0] == 4500000.125


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_reads_las(suffix, tmp_path):
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = [0.001] * 3, [4_500_000, 0, 0]
    las = laspy.LasData(header)
    las.x, las.y, las.z = POINTS[:, 0] + np.float64(4_500_000), POINTS[:, 1], POINTS[:, 2]
    path = tmp_path / f"scan{suffix}"
    las.write(path)
    cloud = read_cloud(path)
    assert cloud.coords.dtype == torch.float64
    assert np.allclose(cloud.coords.numpy() - [4_500_000, 0, 0], POINTS, atol=6e-4)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(FormatError, match="scan"):
        read_cloud(path)


@pytest.mark.parametrize("name", [n for n in FILES if n.split(".")[1] in ("ply", "pcd")])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6])
def test_a_truncated_file_is_refused_by_name(name, share, tmp_path):
    path = tmp_path / name
    path.write_bytes(FILES[name][: int(share * len(FILES[name]))])
    with pytest.raises(FormatError, match=name):
        read_cloud(path)


def test_text_that_ends_in_the_middle_of_a_point_is_refused(tmp_path):
    (tmp_path / "cut.xyz").write_text("1 2 3\n4 5 6\n7 8")
    with pytest.raises(FormatError, match="truncated"):
        read_cloud(tmp_path / "cut.xyz")


def test_a_damaged_compressed_file_is_refused(tmp_path):
    data = bytearray(FILES["packed.pcd"])
    start = data.index(b"binary_compressed\n") + len(b"binary_compressed\n") + 8
    data[start : start + 200] = bytes([255]) * 200
    (tmp_path / "bad.pcd").write_bytes(data)
    with pytest.raises(FormatError, match="damaged"):
        read_cloud(tmp_path / "bad.pcd")


@pytest.mark.parametrize(
    "data", [b"", b"ply", b"\0\1\2", b"solid", b"ply\nformat ascii 1.0\nelement vertex 1\nend_header\n"]
)
@pytest.mark.parametrize("suffix", ["ply", "pcd", "npy"])
def test_what_is_no_such_file_is_refused(data, suffix, tmp_path):
    path = tmp_path / f"odd.{suffix}"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="odd"):
        read_cloud(path)


def test_unknown_missing_and_mesh_files_say_what_to_do(tmp_path):
    (tmp_path / "a.xyzzy").touch()
    (tmp_path / "a.off").touch()
    with pytest.raises(FormatError, match=r"\.pcd, \.ply"):
        read_cloud(tmp_path / "a.xyzzy")
    with pytest.raises(FormatError, match="sample_mesh"):
        read_cloud(tmp_path / "a.off")
    with pytest.raises(FileNotFoundError, match=r"b\.ply"):
        read_cloud(tmp_path / "b.ply")


SQUARES = "8 4 0\n" + "".join(
    f"{x} {y} {z}\n" for z, s in ((0, 1), (5, 2)) for x, y in ((0, 0), (s, 0), (s, s), (0, s))
)
SQUARES += "3 0 1 2\n3 0 2 3\n3 4 5 6\n3 4 6 7\n"


@pytest.mark.parametrize("header", ["OFF\n", "OFF"])
def test_meshes_are_sampled_by_area(header, tmp_path):
    pytest.importorskip("trimesh")
    path: Path = tmp_path / "squares.off"
    path.write_text(header + SQUARES)
    cloud = sample_mesh(path, 20_000, seed=1, normalise=False).coords
    upper = cloud[:, 2] > 2.5
    assert float(upper.float().mean()) == pytest.approx(0.8, abs=0.01)
    assert cloud[upper, :2].mean(0).tolist() == pytest.approx([1, 1], abs=0.03)
    assert torch.equal(cloud, sample_mesh(path, 20_000, seed=1, normalise=False).coords)
    assert not torch.equal(cloud, sample_mesh(path, 20_000, seed=2, normalise=False).coords)
    fitted = sample_mesh(path, 500).coords
    assert float(fitted.norm(dim=1).max()) == pytest.approx(1)
    assert float(fitted.mean(0).abs().max()) < 1e-6


@pytest.mark.parametrize("content", ["", "OFF\n", "OFF\n3 1 0\n0 0 0\n", "OFF\n3 1 0\n0 0 0\n0 0 0\n0 0 0\n3 0 1 2\n"])
def test_meshes_that_are_not_whole_are_refused(content, tmp_path):
    pytest.importorskip("trimesh")
    (tmp_path / "bad.off").write_text(content)
    with pytest.raises(FormatError, match="bad"):
        sample_mesh(tmp_path / "bad.off")
