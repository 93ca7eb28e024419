"""Tiles of a scene: what lies inside is as in the whole scene."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gridless as gl
from gridless.data.readers.clouds.base import Parts, Points
from gridless.data.readers.clouds.ply import write as write_ply
from gridless.scenes import layers_of
from gridless.scenes.scene import Scene, _known
from gridless.scenes.tiling import Tiles

sys.path.append(str(Path(__file__).parents[1] / "data"))
from cloud_files import las, laz_in_chunks, ply


def network_plan(radius: float = 0.5, levels: int = 3) -> gl.Plan:
    plan = gl.Plan()
    cloud = plan.points()
    near = plan.ball(cloud, cloud, radius)
    for _ in range(levels):
        coarse = plan.rejection_sample(near)
        plan.ball(cloud, coarse, radius * 2**0.5)
        cloud, radius = coarse, 2 * radius
        near = plan.ball(coarse, coarse, radius)
    return plan


def street(points: int = 3000, seed: int = 0, dtype=np.float32) -> np.ndarray:
    """A long strip with a wall, in the order of a scanner that passes along it."""
    draw = np.random.default_rng(seed)
    x = draw.random((points, 3)) * [30, 12, 1]
    wall = draw.random(points) < 0.4
    x[wall, 1:] = np.stack([np.full(wall.sum(), 5.0), draw.random(wall.sum()) * 6], 1)
    return x[x[:, 0].argsort()].astype(dtype)


def inside(cloud: gl.Cloud) -> torch.Tensor:
    """The rows in the scene of the points that are inside the tile."""
    return cloud.rows["index"][cloud.rows["inside"]]


def found(tiles: gl.scenes.Tiles, plan: gl.Plan, order: list[int] | None = None) -> dict[str, set]:
    """By name: the points of clouds, and the edges, as pairs of rows of the scene, whose target is inside a tile."""
    result: dict[str, set] = {}
    for k in order if order is not None else range(len(tiles)):
        _, geometry = tiles[k].run(plan)
        names = {}
        for name, value in geometry.items():
            mine = result.setdefault(name, set())
            before = len(mine)
            if isinstance(value, gl.Cloud):
                names[name] = value
                more = inside(value).tolist()
                mine.update(more)
                assert len(mine) == before + len(more), "twice"
            else:
                source, target = (names[i] for i in plan.steps[name].inputs)
                at = value.target.long()
                keep = target.rows["inside"][at]
                pairs = zip(
                    source.rows["index"][value.source.long()[keep]].tolist(), target.rows["index"][at[keep]].tolist()
                )
                mine.update(pairs)
    return result


@settings(max_examples=8, deadline=None)
@given(st.floats(2.0, 20.0), st.floats(0.0, 4.0), st.integers(0, 5), st.sampled_from([np.float32, np.float64]))
def test_any_tiling_visited_in_any_order_gives_the_samples_and_edges_of_the_whole_scene(size, halo, seed, dtype):
    x = street(900, seed, dtype)
    plan = network_plan()
    whole = found(gl.tiles(x, math.inf), plan)
    tiles = gl.tiles(x, size, halo)
    order = list(range(len(tiles)))
    random.Random(seed).shuffle(order)
    assert found(tiles, plan, order) == whole
    assert whole["X0"] == set(range(len(x)))


def test_samples_of_the_whole_scene_are_those_of_rejection_sampling_in_its_order():
    x = street()
    one = gl.tiles(x, math.inf)[0]
    assert torch.equal(one.cloud.coords, torch.from_numpy(x)[one.cloud.rows["index"]])
    plan = network_plan(levels=1)
    sample = gl.rejection_sample(one.cloud, radius=0.5)
    assert found(gl.tiles(x, 5.0, plan.reach()), plan)["X1"] == set(sample.rows["index"].tolist())


def test_a_halo_that_does_not_suffice_is_widened():
    tiles = gl.tiles(street(), 5.0, halo=0.25)
    widened = [tile.run(network_plan(levels=1))[0].halo for tile in tiles]
    assert min(widened) > 0.5
    # Later tiles begin with what others needed.
    assert tiles[0].halo > 0.5


@pytest.mark.parametrize("grid", [None, 0.4])
def test_features_inside_a_tile_are_those_of_the_whole_scene(grid):
    torch.manual_seed(0)
    model = gl.models.point_unet(5, width=8, levels=2, radius=0.4).eval()
    layers = layers_of(model)
    assert len(layers) == 1 + 2 * 2 + 2 * 2
    x = street(dtype=np.float64) + [4_500_000.0, -3e5, 100.0]

    def logits(size: float) -> torch.Tensor:
        out = torch.full((len(x), 5), torch.nan)
        for tile in gl.tiles(x, size, 4.0, grid=grid):
            tile, geometry = tile.run(model.plan, layers)
            rows = tile.cloud.rows
            with torch.no_grad():
                out[rows["index"][rows["inside"]]] = model(geometry)[rows["inside"]]
        return out

    whole, cut = logits(math.inf), logits(7.0)
    assert torch.equal(whole.isnan(), cut.isnan())
    assert whole.isnan().any() == (grid is not None)
    torch.testing.assert_close(whole, cut, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_points_of_one_cell_are_one_whatever_the_tiles():
    x = street(dtype=np.float64)
    each = [
        {
            int(i)
            for tile in gl.tiles(x, size, 0.4, grid=0.4)
            for i in tile.cloud.rows["index"][tile.cloud.rows["inside"]]
        }
        for size in (3.7, 11.0, math.inf)
    ]
    # A cell that two tiles share has its point in one of them.
    assert each[0] == each[1] == each[2]


@pytest.mark.parametrize("suffix", ["las", "laz", "copc", "ply", "npy", "folder"])
def test_files_are_cut_like_arrays_with_all_their_rows(suffix, tmp_path):
    x = street(200).astype(np.float64).round(3)
    file = tmp_path / f"a.{suffix if suffix != 'copc' else 'laz'}"
    if suffix in ("las", "laz"):
        file.write_bytes(las(x, 7, suffix == "laz"))
    elif suffix == "copc":
        file.write_bytes(laz_in_chunks(x, 7))
    elif suffix == "ply":
        file.write_bytes(ply(x, "binary_little_endian", "double"))
    elif suffix == "npy":
        np.save(file, np.concatenate([x, np.arange(200.0)[:, None]], 1))
    else:
        file = tmp_path
        for i in range(4):
            (tmp_path / f"{i}.las").write_bytes(las(x[50 * i : 50 * i + 50], 7, False))
    cloud = [gl.read_cloud(f) for f in (sorted(file.iterdir()) if file.is_dir() else [file])]
    whole = gl.collate(cloud)
    seen = []
    for tile in gl.tiles(file, 7.0, 1.0):
        rows = tile.cloud.rows
        index = rows["index"]
        places = tile.cloud.coords.double() + torch.from_numpy(tile.offset)
        assert (places - whole.coords[index]).abs().max() <= 2**-14
        for name, values in whole.rows.items():
            assert torch.equal(rows[name], values[index]), name
        seen += index[rows["inside"]].tolist()
    assert sorted(seen) == list(range(200))


def test_of_thousands_of_files_few_are_open_and_none_is_held(tmp_path):
    resource = pytest.importorskip("resource")
    x = street(300)
    for i in range(150):
        np.save(tmp_path / f"{i:03d}.npy", x[2 * i : 2 * i + 2])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(140, hard), hard))
    try:
        seen = [i for tile in gl.tiles(tmp_path, 7.0, 1.0) for i in inside(tile.cloud).tolist()]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(seen) == list(range(300))
    # Files that are read as a whole stay in the cache.
    _known.cache_clear()
    np.savetxt(tmp_path / "text.xyz", x[:9])
    assert len(gl.tiles(tmp_path / "text.xyz", 7.0))
    assert not _known.cache_info().currsize


def test_centimetres_matter_a_million_metres_away():
    x = np.array([[1e6, 2e6, 3e6], [1e6 + 0.01, 2e6, 3e6], [1e6 + 0.03, 2e6, 3e6]])
    tile = gl.tiles(x, 10.0)[0]
    near = gl.ball(tile.cloud, tile.cloud, 0.015)
    assert sorted(near.counts.tolist()) == [1, 2, 2]
    assert tile.offset.dtype == np.float64


@pytest.mark.parametrize("x", [np.zeros((1, 3)), np.ones((50, 3)), np.zeros((5, 2)), np.arange(4.0)[:, None]])
def test_one_point_equal_points_and_fewer_dimensions(x):
    plan = gl.Plan()
    cloud = plan.points(dim=x.shape[1])
    plan.rejection_sample(plan.ball(cloud, cloud, 0.5))
    assert found(gl.tiles(x, 2.0), plan) == found(gl.tiles(x, math.inf), plan)


def test_a_tile_without_points_gives_nothing():
    tile, geometry = gl.tiles(street(), 5.0, 1.0).tile((99, 99)).run(network_plan(levels=1))
    assert len(tile.cloud) == len(geometry["X1"]) == len(geometry["N01"].source) == 0


def test_a_scene_without_points_has_no_tiles():
    assert len(gl.tiles(np.zeros((0, 3)), 5.0)) == 0


def test_a_scene_in_no_order_is_sorted_first_and_gives_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr("gridless.data.readers.clouds.base.PART", 100)
    monkeypatch.setattr("gridless.scenes.scene._RUN", 700)
    x = street(2000)
    mixed = np.random.default_rng(0).permutation(len(x))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tiles = gl.tiles(x[mixed], 3.0, 1.0)
    assert list(tmp_path.iterdir())
    plan = network_plan(levels=1)
    back = {name: {mixed[i] for i in rows} for name, rows in found(tiles, plan).items() if name[0] == "X"}
    ordered = found(gl.tiles(x, math.inf), plan)
    assert back == {name: rows for name, rows in ordered.items() if name[0] == "X"}
    del tiles
    assert not list(tmp_path.iterdir())


def test_a_scratch_disk_that_is_full_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("gridless.data.readers.clouds.base.PART", 100)
    x = np.random.default_rng(0).permutation(street(2000))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gridless.scenes.scene._curve", full)
    with pytest.raises(OSError, match=r"copy of 2000 points"):
        Tiles(Scene(x), 3.0, 1.0, scratch=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_sorted_copy_of_files_with_different_types_holds_all_of_them(monkeypatch, tmp_path):
    monkeypatch.setattr("gridless.scenes.scene._RUN", 100)
    x = street(300)
    colours = [np.full((100, 3), 200, np.uint8), np.full((200, 3), -300, np.int16)]
    write_ply(tmp_path / "a.ply", gl.Cloud.of(x[:100], rgb=colours[0]))
    write_ply(tmp_path / "b.ply", gl.Cloud.of(x[100:], rgb=colours[1]))
    scene = Scene(tmp_path)
    scene.scan(5.0)
    scene.sort(1.0)
    coords, index, rows = scene.window(np.full(2, -np.inf), np.full(2, np.inf))
    assert np.array_equal(index, np.arange(300))
    assert np.array_equal(coords, x)
    assert np.array_equal(rows["rgb"], np.concatenate(colours))


def test_rows_may_be_called_what_clouds_have_arguments_for():
    x = street(20)
    parts = Parts([20], lambda k: Points(x, {"directions": np.arange(20), "x": x}, x.dtype))
    (tile,) = gl.tiles(parts, math.inf)
    rows = tile.cloud.rows
    assert torch.equal(rows["directions"], rows["index"])
    assert torch.equal(rows["x"], tile.cloud.coords)


def test_files_with_different_rows_are_refused_unless_it_is_said_which(tmp_path):
    x = street(20)
    write_ply(tmp_path / "a.ply", gl.Cloud.of(x, rgb=np.zeros((20, 3), np.uint8), a=x, b=x[:, 0]))
    write_ply(tmp_path / "b.ply", gl.Cloud.of(x, rgb=np.zeros((20, 3), np.uint8), b=x))
    with pytest.raises(ValueError, match=r"b\.ply.*a\.ply.*'a_0'.*rows=\[\.\.\.\]"):
        gl.tiles(tmp_path, 5.0)
    with pytest.raises(ValueError, match=r"b\.ply .*'b'.* b_0, b_1, b_2, rgb"):
        gl.tiles(tmp_path, 5.0, rows=["rgb", "b"])
    assert sum(len(inside(tile.cloud)) for tile in gl.tiles(tmp_path, 5.0, rows=["rgb"])) == 40
    np.savez(tmp_path / "a.npz", xyz=x, rgb=np.zeros((20, 4), np.uint8))
    with pytest.raises(ValueError, match=r"'rgb' .*\(points, 4\) in .*a\.npz.* \(points, 3\) in"):
        gl.tiles(tmp_path, 5.0, rows=["rgb"])


def test_numbers_of_64_bits_have_one_type_in_all_pieces():
    numbers = np.arange(300, dtype=np.uint64)
    numbers[-1] = 2**64 - 1
    x, at = street(300), [slice(0, 200), slice(200, 300)]
    parts = Parts([200, 100], lambda k: Points(x[at[k]], {"n": numbers[at[k]]}, x.dtype))
    scene = Scene(parts)
    assert [scene.piece(k).rows["n"].dtype for k in (0, 1)] == [np.float64, np.float64]


def test_a_sorted_copy_of_other_points_is_not_taken(tmp_path):
    def sorted_points(source) -> np.ndarray:
        scene = Scene(source)
        scene.scan(5.0, tmp_path / "scan.npz")
        scene.sort(1.0, tmp_path / "scratch")
        return scene.window(np.full(2, -np.inf), np.full(2, np.inf)).coords

    x = street(300)
    np.save(tmp_path / "a.npy", x[:100])
    assert np.array_equal(sorted_points(tmp_path / "a.npy"), x[:100])
    files = sorted((tmp_path / "scratch").iterdir())
    assert np.array_equal(sorted_points(tmp_path / "a.npy"), x[:100])
    assert sorted((tmp_path / "scratch").iterdir()) == files
    np.save(tmp_path / "a.npy", x[100:250])
    assert np.array_equal(sorted_points(tmp_path / "a.npy"), x[100:250])
    assert np.array_equal(sorted_points(x[250:]), x[250:])
    assert np.array_equal(sorted_points(x[200:250]), x[200:250])


def test_every_point_is_inside_a_tile_whatever_its_side():
    # 93.5 / 1.1 is a little less than 85, and rounded to it.
    tiles = gl.tiles(np.array([[93.5, 0, 0], [1, 0, 0]], np.float32), 1.1)
    assert sum(len(inside(tile.cloud)) for tile in tiles) == 2
    x = np.arange(-60, 60)[:, None].astype(np.float64) * [1.1, 0.7, 0]
    for size in (1.1, 0.7, 0.1, 3.3):
        tiles = gl.tiles(x.astype(np.float32), size)
        assert sum(len(inside(tile.cloud)) for tile in tiles) == len(x)
    # More cells from end to end than one number of 64 bits can name.
    far = gl.tiles(np.array([[4e9, 5e9, 0], [-4e9, 1, 2], [0, 0, 0], [4e9, 5e9, 1]]), 1.0)
    assert far.counts == {(-4000000000, 1): 1, (0, 0): 1, (4000000000, 5000000000): 2}
    assert [sorted(tile.cloud.rows["index"].tolist()) for tile in far] == [[1], [2], [0, 3]]


@pytest.mark.parametrize("suffix", [".npy", ".ply", ".xyz"])
def test_a_file_that_changes_while_it_is_in_use_is_refused(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("gridless.scenes.scene._KEPT", 0)
    file = tmp_path / f"a{suffix}"

    def write(x: np.ndarray) -> None:
        if suffix == ".npy":
            np.save(file, x)
        elif suffix == ".ply":
            write_ply(file, gl.Cloud.of(x))
        else:
            np.savetxt(file, x)

    write(street(100))
    (tmp_path / "b.xyz").write_text("0 0 0\n")
    scene = Scene(tmp_path)
    scene.piece(0), scene.piece(1)
    write(street(90, seed=1))
    with pytest.raises(ValueError, match=rf"a\{suffix} .*changed"):
        scene.piece(0)
    file.unlink()
    with pytest.raises(ValueError, match=rf"a\{suffix} .*changed"):
        scene.piece(0)


def test_what_is_not_local_is_refused_by_name():
    plan = gl.Plan()
    plan.farthest_sample(plan.points(), 5)
    with pytest.raises(ValueError, match=r"X1 = farthest_sample"):
        gl.tiles(street(50), 5.0)[0].run(plan)
    cells = gl.Plan()
    cells.grid_sample(cells.points(), 0.5)
    with pytest.raises(ValueError, match=r"X1 = grid_sample.*tiles\(\.\.\., grid=\.\.\.\)"):
        gl.tiles(street(50), 5.0)[0].run(cells)
    with pytest.raises(ValueError, match=r"PointResNet.*: pool .*point_unet"):
        layers_of(gl.models.point_resnet_small(4))
    with pytest.raises(ValueError, match=r"PointUNetPlus .*absolute coordinates"):
        layers_of(gl.models.point_unet_plus((4,)))


def test_points_that_are_not_finite_are_named(tmp_path):
    x = street(300)
    x[123, 1] = np.nan
    with pytest.raises(ValueError, match=r"point 123 .*array .*finite"):
        gl.tiles(x, 5.0)
    x[140:142, 0] = np.inf
    np.save(tmp_path / "a.npy", street(10))
    np.save(tmp_path / "b.npy", x)
    with pytest.raises(ValueError, match=r"point 123 of .*b\.npy .*finite.* 2 "):
        gl.tiles(tmp_path, 5.0)


def test_bad_arguments_are_named(tmp_path):
    x = street(20)
    for arguments, error in [
        ({"size": 0.0}, r"size .*0\.0"),
        ({"size": 1.0, "halo": -1.0}, r"halo .*-1\.0"),
        ({"size": 1.0, "grid": 0.0}, r"grid .*0\.0"),
        ({"size": 1.0, "rows": ["colour"]}, "array .*'colour'.* none"),
    ]:
        with pytest.raises(ValueError, match=error):
            gl.tiles(x, **arguments)
    with pytest.raises(ValueError, match=r"tile of 5000 .*float32"):
        gl.tiles(np.array([[0.0, 0, 0], [5000, 0, 0]]), math.inf)[0]
    with pytest.raises(FileNotFoundError, match=r"no clouds.*\.ply"):
        gl.tiles(tmp_path, 1.0)
    with pytest.raises(FileNotFoundError, match=r"a\.laz"):
        gl.tiles(tmp_path / "a.laz", 1.0)
    with pytest.raises(ValueError, match="'index'"):
        gl.tiles(gl.Cloud.of(x, index=torch.arange(20)), 1.0)[0]


@pytest.mark.parametrize("cut", [0.3, 0.9, 0.99])
def test_a_truncated_laz_is_refused(cut, tmp_path):
    data = las(street(5000).astype(np.float64), 7, True)
    (tmp_path / "a.laz").write_bytes(data[: int(cut * len(data))])
    with pytest.raises(gl.data.FormatError, match=r"a\.laz"):
        gl.tiles(tmp_path / "a.laz", 5.0)


@pytest.mark.parametrize(("arguments", "error"), [
    (("city.laz", network_plan()), "size .*Plan"),
    (("city.laz", 5.0, network_plan()), "halo .*Plan"),
    ((network_plan(), 5.0), "source .*Plan"),
    ((5.0, "city.laz"), "source .*float"),
    (("city.laz", "50"), "size .*'50'"),
    (("city.laz", 5.0, 1.0, ["rgb"]), r"grid .*\['rgb'\]"),
])  # fmt: skip
def test_arguments_of_another_kind_or_order_are_named(arguments, error):
    with pytest.raises(TypeError, match=f"tiles: .*{error}"):
        gl.tiles(*arguments)
