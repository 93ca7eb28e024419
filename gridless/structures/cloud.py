"""Clouds: the points of a batch of examples."""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Number
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gridless.structures.base import Ragged, as_splits, index, named_rows, per_row, same, size, splits_of
from gridless.structures.interchange import PYG, held_cloud, narrowest, normals, numbered, package
from gridless.structures.rows import NO_ROWS, Rows, tensor_of


@dataclass(frozen=True, eq=False, repr=False)
class Cloud(Ragged):
    """Points of a batch of examples: coords (S, D) float32 or float64, splits (B + 1).

    A cloud that was sampled from another knows where its points came from: `parent_index` (S), rows of a cloud of
    `num_parent` points. `distance` (num_parent), on request, is how far each of those is from its closest sample.

    `rows` hold further values of each point: a colour, an intensity, a label. They follow the points wherever these
    are cut, put in another order, sampled, batched, padded or moved. The rows named in `directions` are vectors
    (S, ..., D) across the surface, such as normals: augmentation turns them with the coordinates.
    The last `padding` points belong to no example.
    """

    coords: Tensor = per_row()
    splits: Tensor = splits_of("coords")
    parent_index: Tensor | None = index("num_parent", holes=False, default=None)
    num_parent: int = size(default=0)
    distance: Tensor | None = per_row(of="num_parent", default=None)
    padding: int = same(default=0)
    rows: Rows = named_rows()
    directions: tuple[str, ...] = same(default=())

    _length: ClassVar[str] = "coords"
    _row: ClassVar[str] = "point"
    _example: ClassVar[str] = "example"

    def __post_init__(self) -> None:
        coords = _checked(self.coords)
        object.__setattr__(self, "coords", coords)
        object.__setattr__(self, "splits", as_splits(self.splits, coords.device, "Cloud"))
        for name, length in (("parent_index", len(coords)), ("distance", self.num_parent)):
            value = getattr(self, name)
            if value is not None and (value.shape != (length,) or value.device != coords.device):
                raise ValueError(f"Cloud: {name} must be ({length},) on {coords.device}, not {tuple(value.shape)}")
        if self.rows is not NO_ROWS or self.directions:
            object.__setattr__(self, "rows", Rows.of(self.rows, coords, "Cloud"))
            object.__setattr__(self, "directions", _names(self.directions))
            _check_directions(self.directions, self.rows, coords.shape[1])
        if coords.device.type == "cpu":
            self.check_splits("Cloud")

    @classmethod
    def of(cls, x: Any, /, *, directions: str | Sequence[str] = (), **rows: Any) -> Cloud:
        """One example from an (S, D) tensor, array or list, or a batch from a (B, N, D) array or a list of examples.

        >>> cloud = gl.Cloud.of(xyz, rgb=rgb, label=label)
        >>> cloud = gl.Cloud.of([xyz1, xyz2], normal=[normal1, normal2], directions="normal")
        >>> cloud = gl.Cloud.of(frame)                    # columns x, y, z, and rows of all others

        Memory is shared where it can be: what is written to an array later is written to the cloud. Searches look at
        the points at every call, but while one runs nobody may write to them.

        Args:
            x: coordinates; or a `Cloud` that gets further rows; or what other libraries hold, with its rows: PyG's
                `Data` and `Batch` (what belongs to nodes; `x` becomes the rows `features`, `y` the rows `label`), point
                clouds of Open3D, point clouds and meshes (their vertices) of trimesh, and structured arrays, mappings
                and frames of pandas or polars with the columns x, y and z (r, g, b and nx, ny, nz become `rgb` and
                `normal`). Several of them are a list.
            directions: the names of rows that are directions, such as normals: those turn when the points are turned,
                and stay across the surface when the axes are scaled differently. Normals of other libraries do.
            rows: what belongs to each point, by name: tensors or arrays (S, ...) of any type, found again in `rows`;
                with a list of examples, a list of them.
        """
        if type(x) is Tensor and x.ndim == 2 and not rows and not directions:
            return cls.made(coords=_checked(x), splits=_splits_of_one(x), _alone=True)
        if isinstance(x, Cloud):
            if not rows and not directions:
                return x
            # Directions named before stay directions.
            named = (*x.directions, *_names(directions))
            return dataclasses.replace(x, rows={**x.rows, **rows}, directions=tuple(dict.fromkeys(named)))
        if isinstance(x, (list, tuple)):
            if not len(x) or not _is_point(x[0]):
                return cls._of_several(x, directions, rows)
            listed = isinstance(x[0], (list, tuple))
            x = _listed(x) if listed else torch.stack([*map(tensor_of, x)])
        splits = None
        if not isinstance(x, Tensor) and (held := held_cloud(x)) is not None:
            x, splits = held.coords, held.splits
            rows = {**held.rows, **rows}
            directions = tuple(dict.fromkeys((*normals(held.rows, x), *_names(directions))))
        coords = _as_coords(x)
        if coords.ndim == 3:
            batch, points = coords.shape[:2]
            coords = coords.flatten(0, 1)
            splits = torch.arange(batch + 1, device=coords.device) * points
            each = {name: tensor_of(value) for name, value in rows.items()}
            stacked = {n: tuple(v.shape[:2]) == (batch, points) and len(v) != batch * points for n, v in each.items()}
            rows = {n: v.flatten(0, 1) if stacked[n] else v for n, v in each.items()}
        alone = splits is None
        splits = _splits_of_one(coords) if splits is None else splits.to(coords.device)
        if not rows and not directions:
            cloud = cls.made(coords=_checked(coords), splits=splits)
        else:
            cloud = cls(coords, splits, rows=rows or NO_ROWS, directions=_names(directions))  # type: ignore[arg-type]
        if alone:
            cloud.__dict__["_alone"] = True
        return cloud

    @classmethod
    def _of_several(cls, x: Sequence[Any], directions: str | Sequence[str], rows: Mapping[str, Any]) -> Cloud:
        if not x:
            raise ValueError("Cloud.of: an empty list has no dimension. Pass at least one (S, D) array.")
        for name, values in rows.items():
            if not isinstance(values, (list, tuple)) or len(values) != len(x):
                raise ValueError(f"Cloud.of: {name} must be a list of {len(x)} arrays, one for each example")
        if any(isinstance(one, Cloud) for one in x):
            raise TypeError("Cloud.of takes no list of Clouds. Use gl.collate([...]).")
        if not rows and not directions and all(type(one) is Tensor and one.ndim == 2 for one in x):
            # Without a cloud for each, whose splits a GPU would get one by one; alike, they are looked at together.
            _check_alike(x)
            alike = len({one.dtype for one in x}) == 1
            coords = torch.cat([_checked(x[0]), *x[1:]] if alike else [_checked(one) for one in x])
            splits = torch.from_numpy(np.cumsum([0, *(one.shape[0] for one in x)], dtype=np.int64))
            return cls.made(coords=_checked(coords), splits=splits.to(coords.device))
        each = [cls.of(one, directions=directions, **{n: v[i] for n, v in rows.items()}) for i, one in enumerate(x)]
        _check_alike([one.coords for one in each])
        coords = torch.cat([one.coords for one in each])
        sizes = [n for one in each for n in ([len(one)] if one.num_examples == 1 else one.sizes.tolist())]
        splits = torch.tensor([0, *accumulate(sizes)], device=coords.device)
        joined = Rows.joined([one.rows for one in each], "Cloud.of")
        return cls(coords, splits, rows=joined, directions=each[0].directions)

    def numpy(self) -> np.ndarray:
        """A structured array with the fields x, y, z and all rows, of all examples one after the other.

        `Cloud.of` takes it back, of two dimensions or more; beyond three coordinates are x0, x1 and so on. The
        coordinates alone, (S, D), are `np.asarray(cloud)`.
        """
        end = len(self) - self.padding
        axes = [*"xyz"] if self.dim <= 3 else numbered(self.dim)
        taken = [*"xyz"] if self.dim <= 3 else [*"xyz", *numbered(8)]
        _refuse_rows("numpy", [name for name in self.rows if name in taken])
        columns = dict(zip(axes, self.coords.detach()[:end].cpu().numpy().T, strict=False))
        columns |= {name: rows.detach()[:end].cpu().numpy() for name, rows in self.rows.items()}
        out = np.empty(end, [(name, c.dtype, c.shape[1:]) for name, c in columns.items()])
        for name, column in columns.items():
            out[name] = column
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.coords.detach()[: len(self) - self.padding].cpu().numpy(), dtype=dtype, copy=copy)

    def to(
        self,
        device: torch.device | str | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """The same cloud on another device, with coordinates of another type (float32 or float64), or both.

        The arguments are those of `Tensor.to`: `cloud.to("cuda")`, `cloud.to(torch.float32)`,
        `cloud.to("cuda", torch.float32)`. Rows keep their types. Gradients flow back to the coordinates.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if isinstance(dtype, bool):  # to(device, non_blocking), as other structures have it
            dtype, non_blocking = None, dtype
        if dtype not in (None, torch.float32, torch.float64):
            raise TypeError(f"Cloud.to: coordinates cannot be {dtype}. Give torch.float32, torch.float64 or a device.")
        cloud = self._converted(dtype)
        return cloud if device is None else super(Cloud, cloud).to(device, non_blocking)

    def _converted(self, dtype: torch.dtype | None) -> Self:
        """The same cloud with coordinates of a type; None keeps theirs."""
        if dtype is None or dtype == self.coords.dtype:
            return self
        distance = None if self.distance is None else self.distance.to(dtype)
        cloud = self.made(**{**self._fields(), "coords": self.coords.to(dtype), "distance": distance})
        if self.is_alone:
            cloud.__dict__["_alone"] = True
        return cloud

    def float(self) -> Self:
        """The same cloud with coordinates float32; see `to`."""
        return self.to(torch.float32)

    def double(self) -> Self:
        """The same cloud with coordinates float64; see `to`."""
        return self.to(torch.float64)

    def to_pyg(self) -> Any:
        """A `Data` of PyG, or a `Batch` of several examples: pos, and the rows; `features` are x, `label` is y."""
        geometric = package("torch_geometric.data", "to_pyg", "torch-geometric")
        theirs = {ours: name for name, ours in PYG.items()}
        taken = {"pos", "batch", "ptr", "num_nodes", *(name for name, ours in PYG.items() if ours in self.rows)}
        if self.num_examples > 1:
            # PyG takes these names for positions of nodes or examples, and counts on from one example to the next.
            taken |= {name for name in self.rows if "index" in name or "batch" in name or name == "face"}
        _refuse_rows("to_pyg", [name for name in self.rows if name in taken])
        each = []
        for one in self.examples:
            rows = {str(theirs.get(name, name)): values for name, values in one.rows.items()}
            each.append(geometric.Data(pos=one.coords, **rows))
        return each[0] if len(each) == 1 else geometric.Batch.from_data_list(each)

    def to_open3d(self) -> Any:
        """A `PointCloud` of Open3D, with the rows `rgb` and `normal`: it has no others."""
        if self.dim != 3 or self.num_examples != 1:
            raise ValueError(
                f"to_open3d takes one example of 3 dimensions, not {self.num_examples} of {self.dim}. "
                "Convert one: cloud.examples[i].to_open3d()."
            )
        o3d = package("open3d", "to_open3d", "open3d")
        points = o3d.geometry.PointCloud()

        def vectors(x: Tensor) -> Any:
            return o3d.utility.Vector3dVector(x.detach()[: len(self) - self.padding].double().cpu().numpy())

        points.points = vectors(self.coords)
        if "rgb" in self.rows:
            rgb, whole = self.rows["rgb"], 255 if self.rows["rgb"].dtype == torch.uint8 else 65535
            points.colors = vectors(rgb if rgb.is_floating_point() else rgb / whole)
        if "normal" in self.rows:
            points.normals = vectors(self.rows["normal"])
        return points

    def _facts(self) -> list[str]:
        many = [] if self.num_examples == 1 else [f"{self.num_examples:,} examples"]
        dtype = str(self.coords.dtype).removeprefix("torch.")
        facts = [*many, f"{len(self) - self.padding:,} points in {self.dim}-D", dtype]
        if self._readable() and len(self) > self.padding:
            real = self.coords.detach()[: len(self) - self.padding]
            ends = (real.amin(0).tolist(), real.amax(0).tolist())
            # Coordinates of a map differ in the last of their digits.
            corners = (", ".join(f"{v:.0f}" if 1e3 <= abs(v) < 1e9 else f"{v:.3g}" for v in end) for end in ends)
            facts.append("from ({}) to ({})".format(*corners))
        return facts + ([f"sampled from {self.num_parent:,}"] if self.parent_index is not None else [])

    @property
    def dim(self) -> int:
        return self.coords.shape[1]

    @property
    def is_alone(self) -> bool:
        """True if it was made as one example, whose splits need not be read."""
        return "_alone" in self.__dict__

    def sampled(
        self, index: Tensor, splits: Tensor, distance: Tensor | None = None, coords: Tensor | None = None
    ) -> Cloud:
        """The points `index` (int64) of this cloud, with their origin: the result of a sampler.

        Args:
            index: rows of this cloud.
            splits: of the samples.
            distance: of every point of this cloud to its closest sample.
            coords: those of the samples, where they are at hand and no gradient is wanted.
        """
        if coords is None or self.coords.requires_grad:
            coords = torch.index_select(self.coords, 0, index)
        return Cloud.made(
            coords=coords,
            splits=splits,
            parent_index=index,
            num_parent=len(self),
            distance=distance,
            rows=self.rows.taken(index),
            directions=self.directions,
        ).trusted()

    def check(self, what: str = "cloud") -> None:
        """Refuse splits that do not fit and coordinates that are not finite, naming example and row.

        Reads values, once: a synchronisation on the GPU.
        """
        if not self.is_checked:
            self._check(what)
            self.trusted()

    def _check(self, what: str) -> None:
        self.check_splits(what)
        # A sum is finite only if all its terms are; where it is not, huge coordinates may have overflowed.
        if self.coords.sum().isfinite():
            return
        bad = (~self.coords.isfinite()).any(1).nonzero()
        if len(bad):
            row = int(bad[0])
            example = int(self.example[row])
            inside = row - int(self.splits[example]) if example < self.num_examples else row
            raise ValueError(
                f"{what}: {len(bad)} points are not finite, the first is row {inside} of example {example} "
                f"({self.coords[row].tolist()}). Remove them, e.g. x[x.isfinite().all(1)]."
            )


def _refuse_rows(what: str, taken: list[str]) -> None:
    if taken:
        rest = 'gl.Cloud(cloud.coords, cloud.splits, rows={"other_name": cloud.rows[...], ...})'
        raise ValueError(f"{what}: the name of the rows {taken[0]!r} is reserved. Rename them: {rest}")


def _as_coords(x: Any) -> Tensor:
    try:
        coords = tensor_of(x)
    except (TypeError, ValueError, RuntimeError):
        remedy = "Pass an (S, D) array, or read a file with gl.read_cloud(path)"
        kind = f"an array of {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
        raise TypeError(f"Cloud.of: expected points, not {kind}. {remedy}.") from None
    if coords.ndim not in (2, 3):
        raise ValueError(
            f"Cloud.of: coordinates have shape {tuple(coords.shape)}. Give (S, D), or (B, N, D) for several clouds."
        )
    return coords


def _check_alike(examples: Sequence[Tensor]) -> None:
    dims = [one.shape[1] for one in examples]
    for i, dim in enumerate(dims):
        if dim != dims[0]:
            raise ValueError(
                f"Cloud.of: example 0 has {dims[0]} dimensions, example {i} has {dim}. Give all the same number."
            )


def _is_point(x: Any) -> bool:
    """True for one point of a list of points, False for an example of a list of examples."""
    if isinstance(x, (list, tuple)):
        return len(x) > 0 and isinstance(x[0], Number)
    return getattr(x, "ndim", 0) == 1 and getattr(getattr(x, "dtype", None), "names", None) is None


def _checked(coords: Any) -> Tensor:
    if not isinstance(coords, Tensor):
        raise TypeError(f"Cloud: coords must be a tensor, not {type(coords).__name__}. Use Cloud.of(...).")
    shape = coords.shape
    if len(shape) != 2 or not 1 <= shape[1] <= 8:
        remedy = ". Pass x.T." if len(shape) == 2 and shape[0] in (2, 3) else ""
        raise ValueError(f"Cloud: coords must be (points, 1 to 8 dimensions), not {tuple(shape)}{remedy}")
    if coords.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"Cloud: coords must be float32 or float64, not {coords.dtype}. Convert with .float().")
    return (coords if coords.requires_grad else coords.detach()).contiguous()


def _listed(x: Sequence[Any]) -> np.ndarray:
    """Points as lists of numbers, in the type that they need."""
    coords = np.array(x, np.float64)
    return coords.astype(narrowest(coords)) if coords.ndim == 2 else coords.astype(np.float32)


def _splits_of_one(coords: Tensor) -> Tensor:
    rows = coords.shape[0]
    if coords.is_cuda and rows:
        # 0 and the number, made there: a copy would wait for all that the device has to do.
        return torch.arange(0, rows + 1, rows, device=coords.device)
    # From an array: several times as fast as torch.tensor.
    splits = torch.from_numpy(np.array((0, rows)))
    return splits if coords.is_cpu else splits.to(coords.device)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_directions(directions: tuple[str, ...], rows: Rows, dim: int) -> None:
    for name in directions:
        value = rows[name]
        if value.ndim < 2 or value.shape[-1] != dim or not value.is_floating_point():
            raise ValueError(
                f"Cloud: the directions {name!r} must be floating-point vectors (S, {dim}), not {tuple(value.shape)} "
                f"{value.dtype}"
            )
