"""Readers of users' own clouds and meshes."""

from __future__ import annotations

import json
import multiprocessing
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from cloud_files import POINTS, SEEDS, e57, e57_scan, gltf, las, laz_in_chunks, npy, npz, obj, off, pcd, ply, stl, text

import gridless as gl
from gridless.data import FormatError, read_cloud, sample_mesh
from gridless.data.readers.meshes import read_triangles

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


@pytest.mark.parametrize("format", [3, 7])
@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_reads_las(suffix, format, tmp_path):
    pytest.importorskip("laspy")
    path = tmp_path / f"scan{suffix}"
    path.write_bytes(las(POINTS, format, suffix == ".laz"))
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
    for read, kind in ((read_cloud, "CloudFolder"), (gl.read_events, "EventFolder")):
        with pytest.raises(IsADirectoryError, match=rf"folder.*gl\.data\.{kind}\.$"):
            read(tmp_path)


# Rows.


def rows_of(tmp_path: Path, name: str, data: bytes) -> dict[str, np.ndarray]:
    (tmp_path / name).write_bytes(data)
    return {name: row.numpy() for name, row in read_cloud(tmp_path / name).rows.items()}


@pytest.mark.parametrize("name", ["ascii.ply", "little.ply", "big.ply", "list.ply", "list_ascii.ply"])
def test_a_ply_has_rows(name, tmp_path):
    rows = rows_of(tmp_path, name, FILES[name])
    assert rows.keys() == {"rgb", "normal", "quality"}
    assert rows["rgb"].dtype == np.uint8
    assert rows["rgb"][5].tolist() == [7, 8, 5]
    assert rows["normal"][199].tolist() == [0, 0, 1]
    assert rows["quality"].tolist() == [0.5] * 200


@pytest.mark.parametrize("name", ["ascii.pcd", "binary.pcd", "packed.pcd"])
def test_a_pcd_has_rows(name, tmp_path):
    rows = rows_of(tmp_path, name, FILES[name])
    assert rows.keys() == {"intensity", "rgb"}
    assert rows["rgb"].dtype == np.uint8
    assert rows["rgb"].tolist() == [[1, 2, 3]] * 200
    assert rows["intensity"].tolist() == [9] * 200


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("format", [3, 7])
def test_a_las_has_rows(format, compress, tmp_path):
    laspy = pytest.importorskip("laspy")
    rows = rows_of(tmp_path, "scan.las", las(POINTS, format, compress))
    peer = laspy.read(tmp_path / "scan.las")
    for name in ("intensity", "return_number", "number_of_returns", "classification", "gps_time", "point_source_id"):
        assert rows[name].tolist() == np.array(peer[name]).tolist()
    assert rows["rgb"][0].tolist() == [1, 300, 65535]
    assert np.array_equal(rows["height"], POINTS[:, 2])
    assert rows["gain"].tolist() == [2.5] * 200


def test_an_e57_has_the_points_of_all_scans_with_their_rows(tmp_path):
    (tmp_path / "a.e57").write_bytes(e57(e57_scan(POINTS[:50]), e57_scan(POINTS[50:80])))
    cloud = read_cloud(tmp_path / "a.e57")
    assert torch.equal(cloud.coords, torch.from_numpy(POINTS[:80]))
    assert np.array_equal(cloud.rows["intensity"], POINTS[:80, 0])
    assert cloud.rows["rgb"].dtype == torch.uint8
    assert cloud.rows["rgb"][:, 1].tolist() == [*range(50), *range(30)]


def test_what_one_scan_of_an_e57_lacks_is_no_row(tmp_path):
    scan = e57_scan(POINTS[:5])
    bare = {name: scan[name] for name in scan if name.startswith("cartesian")}
    (tmp_path / "a.e57").write_bytes(e57(scan, bare))
    cloud = read_cloud(tmp_path / "a.e57")
    assert len(cloud) == 10
    assert not cloud.rows


def test_an_e57_without_colours_has_none(tmp_path):
    scan = {name: values for name, values in e57_scan(POINTS[:9]).items() if not name.startswith("color")}
    (tmp_path / "a.e57").write_bytes(e57(scan))
    assert list(read_cloud(tmp_path / "a.e57").rows) == ["intensity"]


