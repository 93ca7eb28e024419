"""ShapeNetPart: 16,881 shapes of 16 categories, every point labelled with one of 50 parts. For research (ShapeNet).

Read are the release of PointNet++'s authors, `shapenetcore_partanno_segmentation_benchmark_v0_normal` (a text file per
shape, JSON lists of the official split), and a pack of its training shapes, `shapenetpart_trainval.npz`: up to 2,048
points of each, 9 bits per coordinate. Shapes are centred and scaled to the unit ball, as is usual; y points up.
"""

from __future__ import annotations

import json
import lzma
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gridless.data import splits
from gridless.data.base import Examples, Steps
from gridless.data.cloud_cache import Clouds, cached
from gridless.data.errors import FormatError
from gridless.data.seeds import seed_of
from gridless.kernels.threads import in_threads
from gridless.structures import Cloud

HOME = "https://shapenet.cs.stanford.edu/media/shapenetcore_partanno_segmentation_benchmark_v0_normal.zip"
# Category -> its folder, and how many parts it has; the parts are numbered in this order, 0 to 49.
CATEGORIES: dict[str, tuple[str, int]] = {
    "airplane": ("02691156", 4),
    "bag": ("02773838", 2),
    "cap": ("02954340", 2),
    "car": ("02958343", 4),
    "chair": ("03001627", 4),
    "earphone": ("03261776", 3),
    "guitar": ("03467517", 3),
    "knife": ("03624134", 2),
    "lamp": ("03636649", 4),
    "laptop": ("03642806", 2),
    "motorbike": ("03790512", 6),
    "mug": ("03797390", 2),
    "pistol": ("03948459", 3),
    "rocket": ("04099429", 3),
    "skateboard": ("04225987", 3),
    "table": ("04379243", 3),
}
SYNSETS = [folder for folder, _ in CATEGORIES.values()]
FIRST = np.cumsum([0, *(count for _, count in CATEGORIES.values())])  # the first part of each category, then 50
PARTS = [range(a, b) for a, b in pairwise(FIRST.tolist())]
# The official lists that make up each split.
LISTS = {"train": ("train", "val"), "fit": ("train",), "validation": ("val",), "test": ("test",)}
PACK = "shapenetpart_trainval.npz"


class ShapeNetPart(Examples):
    """A map-style data set of (`Cloud` with the rows `part`, category), or of what `transform` makes of the cloud.

    Args:
        root: the folder of the release, or the pack.
        split: "train" (the official training and validation shapes), "fit" and "validation" (the one and the other), or
            "test". The 26 shapes that the official lists name both for training and for testing are for testing only.
        transform, seed: those of `Examples`.
        points: so many points of each shape, drawn at random once and for all; fewer where it has fewer.
        cache: a folder for what was read from text, so that the next start is quick: by default the root itself; False
            keeps nothing.

    All shapes at once: `coords` (N, P, 3) float32 and `parts` (N, P) int64, of which `sizes` (N) say how many count
    (the rest is 0, and part -1), `labels` (N), the categories.
    """

    class_names = tuple(CATEGORIES)
    part_names = tuple(f"{name} {i}" for name, (_, count) in CATEGORIES.items() for i in range(count))

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Steps = (),
        points: int = 2048,
        seed: int | None = None,
        cache: str | Path | bool = True,
    ) -> None:
        if points < 1:
            raise ValueError(f"ShapeNetPart: points must be at least 1, not {points}")
        super().__init__(transform, seed)
        self.root, self.split, self.points = Path(root), splits.check(split), points
        clouds = _read(self.root, split, points, cache)
        self.coords: Tensor = torch.from_numpy(clouds.coords[..., :3].copy())
        self.parts: Tensor = torch.from_numpy(clouds.coords[..., 3].astype(np.int64))
        self.labels: Tensor = torch.from_numpy(clouds.label)
        self.sizes: Tensor = (self.parts >= 0).sum(1)
        self.names = clouds.names

    def example(self, i: int) -> Cloud:
        size = int(self.sizes[i])
        return Cloud.of(self.coords[i, :size], part=self.parts[i, :size])


# Both readers return x, y, z and part in one array (N, points, 4), with part -1 where a shape has no point.


def _read(root: Path, split: str, points: int, cache: str | Path | bool) -> Clouds:
    if not root.exists():
        raise FileNotFoundError(f"ShapeNetPart: there is no {root}. Download the release from {HOME}.")
    if root.is_file() or (root / PACK).is_file():
        return _read_pack(root if root.is_file() else root / PACK, split, points)
    for folder in (root, *sorted(p for p in root.iterdir() if p.is_dir() and p.name.startswith("shapenetcore"))):
        lists = folder / "train_test_split"
        if lists.is_dir():
            sources = [lists / f"shuffled_{part}_file_list.json" for part in ("train", "val", "test")]
            sources += [f for name in SYNSETS if (f := folder / name).is_dir()]
            return cached(
                folder, cache, f"parts-{split}-{points}", sources, lambda f=folder: _read_text(f, split, points)
            )
    raise FileNotFoundError(
        f"ShapeNetPart: {root} holds no release: no train_test_split/ with JSON lists beside folders such as "
        f"{SYNSETS[0]}/, and no {PACK}. Download it from {HOME}."
    )


