"""ShapeNetPart: the official folder and the pack."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from gridless.augment import Shuffle
from gridless.data import FormatError, ShapeNetPart
from gridless.data.sets import shapenet

CHAIR, MUG = "03001627", "03797390"
# The last of the training list is for testing, too, as 26 of the official lists are.
LISTS = {"train": [f"{CHAIR}/a", f"{MUG}/b", f"{CHAIR}/t"], "val": [f"{MUG}/c"], "test": [f"{CHAIR}/t", f"{MUG}/d"]}


def table(name: str, points: int) -> np.ndarray:
    """x, y, z, normal and part of a shape, as its file has them."""
    random = np.random.default_rng(sum(name.encode()))
    first, count = (12, 4) if name.startswith(CHAIR) else (36, 2)
    coords = random.normal(size=(points, 3)) * [1, 2, 3] + 5
    return np.concatenate([coords, np.zeros((points, 3)), first + random.integers(0, count, (points, 1))], 1)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    root = tmp_path / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    (root / "train_test_split").mkdir(parents=True)
    for part, names in LISTS.items():
        listing = [f"shape_data/{name}" for name in names]
        (root / "train_test_split" / f"shuffled_{part}_file_list.json").write_text(json.dumps(listing))
        for name in names:
            (root / name).parent.mkdir(exist_ok=True)
            np.savetxt(root / f"{name}.txt", table(name, 30 if name.endswith("b") else 100), "%.6f")
    return tmp_path


def pack(path: Path, codes: list[np.ndarray], parts: list[np.ndarray], categories: list[int], split: list[int]) -> None:
    """Shapes as points along a Morton curve of 9 bits (sorted), by their steps."""
    step = np.concatenate([np.diff(code, prepend=0) for code in codes]).astype("<u4")
    planes = step.view(np.uint8).reshape(-1, 4)
    blobs = {f"d{i}": planes[:, i] for i in range(4)} | {"part": np.concatenate(parts).astype(np.uint8)}
    np.savez(
        path,
        **{
            name: np.frombuffer(lzma.compress(np.ascontiguousarray(b).tobytes()), np.uint8) for name, b in blobs.items()
        },
        offsets=np.cumsum([0] + [len(code) for code in codes]),
        category=np.array(categories, np.uint8),
        split=np.array(split, np.uint8),
        synset=np.array([name.encode() for name in shapenet.SYNSETS]),
        bits=9,
    )


def test_there_are_fifty_parts_of_sixteen_categories():
    assert len(ShapeNetPart.class_names) == 16
    assert len(ShapeNetPart.part_names) == shapenet.FIRST[-1] == 50
    assert shapenet.PARTS[4] == range(12, 16)
    assert ShapeNetPart.part_names[36] == "mug 0"


def test_the_folder_is_read_and_shapes_for_testing_are_not_learned(release: Path):
    expected = {"fit": ["a", "b"], "validation": ["c"], "train": ["a", "b", "c"], "test": ["t", "d"]}
    for split, names in expected.items():
        data = ShapeNetPart(release, split, points=64)
        assert [name.split("/")[1] for name in data.names] == names
        assert data.coords.shape == (len(names), 64, 3)
    data = ShapeNetPart(release, "fit", points=64)
    assert data.sizes.tolist() == [64, 30]
    assert data.labels.tolist() == [4, 11]
    assert (data.parts[1, 30:] == -1).all()
    # The points are those of the file, centred and scaled as a whole, with their parts, and not the first ones.
    raw = table(f"{MUG}/b", 30)
    coords = raw[:, :3] - raw[:, :3].mean(0)
    coords /= np.linalg.norm(coords, axis=1).max()
    mine = np.concatenate([data.coords[1, :30].numpy(), data.parts[1, :30, None].numpy()], 1)
    theirs = np.concatenate([coords, raw[:, 6:]], 1)
    assert np.abs(mine - theirs).max() > 0.1
    np.testing.assert_allclose(mine[np.argsort(mine[:, 0])], theirs[np.argsort(theirs[:, 0])], atol=1e-5)


def test_points_of_the_very_first_part_count(release: Path):
    root = release / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    (root / "02691156").mkdir()
    (root / "02691156" / "p.txt").write_text("0 0 0 0 0 1 0\n1 0 0 0 0 1 1\n0 1 0 0 0 1 0\n")
    (root / "train_test_split" / "shuffled_val_file_list.json").write_text('["shape_data/02691156/p"]')
    cloud, category = ShapeNetPart(release, "validation", points=16)[0]
    assert category == 0
    assert sorted(cloud.rows["part"].tolist()) == [0, 0, 1]


def test_an_example_is_a_cloud_with_its_parts_beside_it(release: Path):
    data = ShapeNetPart(release, "fit", points=64)
    cloud, category = data[1]
    assert category == 11
    assert torch.equal(cloud.coords, data.coords[1, :30])
    assert torch.equal(cloud.rows["part"], data.parts[1, :30])
    shuffled, _ = ShapeNetPart(release, "fit", transform=[Shuffle()], points=64, seed=0)[1]
    order = (shuffled.coords[:, None] == cloud.coords[None]).all(2).int().argmax(1)
    assert order.tolist() != list(range(30))
    assert torch.equal(shuffled.rows["part"], cloud.rows["part"][order])


def test_what_was_read_from_text_is_kept_until_a_file_changes(release: Path, monkeypatch):
    first = ShapeNetPart(release, "train", points=16)
    with monkeypatch.context() as patched:
        patched.setattr(shapenet, "_read_text", None)
        again = ShapeNetPart(release, "train", points=16)
    assert torch.equal(first.coords, again.coords)
    assert torch.equal(first.parts, again.parts)
    file = release / "shapenetcore_partanno_segmentation_benchmark_v0_normal" / f"{CHAIR}/a.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:5]))
    assert ShapeNetPart(release, "train", points=16).sizes.min() == 5
    file.unlink()
    for cache in (True, False):
        with pytest.raises(FileNotFoundError, match=r"1 of .*3 files of 'train' .*a\.txt"):
            ShapeNetPart(release, "train", points=16, cache=cache)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 2 3 0 0 1 12\n1 2 3 0 0", "release"),
        ("1 2 3 0 0 1\n", "seven numbers"),
        ("", "seven numbers"),
        ("1 2 x 0 0 1 12\n", "release"),
        ("1 2 nan 0 0 1 12\n", "seven numbers"),
        ("1 2 3 0 0 1 36\n", "12 to 15"),
        ("1 2 3 0 0 1 16\n", "12 to 15"),
        ("1 2 3 0 0 1 11\n", "12 to 15"),
    ],
)
def test_damaged_shapes_are_refused_by_name(release: Path, text: str, reason: str):
    root = release / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    (root / f"{CHAIR}/a.txt").write_text(text)
    with pytest.raises(FormatError, match=reason) as caught:
        ShapeNetPart(root, "fit", points=16)
    assert "a.txt" in str(caught.value)


def test_damaged_lists_and_missing_folders_are_named(release: Path, tmp_path: Path):
    root = release / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    listing = root / "train_test_split" / "shuffled_val_file_list.json"
    listing.write_text('["shape_data/123/x"]')
    with pytest.raises(FormatError, match=r"val_file_list\.json.*'123/x'"):
        ShapeNetPart(root)
    listing.write_text("[1, 2")
    with pytest.raises(FormatError, match="list of shapes"):
        ShapeNetPart(root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty .*train_test_split"):
        ShapeNetPart(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"nowhere.*[Dd]ownload"):
        ShapeNetPart(tmp_path / "nowhere")


def test_a_pack_gives_its_points_back(tmp_path: Path):
    random = np.random.default_rng(0)
    grids = [np.unique(random.integers(0, 512, (size, 3)), axis=0) for size in (40, 25, 60)]
    codes, parts, wanted = [], [], []
    for grid in grids:
        code = sum((grid[:, axis] >> b & 1) << (3 * b + axis) for b in range(9) for axis in range(3))
        order = np.argsort(code)
        part = 12 + random.integers(0, 4, len(grid))
        codes.append(code[order])
        parts.append(part[order])
        wanted.append({tuple(p): k for p, k in zip(grid.tolist(), part.tolist(), strict=True)})
    pack(tmp_path / "shapenetpart_trainval.npz", codes, parts, [4, 4, 4], [0, 1, 0])
    for split, rows in (("train", [0, 1, 2]), ("fit", [0, 2]), ("validation", [1])):
        data = ShapeNetPart(tmp_path, split, points=50)
        assert data.sizes.tolist() == [min(50, len(grids[i])) for i in rows]
        for k, i in enumerate(rows):
            size = int(data.sizes[k])
            grid = ((data.coords[k, :size] + 1) / 2 * 511).round().int().tolist()
            assert all(wanted[i][tuple(p)] == part for p, part in zip(grid, data.parts[k].tolist(), strict=False))
            assert len({tuple(p) for p in grid}) == size
    with pytest.raises(FileNotFoundError, match=r"trainval\.npz has only training"):
        ShapeNetPart(tmp_path, "test")
    whole = (tmp_path / "shapenetpart_trainval.npz").read_bytes()
    (tmp_path / "shapenetpart_trainval.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"trainval\.npz.* pack of ShapeNetPart"):
        ShapeNetPart(tmp_path)


def test_the_real_pack_has_the_official_numbers(shared_data: Path):
    data = ShapeNetPart(shared_data / "shapenetpart_trainval.npz", "validation")
    assert len(data) == 1867
    norms = data.coords.norm(dim=2)
    assert norms.amax(1).min() > 0.97
    assert norms.max() < 1.01
    first, last = (torch.from_numpy(f)[data.labels, None] for f in (shapenet.FIRST[:-1], shapenet.FIRST[1:]))
    known = data.parts >= 0
    assert bool((((data.parts >= first) & (data.parts < last)) | ~known).all())
