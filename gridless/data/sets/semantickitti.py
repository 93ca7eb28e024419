"""SemanticKITTI: scans of a car's LiDAR, every point of a class. CC BY-NC-SA: not for commercial use.

Read are the official folders, `sequences/00/velodyne/000000.bin` with `labels/`, `poses.txt` and `calib.txt`, and a
pack of 22 scans, `semantickitti_22_scans.npz`: numbers 0 and 9 of the sequences 00 to 10, to within 5 mm. Metres; z
points up.
"""

from __future__ import annotations

import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gridless.data import splits
from gridless.data.base import Examples, Steps
from gridless.data.errors import FormatError
from gridless.data.prepare import check_length, is_finite
from gridless.data.readers.clouds import read_cloud
from gridless.data.readers.clouds.lidar import label_files
from gridless.geometry import grid_sample
from gridless.structures import Cloud, Rows

HOME = "http://www.semantic-kitti.org"
# The official learning map: each class, and what it is called in the files, moving things with the still ones.
CLASSES: dict[str, tuple[int, ...]] = {
    "car": (10, 252), "bicycle": (11,), "motorcycle": (15,), "truck": (18, 258),
    "other-vehicle": (13, 16, 20, 256, 257, 259), "person": (30, 254), "bicyclist": (31, 253),
    "motorcyclist": (32, 255), "road": (40, 60), "parking": (44,), "sidewalk": (48,), "other-ground": (49,),
    "building": (50,), "fence": (51,),
    "vegetation": (70,), "trunk": (71,), "terrain": (72,), "pole": (80,), "traffic-sign": (81,),
}  # fmt: skip
IGNORED = (0, 1, 52, 99)
# The sequences of each split: 08 is the official validation sequence; labels of 11 to 21 are not published.
SEQUENCES = {
    "train": tuple(range(11)),
    "fit": (*range(8), 9, 10),
    "validation": (8,),
    "test": tuple(range(11, 22)),
}
# The pack has two scans of each sequence: two sequences are held out.
PACK = "semantickitti_22_scans.npz"
PACK_VALIDATION = (8, 10)
_NUMBERS = np.full(1 << 16, -2, np.int64)
for _number, _raw in enumerate(CLASSES.values()):
    _NUMBERS[list(_raw)] = _number
_NUMBERS[list(IGNORED)] = -1


class SemanticKITTI(Examples):
    """A map-style data set of (`Cloud` with rows, sequence), or of what `transform` makes of the cloud.

    The rows of points: `intensity` (S) float32; `label` (S) int64, 0 to 18, and -1 for what is not judged (all of
    them where there are no labels, and those of returns without a place, NaN, which no cell of a grid holds);
    `instance` (S) int64 in the official folders; with several scans `age` (S) int64, how many scans ago a point was
    seen.

    Args:
        root: the folder of the release, or the pack.
        split: "fit" and "validation", the official sequences for training and validation; "train", both; or
            "test". The pack's validation sequences are 08 and 10.
        grid: keep one point in each cell of this size, in metres.
        scans: so many consecutive scans as one, in the place of the last, aligned by the official poses.
        transform, seed: those of `Examples`.
    """

    class_names = tuple(CLASSES)

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        grid: float | None = None,
        scans: int = 1,
        transform: Steps = (),
        seed: int | None = None,
    ) -> None:
        if scans < 1:
            raise ValueError(f"SemanticKITTI: scans must be at least 1, not {scans}")
        check_length("SemanticKITTI: grid", grid)
        super().__init__(transform, seed)
        self.split, self.grid, self.scans = splits.check(split), grid, scans
        root = Path(root)
        if not root.exists():
            raise FileNotFoundError(f"SemanticKITTI: there is no {root}. Download the release from {HOME}.")
        self._pack: list[Cloud] = []
        self.files: list[tuple[int, Path]] = []
        if root.is_file() or (root / PACK).is_file():
            if scans > 1 or split == "test":
                raise ValueError(
                    f"SemanticKITTI: {root} has only single scans with labels. Use the release for others."
                )
            self._pack, sequences = _read_pack(root if root.is_file() else root / PACK, split)
        else:
            self.files = _listed(root, split)
            sequences = [number for number, _ in self.files]
        self.labels = torch.tensor(sequences, device="cpu")

    def check_labels(self) -> None:
        """Refuse scans without a file of labels."""
        missing = [file for _, file in self.files if not any(path.is_file() for path in label_files(file))]
        if missing:
            raise FileNotFoundError(
                f"SemanticKITTI: {len(missing)} of the {len(self.files)} scans of {self.split!r} have no labels, the "
                f"first misses {label_files(missing[0])[1]}. Unpack data_odometry_labels.zip ({HOME}) there."
            )

    def example(self, i: int) -> Cloud:
        cloud = self._pack[i] if self._pack else self._aligned(i)
        if self.grid is None:
            return cloud
        rows = is_finite(cloud).nonzero()[:, 0]
        sample = grid_sample(cloud[rows], self.grid)
        return sample._changed(parent_index=rows[sample.parent_index], num_parent=len(cloud))

    def _aligned(self, i: int) -> Cloud:
        """Scan i, and those before it in the same sequence, as seen from where scan i was made."""
        number, last = self.files[i]
        several = [file for n, file in self.files[max(0, i + 1 - self.scans) : i + 1] if n == number]
        if self.scans == 1:
            return _scan(last)
        poses = _poses(last.parent.parent)
        here, clouds = np.linalg.inv(_pose(poses, last)), []
        for age, file in enumerate(reversed(several)):
            cloud, there = _scan(file), here @ _pose(poses, file)
            coords = cloud.coords.double() @ torch.from_numpy(there[:3, :3].T) + torch.from_numpy(there[:3, 3])
            rows: dict[str, Any] = {**cloud.rows, "age": torch.full((len(cloud),), age, device=cloud.device)}
            clouds.append(Cloud.of(coords.float(), **rows))
        joined: dict[str, Any] = dict(Rows.joined([cloud.rows for cloud in clouds], "SemanticKITTI"))
        return Cloud.of(torch.cat([cloud.coords for cloud in clouds]), **joined)


