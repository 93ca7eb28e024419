"""A scene: points of files, of a folder of them, or of an array, read piece by piece and never held as a whole."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gridless.data.files import FileState, state_of, whole_file
from gridless.data.readers.clouds import IN_PARTS, NOTES, READERS, read_parts
from gridless.data.readers.clouds.base import Parts, Points, in_parts
from gridless.kernels.memory import trim
from gridless.kernels.threads import num_threads
from gridless.structures import Cloud
from gridless.structures.interchange import plain_type

# A tenth of a millimetre in metres. A power of two: float32 holds multiples of it, and their differences, exactly.
RESOLUTION = 2.0**-13
# Points of pieces that are kept in memory, because the next tile may want them, too.
_KEPT = 1 << 21
# Points that are sorted at a time where the pieces of a file are not compact.
_RUN = 1 << 22
# Cells from the origin that can be counted in 64 bits, with the differences of two.
_FARTHEST = 2.0**61


class SceneFile(NamedTuple):
    """A source of a scene: a file in its state, or an array or reader, without one."""

    name: str
    parts: Parts
    state: FileState | None


class ScenePoints(NamedTuple):
    """Points of a scene: coordinates (S, D) float64, their rows in the scene (S) int64, and rows by name."""

    coords: np.ndarray
    index: np.ndarray
    rows: dict[str, np.ndarray]


class Scene:
    """Points that are read piece by piece. The first pass finds where each piece is.

    Coordinates of float64, such as those of LAS, are rounded to multiples of `RESOLUTION`, so that a tile can hold them
    as float32 around its own middle, and no distance depends on where that is. Those of float32 stay as they are.

    Args:
        source: a file, a folder of files, an array or tensor (S, D), a `Cloud` of one example, or `Parts`, a reader of
            your own.
        rows: the names of the rows that are wanted; all by default.
        gaps: leave out points whose coordinates are not finite, which are refused otherwise.
    """

    def __init__(self, source: Any, rows: list[str] | None = None, gaps: bool = False) -> None:
        self.resolution, self.wanted, self.gaps = RESOLUTION, rows, gaps
        self.files = list(_files(source))
        where = [(f, k, size) for f, file in enumerate(self.files) for k, size in enumerate(file.parts.sizes) if size]
        self._where = [(f, k) for f, k, _ in where]
        self.sizes = np.array([size for *_, size in where], np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.sizes)])
        self.count = int(self.first[-1])
        self.low = self.high = np.empty((0, 0))
        self.dtype = np.dtype(np.float64)
        self._cache: OrderedDict[int, ScenePoints] = OrderedDict()
        self._lock = threading.Lock()
        self._sorted: _Sorted | None = None
        kinds = []
        # By the name of the file, the rows that it has, in its own types.
        self.layouts: dict[str, dict[str, np.dtype]] = {}
        for k, (f, part) in enumerate(self._where):
            if part == 0:
                points, name = self.read(k), self.files[f].name
                kinds.append(points.dtype)
                self.dim = points.coords.shape[1] if len(kinds) == 1 else self.dim
                if points.coords.shape[1] != self.dim:
                    raise ValueError(f"{name} has {points.coords.shape[1]} coordinates, the other files {self.dim}")
                self.layouts[name] = {n: np.dtype((row.dtype, row.shape[1:])) for n, row in points.rows.items()}
        if kinds:
            self.dtype = np.result_type(*kinds)
        # The rows that are wanted, in types that hold what every file has, and that torch knows.
        self.rows = {name: self._type(name) for name in self._chosen()}

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        """Names a point by its place in its file."""
        k = int(np.searchsorted(self.first, index, side="right")) - 1
        f = self._where[k][0]
        start = self.first[self._where.index((f, 0))]
        return f"point {index - start} of {self.files[f].name}"

    def read(self, k: int) -> Points:
        """Piece k of the files, as it is there."""
        f, part = self._where[k]
        return self.files[f].parts.read(part)

    def _chosen(self) -> list[str]:
        """The names of the rows that are wanted, which every file must have; all, where it is not said which."""
        first, *others = self.layouts.items() or [("", {})]
        for name, layout in others if self.wanted is None else ():
            odd = sorted(layout.keys() ^ first[1].keys())
            if odd:
                raise ValueError(
                    f"only one of {name} and {first[0]} has the rows {odd[0]!r}. Choose rows with rows=[...]."
                )
        for name, layout in self.layouts.items():
            for row in self.wanted or ():
                if row not in layout:
                    raise ValueError(f"{name} has no rows {row!r}, only {', '.join(layout) or 'none'}")
        return list(first[1]) if self.wanted is None else self.wanted if self.layouts else []

    def _type(self, row: str) -> np.dtype:
        kinds = {layout[row]: name for name, layout in self.layouts.items()}
        shapes = {kind.shape: name for kind, name in kinds.items()}
        if len(shapes) > 1:
            (one, first), (two, second) = list(shapes.items())[:2]
            raise ValueError(
                f"the rows {row!r} have the shape (points, {', '.join(map(str, one))}) in {first} and (points, "
                f"{', '.join(map(str, two))}) in {second}. Choose rows with rows=[...]."
            )
        return np.dtype((np.result_type(*(plain_type(kind.base) for kind in kinds)), *shapes))

    def identity(self, *settings: Any) -> str:
        """A word for these points and settings, which is another one where a file or a number is."""
        about = [
            self.resolution,
            self.dtype,
            self.rows,
            self.gaps,
            settings,
            [(file.name, file.state) for file in self.files],
        ]
        code = hashlib.sha256(repr(about).encode())
        for k, (f, _) in enumerate(self._where):
            if self.files[f].state is None:
                points = self.read(k)
                for array in (points.coords, *points.rows.values()):
                    code.update(np.ascontiguousarray(array).data)
        return code.hexdigest()[:16]

    def piece(self, k: int) -> ScenePoints:
        """Piece k, in its place."""
        with self._lock:
            if k in self._cache:
                self._cache.move_to_end(k)
                return self._cache[k]
        if self._sorted is not None:
            piece = self._sorted.piece(k)
        else:
            points = self.read(k)
            piece = ScenePoints(self.placed(points.coords), np.arange(*self.first[k : k + 2]), self._rows(k, points))
            if self.gaps and not np.isfinite(piece.coords).all():
                piece = taken(piece, np.flatnonzero(np.isfinite(piece.coords).all(1)))
        with self._lock:
            self._cache[k] = piece
            while len(self._cache) > 1 and sum(len(piece.index) for piece in self._cache.values()) > _KEPT:
                self._cache.popitem(last=False)
        return piece

    def _rows(self, k: int, points: Points) -> dict[str, np.ndarray]:
        missing = [name for name in self.rows if name not in points.rows]
        if missing:
            name, known = self.files[self._where[k][0]].name, ", ".join(points.rows) or "none"
            raise ValueError(f"{name} has no rows {missing[0]!r} in piece {k}, only {known}")
        return {name: np.array(points.rows[name], kind.base, order="C") for name, kind in self.rows.items()}

    def placed(self, coords: np.ndarray) -> np.ndarray:
        """Coordinates as every tile sees them, in float64."""
        # Readers of text have more digits than what is then float32.
        placed = coords.astype(self.dtype, copy=False).astype(np.float64)
        if self.dtype != np.float32:
            placed /= self.resolution
            np.round(placed, out=placed)
            placed *= self.resolution
        # -0 becomes 0: equal places have equal bits.
        placed += 0.0
        return placed

    def scan(self, cell: float, known: Path | None = None, finite: Sequence[str] = ()) -> np.ndarray:
        """Find the box of each piece, and count the points in cells of a grid over the first two axes: (K, 3) int64,
        the two indices of each occupied cell and its number of points.

        The file `known` caches the result for the same files. Points with non-finite coordinates or rows `finite` are
        refused.
        """
        about = "" if known is None else self.identity(cell, *finite)
        if known is not None and known.exists():
            with np.load(known, allow_pickle=False) as record:
                if str(record["about"]) == about:
                    self.low, self.high = record["low"], record["high"]
                    return record["counts"]
        # Pieces are small, but those of some formats are whole files, of which few are in memory at a time.
        threads = min(num_threads(), max(1, _KEPT // int(self.sizes.max())))
        with ThreadPoolExecutor(threads, thread_name_prefix="gridless-scan") as pool:
            looks = list(pool.map(lambda k: self._look(k, cell, finite), range(len(self.sizes))))
        if self.count > _KEPT:
            # The last pieces are not those that tiles begin with.
            self._cache.clear()
        trim()
        self.low, self.high = (np.array([look[end] for look in looks]) for end in (0, 1))
        counts = added(np.concatenate([cells for *_, cells in looks]))
        if known is not None:
            with whole_file(known) as file:
                np.savez(file, low=self.low, high=self.high, counts=counts, about=about)
        return counts

    def _look(self, k: int, cell: float, finite: Sequence[str]) -> tuple[list[float], list[float], np.ndarray]:
        """The box of piece k, and the number of its points in each cell."""
        piece = self.piece(k)
        if not len(piece.index):
            return [np.inf] * self.dim, [-np.inf] * self.dim, np.empty((0, 3), np.int64)
        for name in finite:
            bad = np.argwhere(~np.isfinite(piece.rows[name]))
            if len(bad):
                first = self.name(int(piece.index[bad[0, 0]]))
                raise ValueError(f"{first}: {name!r} is not finite. Remove such points, or replace the values.")
        # Column by column: NumPy is slow along short axes.
        low, high = [x.min() for x in piece.coords.T], [x.max() for x in piece.coords.T]
        if not np.isfinite([low, high]).all():
            bad = np.flatnonzero(~np.isfinite(piece.coords).all(1))
            first, many = self.name(int(piece.index[bad[0]])), len(bad)
            raise ValueError(f"{first} is not finite{f', nor are {many - 1} others' * (many > 1)}. Remove such points.")
        far = np.abs(piece.coords[:, :2]).max(1)
        if far.max() / cell > _FARTHEST:
            first, at = self.name(int(piece.index[far.argmax()])), piece.coords[far.argmax()].tolist()
            raise ValueError(
                f"{first} is at {', '.join(f'{x:g}' for x in at)}, too far out for tiles. Remove such points."
            )
        cells = cells_of(piece.coords, cell)
        (i0, wide), (j0, tall) = ((int(x.min()), int(np.ptp(x)) + 1) for x in cells.T)
        # As one number each, which is quicker to count; Python's, that grow as they must.
        if wide * tall < 1 << 62:
            code, totals = np.unique((cells[:, 0] - i0) * tall + (cells[:, 1] - j0), return_counts=True)
            occupied = np.stack([i0 + code // tall, j0 + code % tall], 1)
        else:
            occupied, totals = np.unique(cells, axis=0, return_counts=True)
        return low, high, np.column_stack([occupied, totals])

    def within(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The pieces that may have points in a box over the first axes."""
        axes = len(low)
        return np.flatnonzero((self.low[:, :axes] <= high).all(1) & (self.high[:, :axes] >= low).all(1))

    def window(self, low: np.ndarray, high: np.ndarray) -> ScenePoints:
        """All points in a box over the first axes, its ends included, in the order of the scene's index."""
        axes, parts = len(low), []
        for k in self.within(low, high):
            piece = self.piece(int(k))
            mine = np.ones(len(piece.index), np.bool_)
            for x, first, last in zip(piece.coords.T[:axes], low, high, strict=True):
                mine &= (x >= first) & (x <= last)
            if mine.any():
                parts.append(taken(piece, np.flatnonzero(mine)))
        if not parts:
            return ScenePoints(np.empty((0, self.dim)), np.empty(0, np.int64), {})
        whole = _joined(parts)
        if self._sorted is None:
            return whole
        return taken(whole, whole.index.argsort(kind="stable"))

    def sort(self, cell: float, folder: str | Path | None = None) -> None:
        """Copy the points into a file of compact pieces: for scenes whose own pieces are spread all over.

        Without a folder it is a temporary one; in a folder the copy stays, and is found again for the same files.
        """
        if self._sorted is None:
            self._sorted = _Sorted(self, cell, folder)
            self._cache.clear()
            self.low, self.high = self._sorted.low, self._sorted.high

    def __getstate__(self) -> dict:
        raise TypeError(
            "a Scene cannot be pickled, because it has open files. Send its source, and open it in the other process."
        )