def _read_text(folder: Path, split: str, points: int) -> Clouds:
    listed = {part: _list(folder, part) for part in ("train", "val", "test")}
    tested = set(listed["test"])
    names = [name for part in LISTS[split] for name in listed[part] if part == "test" or name not in tested]
    files = [folder / f"{name}.txt" for name in names]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"ShapeNetPart: {len(missing)} of the {len(files)} files of {split!r} are missing, the first is "
            f"{missing[0]}. Unpack the release again."
        )
    out = np.zeros((len(files), points, 4), np.float32)
    out[..., 3] = -1
    in_threads(_read_shape, [(file, row) for file, row in zip(files, out, strict=True)])
    label = np.array([SYNSETS.index(name.split("/")[0]) for name in names], np.int64)
    return Clouds(out, label, names)


def _list(folder: Path, part: str) -> list[str]:
    """The shapes of an official list, as SYNSET/NAME."""
    path = folder / "train_test_split" / f"shuffled_{part}_file_list.json"
    try:
        names = ["/".join(Path(entry).parts[-2:]) for entry in json.loads(path.read_bytes())]
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise FormatError(path, f"not a list of shapes: {error}") from None
    for name in names:
        if name.split("/")[0] not in SYNSETS:
            raise FormatError(path, f"{name!r} belongs to no category of ShapeNetPart")
    return names


def _read_shape(path: Path, out: np.ndarray) -> None:
    """x, y, z and part of up to as many points as `out` has rows, from lines `x y z nx ny nz part`."""
    first = FIRST[SYNSETS.index(path.parent.name) :][:2]
    try:
        lines = path.read_text("ascii").split("\n")
        table = np.array([line.split() for line in lines if line.strip()], np.float64)
        if table.ndim != 2 or table.shape[1] != 7 or not np.isfinite(table).all():
            raise ValueError("lines must have seven numbers")
        if ((table[:, 6] < first[0]) | (table[:, 6] >= first[1])).any():
            raise ValueError(f"its parts must be {first[0]} to {first[1] - 1}")
    except (ValueError, UnicodeDecodeError) as error:
        raise FormatError(path, f"truncated, or not of this release: {error}") from None
    coords = table[:, :3] - table[:, :3].mean(0)
    coords /= max(np.linalg.norm(coords, axis=1).max(), 1e-12)
    chosen = np.random.default_rng(seed_of("ShapeNetPart", path.stem)).permutation(len(table))[: len(out)]
    out[: len(chosen), :3], out[: len(chosen), 3] = coords[chosen], table[chosen, 6]


def _read_pack(path: Path, split: str, points: int) -> Clouds:
    if split == "test":
        raise FileNotFoundError(f"ShapeNetPart: {path} has only training shapes. Test with the release.")
    try:
        with np.load(path, allow_pickle=False) as pack:
            packed = [pack[name].tobytes() for name in ("d0", "d1", "d2", "d3", "part")]
            offsets, category, where = (pack[name].astype(np.int64) for name in ("offsets", "category", "split"))
            bits, synsets = int(pack["bits"]), [name.decode() for name in pack["synset"]]
        planes = [np.frombuffer(part, np.uint8) for part in in_threads(lzma.decompress, [(p,) for p in packed])]
        step = np.stack(planes[:4], 1).view("<u4")[:, 0].astype(np.int64)
        sizes = np.diff(offsets)
        if synsets != SYNSETS or not 0 < bits <= 10 or len(planes[4]) != len(step) or (sizes < 0).any():
            raise ValueError("its parts do not fit each other")
        if [offsets[0], offsets[-1]] != [0, len(step)] or not len(sizes) == len(category) == len(where):
            raise ValueError("its shapes do not fit its points")
        if (category >= len(CATEGORIES)).any():
            raise ValueError("its categories are unknown")
    except Exception as error:  # of a damaged archive, or of arrays of other types and shapes
        raise FormatError(path, f"not a complete pack of ShapeNetPart: {error}") from None
    rows = np.flatnonzero(np.isin(where, [("train", "val").index(part) for part in LISTS[split]]))
    # The points of a shape are sorted along a Morton curve: steps along it are stored.
    morton = np.cumsum(step)
    begin = np.concatenate([[0], morton])[offsets[:-1]]
    out = np.zeros((len(rows), points, 4), np.float32)
    out[..., 3] = -1
    for row, i in zip(out, rows.tolist(), strict=True):
        a, b = offsets[i : i + 2]
        at = a + np.random.default_rng(i).permutation(b - a)[:points]
        code = morton[at] - begin[i]
        grid = np.stack([_every_third(code >> axis) for axis in range(3)], 1)
        row[: len(at), :3], row[: len(at), 3] = grid.astype(np.float32) / (2**bits - 1) * 2 - 1, planes[4][at]
    return Clouds(out, category[rows], [f"{SYNSETS[category[i]]}/{i:05d}" for i in rows.tolist()])


def _every_third(x: np.ndarray) -> np.ndarray:
    """The bits 0, 3, 6, ... of numbers of 30 bits, side by side."""
    x = x & 0x09249249
    x = (x | x >> 2) & 0x030C30C3
    x = (x | x >> 4) & 0x0300F00F
    x = (x | x >> 8) & 0x030000FF
    return (x | x >> 16) & 0x3FF
