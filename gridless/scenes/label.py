"""Label every point of a scene: `gridless predict city.laz --weights W --out labelled.laz`.

Tile after tile, in constant memory. Finished tiles are stored beside the output until it is complete, so a killed run
continues. Labels do not depend on the tiles.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import shutil
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gridless.data.files import full, locked, state_of, whole_file, write_whole
from gridless.data.prepare import Preparation, check_scales, scale, turned
from gridless.data.readers.clouds import las, ply
from gridless.data.readers.clouds.base import Points, Source
from gridless.geometry import nearest
from gridless.kernels.memory import trim
from gridless.kernels.pool import connect, run
from gridless.kernels.progress import bar
from gridless.scenes.scene import Scene, added, files_of
from gridless.scenes.tiling import Key, Tile, Tiles, layers_of
from gridless.structures import Cloud
from gridless.structures.interchange import plain_type
from gridless.tasks.registry import task_of
from gridless.weights import load

# The rows in the scene of some points (S) int64, and their labels (S) int64.
Labels = tuple[np.ndarray, np.ndarray]
# Points of a tile and its halo, about as many as fit in a gigabyte with what a network makes of them.
POINTS = 1 << 19
# Tiles that threads cut while a GPU labels another.
_AHEAD = 4
OUTPUTS = (".las", ".laz", ".ply", ".npy")


class Labeller:
    """The labels of the points inside a tile, by its key: a callable that loads its network once.

    `labeller((i, j))` gives their rows in the scene and their labels. It is also a class for `ray.data`: keys go in as
    columns `i` and `j`, and `index` and `label` come out.

    >>> settings = {"source": "city.laz", "weights": "runs/city/weights", "size": 50.0}
    >>> keys = gl.scenes.Labeller(**settings).tiles.keys          # (i, j) of every tile that has points
    >>> dataset = ray.data.from_items([{"i": i, "j": j} for i, j in keys])
    >>> dataset.map_batches(gl.scenes.Labeller, fn_constructor_kwargs=settings, batch_size=1, concurrency=4)

    Args:
        source: a file or a folder of files, or whatever else `gl.tiles` takes.
        weights: a network, or the name or path of its weights.
        size: the side of a tile.
        grid: the cell of which one point is looked at; every other has the label of the nearest. None: all are.
        how: how the network's points were prepared.
        device: where the network runs.
        folder: of what the first pass finds, which is looked for there, and kept there.
        points: of a tile and its halo at most, where `size` is None, and a power of two times the reach is chosen.
        double: compute in float64. A GPU adds in an order that depends on how many points a tile has: in float32 a few
            labels in a million, whose two best classes tie to within rounding, depend on the tiles.
    """

    def __init__(
        self,
        source: Any,
        weights: Any,
        size: float | None = None,
        grid: float | None = None,
        how: Preparation | None = None,
        device: str = "cpu",
        folder: str | Path | None = None,
        points: int = POINTS,
        double: bool = False,
    ) -> None:
        model: Any = weights if isinstance(weights, torch.nn.Module) else load(weights)
        # The network that was given stays as it is.
        model = copy.deepcopy(model).double() if double else model
        self.double = double
        self.model, self.device, self.how = model.to(device).eval(), torch.device(device), how or Preparation()
        self.layers, self.source, self.grid = layers_of(self.model), str(source), grid
        rows = sorted({name.partition(".")[0] for name in self.how.features})
        scene = Scene(source, rows=rows, gaps=True)
        if not scene.count:
            raise ValueError(f"{source} has no points")
        check_scales({row: {_scale(layout[row]): name for name, layout in scene.layouts.items()} for row in rows})
        if scene.dim != 3:
            raise ValueError(f"{source} has points of {scene.dim} coordinates, but the network needs three")
        # A point takes the label of the nearest sample; that of its own cell is at most a diagonal away.
        self.around = 0.0 if grid is None else grid * 3**0.5
        halo = self.model.plan.reach(self.layers) + self.around + (grid or 0.0)
        place = None if folder is None else Path(folder)
        base = halo if size is None else float(size)
        counts = scene.scan(base, None if place is None else place / "scan.npz", rows)
        if not len(counts):
            raise ValueError(f"{source} has no finite points")
        # Around its middle, with twice the halo, a tile must fit into float32.
        widest = math.inf if scene.dtype == np.float32 else scene.resolution * (1 << 24) / base
        scale = 1 if size is not None else _largest(counts, points, widest)
        counts[:, :2] //= scale
        self.tiles = Tiles(scene, scale * base, halo, grid, place, added(counts))

    def over(
        self, keys: Sequence[Key], ahead: int | None = None
    ) -> Iterator[tuple[Key, tuple[np.ndarray, np.ndarray]]]:
        """Each key with its rows and labels, in order; for a GPU threads cut the next tiles, `ahead` of them."""
        ahead = _AHEAD * (self.device.type != "cpu") if ahead is None else ahead
        with ThreadPoolExecutor(max(ahead, 1), thread_name_prefix="gridless-tiles") as pool:
            waiting: deque[Future[Tile]] = deque()
            for n, key in enumerate(keys):
                for later in keys[n + len(waiting) : n + 1 + ahead]:
                    waiting.append(pool.submit(self.tiles.tile, later))
                yield key, self.label(waiting.popleft().result())
                # Compilers leave memory behind, most of it at the first tiles.
                if n & (n + 1) == 0:
                    trim()

    @torch.no_grad()
    def label(self, tile: Tile) -> Labels:
        """The rows in the scene of the points inside a tile (S) int64, and their labels (S) int64."""
        tile, geometry = tile.run(self.model.plan, self.layers, self.device, self.around, self._prepared)
        labels = self.model(geometry).argmax(1)
        inside = tile.every.rows["inside"]
        index = tile.every.rows["index"][inside]
        if self.grid is None:
            return index.numpy(), labels.cpu()[inside].numpy()
        mine, some = (Cloud.of(x.to(self.device)) for x in (tile.every.coords[inside], tile.cloud.coords))
        return index.numpy(), labels[nearest(some, mine, 1).source.long()].cpu().numpy()

    def _prepared(self, cloud: Cloud) -> Cloud:
        cloud = turned(cloud, self.how, self.source)
        rows: dict[str, Any] = {name: values.double() for name, values in cloud.rows.items()} if self.double else {}
        return Cloud.of(cloud, **rows)

    def __call__(self, key: Any) -> Any:
        if not isinstance(key, dict):
            return self.label(self.tiles.tile(key))
        answers = [self.label(self.tiles.tile((int(i), int(j)))) for i, j in zip(key["i"], key["j"], strict=True)]
        return {name: np.concatenate(part) for name, part in zip(("index", "label"), zip(*answers), strict=True)}


def label_scene(
    source: str | Path,
    weights: Any,
    out: str | Path,
    size: float | None = None,
    grid: float | None = None,
    how: Preparation | None = None,
    device: str = "cpu",
    workers: int = 1,
    ray: str | None = None,
    points: int = POINTS,
    double: bool = False,
) -> dict[int, int]:
    """Write the points of a scene with their labels to `out`; returns how many there are of each.

    A LAS or LAZ file becomes one with other classes, and stays as it is otherwise; every scene can become a PLY with
    the rows `label`, or a NPY of the labels alone. Points that are not finite have the label 0, and no part in those of
    others. The output appears when it is whole. Until then what is done lies in a folder beside it, from which the next
    call goes on.

    Args:
        source: a file or a folder of files.
        weights: a network, or the name or path of its weights.
        out: the file that is written.
        size, grid, how, device, points, double: those of `Labeller`.
        workers: processes on this machine.
        ray: the address of a Ray cluster on which the tiles are labelled instead; all its machines see the files.
    """
    source, out = Path(source), Path(out)
    _check_output(source, out)
    if ray is not None:
        connect(ray)
    model: Any = weights if isinstance(weights, torch.nn.Module) else load(weights)
    layers_of(model)
    settings: dict[str, Any] = {"size": size, "grid": grid, "how": repr(how), "points": points, "double": double}
    settings |= {"files": _state(source), "format": 2}
    settings["network"] = hashlib.sha256(repr(model.config).encode()).hexdigest()
    for name, tensor in model.state_dict().items():
        settings["network"] += hashlib.sha256(name.encode() + tensor.cpu().numpy().tobytes()).hexdigest()[:8]
    with _work(out, settings) as folder:
        network = (
            weights if isinstance(weights, torch.nn.Module) or not Path(weights).exists() else Path(weights).resolve()
        )
        arguments = {"weights": network, "size": size, "grid": grid, "how": how, "device": device, "points": points}
        arguments |= {"folder": str(folder.resolve()), "source": str(source.resolve()), "double": double}
        first = Labeller(**{**arguments, "weights": model})
        classes, count, tiles = classes_of(model), first.tiles.scene.count, first.tiles
        # The labels of the classes in the files that the network learned from.
        values = np.array(getattr(model, "about", {}).get("values") or range(classes))
        gaps = count - sum(tiles.counts.values())
        if gaps:
            warnings.warn(f"{source}: {gaps} of {count} points are not finite and get the label 0", stacklevel=2)
        _check_classes(source, out, int(values.max()) + 1)
        most = max(values.max(), classes)
        dtype = np.dtype(np.uint8 if most < 256 else np.uint16 if most < 65536 else np.int32)
        labels = folder / "labels"
        try:
            _reserve(labels, count * dtype.itemsize)
            _label_all(first, arguments, folder, labels, dtype, workers, ray)
            if _state(source) != settings["files"]:
                raise _changed(source)
            _write(tiles.scene, source, out, labels, np.array([0, *values], dtype))
        except OSError as error:
            if full(error) is None:
                raise
            message = f"{full(error)} while writing {out}. Make room and start again: finished tiles are kept."
            raise OSError(error.errno, message) from None
        totals = np.zeros(classes + 1, np.int64)
        for at in range(0, count, 1 << 22):
            part = np.fromfile(labels, dtype, min(1 << 22, count - at), offset=at * dtype.itemsize)
            totals += np.bincount(part, minlength=classes + 1)
        shutil.rmtree(folder)
    return dict(enumerate(totals[1:].tolist()))


def classes_of(model: Any) -> int:
    """The number of labels of the network, by its task."""
    classes = task_of(model).classes(model.config)
    if classes is None:
        raise ValueError(f"{type(model).__name__}: its config says no number of classes: it cannot label a scene")
    return classes


def _reserve(path: Path, size: int) -> None:
    """A file of that size, with what is in it already. On a disk that were full later, writing where it is mapped would
    end the process."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(size)
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)


