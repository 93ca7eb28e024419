"""Clouds and events come from what people hold, with all their rows, and go back."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import gridless as gl

XYZ = np.arange(30, dtype=np.float32).reshape(10, 3)
RGB = (XYZ * 8).astype(np.uint8)
NORMAL = np.tile(np.float32([0, 0, 1]), (10, 1))
COLUMNS = dict(zip("xyz", XYZ.T)) | dict(zip(("nx", "ny", "nz"), NORMAL.T)) | dict(zip(("red", "green", "blue"), RGB.T))
COLUMNS["label"] = np.arange(10)


def is_ours(cloud: gl.Cloud) -> None:
    """The ten points of this page, with their rows."""
    assert np.array_equal(cloud.coords, XYZ)
    assert np.array_equal(cloud.rows["rgb"], RGB)
    assert np.array_equal(cloud.rows["normal"], NORMAL)
    assert cloud.directions == ("normal",)
    assert cloud.rows["label"].tolist() == list(range(10))


def test_a_block_of_clouds_is_a_batch():
    cloud = gl.Cloud.of(np.zeros((4, 5, 3), np.float32), rgb=np.zeros((4, 5, 3), np.uint8), label=np.arange(20))
    assert cloud.splits.tolist() == [0, 5, 10, 15, 20]
    assert cloud.rows["rgb"].shape == (20, 3)
    assert cloud.examples[3].rows["label"].tolist() == [15, 16, 17, 18, 19]
    assert gl.Cloud.of([XYZ, np.zeros((2, 4, 3), np.float32)]).sizes.tolist() == [10, 4, 4]
    with pytest.raises(ValueError, match=r"label .*\(4,\).* 20"):
        gl.Cloud.of(torch.zeros(4, 5, 3), label=torch.zeros(4))
    with pytest.raises(ValueError, match=r"\(5,\).*\(B, N, D\)"):
        gl.Cloud.of(torch.zeros(5))


def test_lists_of_points_are_one_cloud_and_lists_of_clouds_several():
    for points in ([[0, 0, 0], [1, 2, 3]], [(0.0, 0, 0), (1, 2, 3)], [np.float32([0, 0, 0]), np.float32([1, 2, 3])]):
        cloud = gl.Cloud.of(points)
        assert cloud.coords.tolist() == [[0, 0, 0], [1, 2, 3]]
        assert cloud.coords.dtype == torch.float32
    assert gl.Cloud.of([[[0.0, 0, 0]], [[1.0, 2, 3], [1, 1, 1]]]).sizes.tolist() == [1, 2]


def test_tables_have_columns_of_coordinates_and_of_rows():
    is_ours(gl.Cloud.of(COLUMNS))
    table = np.empty(10, [(name, c.dtype) for name, c in COLUMNS.items()])
    for name, column in COLUMNS.items():
        table[name] = column
    is_ours(gl.Cloud.of(table))
    assert gl.Cloud.of([table, table]).sizes.tolist() == [10, 10]
    assert gl.Cloud.of(table, label=np.zeros(10)).rows["label"].tolist() == [0] * 10
    with pytest.raises(ValueError, match=r"Cloud.of.* 'y'.* x"):
        gl.Cloud.of({"x": [1.0]})
    with pytest.raises(TypeError, match=r"'name' .*U5"):
        gl.Cloud.of({"x": [1.0], "y": [1.0], "name": ["chair"]})
    with pytest.raises(TypeError, match=r"Cloud.of: .*object"):
        gl.Cloud.of(object())
    with pytest.raises(TypeError, match=r"gl.read_cloud\(path\)"):
        gl.Cloud.of("scan.ply")
    with pytest.raises(TypeError, match=r"gl.read_events\(path\)"):
        gl.Events.of("recording.raw")
    with pytest.raises(ValueError, match=r"\(3, 100\).* x.T"):
        gl.Cloud.of(np.zeros((3, 100)))


def test_numpy_gives_everything_and_asarray_the_coordinates():
    cloud = gl.Cloud.of(COLUMNS)
    array = cloud.numpy()
    assert array.dtype.names == ("x", "y", "z", "label", "rgb", "normal")
    assert array["rgb"].shape == (10, 3)
    is_ours(gl.Cloud.of(array))
    assert np.array_equal(np.asarray(cloud), XYZ)
    assert len(gl.structures.pad(cloud, "power_of_two").numpy()) == 10


def test_frames_are_tables():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS)
    is_ours(gl.Cloud.of(frame))
    assert len(gl.Cloud.of([frame, frame[:4]]).examples[1]) == 4
    assert len(gl.Events.of(pandas.DataFrame({"x": [], "y": [], "t": [], "p": []}), sensor=(9, 9))) == 0
    events = gl.Events.of(pandas.DataFrame({"x": [1, 2], "y": [3, 4], "t": [5, 6], "p": [True, False]}), sensor=(9, 9))
    assert events.pixel.tolist() == [[1, 3], [2, 4]]
    with pytest.raises(TypeError, match=r"t .*float64.*microseconds"):
        gl.Events.of(pandas.DataFrame({"x": [1], "y": [3], "t": [0.5], "p": [True]}), sensor=(9, 9))


def test_pyg_data_and_batches_come_and_go():
    geometric = pytest.importorskip("torch_geometric.data")
    data = geometric.Data(
        pos=torch.from_numpy(XYZ), x=torch.from_numpy(RGB), normal=torch.from_numpy(NORMAL), y=torch.tensor([3])
    )
    cloud = gl.Cloud.of(data)
    assert np.array_equal(cloud.rows["features"], RGB)
    assert set(cloud.rows) == {"features", "normal"}
    assert cloud.directions == ("normal",)
    batch = geometric.Batch.from_data_list([data, data])
    assert gl.Cloud.of(batch).splits.tolist() == gl.Cloud.of([data, data]).splits.tolist() == [0, 10, 20]
    batch.ptr = None
    assert gl.Cloud.of(batch).splits.tolist() == [0, 10, 20]
    back = gl.Cloud.of(COLUMNS).to_pyg()
    assert back.y.tolist() == list(range(10))
    is_ours(gl.Cloud.of(back))
    assert gl.Cloud.of(batch).to_pyg().batch.tolist() == [0] * 10 + [1] * 10
    with pytest.raises(ValueError, match=r"data\.pos"):
        gl.Cloud.of(geometric.Data(x=torch.zeros(3, 3)))


def test_trimesh_gives_points_and_vertices():
    trimesh = pytest.importorskip("trimesh")
    cloud = gl.Cloud.of(trimesh.PointCloud(XYZ, colors=RGB))
    assert np.array_equal(cloud.coords, XYZ)
    assert np.array_equal(cloud.rows["rgb"], RGB)
    box = gl.Cloud.of(trimesh.creation.box())
    assert (box.coords.shape, box.directions, set(box.rows)) == ((8, 3), ("normal",), {"normal"})


@pytest.fixture
def open3d(monkeypatch):
    """Open3D, or, where it cannot be installed, what is used of its older class."""
    try:
        import open3d

        return open3d
    except (ImportError, OSError):
        cloud = type("PointCloud", (), {"__module__": "open3d.geometry", "points": (), "colors": (), "normals": ()})
        fake: ModuleType = ModuleType("open3d")
        fake.geometry = SimpleNamespace(PointCloud=cloud)
        fake.utility = SimpleNamespace(Vector3dVector=np.asarray)
        monkeypatch.setitem(sys.modules, "open3d", fake)
        return fake


def test_open3d_clouds_come_and_go(open3d):
    cloud = gl.Cloud.of(gl.Cloud.of(COLUMNS).to_open3d())
    assert np.array_equal(cloud.coords, XYZ)
    np.testing.assert_allclose(cloud.rows["rgb"], RGB / 255, rtol=1e-6)
    assert cloud.directions == ("normal",)
    with pytest.raises(ValueError, match=r"cloud.examples\[i\].to_open3d\(\)"):
        gl.Cloud.of([XYZ, XYZ]).to_open3d()
    if hasattr(open3d, "t"):
        newer = open3d.t.geometry.PointCloud(XYZ)
        newer.point["label"] = np.arange(10)[:, None]
        assert gl.Cloud.of(newer).rows["label"].shape == (10, 1)


def test_events_of_tonic_and_faery():
    # tonic's own dtype, and its (width, height, polarities).
    array = np.zeros(3, np.dtype([("x", "<i2"), ("y", "<i2"), ("t", "<i8"), ("p", "?")]))
    assert gl.Events.of(array, sensor=(34, 34, 2)).sensor == (34, 34)
    array = np.zeros(3, np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), (("p", "on"), "?")]))
    try:
        import faery

        stream = faery.events_stream_from_array(array, (20, 10))
    except ImportError:
        kind = type(
            "Stream", (), {"__module__": "faery", "to_array": lambda s: array, "dimensions": lambda s: (20, 10)}
        )
        stream = kind()
    events = gl.Events.of(stream)
    assert (len(events), events.sensor) == (3, (20, 10))
    camera = type("Camera", (), {"__module__": "faery"})()
    with pytest.raises(TypeError, match=r"faery.*packet"):
        gl.Events.of(camera)
    with pytest.raises(TypeError, match=r"dict\(x=a"):
        gl.Events.of(np.zeros((3, 4), int), sensor=(34, 34))


def test_a_dataloader_without_our_collate_says_so():
    from torch.utils.data import DataLoader

    cloud = gl.Cloud.of(XYZ)
    plan = gl.Plan()
    plan.points(3)
    for thing in (cloud, (cloud, 1), {"cloud": cloud}, plan(cloud)):
        with pytest.raises(TypeError, match=r"collate_fn=gl.collate"):
            next(iter(DataLoader([thing, thing], 2)))
        next(iter(DataLoader([thing, thing], 2, collate_fn=gl.collate)))


def test_the_learned_part_is_exported_for_all_inputs_that_fit():
    model = gl.models.point_resnet_small(classes=4).eval()
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.rand(n, 3, generator=draw) for n in (200, 230))
    example = model.plan.fixed(x)
    program = torch.export.export(model, (example,)).module()
    with torch.no_grad():
        for cloud in (x, y):
            got = program(model.plan.fixed(cloud, like=example))[:-1]
            torch.testing.assert_close(got, model(model.plan(cloud)), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"fixed: X0 .*2001.*512"):
        model.plan.fixed(torch.rand(2000, 3, generator=draw), like=example)
    with pytest.raises(TypeError, match=r"fixed.*events"):
        gl.models.n_mnist().plan.fixed(x)


def test_onnx_is_refused_with_the_reason(monkeypatch):
    from torch.utils._pytree import tree_flatten

    plan = gl.Plan()
    plan.points(3)
    geometry = plan(XYZ)
    assert len(tree_flatten(geometry)[0]) == 2
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(TypeError, match=r"ONNX.*torch.export"):
        tree_flatten(geometry)


def test_rows_with_the_names_of_coordinates_are_not_written_over_them():
    for dim, name in ((3, "x"), (2, "z")):
        with pytest.raises(ValueError, match=f"numpy: .*'{name}'.*name"):
            gl.Cloud.of(torch.zeros(3, dim), **{name: torch.ones(3)}).numpy()
    assert gl.Cloud.of(torch.zeros(3, 3), xy=torch.ones(3)).numpy().dtype.names == ("x", "y", "z", "xy")


@pytest.mark.parametrize("dim", [2, 4, 5])
def test_other_dimensions_than_three_go_to_an_array_and_back(dim):
    cloud = gl.Cloud.of(torch.rand(4, dim, requires_grad=True), label=torch.arange(4))
    again = gl.Cloud.of(cloud.numpy())
    assert torch.equal(again.coords, cloud.coords)
    assert again.rows["label"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("names", [("pos",), ("x", "features"), ("label", "y")])
def test_pyg_gets_each_row_under_a_name_of_its_own(names):
    pytest.importorskip("torch_geometric")
    with pytest.raises(ValueError, match=r"to_pyg: .*'(pos|x|y)'.*name"):
        gl.Cloud.of(torch.zeros(3, 3), **dict.fromkeys(names, torch.ones(3))).to_pyg()


@pytest.mark.parametrize("name", ["index", "instance_batch", "face"])
def test_pyg_counts_no_rows_through_a_batch(name):
    pytest.importorskip("torch_geometric")
    one = gl.Cloud.of(torch.rand(3, 3), **{name: torch.arange(3)})
    assert one.to_pyg()[name].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=f"to_pyg: .*'{name}'.*other_name"):
        gl.collate([one, one]).to_pyg()


def test_pyg_arrays_of_nodes_are_rows_and_what_follows_a_batch_is_not():
    geometric = pytest.importorskip("torch_geometric.data")
    data = geometric.Data(pos=torch.rand(3, 3), x=torch.rand(3, 2), ring=np.arange(3))
    assert gl.Cloud.of(data).rows["ring"].tolist() == [0, 1, 2]
    del data.ring
    followed = geometric.Batch.from_data_list([data, data], follow_batch=["x"])
    assert "x_batch" in followed
    assert set(gl.Cloud.of(followed).rows) == {"features"}


@pytest.mark.parametrize("names", [("x4",), ("x", "y")])
def test_rows_of_four_dimensions_are_not_read_back_as_coordinates(names):
    with pytest.raises(ValueError, match=r"numpy: .*'(x|x4)'.*name"):
        gl.Cloud.of(torch.rand(4, 4), **dict.fromkeys(names, torch.rand(4))).numpy()
