"""Event data sets, read from the folders that their official archives unpack to.

Each is a map-style data set of (`Events`, class number). `split` is one of

- `"train"` and `"test"`: the official parts; where there are none, the shipped lists (`gridless.data.splits`);
- `"fit"` and `"validation"`: the training part divided nine to one (N-Cars: four to one, by drives), for choosing
  without looking at the test part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from gridless.data import splits
from gridless.data.archives import Archive, read_archives
from gridless.data.base import Examples, Steps
from gridless.data.readers.events import read_events
from gridless.kernels.threads import in_threads
from gridless.structures import Events, collate

# Recordings that one thread reads at a time.
CHUNK = 64


class EventSet(Examples):
    """The base of the data sets of recordings. Subclasses say where the recordings of a split are.

    Args:
        root: the folder that the archive was unpacked to.
        split: "train", "test", "fit" or "validation", see above.
        transform, seed: those of `Examples`.
        repair: what to do with faults in files, as of `gl.read_events`.
        partial: allow files to be missing.
    """

    title: ClassVar[str]
    home: ClassVar[str]
    sensor: ClassVar[tuple[int, int]]
    class_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Steps = (),
        seed: int | None = None,
        repair: str | Sequence[str] = (),
        partial: bool = False,
    ) -> None:
        super().__init__(transform, seed)
        self.root, self.split, self.repair, self.partial = Path(root), splits.check(split), repair, partial
        self.pack: Archive | None = None
        self.files: list[Path] = []
        self.rows = np.empty(0, np.int64)
        self.labels = torch.empty(0, dtype=torch.int64, device="cpu")
        if not self.root.exists():
            raise FileNotFoundError(f"{self.title}: there is no {self.root}. Download it from {self.home}.")
        self._find()

    def _find(self) -> None:
        """Set either `files` or `pack` and `rows`, and `labels`."""
        raise NotImplementedError

    def example(self, i: int) -> Events:
        """Recording i as it was recorded."""
        if self.pack is not None:
            return self.pack.events(self.rows[i : i + 1])
        return read_events(self.files[i], sensor=self.sensor, repair=self.repair)

    def batch(self, indices: Sequence[int] | np.ndarray) -> Events:
        """Several recordings as they were recorded, as one ragged batch."""
        if self.pack is not None:
            return self.pack.events(self.rows[np.asarray(indices, np.int64)])
        return collate([self.example(int(i)) for i in indices])

    def whole(self) -> Events:
        """All recordings as they were recorded, as one ragged batch; files are read in several threads."""
        rows = np.arange(len(self))
        if self.pack is not None or len(self) <= CHUNK:
            return self.batch(rows)
        return collate(in_threads(self.batch, [(part,) for part in np.array_split(rows, -(-len(self) // CHUNK))]))

    # For subclasses.

    def _folder(self, child: str) -> Path:
        """The folder that has the folder `child`: the root, or one at most two levels below."""
        levels: list[list[Path]] = [[self.root]] + [sorted(self.root.glob(p)) for p in ("*", "*/*")]
        for folder in (f for level in levels for f in level):
            if (folder / child).is_dir():
                return folder
        raise FileNotFoundError(
            f"{self.title}: {self.root} has no folder {child}. Unpack the archive from {self.home} there."
        )

    def _take_files(self, wanted: Iterable[tuple[Path, int]], expected: int | None = None) -> None:
        """Keep the files that are there; unless `partial`, refuse if any is not."""
        pairs = list(wanted)
        there: dict[Path, set[str]] = {}
        for folder in {path.parent for path, _ in pairs}:
            there[folder] = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
        present = [(path, label) for path, label in pairs if path.name in there[path.parent]]
        missing = next((path for path, _ in pairs if path.name not in there[path.parent]), None)
        total = len(pairs) if expected is None else expected
        if not self.partial and len(present) != total:
            first = "" if missing is None else f", the first is {missing}"
            raise FileNotFoundError(
                f"{self.title}: {len(present)} of the {total} recordings of {self.split!r} are in {self.root}{first}. "
                f"Download it again from {self.home}, or pass partial=True."
            )
        self.files = [path for path, _ in present]
        self.labels = torch.tensor([label for _, label in present], dtype=torch.int64, device="cpu")

    def _keep_part(self, held_out: np.ndarray) -> None:
        """Of the training files (N), keep those of the split: those held out (N) bool, or the others."""
        rows = np.flatnonzero(held_out == (self.split == "validation"))
        self.files, self.labels = [self.files[i] for i in rows], self.labels[torch.from_numpy(rows)]

    def _packs(self, pattern: str) -> list[Path]:
        """Packs of recordings, where the root is one or holds some."""
        if self.root.is_file():
            return [self.root]
        return sorted(self.root.glob(pattern))

    def _take_pack(self, paths: list[Path], validation: Callable[[Archive], np.ndarray]) -> None:
        if self.split == "test":
            raise FileNotFoundError(f"{self.title}: the packs in {self.root} have no test recordings")
        self.pack = read_archives(paths)
        self.rows = np.arange(len(self.pack))
        if self.split != "train":
            self.rows = np.flatnonzero(validation(self.pack) == (self.split == "validation"))
        self.labels = torch.from_numpy(self.pack.label[self.rows])


class ListedSet(EventSet):
    """A data set without an official split: the shipped list names its recordings, by class and number."""

    name: ClassVar[str]
    file: ClassVar[str]  # of a recording, below the folder that holds the first class

    def _find(self) -> None:
        labels = {label: i for i, label in enumerate(self.class_names)}
        sample = Path(self._file(self.class_names[0], 1)).parts[0]
        folder = self._folder(sample)
        wanted = splits.members(self.name, self.split)
        self._take_files((folder / self._file(label, number), labels[label]) for label, number in wanted)

    def _file(self, label: str, number: int) -> str:
        return self.file.format(label=label, number=number)


class NMNIST(EventSet):
    """N-MNIST: 60,000 and 10,000 recordings of digits, 34 x 34; `Train/5/00001.bin`. CC BY-SA 4.0.

    `"validation"` is a tenth of the training part, chosen by the hash of the number. Also reads a pack of training
    recordings, `nmnist_*train.npz.xz`, in the order of their numbers from 1 on. The arguments are those of `EventSet`.
    """

    title, sensor = "N-MNIST", (34, 34)
    home = "https://www.garrickorchard.com/datasets/n-mnist"
    class_names = tuple("0123456789")
    sizes: ClassVar[dict[str, int]] = {"train": 60_000, "test": 10_000}

    def _find(self) -> None:
        packs = self._packs("nmnist_*train.npz.xz")
        if packs:
            return self._take_pack(packs, lambda p: np.array([self._held_out(i + 1) for i in range(len(p))], bool))
        name = "Test" if self.split == "test" else "Train"
        folder = self._folder(name) / name
        labelled = [(path, int(label)) for label in self.class_names for path in sorted((folder / label).glob("*.bin"))]
        self._take_files(labelled, self.sizes["test" if self.split == "test" else "train"])
        if self.split in ("fit", "validation"):
            self._keep_part(np.array([self._held_out(int(path.stem)) for path in self.files], bool))
        return None

    @staticmethod
    def _held_out(number: int) -> bool:
        return splits.chosen("n_mnist", f"{number:05d}")


class NCars(EventSet):
    """N-Cars: 15,422 and 8,607 recordings of cars and of background, 100 ms each, 120 x 100. For research.

    `n-cars_train/cars/obj_004396_td.dat` (also `train/cars/...`). `"validation"` is one `fold` of five of the training
    part, a contiguous range of file numbers of each class: recordings with neighbouring numbers are cut from the same
    drive, and those of other drives are what a network must know. The test part comes before fold 0. Also reads packs
    of training recordings, `ncars_train_*.npz.xz`; their file numbers are in `ncars_train_file_numbers.npz`. The other
    arguments are those of `EventSet`.
    """

    title, sensor = "N-Cars", (120, 100)
    home = "https://www.prophesee.ai/2018/03/13/dataset-n-cars/"
    class_names = ("background", "cars")
    sizes: ClassVar[dict[str, int]] = {"train": 15_422, "test": 8_607}
    folds: ClassVar[int] = 5

    def __init__(
        self, root: str | Path, split: str = "train", fold: int = 0, transform: Steps = (),
        seed: int | None = None, repair: str | Sequence[str] = (), partial: bool = False,
    ) -> None:  # fmt: skip
        if fold not in range(self.folds):
            raise ValueError(f"N-Cars: fold must be 0 to {self.folds - 1}, not {fold!r}")
        self.fold = fold
        super().__init__(root, split, transform, seed, repair, partial)

    def _find(self) -> None:
        packs = self._packs("ncars_train_[0-9]*.npz.xz")
        if packs:
            return self._take_pack(packs, lambda pack: self._folds(self._numbers(packs), pack.label) == self.fold)
        part = "test" if self.split == "test" else "train"
        folder = self._part(part)
        labelled = [
            (path, label)
            for label, name in enumerate(self.class_names)
            for path in sorted((folder / name).glob("*_td.dat"))
        ]
        self._take_files(labelled, self.sizes[part])
        if self.split in ("fit", "validation"):
            self._keep_part(self.fold_of_each() == self.fold)
        return None

    def fold_of_each(self) -> np.ndarray:
        """The fold (N) of each recording of the training part."""
        if self.pack is None:
            numbers = np.array([int(path.name.split("_")[1]) for path in self.files])
        else:
            numbers = self._numbers(self._packs("ncars_train_[0-9]*.npz.xz"))[self.rows]
        return self._folds(numbers, self.labels.numpy())

    def _part(self, part: str) -> Path:
        for child in (f"n-cars_{part}/cars", f"n-cars_{part}/{part}/cars", f"{part}/cars"):
            try:
                return (self._folder(child) / child).parent
            except FileNotFoundError:
                continue
        return self._folder(f"n-cars_{part}/cars")

    def _folds(self, numbers: np.ndarray, labels: np.ndarray) -> np.ndarray:
        if len(numbers) != len(labels):
            raise ValueError(f"N-Cars: there are {len(numbers)} file numbers for {len(labels)} recordings")
        out = np.empty(len(numbers), np.int64)
        for label, name in enumerate(self.class_names):
            out[labels == label] = splits.range_of("n_cars", name, numbers[labels == label])
        return out

    @staticmethod
    def _numbers(packs: list[Path]) -> np.ndarray:
        """The number of the file that each recording of the packs was read from."""
        path = packs[0].parent / "ncars_train_file_numbers.npz"
        if not path.is_file():
            raise FileNotFoundError(f"N-Cars: {path} is missing. It tells which recordings are from the same drive.")
        names = [f"pack_{pack.name.split('.')[0].rpartition('_')[2]}" for pack in packs]
        with np.load(path, allow_pickle=False) as arrays:
            return np.concatenate([arrays[name] for name in names if name in arrays] or [np.empty(0, np.int32)])


class MNISTDVS(ListedSet):
    """MNIST-DVS at one scale (4, 8 or 16): 10,000 recordings, 128 x 128.

    `grabbed_data0/scale16/mnist_0_scale16_0001.aedat`. A tenth is for testing, the same recordings at every scale.
    The other arguments are those of `EventSet`.
    """

    name, title, sensor = "mnist_dvs", "MNIST-DVS", (128, 128)
    home = "http://www2.imse-cnm.csic.es/caviar/MNISTDVS.html"
    class_names = tuple("0123456789")

    def __init__(
        self, root: str | Path, split: str = "train", scale: int = 16, transform: Steps = (),
        seed: int | None = None, repair: str | Sequence[str] = (), partial: bool = False,
    ) -> None:  # fmt: skip
        if scale not in (4, 8, 16):
            raise ValueError(f"MNIST-DVS: scale must be 4, 8 or 16, not {scale}")
        self.scale = scale
        super().__init__(root, split, transform, seed, repair, partial)

    def _file(self, label: str, number: int) -> str:
        return f"grabbed_data{label}/scale{self.scale}/mnist_{label}_scale{self.scale:02d}_{number:04d}.aedat"


class CIFAR10DVS(ListedSet):
    """CIFAR10-DVS: 10,000 recordings, 128 x 128; `airplane/cifar10_airplane_0.aedat`. A tenth is for testing.

    Pixels and polarity are as stored, as the paper used them: mirrored, ON and OFF exchanged, against what jAER shows.
    The arguments are those of `EventSet`.
    """

    name, title, sensor = "cifar10_dvs", "CIFAR10-DVS", (128, 128)
    home = "https://figshare.com/articles/dataset/CIFAR10-DVS_New/4724671/2"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    file = "{label}/cifar10_{label}_{number}.aedat"


class NCaltech101(ListedSet):
    """N-Caltech101: 8,709 recordings of 101 classes (background among them), 234 x 174. CC BY 4.0.

    `Caltech101/accordion/image_0001.bin`. A tenth of each class is for testing. The arguments are those of `EventSet`.
    """

    name, title, sensor = "n_caltech101", "N-Caltech101", (234, 174)
    home = "https://www.garrickorchard.com/datasets/n-caltech101"
    file = "{label}/image_{number:04d}.bin"
    class_names = tuple(splits.load("n_caltech101"))


class ASLDVS(ListedSet):
    """ASL-DVS: 24 letters (no j, no z) signed 4,200 times each, 240 x 180; `a/a_0001.mat`. A fifth is for testing.

    The arguments are those of `EventSet`.
    """

    name, title, sensor = "asl_dvs", "ASL-DVS", (240, 180)
    home = "https://github.com/PIX2NVS/NVS2Graph"
    class_names = tuple("abcdefghiklmnopqrstuvwxy")
    file = "{label}/{label}_{number:04d}.mat"