def _label_all(
    first: Labeller,
    arguments: dict[str, Any],
    folder: Path,
    labels: Path,
    dtype: np.dtype,
    workers: int,
    ray: str | None,
) -> None:
    """Label the tiles that are missing, each written before it is noted as done."""
    tiles = first.tiles
    journal = folder / "done"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    done = {tuple(map(int, line.split())) for line in lines}
    left = [key for key in tiles.keys if key not in done]
    ended = tiles.scene.count - sum(tiles.counts[key] for key in left)
    with (
        bar("label", tiles.scene.count, done=ended) as advance,
        journal.open("r+b" if journal.exists() else "w+b") as notes,
    ):
        # A line that a killed run did not finish is written over.
        notes.truncate(notes.seek(sum(len(line) + 1 for line in lines)))
        alone = workers == 1 and ray is None
        for key, (index, predicted) in first.over(left) if alone else run(Labeller, arguments, left, workers, ray):
            if len(index) != tiles.counts[key]:
                raise RuntimeError(f"tile {key} has {len(index)} points, not {tiles.counts[key]}")
            # Mapped for one tile only: what is mapped counts as memory.
            place = np.memmap(labels, dtype, "r+", shape=(tiles.scene.count,))
            # 0 is what has no label.
            place[index] = predicted + 1
            place.flush()
            del place
            notes.write(f"{key[0]} {key[1]}\n".encode())
            notes.flush()
            os.fsync(notes.fileno())
            advance(len(index))


