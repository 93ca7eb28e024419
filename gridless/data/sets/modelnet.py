"""ModelNet40: 12,311 shapes of 40 classes, 9,843 for training and 2,468 for testing. For research (Princeton).

Three releases are read, whichever the folder holds:

- `modelnet40_normal_resampled`, PointNet++'s: `airplane/airplane_0001.txt` with 10,000 points, and list files;
- `modelnet40_ply_hdf5_2048`, PointNet's: `ply_data_train0.h5` and so on, with 2,048 points (9,840 for training);
- the meshes, `airplane/train/airplane_0001.off` (or .ply), from whose surface points are drawn;

and a pack of training clouds, `modelnet40_train.npz`: 1,024 points, 12 bits per coordinate. y points up in all of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gridless.data import splits
from gridless.data.base import Examples, Steps
from gridless.data.cloud_cache import Clouds, cached
from gridless.data.errors import FormatError, library
from gridless.data.limits import Limits
from gridless.data.numpy_files import arrays_of
from gridless.data.readers.meshes import sample_mesh
from gridless.data.seeds import seed_of
from gridless.structures import Cloud

HOME = "https://modelnet.cs.princeton.edu"
CLASS_NAMES = tuple(splits.load("modelnet40"))


class ModelNet40(Examples):
    """A map-style data set of (`Cloud`, class number), or of what `transform` makes of the cloud.

    Args:
        root: the folder of one of the releases, or the pack.
        split: "train", "test", or, for choosing without looking at the test part, "fit" and "validation": the training
            part divided nine to one in every class by a shipped list.
        transform, seed: those of `Examples`.
        points: the first so many points of each shape; of a mesh, so many are drawn.
        cache: a folder for what is slow to read (text and meshes), so that the next start is quick: by default the root
            itself; False keeps nothing.
    """

    class_names = CLASS_NAMES

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Steps = (),
        points: int = 1024,
        seed: int | None = None,
        cache: str | Path | bool = True,
    ) -> None:
        if points < 1:
            raise ValueError(f"ModelNet40: points must be at least 1, not {points}")
        super().__init__(transform, seed)
        self.root, self.split, self.points = Path(root), splits.check(split), points
        part = "test" if split == "test" else "train"
        self.release, clouds = _read(self.root, part, points, cache)
        members = _members(clouds, split, self.root)
        self.coords: Tensor = torch.from_numpy(clouds.coords if members is None else clouds.coords[members])
        self.labels: Tensor = torch.from_numpy(clouds.label if members is None else clouds.label[members])
        self.names = clouds.names if members is None else [clouds.names[i] for i in members]

    def example(self, i: int) -> Cloud:
        return Cloud.of(self.coords[i])

    @property
    def fingerprint(self) -> str:
        """Identifies the clouds, before any transform."""
        contents = hashlib.blake2b(self.coords.numpy().data, digest_size=8).hexdigest()
        return f"ModelNet40 {self.release} {self.split} {self.points} {self.seed} {contents}"


def _members(clouds: Clouds, split: str, root: Path) -> np.ndarray | None:
    """Rows that belong to the split; None for all."""
    if split in ("train", "test"):
        return None
    if not all(clouds.names):
        raise FileNotFoundError(
            f"ModelNet40: {root} does not name its shapes, so {split!r} is unknown. "
            "Add the files *_id2file.json of the release, or use another release."
        )
    wanted = {f"{label}_{number:04d}" for label, number in splits.members("modelnet40", split)}
    return np.array([i for i, name in enumerate(clouds.names) if name in wanted], np.int64)


# Releases.


def _read(root: Path, part: str, points: int, cache: str | Path | bool) -> tuple[str, Clouds]:
    if not root.exists():
        raise FileNotFoundError(f"ModelNet40: there is no {root}. Download a release from {HOME}.")
    if root.is_file() or (root / "modelnet40_train.npz").is_file():
        return "pack", _read_pack(root if root.is_file() else root / "modelnet40_train.npz", part, points)
    for folder in (root, *sorted(p for p in root.iterdir() if p.is_dir() and p.name.lower().startswith("modelnet40"))):
        if (folder / f"modelnet40_{part}.txt").is_file():
            sources = [folder / f"modelnet40_{part}.txt", *(f for name in CLASS_NAMES if (f := folder / name).is_dir())]
            return "text", cached(
                folder, cache, f"text-{part}-{points}", sources, lambda f=folder: _text(f, part, points)
            )
        if list(folder.glob(f"ply_data_{part}*.h5")):
            return "h5", _read_h5(folder, part, points)
        meshes = sorted(p for kind in ("off", "ply") for p in folder.glob(f"*/{part}/*.{kind}"))
        if meshes:
            sources = sorted({p.parent for p in meshes})
            name = f"mesh-{part}-{points}"
            return "mesh", cached(folder, cache, name, sources, lambda m=meshes: _meshes(m, points))
    raise FileNotFoundError(
        f"ModelNet40: {root} holds no release: no modelnet40_{part}.txt, ply_data_{part}*.h5, CLASS/{part}/*.off or "
        f"modelnet40_train.npz. Download one from {HOME}."
    )


def _text(folder: Path, part: str, points: int) -> Clouds:
    names = (folder / f"modelnet40_{part}.txt").read_text("utf-8").split()
    label = [_class_of(name, folder) for name in names]
    files = [folder / CLASS_NAMES[k] / f"{name}.txt" for name, k in zip(names, label, strict=True)]
    missing = [f for f in files if not f.is_file()]
    if missing:
        raise FileNotFoundError(
            f"ModelNet40: {len(missing)} of the {len(files)} files of {part!r} are missing, the first is {missing[0]}. "
            "Unpack the release again."
        )
    coords = np.empty((len(files), points, 3), np.float32)
    for out, file in zip(coords, files, strict=True):
        out[:] = _text_points(file, points)
    return Clouds(coords, np.array(label, np.int64), names)


def _text_points(path: Path, points: int) -> np.ndarray:
    with path.open("rb") as file:
        lines = [line for _, line in zip(range(points), file, strict=False)]
    width = lines[0].count(b",") + 1 if lines else 0
    with warnings.catch_warnings():
        # NumPy only warns where text is no number; the count below tells.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            values = np.fromstring(b",".join(line.rstrip() for line in lines).decode("ascii"), np.float32, sep=",")
        except ValueError:
            values = np.empty(0, np.float32)
    if len(lines) < points or width < 3 or len(values) != points * width:
        whole = min(len(lines), len(values) // max(width, 1))
        raise FormatError(path, f"truncated or damaged: {whole} whole points where {points} are needed")
    return values.reshape(points, width)[:, :3]


def _read_h5(folder: Path, part: str, points: int) -> Clouds:
    h5py = library("h5py", folder)
    coords, label, names = [], [], []
    for path in sorted(folder.glob(f"ply_data_{part}*.h5")):
        try:
            with h5py.File(path, "r") as file:
                data, labels = np.asarray(file["data"])[:, :points], np.asarray(file["label"]).reshape(-1)
        except Exception as error:  # h5py raises many kinds
            raise FormatError(path, f"truncated, or not of this release: {error}") from None
        if data.shape[1:] != (points, 3) or len(labels) != len(data):
            raise FormatError(path, f"holds {data.shape}, not (shapes, {points}, 3). Ask for fewer points.")
        coords.append(data.astype(np.float32))
        label.append(labels.astype(np.int64))
        names += _h5_names(path, len(data))
    return Clouds(np.concatenate(coords), np.concatenate(label), names)


def _h5_names(path: Path, count: int) -> list[str]:
    """The names of the shapes, from the JSON file that comes with each part: ply_data_train_0_id2file.json."""
    listing = path.with_name(re.sub(r"(\d+)$", r"_\1", path.stem) + "_id2file.json")
    if not listing.is_file():
        return [""] * count
    try:
        names = [Path(name).stem for name in json.loads(listing.read_bytes())]
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(listing, f"not a list of names: {error}") from None
    if len(names) != count:
        raise FormatError(listing, f"names {len(names)} shapes, but {path.name} holds {count}")
    return names


def _meshes(files: list[Path], points: int) -> Clouds:
    coords = np.empty((len(files), points, 3), np.float32)
    for out, file in zip(coords, files, strict=True):
        out[:] = sample_mesh(file, points, seed=seed_of("ModelNet40", file.stem)).coords.numpy()
    label = np.array([_class_of(f.stem, f) for f in files], np.int64)
    return Clouds(coords, label, [f.stem for f in files])


def _read_pack(path: Path, part: str, points: int) -> Clouds:
    if part == "test":
        raise FileNotFoundError(f"ModelNet40: {path} has only training shapes. Test with a release.")
    try:
        pack = arrays_of(Limits(path))
        packed, label = pack["packed"], pack["label"].astype(np.int64)
        scale, names = np.float32(pack["scale"]), [name.decode() for name in pack["class_names"]]
        triples = packed.reshape(len(label), -1, 3).astype(np.uint16)  # two numbers of 12 bits in three bytes
    except FormatError:
        raise
    except Exception as error:  # arrays of other types and shapes
        raise FormatError(path, f"not a whole pack of ModelNet40: {error}") from None
    if triples.shape[1] * 2 < points * 3 or names != list(CLASS_NAMES):
        raise FormatError(path, f"holds {triples.shape[1] * 2 // 3} points of each shape, not {points}. Ask for fewer.")
    triples = triples[:, : -(-points * 3 // 2)]
    values = np.empty((len(label), 2 * triples.shape[1]), np.uint16)
    values[:, 0::2] = triples[..., 0] | ((triples[..., 1] & 15) << 8)
    values[:, 1::2] = (triples[..., 1] >> 4) | (triples[..., 2] << 4)
    coords = (values[:, : points * 3].reshape(-1, points, 3).astype(np.float32) / 4095 * 2 - 1) * scale
    number = np.arange(len(label)) - np.searchsorted(label, label) + 1
    return Clouds(coords, label, [f"{names[k]}_{n:04d}" for k, n in zip(label, number, strict=True)])


def _class_of(name: str, where: Path) -> int:
    label = name.rpartition("_")[0]
    if label not in CLASS_NAMES:
        raise FormatError(where, f"{name!r} belongs to no class of ModelNet40")
    return CLASS_NAMES.index(label)