def added(counts: np.ndarray) -> np.ndarray:
    """Counts (K, 3) of cells in which a cell may come several times, as those in which it comes once, in order."""
    if not len(counts):
        return counts
    counts = counts[np.lexsort((counts[:, 1], counts[:, 0]))]
    first = np.flatnonzero(np.concatenate([[True], (counts[1:, :2] != counts[:-1, :2]).any(1)]))
    return np.column_stack([counts[first, :2], np.add.reduceat(counts[:, 2], first)])


def cells_of(coords: np.ndarray, cell: float) -> np.ndarray:
    """The cell (S, 2) int64 of each point in a grid over the first two axes; a line has one axis, and cells (i, 0)."""
    numbers = np.zeros((len(coords), 2), np.int64)
    for axis in range(min(coords.shape[1], 2)):
        numbers[:, axis] = np.floor(coords[:, axis] / cell)
    return numbers


class _Sorted:
    """The points of a scene in a file: run by run, each sorted along a curve and cut into compact pieces."""

    def __init__(self, scene: Scene, cell: float, folder: str | Path | None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="gridless-") if folder is None else None
        place = Path(folder if self._temporary is None else self._temporary.name)  # type: ignore[arg-type]
        name = "points" if folder is None else f"points-{scene.identity(cell)}"
        self._path, about = place / name, place / f"{name}.npz"
        if not about.exists():
            try:
                with whole_file(self._path) as file:
                    index = self._write(scene, cell, file)
                with whole_file(about) as file:
                    np.savez(file, **index)
            except OSError as error:
                remedy = "Make room." if folder is not None else "Make room, or set TMPDIR to a larger disk."
                raise OSError(
                    error.errno,
                    f"{place} cannot hold a sorted copy of {scene.count} points ({os.strerror(error.errno or 0)}). "
                    f"{remedy}",
                ) from None
        with np.load(about, allow_pickle=False) as record:
            self._ends, self.low, self.high = record["ends"], record["low"], record["high"]
            self._dtype = record["like"].dtype

    @staticmethod
    def _write(scene: Scene, cell: float, file: Any) -> dict[str, Any]:
        ends, low, high = [0], [], []
        table: Any = None
        for run in filter(lambda run: len(run.index), _runs(scene)):
            table = _table(run)[_curve(cells_of(run.coords, cell)).argsort(kind="stable")]
            for part in np.array_split(table, -(-len(table) // (1 << 15))):
                file.write(part.tobytes())
                low.append(part["coords"].min(0))
                high.append(part["coords"].max(0))
                ends.append(ends[-1] + len(part))
        return {"ends": ends, "low": low, "high": high, "like": table[:0]}

    def piece(self, k: int) -> ScenePoints:
        first, last = self._ends[k : k + 2].tolist()
        table: Any = np.fromfile(self._path, self._dtype, last - first, offset=first * self._dtype.itemsize)
        rows = {name[5:]: table[name].copy() for name in self._dtype.names or () if name.startswith("rows.")}
        return ScenePoints(table["coords"].copy(), table["index"].copy(), rows)


def _table(run: ScenePoints) -> np.ndarray:
    """Points as records."""
    fields: list[Any] = [("coords", "f8", run.coords.shape[1:]), ("index", "i8")]
    fields += [(f"rows.{name}", values.dtype, values.shape[1:]) for name, values in run.rows.items()]
    table: Any = np.empty(len(run.index), fields)
    table["coords"], table["index"] = run.coords, run.index
    for name, values in run.rows.items():
        table[f"rows.{name}"] = values
    return table


def _runs(scene: Scene) -> Iterator[ScenePoints]:
    """Pieces joined until they are a run."""
    waiting: list[ScenePoints] = []
    for k in range(len(scene.sizes)):
        waiting.append(scene.piece(k))
        if k + 1 == len(scene.sizes) or sum(len(piece.index) for piece in waiting) >= _RUN:
            yield _joined(waiting)
            waiting = []


def taken(piece: ScenePoints, where: np.ndarray) -> ScenePoints:
    rows = {name: values.take(where, 0) for name, values in piece.rows.items()}
    return ScenePoints(piece.coords.take(where, 0), piece.index.take(where), rows)


def _joined(pieces: list[ScenePoints]) -> ScenePoints:
    first = pieces[0]
    if len(pieces) == 1:
        return first
    rows = {name: np.concatenate([piece.rows[name] for piece in pieces]) for name in first.rows}
    coords, index = np.concatenate([p.coords for p in pieces]), np.concatenate([p.index for p in pieces])
    return ScenePoints(coords, index, rows)


def _curve(cells: np.ndarray) -> np.ndarray:
    """The place of cells (S, 2) along a Morton curve."""
    cells = np.clip(cells - cells.min(0), 0, (1 << 31) - 1).astype(np.uint64)
    for shift, mask in ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F),
                        (2, 0x3333333333333333), (1, 0x5555555555555555)):  # fmt: skip
        cells = (cells | cells << np.uint64(shift)) & np.uint64(mask)
    return cells[:, 0] | cells[:, 1] << np.uint64(1)