def _write(scene: Scene, source: Path, out: Path, labels: Path, values: np.ndarray) -> None:
    dtype = values.dtype

    def part(first: int, count: int) -> np.ndarray:
        return values[np.fromfile(labels, dtype, count, offset=first * dtype.itemsize)]

    if out.suffix.lower() == ".npy":
        with whole_file(out) as file:
            shape: Any = {"descr": dtype.str, "fortran_order": False, "shape": (scene.count,)}
            np.lib.format.write_array_header_1_0(file, shape)
            for first in range(0, scene.count, 1 << 22):
                file.write(part(first, min(1 << 22, scene.count - first)).tobytes())
    elif out.suffix.lower() == ".ply":
        like = _layout(scene, dtype)
        ply.write_parts(out, scene.count, like, _labelled(scene, part, like))
    else:
        with whole_file(out) as file:
            las.relabelled(Source.mapped(source), file, out.suffix.lower() == ".laz", part)
            if state_of(source) != scene.files[0].state:
                raise _changed(source)


def _changed(source: Path) -> ValueError:
    return ValueError(f"{source} changed while it was labelled. Start again when it is complete.")


def _layout(scene: Scene, label: np.dtype) -> Points:
    """No points, with the rows that all files of a scene have, in types that hold those of each, and labels."""
    layouts = list(scene.layouts.values())
    rows, left = {}, []
    for name in dict.fromkeys(name for layout in layouts for name in layout if name != "label"):
        kinds = [layout[name] for layout in layouts if name in layout]
        if len(kinds) == len(layouts) and len({kind.shape for kind in kinds}) == 1:
            rows[name] = np.empty((0, *kinds[0].shape), np.result_type(*(kind.base for kind in set(kinds))))
        else:
            left.append(name)
    if left:
        warnings.warn(f"{', '.join(left)}: left out, because they differ between the files of the scene", stacklevel=2)
    return Points(np.empty((0, scene.dim), scene.dtype), {**rows, "label": np.empty(0, label)}, scene.dtype)