def numbers_of(raw: np.ndarray, path: Path) -> np.ndarray:
    """Classes 0 to 18 from the labels of the files, and -1 for what is not judged."""
    numbers = _NUMBERS[raw.astype(np.int64) & 0xFFFF]
    if (numbers == -2).any():
        raise FormatError(path, f"has the label {int(raw[numbers == -2][0])}, which is not one of SemanticKITTI")
    return numbers


def _listed(root: Path, split: str) -> list[tuple[int, Path]]:
    folder = next((f for f in (root / "sequences", root / "dataset" / "sequences", root) if (f / "00").is_dir()), None)
    folder = folder or next((f for f in (root / "sequences", root) if any(f.glob("[0-9][0-9]/velodyne"))), None)
    if folder is None:
        raise FileNotFoundError(
            f"SemanticKITTI: {root} holds no release: no sequences/00/velodyne/000000.bin or {PACK}. Download it from "
            f"{HOME}."
        )
    scans = [(n, file) for n in SEQUENCES[split] for file in sorted((folder / f"{n:02d}" / "velodyne").glob("*.bin"))]
    listed = [(n, file) for n, file in scans if not file.name.startswith(".")]
    if not listed:
        names = ", ".join(f"{n:02d}" for n in SEQUENCES[split])
        raise FileNotFoundError(f"SemanticKITTI: {folder} has no scans of the sequences for {split!r}: {names}")
    return listed


def _scan(file: Path) -> Cloud:
    cloud = read_cloud(file)
    rows: dict[str, Any] = dict(cloud.rows)
    raw = rows.pop("label", None)
    label = torch.full((len(cloud),), -1) if raw is None else torch.from_numpy(numbers_of(raw.numpy(), file))
    return Cloud.of(cloud.coords, **rows, label=label.where(is_finite(cloud), -1))


def _poses(folder: Path) -> np.ndarray:
    """The poses of the scanner (N, 4, 4) float64, in the frame of the first scan."""
    for name, origin in (("calib.txt", "KITTI's data_odometry_calib.zip"), ("poses.txt", "data_odometry_labels.zip")):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"SemanticKITTI: several scans as one need poses, but there is no {folder / name}. Get it from "
                f"{origin} ({HOME}), or use scans=1."
            )
    try:
        lines = dict(
            line.split(":", 1) for line in (folder / "calib.txt").read_text("utf-8").split("\n") if ":" in line
        )
        to_camera = _matrices(np.array([lines["Tr"].split()], np.float64))[0]
        camera = _matrices(np.loadtxt(folder / "poses.txt", np.float64, ndmin=2))
    except (KeyError, ValueError, UnicodeDecodeError) as error:
        raise FormatError(folder / "poses.txt", f"poses or calibration cannot be read: {error}") from None
    return np.linalg.inv(to_camera) @ camera @ to_camera


def _matrices(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows.reshape(-1, 3, 4), np.tile([[[0.0, 0, 0, 1]]], (len(rows), 1, 1))], 1)


def _pose(poses: np.ndarray, file: Path) -> np.ndarray:
    number = int(file.stem) if file.stem.isdigit() else -1
    if not 0 <= number < len(poses):
        raise FormatError(file, f"has no pose: poses.txt has {len(poses)} lines")
    return poses[number]


def _read_pack(path: Path, split: str) -> tuple[list[Cloud], list[int]]:
    try:
        with np.load(path, allow_pickle=False) as pack:
            planes, intensity, label = (lzma.decompress(pack[n].tobytes()) for n in ("planes", "intensity", "label"))
            ends = pack["offsets"].astype(np.int64).tolist()
        steps = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(6, -1).T).view("<i2")
        coords = np.cumsum(steps.astype(np.int32), 0).astype(np.float32) / 100
        bright, raw = np.frombuffer(intensity, np.uint8).astype(np.float32) / 255, np.frombuffer(label, "<u2")
        if len(ends) != 23 or not ends[-1] == len(coords) == len(bright) == len(raw) or (np.diff(ends) < 0).any():
            raise ValueError("its scans do not fit its points")
    except Exception as error:  # of a damaged archive, or of arrays of other types and shapes
        raise FormatError(path, f"not a complete pack of SemanticKITTI: {error}") from None
    classes, clouds, sequences = numbers_of(raw, path), [], []
    for i, (a, b) in enumerate(pairwise(ends)):
        number = i // 2
        if split == "train" or (number in PACK_VALIDATION) == (split == "validation"):
            clouds.append(Cloud.of(coords[a:b], intensity=bright[a:b], label=classes[a:b]))
            sequences.append(number)
    return clouds, sequences