def _opened(file: Path, state: FileState | None) -> Parts:
    if state is None or file.suffix.lower() not in IN_PARTS:
        return read_parts(file)
    return _known(file, state)


@lru_cache(64)
def _known(file: Path, state: FileState) -> Parts:
    return read_parts(file)


def _read_unchanged(file: Path, state: FileState | None, k: int) -> Points:
    """Piece k of a file that must be as it was. Looked at before, too: what is mapped may have become shorter."""
    points = _opened(file, state).read(k) if state_of(file) == state else None
    if points is None or state_of(file) != state:
        raise ValueError(f"{file} changed while its points were in use. Start again when it is complete.")
    return points


def files_of(source: Path) -> list[Path]:
    """The file, or those in a folder that hold clouds."""
    if not source.is_dir():
        return [source]
    clouds = (p for p in source.iterdir() if p.suffix.lower() in READERS and p.name.lower() not in NOTES)
    files = sorted(p for p in clouds if p.is_file())
    if not files:
        raise FileNotFoundError(f"{source} has no clouds. There are readers for {', '.join(sorted(READERS))}.")
    return files


def _files(source: Any) -> Iterator[SceneFile]:
    if isinstance(source, str | os.PathLike):
        for file in files_of(Path(source)):
            # Opened again for each piece: of thousands of files few are open at a time, and none is kept in memory.
            state = state_of(file)
            yield SceneFile(str(file), Parts(_opened(file, state).sizes, partial(_read_unchanged, file, state)), state)
        return
    if isinstance(source, Parts):
        yield SceneFile("the scene", source, None)
        return
    cloud = source if isinstance(source, Cloud) else Cloud.of(source)
    if cloud.num_examples != 1 or cloud.padding:
        raise ValueError(f"a scene is one example without padding, not {cloud.num_examples}. Pass x.examples[i].")
    coords, rows = cloud.coords.cpu().numpy(), {name: values.cpu().numpy() for name, values in cloud.rows.items()}
    yield SceneFile("the array", in_parts(Points(coords, rows, coords.dtype)), None)