def _labelled(scene: Scene, part: Any, like: Points) -> Iterator[Points]:
    """The points of a scene, piece by piece as its files have them, with their labels."""
    for k, count in enumerate(scene.sizes.tolist()):
        points = scene.read(k)
        rows = {name: points.rows[name] for name in like.rows if name != "label"}
        yield points._replace(rows={**rows, "label": part(int(scene.first[k]), count)})


@contextmanager
def _work(out: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """The folder of what is done, which nobody else may use at the same time; begun anew for other settings."""
    folder = out.with_name(f"{out.name}.unfinished")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"{out.parent}: nothing can be written there ({error.strerror})") from None
    with locked(out.with_name(f".{out.name}.lock"), out):
        folder.mkdir(exist_ok=True)  # the run before this one may have ended in between
        about, text = folder / "about.json", json.dumps(settings, indent=1)
        if not about.exists() or about.read_text("utf-8") != text:
            shutil.rmtree(folder)
            folder.mkdir()
            write_whole(about, text.encode())
        try:
            yield folder
        except BaseException as error:
            # An error before the first tile leaves no trace; the results of an interrupted run stay.
            done, is_resumable = folder / "done", not isinstance(error, Exception) and (folder / "scan.npz").exists()
            if not is_resumable and not (done.exists() and done.stat().st_size):
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _state(source: Path) -> list[list[Any]]:
    return [[str(file.resolve()), *(state_of(file) or ())] for file in files_of(source)]


def _scale(kind: np.dtype) -> int:
    return scale(torch.from_numpy(np.empty(0, plain_type(kind.base))).dtype)


def _check_output(source: Path, out: Path) -> None:
    suffix = out.suffix.lower()
    if suffix not in OUTPUTS:
        raise ValueError(f"--out {out}: labelled points are written as {', '.join(OUTPUTS)}")
    if suffix in (".las", ".laz") and source.suffix.lower() not in (".las", ".laz"):
        raise ValueError(f"--out {out}: {suffix} needs a LAS or LAZ source, not {source}. Write a .ply.")
    if not source.exists():
        raise FileNotFoundError(f"there is no {source}")
    if out.resolve() in [file.resolve() for file in files_of(source)]:
        what = "a file of the scene" if source.is_dir() else "the scene itself"
        raise ValueError(f"--out {out} is {what}. Give another name.")
    if source.resolve() == out.resolve().parent:
        raise ValueError(f"--out {out} would become part of the scene {source}. Give another folder.")


def _check_classes(source: Path, out: Path, classes: int) -> None:
    if out.suffix.lower() in (".las", ".laz"):
        most = las.most_classes(Source.mapped(source))
        if classes > most:
            raise ValueError(
                f"{source}: its points can have {most} classes, the network has {classes}. Write a .ply instead."
            )


def _largest(counts: np.ndarray, points: int, widest: float) -> int:
    """The width of tiles in cells, a power of two, so that none has more points, with the cells around it."""
    cells, sizes = counts[:, :2], counts[:, 2]
    best, scale = 1, 2
    while scale <= min(widest, 1 << 20):
        owner, cells_around, sizes_around = cells // scale, [], []
        for shift in np.ndindex(3, 3):
            moved = (cells + np.array(shift) - 1) // scale
            other = (np.array(shift) == 1) | (moved != owner)
            cells_around.append(moved[other.all(1)])
            sizes_around.append(sizes[other.all(1)])
        if added(np.column_stack([np.concatenate(cells_around), np.concatenate(sizes_around)]))[:, 2].max() > points:
            break
        best, scale = scale, 2 * scale
        if len(np.unique(owner, axis=0)) == 1:
            break
    return best