def test_an_e57_that_is_damaged_is_refused(tmp_path):
    data = e57(e57_scan(POINTS[:50]))
    for part in (data[: len(data) // 2], data[:700] + b"?" + data[701:]):
        (tmp_path / "a.e57").write_bytes(part)
        with pytest.raises(FormatError, match=r"a\.e57"):
            read_cloud(tmp_path / "a.e57")


def test_asc_is_text(tmp_path):
    (tmp_path / "a.asc").write_text("1 2 3 7\n4 5 6 8\n")
    cloud = read_cloud(tmp_path / "a.asc")
    assert cloud.coords.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert cloud.rows["features"].tolist() == [[7], [8]]


@pytest.mark.parametrize("format", [3, 7])
def test_reads_laz_with_chunks_of_different_sizes(format, tmp_path):
    pytest.importorskip("laspy")
    (tmp_path / "a.las").write_bytes(las(POINTS, format, False))
    (tmp_path / "a.laz").write_bytes(laz_in_chunks(POINTS, format))
    assert torch.equal(read_cloud(tmp_path / "a.laz").coords, read_cloud(tmp_path / "a.las").coords)


def test_chunks_of_the_size_0_have_sizes_of_their_own(tmp_path):
    data = bytearray(laz_in_chunks(POINTS[:30], 7))
    struct.pack_into("<I", data, data.index(b"laszip encoded") - 2 + 54 + 12, 0)
    (tmp_path / "a.copc.laz").write_bytes(data)
    (tmp_path / "a.las").write_bytes(las(POINTS[:30], 7, False))
    assert torch.equal(read_cloud(tmp_path / "a.copc.laz").coords, read_cloud(tmp_path / "a.las").coords)
    assert len(gl.tiles(tmp_path / "a.copc.laz", 100.0).scene) == 30


def test_a_laz_that_is_compressed_point_by_point_is_refused_with_a_remedy(tmp_path):
    data = bytearray(las(POINTS, 3, True, "1.2"))
    struct.pack_into("<H", data, data.index(b"laszip encoded") - 2 + 54, 1)
    (tmp_path / "a.laz").write_bytes(data)
    with pytest.raises(FormatError, match=r"point by point.*laszip"):
        read_cloud(tmp_path / "a.laz")


def test_a_panic_of_the_decoder_is_our_error(tmp_path, monkeypatch):
    """lazrs panics with an exception that is no Exception."""
    import lazrs

    class PanicException(BaseException):
        pass

    def panic(*_):
        raise PanicException("index out of bounds")

    (tmp_path / "a.laz").write_bytes(las(POINTS, 7, True))
    monkeypatch.setattr(lazrs, "decompress_points_with_chunk_table", panic)
    with pytest.raises(FormatError, match="index out of bounds"):
        read_cloud(tmp_path / "a.laz")


@pytest.mark.slow
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork")
def test_a_laz_is_read_in_a_process_that_was_forked_after_another_was(tmp_path):
    (tmp_path / "a.laz").write_bytes(laz_in_chunks(POINTS, 7))
    whole = read_cloud(tmp_path / "a.laz").coords.numpy()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(read_cloud(tmp_path / "a.laz").coords.numpy()), daemon=True)
    child.start()
    try:
        assert ours.poll(60), "it waits for threads that are not there"
        assert np.array_equal(ours.recv(), whole)
    finally:
        child.kill()
        child.join()


def test_text_has_rows_by_the_names_of_its_header(tmp_path):
    rows = rows_of(
        tmp_path, "a.csv", b"id,x,y,z,R,G,B,Label,gps_time\n16777217,1,2,3,0,9,255,4,0.1\n5,4,5,6,1,1,1,2,1.5\n"
    )
    assert read_cloud(tmp_path / "a.csv").coords.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert rows["id"].tolist() == [16777217, 5]
    assert rows["rgb"].dtype == np.uint8
    assert rows["rgb"].tolist() == [[0, 9, 255], [1, 1, 1]]
    assert rows["label"].dtype == np.int64
    assert rows["gps_time"].tolist() == [0.1, 1.5]


@pytest.mark.parametrize("header", ["//X Y Z Nx Ny Nz\n", "# made by hand\n#x y z nx ny nz\n", "x,y,z,nx,ny,nz\n"])
def test_a_comment_may_name_the_columns(header, tmp_path):
    rows = rows_of(tmp_path, "a.txt", text(np.hstack([POINTS, -POINTS]), " ", header))
    assert np.allclose(rows["normal"], -POINTS)


def test_columns_without_a_name_are_features(tmp_path):
    rows = rows_of(tmp_path, "a.xyz", b"1 2 3 4 5\n6 7 8 9 10\n")
    assert rows["features"].tolist() == [[4, 5], [9, 10]]
    rows = rows_of(tmp_path, "a.pts", b"2\n1 2 3 4 5 6 7\n6 7 8 9 10 11 12\n")
    assert rows["intensity"].tolist() == [4, 9]
    assert rows["rgb"].tolist() == [[5, 6, 7], [10, 11, 12]]


def test_arrays_have_rows(tmp_path):
    records = np.zeros(3, [("x", ">f8"), ("Y", "f4"), ("z", "f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])
    records["x"] = 1, 2, 3
    rows = rows_of(tmp_path, "a.npy", npy(records))
    assert rows["rgb"].shape == (3, 3)
    assert read_cloud(tmp_path / "a.npy").coords[:, 0].tolist() == [1, 2, 3]
    rows = rows_of(tmp_path, "a.npz", npz(xyz=POINTS, rgb=np.zeros((200, 3), np.uint8), label=np.arange(200)))
    assert rows["label"][7] == 7
    assert np.array_equal(read_cloud(tmp_path / "a.npz").coords, POINTS)
    rows_of(tmp_path, "b.npz", npz(**dict(zip("xyz", POINTS.T, strict=True))))
    assert np.array_equal(read_cloud(tmp_path / "b.npz").coords, POINTS)


def test_reads_kitti_with_labels_beside_or_in_their_folder(tmp_path):
    scan = np.hstack([POINTS, np.full((200, 1), 0.5, np.float32)])
    assert rows_of(tmp_path, "0.bin", scan.tobytes()).keys() == {"intensity"}
    labels = np.arange(200, dtype="<u4") + (7 << 16)
    (tmp_path / "0.label").write_bytes(labels.tobytes())
    (tmp_path / "velodyne").mkdir()
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "1.label").write_bytes(labels.tobytes())
    for name in ("0.bin", "velodyne/1.bin"):
        rows = rows_of(tmp_path, name, scan.tobytes())
        assert rows["label"].tolist() == list(range(200))
        assert rows["instance"].tolist() == [7] * 200
        assert np.array_equal(read_cloud(tmp_path / name).coords, POINTS)
    (tmp_path / "0.label").write_bytes(labels.tobytes()[:-4])
    with pytest.raises(FormatError, match=r"0\.label.*199 labels"):
        read_cloud(tmp_path / "0.bin")


def test_rows_can_be_chosen_and_normals_turn(tmp_path):
    (tmp_path / "a.ply").write_bytes(FILES["little.ply"])
    cloud = read_cloud(tmp_path / "a.ply", rows=["normal", "rgb"])
    assert list(cloud.rows) == ["normal", "rgb"]
    turned = gl.augment.RotateAboutUp(up="x")(cloud)
    assert not torch.equal(turned.rows["normal"], cloud.rows["normal"])
    assert torch.equal(turned.rows["rgb"], cloud.rows["rgb"])
    assert list(read_cloud(tmp_path / "a.ply", rows="quality").rows) == ["quality"]
    assert not read_cloud(tmp_path / "a.ply", rows=()).rows
    with pytest.raises(FormatError, match=r"a\.ply: .*'label'.*quality, rgb, normal"):
        read_cloud(tmp_path / "a.ply", rows=["label"])


def test_extra_bytes_of_a_las_may_be_pairs_and_triples(tmp_path):
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.add_extra_dim(laspy.ExtraBytesParams("pair", "2i2"))
    header.add_extra_dim(
        laspy.ExtraBytesParams("triple", "3i2", offsets=np.array([1.0, 2, 3]), scales=np.array([0.5, 1, 2]))
    )
    header.add_extra_dim(laspy.ExtraBytesParams("last", np.float32))
    file = laspy.LasData(header)
    file.x = file.y = file.z = np.arange(4.0)
    file.pair, file.last = np.arange(8).reshape(4, 2) - 4, np.arange(4, dtype=np.float32)
    file.triple = np.arange(12).reshape(4, 3) * [0.5, 1, 2] + [1, 2, 3]
    file.write(tmp_path / "a.las")
    rows = read_cloud(tmp_path / "a.las").rows
    assert np.array_equal(rows["pair"], file.pair)
    assert np.array_equal(rows["triple"], np.arange(12).reshape(4, 3) * [0.5, 1, 2] + [1, 2, 3])
    assert rows["last"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("options", "gain"), [(0, 3.0), (8, 1.5), (16, 4.0), (24, 2.5)])
def test_extra_bytes_of_a_las_are_scaled_and_shifted_as_they_say(options, gain, tmp_path):
    data = bytearray(las(POINTS[:4], 3, False))
    data[data.index(b"gain") - 1] = options
    (tmp_path / "a.las").write_bytes(data)
    assert read_cloud(tmp_path / "a.las").rows["gain"].tolist() == [gain] * 4


@pytest.mark.parametrize(("format", "name", "value"), [(3, "scan_angle_rank", -15), (7, "scan_angle", -2500)])
def test_the_scan_angle_of_a_las_is_in_degrees(format, name, value, tmp_path):
    laspy = pytest.importorskip("laspy")
    file = laspy.LasData(laspy.LasHeader(point_format=format, version="1.4"))
    file.x = file.y = file.z = np.arange(2.0)
    file[name] = np.full(2, value)
    file.write(tmp_path / "a.las")
    assert read_cloud(tmp_path / "a.las").rows["scan_angle"].tolist() == [-15, -15]


@pytest.mark.parametrize("kind", ["u1", "<u2", ">u4", "<u8", ">i2", "f2", ">f8", "?"])
def test_rows_of_every_type_come_in_one_that_torch_can_index(kind, tmp_path):
    values = np.array([0, 1, 1], kind)
    (tmp_path / "a.npz").write_bytes(npz(xyz=POINTS[:3], a=values, directions=values))
    cloud = read_cloud(tmp_path / "a.npz")
    assert cloud.rows["a"][torch.tensor([2, 0])].tolist() == [1, 0]
    assert cloud.rows["directions"].tolist() == [0, 1, 1]


def test_reads_nuscenes(tmp_path):
    scan = np.hstack([POINTS, np.full((200, 1), 0.5, np.float32), np.full((200, 1), 31, np.float32)])
    rows = rows_of(tmp_path, "sweep.pcd.bin", scan.tobytes())
    assert rows["ring"].tolist() == [31] * 200
    assert np.array_equal(read_cloud(tmp_path / "sweep.pcd.bin").coords, POINTS)


# Bad files.

PLY = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
PCD = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 2\nHEIGHT 1\nPOINTS 2\nDATA ascii\n1 2 3\n4 5 6\n"


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.csv", "name,x,y,z\ncar,1,2,3\n", "line 2: 'car' .*each name"),
        ("a.txt", "car 1 2 3\nbus 4 5 6\n", "line 1: .*'car 1 2 3'"),
        ("a.csv", "1,5;2,5;3,5\n", "line 1: '1,5' .*decimal"),
        ("a.csv", "x,y,z\n1,,3\n", "line 2: '' .*number"),
        ("a.csv", "x,y,z\n1,2,3\n\n# why\n4,5\n", "line 5: truncated.* 2 .* 3"),
        ("a.csv", "x,y,z,w\n1,2,3\n", "line 1: 4 names .*3 columns"),
        ("a.csv", "x,y,z,x\n1,2,3,4\n", "columns .*'x'"),
        ("a.csv", "x,y,z,label\n1,2,3,0.5\n", "'label' .*whole number"),
        ("a.xyz", "5\n6\n", "line 1: .*two numbers"),
        ("a.txt", "\n# only\n\n// comments", "no points"),
        ("a.pts", "3\n1 2 3\n4 5 6\n", " 3 points.* 2"),
        ("a.xyz", "1 2 3\n4 5 \0\n", "zero byte"),
        ("a.ply", PLY.replace("2", "-1") + "1 2 3\n", "line 3: .*'vertex' .*'-1'"),
        ("a.ply", PLY + "1 2 3\n4 5 6 7\n", "line 9: truncated.* 4 .* 3"),
        ("a.ply", PLY.replace("float y", "float x"), "line 5: .*'x'"),
        ("a.ply", PLY.replace("property float y", "property list uchar float y") + "1 1 2 3\n4 1 5 6\n", "lists"),
        ("a.ply", PLY.replace("float z", "uchar z") + "1 2 300\n4 5 6\n", "line 8: 'z' .*300.*uint8"),
        ("a.ply", PLY.replace("property float z", "propriety float z"), "line 6: .*'propriety float z'"),
        ("a.pcd", PCD.replace("POINTS 2", "POINTS -1"), "line 6: POINTS .*'-1'"),
        ("a.pcd", PCD.replace("POINTS 2", "POINTS 3"), "line 6: POINTS .*3.* 2"),
        ("a.pcd", PCD.replace("SIZE 4 4 4", "SIZE 4 4"), "line 1: FIELDS, SIZE"),
        ("a.pcd", PCD.replace("F F F", "F F I").replace("6\n", "6.5\n"), r"line 9: 'z' .*6\.5.*int32"),
        ("a.bin", "12345678901234567", "byte 16: truncated"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_refused_with_its_place(name, content, error, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(FormatError, match=error) as caught:
        read_cloud(tmp_path / name)
    assert caught.value.path == tmp_path / name


@pytest.mark.parametrize("suffix", sorted({seed.suffix for seed in SEEDS if seed.read is gl.read_cloud}))
def test_an_empty_file_holds_no_points(suffix, tmp_path):
    (tmp_path / f"empty{suffix}").touch()
    with pytest.raises(FormatError, match="no points"):
        read_cloud(tmp_path / f"empty{suffix}")


def test_a_header_alone_is_a_cloud_without_points(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z,label\n")
    (tmp_path / "a.ply").write_text(PLY.replace("vertex 2", "vertex 0"))
    assert read_cloud(tmp_path / "a.csv").coords.shape == (0, 3)
    assert read_cloud(tmp_path / "a.ply").coords.shape == (0, 3)


def test_arrays_that_are_no_points_are_refused(tmp_path):
    bad = [npy(np.zeros(5)), npy(np.zeros((5, 1))), npy(np.zeros((5, 3), complex)), npy(np.array([["a", "b"]]))]
    bad += [npz(xyz=POINTS, label=np.arange(5)), npz(xyz=POINTS, coords=POINTS), npz(a=POINTS, b=POINTS)]
    for data in bad:
        (tmp_path / "odd.npy").write_bytes(data)
        with pytest.raises(FormatError, match="odd"):
            read_cloud(tmp_path / "odd.npy")


def test_integers_that_float32_cannot_hold_become_doubles(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(np.array([[2**24 + 1, 0, 0]], np.int32)))
    assert read_cloud(tmp_path / "a.npy").coords[0, 0] == 2**24 + 1


# Sizes are checked before anything is allocated: each of these ends at once.


@pytest.mark.parametrize(
    "element",
    [
        "element face 1000000000000\nproperty list uchar int vertex_indices\n{vertex}",
        "element face 1000000000000\nproperty int a\n{vertex}",
        "{vertex}element face 1000000000000\nproperty list uchar int vertex_indices\n",
        "element vertex 1000000000000\nproperty float x\nproperty float y\n",
    ],
)
@pytest.mark.parametrize("way", ["ascii", "binary_big_endian"])
def test_a_ply_that_promises_too_much_is_refused(element, way, tmp_path):
    vertex = "element vertex 1\nproperty float x\nproperty float y\n"
    (tmp_path / "a.ply").write_text(f"ply\nformat {way} 1.0\n{element.format(vertex=vertex)}end_header\n3 0 1 2\n5 6\n")
    with pytest.raises(FormatError, match=r"1000000000000 (entries|lines)"):
        read_cloud(tmp_path / "a.ply")


def test_a_las_that_promises_too_much_is_refused(tmp_path):
    pytest.importorskip("laspy")
    for at, name in ((100, "variable length records"), (107, "points")):
        data = bytearray(las(POINTS, 3, False, "1.2"))
        data[at : at + 4] = b"\xff" * 4
        (tmp_path / "a.las").write_bytes(data)
        with pytest.raises(FormatError, match=f"4294967295 {name}"):
            read_cloud(tmp_path / "a.las")


def laz_with(place: str, value: int, format: int = 7) -> bytes:
    """A LAZ file of which one number that its decoder believes is another."""
    data = bytearray(las(POINTS, format, True))
    points = struct.unpack_from("<I", data, 96)[0]
    table = struct.unpack_from("<q", data, points)[0]
    size = struct.unpack_from("<H", data, 105)[0]
    at, kind = {
        "count": (247, "<Q"),
        "chunk size": (data.index(b"laszip encoded") - 2 + 54 + 12, "<I"),
        "table": (points, "<q"),
        "chunks": (table + 4, "<I"),
        "layer": (points + 8 + size + 4, "<I"),
        "extra layer": (points + 8 + size + 4 + 4 * 12, "<I"),
    }[place]
    struct.pack_into(kind, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        ("count", 10**9, "points .*max_bytes"),
        ("count", 2**64 - 1, "points .*max_bytes"),
        ("count", 201, "201 points.* 200"),
        ("chunk size", 1, "1 chunks of 1 points .*200"),
        ("chunk size", 0, "chunks .*200 points"),
        ("chunk size", 2**32 - 1, "chunks .*200 points"),
        ("table", 2**62, "table of chunks"),
        ("table", -(2**62), "table of chunks"),
        ("chunks", 2**32 - 1, "4294967295 chunks"),
        ("chunks", 0, "0 chunks"),
        ("layer", 2**32 - 1, "42949.* bytes of layers"),
        ("extra layer", 2**31, "bytes of layers"),
    ],
)
def test_what_the_decoder_of_laz_would_believe_is_checked(place, value, error, tmp_path):
    pytest.importorskip("laspy")
    (tmp_path / "a.laz").write_bytes(laz_with(place, value))
    with pytest.raises(FormatError, match=error):
        read_cloud(tmp_path / "a.laz")


def test_max_bytes_limits_what_a_packed_file_unpacks_to(tmp_path):
    (tmp_path / "a.pcd").write_bytes(FILES["packed.pcd"])
    with pytest.raises(FormatError, match="max_bytes"):
        read_cloud(tmp_path / "a.pcd", max_bytes=1000)
    assert len(read_cloud(tmp_path / "a.pcd", max_bytes=10_000)) == 200
    (tmp_path / "a.npz").write_bytes(npz(xyz=np.zeros((1000, 3)), label=np.zeros(1000)))
    with pytest.raises(FormatError, match="max_bytes"):
        read_cloud(tmp_path / "a.npz", max_bytes=30_000)
    assert len(read_cloud(tmp_path / "a.npz", max_bytes=40_000)) == 1000


def test_a_gltf_cannot_ask_for_endless_work_with_empty_parts(tmp_path):
    nodes, parts = ", ".join(['{"mesh": 0}'] * 20_000), ", ".join(['{"mode": 0}'] * 20_000)
    (tmp_path / "a.gltf").write_text(f'{{"nodes": [{nodes}], "meshes": [{{"primitives": [{parts}]}}]}}')
    with pytest.raises(FormatError, match=r"a\.gltf"):
        sample_mesh(tmp_path / "a.gltf")


def test_coordinates_of_other_types_are_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(POINTS))
    with pytest.raises(ValueError, match=r"torch\.float32.*torch\.float16"):
        read_cloud(tmp_path / "a.npy", torch.float16)


# Meshes.

SQUARES = "8 4 0\n" + "".join(
    f"{x} {y} {z}\n" for z, s in ((0, 1), (5, 2)) for x, y in ((0, 0), (s, 0), (s, s), (0, s))
)
SQUARES += "3 0 1 2\n3 0 2 3\n3 4 5 6\n3 4 6 7\n"


@pytest.mark.parametrize("header", ["OFF\n", "OFF"])
def test_meshes_are_sampled_by_area(header, tmp_path):
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


@pytest.mark.parametrize("name", ["off", "coff", "obj", "binary.stl", "ascii.stl", "glb", "gltf"])
def test_reads_the_triangles_of(name, tmp_path):
    data = {
        "off": off(), "coff": off("COFF"), "obj": obj(), "binary.stl": stl(True), "ascii.stl": stl(False),
        "glb": gltf(True), "gltf": gltf(False),
    }[name]  # fmt: skip
    path = tmp_path / f"cube.{name.removeprefix('c')}"
    path.write_bytes(data)
    cloud = sample_mesh(path, 3000, normalise=False).coords
    # That in glTF is twice as long in x, then turned about z and moved by 5.
    low, high = ([4, 0, 0], [5, 2, 1]) if "gl" in name else ([0, 0, 0], [1, 1, 1])
    assert cloud.min(0).values.tolist() == pytest.approx(low, abs=1e-6)
    assert cloud.max(0).values.tolist() == pytest.approx(high, abs=1e-6)
    sides = [((cloud[:, i] - v).abs() < 1e-6).float().mean().item() for i in range(3) for v in (low[i], high[i])]
    area = [2, 2, 1, 1, 2, 2] if "gl" in name else [1] * 6
    assert sides == pytest.approx([a / sum(area) for a in area], abs=0.03)


@pytest.mark.parametrize("way", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("leading_list", [False, True])
def test_reads_the_faces_of_a_ply(way, leading_list, tmp_path):
    square = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], np.float32)
    (tmp_path / "a.ply").write_bytes(ply(square, way, leading_list=leading_list))
    cloud = sample_mesh(tmp_path / "a.ply", 3000, normalise=False).coords
    # The triangle lies on one half of the square, which is its other face.
    assert (cloud[:, 0] > cloud[:, 1]).float().mean().item() == pytest.approx(2 / 3, abs=0.03)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.off", "", "no triangles"),
        ("a.off", "OFF\n", "line 1: .*counts"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n", "truncated.* 3 vertices"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n0 0 0\n0 0 0\n3 0 1 2\n", "no area"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n\n0 0 w\n0 0 0\n3 0 1 2\n", "line 5: 'w' .*number"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n", "face 0 .*corner 7.* 3 vertices"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n9 0 1 2\n", "line 6: truncated.* 9 corners"),
        ("a.off", "OFF\n3 2 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n4 0 1 -2 1\n", "line 7: .*corner"),
        ("a.off", "OFF\n999999999999 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n", "truncated.* 999999999999 vertices"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1e300 0 0\n0 1e300 0\n3 0 1 2\n", "area"),
        ("a.obj", "v 0 0 0\nv 1 0\n", "no triangles"),
        ("a.obj", "v 0 0 0\nf 1 2 x\n", "cannot be read"),
        ("a.obj", "v 0 0 1_0\n", "cannot be read"),
        ("a.stl", "solid a\nfacet\nvertex 0 0 0\n", "no triangles"),
        ("a.stl", "\0" * 80 + "abcdefgh", "no triangles"),
        ("a.glb", "glTF" + "\0" * 8 + "\x7f" * 8, "cannot be read"),
        ("a.gltf", "{}", "no triangles"),
        ("a.gltf", "[" * 100_000, "cannot be read"),
        ("a.gltf", '{"nodes": [{"mesh": 0}]}', "no triangles"),
        ("a.gltf", '{"nodes": [{"children": [0]}]}', "no triangles"),
        ("a.ply", PLY + "1 2 3\n4 5 6\n", "not a mesh"),
        ("a.dae", "<xml/>", r"mesh.*'\.dae'"),
    ],
)  # fmt: skip
def test_meshes_that_are_not_whole_are_refused(name, content, error, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(FormatError, match=error) as caught:
        sample_mesh(tmp_path / name)
    assert caught.value.path == tmp_path / name


def test_every_node_of_a_gltf_puts_its_mesh_in_its_place(tmp_path):
    document = json.loads(gltf(False))
    # This turn puts x at y, y at z and z at x.
    turned = {"mesh": 0, "rotation": [0.5] * 4, "scale": [1, 2, 3], "translation": [10, 0, 0]}
    document |= {"nodes": [{"mesh": 0}, turned], "scenes": [{"nodes": [0, 1]}]}
    document["bufferViews"][1] |= {"byteOffset": 48, "byteLength": 120}
    document["accessors"][1]["byteOffset"] = 48
    (tmp_path / "a.gltf").write_text(json.dumps(document))
    triangles = read_triangles(tmp_path / "a.gltf").reshape(2, -1, 3)
    assert np.allclose(sorted(triangles.min(1).tolist()), [[0, 0, 0], [10, 0, 0]], atol=1e-12)
    assert np.allclose(sorted(triangles.max(1).tolist()), [[1, 1, 1], [13, 1, 2]], atol=1e-12)


def test_a_gltf_that_repeats_a_mesh_too_often_is_refused(tmp_path):
    document = json.loads(gltf(False))
    document |= {"nodes": [{"mesh": 0}] * 3000, "scenes": [{"nodes": list(range(3000))}]}
    (tmp_path / "a.gltf").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="max_bytes"):
        sample_mesh(tmp_path / "a.gltf", max_bytes=1_000_000)


def test_a_written_ply_is_read_back_with_its_rows(tmp_path):
    from gridless.data.readers.clouds import ply as format

    rgb, part = torch.randint(0, 256, (9, 3), dtype=torch.uint8), torch.arange(9)
    for coords in (torch.rand(9, 3), torch.rand(9, 3, dtype=torch.float64)):
        cloud = gl.Cloud.of(coords, rgb=rgb, part=part, inside=part > 4, pair=torch.rand(9, 2))
        format.write(tmp_path / "x.ply", cloud)
        again = gl.read_cloud(tmp_path / "x.ply")
        assert torch.equal(again.coords, coords)
        assert torch.equal(again.rows["rgb"], rgb)
        assert again.rows["part"].tolist() == part.tolist()
        assert again.rows["inside"].tolist() == [int(i > 4) for i in range(9)]
        assert torch.equal(again.rows["pair_1"], cloud.rows["pair"][:, 1])
    with pytest.raises(ValueError, match=r"part .*32 bits"):
        format.write(tmp_path / "y.ply", gl.Cloud.of(torch.rand(1, 3), part=torch.tensor([2**40])))
    assert not (tmp_path / "y.ply").exists()


def test_colours_of_two_bytes_stay_so_in_a_written_ply(tmp_path):
    from gridless.data.readers.clouds import ply as format

    np.savez(tmp_path / "a.npz", xyz=POINTS[:3], rgb=np.array([[0, 300, 65535]] * 3, np.uint16))
    cloud = read_cloud(tmp_path / "a.npz")
    format.write(tmp_path / "a.ply", cloud)
    assert torch.equal(read_cloud(tmp_path / "a.ply").rows["rgb"], cloud.rows["rgb"])
    assert read_cloud(tmp_path / "a.ply").rows["rgb"].dtype == cloud.rows["rgb"].dtype == torch.int32
    format.write(tmp_path / "b.ply", gl.Cloud.of(torch.rand(2, 3), n=torch.tensor([-1, 70_000], dtype=torch.int32)))
    assert read_cloud(tmp_path / "b.ply").rows["n"].tolist() == [-1, 70_000]


def test_a_ply_whose_parts_differ_is_not_written(tmp_path):
    from gridless.data.readers.clouds import ply as format
    from gridless.data.readers.clouds.base import Points

    def part(**rows: np.ndarray) -> Points:
        return Points(POINTS[:2], rows, POINTS.dtype)

    first = part(a=np.zeros(2, np.int16))
    for second, error in [
        (part(b=np.zeros(2, np.int16)), "'a' .*int16.* missing"),
        (part(a=np.zeros(2, np.int32)), "'a' .*int16.*int32"),
        (part(a=np.zeros((2, 2), np.int16)), r"'a' .*\(\) int16.*\(2,\) int16"),
    ]:
        with pytest.raises(ValueError, match=error):
            format.write_parts(tmp_path / "a.ply", 4, first, [first, second])
    assert not list(tmp_path.iterdir())
    format.write_parts(tmp_path / "a.ply", 4, first, [first, part(a=np.ones(2, np.uint8))])
    assert read_cloud(tmp_path / "a.ply").rows["a"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("suffix", [".ply", ".las", ".laz", ".npy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_written_cloud_is_read_back_with_its_rows(suffix, dtype, tmp_path):
    coords = torch.from_numpy(POINTS).to(dtype) + (4_500_000 if dtype == torch.float64 else 0)
    count = torch.arange(len(POINTS))
    rows = {"intensity": (count * 300).int(), "classification": (count % 20).byte(), "height": coords[:, 2].float()}
    rows |= {"pair": torch.rand(len(POINTS), 2), "gps_time": count.double() / 8, "rgb": torch.full((200, 3), 700).int()}
    cloud = gl.Cloud.of(coords, **rows)
    gl.write_cloud(tmp_path / f"a{suffix}", cloud)
    again = read_cloud(tmp_path / f"a{suffix}", dtype=dtype)
    assert (again.coords - coords).abs().max() <= 1e-6
    for name in ("intensity", "classification", "height", "gps_time", "rgb"):
        assert again.rows[name].tolist() == rows[name].tolist()
    pair = again.rows["pair"] if "pair" in again.rows else torch.stack([again.rows["pair_0"], again.rows["pair_1"]], 1)
    assert torch.equal(pair, rows["pair"])


def test_a_cloud_without_rows_is_a_plain_array(tmp_path):
    cloud = gl.Cloud.of(torch.from_numpy(POINTS))
    gl.write_cloud(tmp_path / "a.npy", cloud)
    assert np.array_equal(np.load(tmp_path / "a.npy"), POINTS)
    gl.write_cloud(tmp_path / "none.laz", cloud[torch.arange(0)])
    assert len(read_cloud(tmp_path / "none.laz")) == 0


def test_what_a_form_cannot_hold_is_not_written(tmp_path):
    (tmp_path / "a.las").write_bytes(b"as it was")
    x = torch.rand(5, 3)
    for cloud, error in [
        (gl.Cloud.of(x, intensity=torch.rand(5)), "'intensity' .*65535"),
        (gl.Cloud.of(x, many=torch.rand(5, 4)), "'many' .*4 "),
        (gl.Cloud.of(x / 0), "finite"),
        (gl.Cloud.of([x, x]), "cloud.* 2"),
    ]:
        with pytest.raises(ValueError, match=error):
            gl.write_cloud(tmp_path / "a.las", cloud)
    assert (tmp_path / "a.las").read_bytes() == b"as it was"
    with pytest.raises(ValueError, match=r"\.ply, \.las, \.laz, \.npy.*\.obj"):
        gl.write_cloud(tmp_path / "a.obj", gl.Cloud.of(x))
    with pytest.raises(TypeError, match=r"gl\.write_cloud\(path, cloud\)"):
        gl.write_cloud(tmp_path / "a.ply", x)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.las"]


def test_colours_from_0_to_1_that_are_whole_are_no_bytes(tmp_path):
    for colour, kind in {"1.0,1.0,0.0": torch.float32, "1,0,1": torch.float32, "1,0,2": torch.uint8}.items():
        (tmp_path / "a.csv").write_text(f"x,y,z,r,g,b\n0,0,0,{colour}\n")
        assert read_cloud(tmp_path / "a.csv").rows["rgb"].dtype == kind


@pytest.mark.parametrize(
    "content",
    [
        "1;2;3;\n4;5;6;\n",
        "x;y;z;\n1;2;3; \n4;5;6;\r\n",
        'x,y,z\n"1","2","3"\n"4","5","6"\n',
        '"1","2","3"\n4,5,"6"\n',
        "//X Y Z\n2\n1 2 3\n4 5 6\n",
        "x y z\n2\n1 2 3\n4 5 6\n",
        "2\n1 2 3\n4 5 6\n",
        "1 2\t3\n4\t5 6\n",
        "x y\tz\n1 2\t3\n4\t5 6\n",
    ],
)
def test_text_of_many_programs_is_read(content, tmp_path):
    (tmp_path / "a.txt").write_bytes(content.encode())
    cloud = read_cloud(tmp_path / "a.txt")
    assert cloud.coords.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert not cloud.rows


def test_lines_of_a_mesh_that_mean_nothing_are_passed_over(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 \\\n 0\nv 1 0 0 # \\\nv 0 1 0\nf 1 2\nf 1 \\\n2 3\n")
    (tmp_path / "a.off").write_text("# by hand\n\n# again\nOFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    corners = [[[0, 0, 0], [1, 0, 0], [0, 1, 0]]]
    assert read_triangles(tmp_path / "a.obj").tolist() == read_triangles(tmp_path / "a.off").tolist() == corners
    (tmp_path / "a.off").write_text("# by hand\n\n# again\nOFF\n3 1 0\n0 0 0\n1 0 w\n0 1 0\n3 0 1 2\n")
    with pytest.raises(FormatError, match=r"line 7: 'w' .*number"):
        read_triangles(tmp_path / "a.off")


def test_meshes_of_a_map_keep_their_digits(tmp_path):
    corners = np.array([[0, 0, 0], [20, 0, 0], [0, 20, 3.0]])
    for name, where in {"here": 0.0, "there": np.array([5e5, 5.4e6, 300])}.items():
        rows = "\n".join(" ".join(map(str, corner)) for corner in corners + where)
        (tmp_path / f"{name}.off").write_text(f"OFF\n3 1 0\n{rows}\n3 0 1 2\n")
    here, there = (sample_mesh(tmp_path / f"{name}.off", 50, normalise=False).coords for name in ("here", "there"))
    assert (here.dtype, there.dtype) == (torch.float32, torch.float64)
    np.testing.assert_allclose(there - torch.tensor([5e5, 5.4e6, 300]), here, rtol=0, atol=1e-4)


def test_a_mesh_without_vertices_is_refused(tmp_path: Path):
    for name, content in {"a.off": "OFF\n0 1 0\n0\n", "b.off": "OFF\n0 0 0\n", "a.obj": "o nothing\n"}.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(FormatError, match=name):
            sample_mesh(tmp_path / name)


def test_text_keeps_the_places_of_a_survey(tmp_path):
    points = np.random.default_rng(0).random((200, 3)).round(3) * 20 + [5e5, 5.2e6, 100]
    np.savetxt(tmp_path / "survey.xyz", points, fmt="%.3f")
    np.savetxt(tmp_path / "named.csv", points, fmt="%.3f", delimiter=",", header="x,y,z", comments="")
    np.savetxt(tmp_path / "small.xyz", points - [5e5, 5.2e6, 100], fmt="%.3f")
    for name in ("survey.xyz", "named.csv"):
        coords = read_cloud(tmp_path / name).coords
        assert coords.dtype == torch.float64
        np.testing.assert_allclose(coords.numpy(), points, rtol=0, atol=6e-4)
    assert read_cloud(tmp_path / "small.xyz").coords.dtype == torch.float32
