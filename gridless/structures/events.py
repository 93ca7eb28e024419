"""Events: what an event camera saw, in the order in which it arrived."""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gridless.structures.base import Ragged, as_splits, index, named_rows, per_row, same, size, splits_of
from gridless.structures.interchange import held_events
from gridless.structures.rows import NO_ROWS, Rows

# Names of the four fields in other libraries.
ALIASES = {
    "x": ("x",),
    "y": ("y",),
    "t": ("t", "ts", "timestamp", "time"),
    "p": ("p", "on", "pol", "polarity"),
}
REPAIRS = ("unwrap", "drop", "hold", "sort", "shift")
DTYPE = np.dtype([("t", "<i8"), ("x", "<i4"), ("y", "<i4"), ("p", "?")])
WRAP = 2**32
# Microseconds by which an event from before a counter started again may come late.
LATE = 2**28


@dataclass(frozen=True, eq=False, repr=False)
class Events(Ragged):
    """Camera events of a batch of recordings, in arrival order.

    pixel (S, 2) int32 as (x, y), time (S) int64 microseconds, polarity (S) bool (True is ON), splits (B + 1),
    sensor (width, height). Events that were fired by other events (LIF) know which: `cause` (S), rows of a stream of
    `num_parent` events; their polarity is None.

    `rows` hold further values of each event: a weight, a label. They follow the events wherever these are cut, put in
    order, batched, padded or moved, and events that are fired have those of their causes.
    The last `padding` events belong to no recording.
    """

    pixel: Tensor = per_row()
    time: Tensor = per_row()
    polarity: Tensor | None = per_row()
    splits: Tensor = splits_of("pixel")
    sensor: tuple[int, int] = same()
    cause: Tensor | None = index("num_parent", default=None)
    num_parent: int = size(default=0)
    padding: int = same(default=0)
    rows: Rows = named_rows()

    _length: ClassVar[str] = "pixel"
    _row: ClassVar[str] = "event"
    _example: ClassVar[str] = "recording"

    def __post_init__(self) -> None:
        pixel = self.pixel
        if not isinstance(pixel, Tensor):
            raise TypeError(f"Events: pixel must be a tensor, not {type(pixel).__name__}. Use Events.of(...).")
        if pixel.ndim != 2 or pixel.shape[1] != 2 or pixel.dtype != torch.int32:
            actual = f"{tuple(pixel.shape)} {pixel.dtype}"
            raise ValueError(f"Events: pixel must be (S, 2) int32, not {actual}. Events.of(...) takes other types.")
        for name, dtype in (("time", torch.int64), ("polarity", torch.bool), ("cause", None)):
            value = getattr(self, name)
            if value is None and name != "time":
                continue
            if not isinstance(value, Tensor) or value.shape != pixel.shape[:1] or dtype not in (None, value.dtype):
                wanted = "" if dtype is None else f" {str(dtype).removeprefix('torch.')}"
                raise ValueError(f"Events: {name} must be ({len(pixel)},){wanted}, one entry for each pixel")
            if value.device != pixel.device:
                raise ValueError(f"Events: {name} is on {value.device}, pixel on {pixel.device}. Use one device.")
            object.__setattr__(self, name, value.contiguous())
        # On the CPU, where pixels outside the sensor would end the process, a copy: what is checked is what is read.
        # Rows one behind the other, however the tensor lies: that is how the live engine reads them.
        pixel = pixel.clone(memory_format=torch.contiguous_format) if pixel.is_cpu else pixel.contiguous()
        object.__setattr__(self, "pixel", pixel)
        object.__setattr__(self, "sensor", as_sensor(self.sensor))
        if self.rows is not NO_ROWS:
            object.__setattr__(self, "rows", Rows.of(self.rows, pixel, "Events"))
        object.__setattr__(self, "splits", as_splits(self.splits, pixel.device, "Events"))
        if pixel.device.type == "cpu":
            self.check_splits("Events")

    @classmethod
    def of(
        cls, x: Any, /, sensor: tuple[int, int] | None = None, repair: str | Sequence[str] = (), **rows: Any
    ) -> Events:
        """One recording from an array of events, or a batch from a list of them, checked.

        Times that step back, negative times and events outside the sensor are refused (`check`), unless `repair` says
        what to do; repairs are made in this order, each recording on its own:

        - `"unwrap"`: a 32-bit counter that started again from zero goes on counting (a step back of over 2**31; events
          from before it that come up to 2**28 late are known by their step ahead);
        - `"drop"`: events outside the sensor are left out;
        - `"hold"`: a time that steps back becomes the latest time so far; the order stays the order of arrival;
        - `"sort"`: events are put in order of time; equal times keep their order;
        - `"shift"`: the earliest event happens at time zero.

        Args:
            x: a NumPy structured array, as those of tonic and faery, a mapping of equally long arrays, or a frame of
                pandas or polars, with the fields x, y, t and p, in any order and of any integer type; `ts`, `timestamp`
                and `time` are read as t, `on`, `pol` and `polarity` as p. Times are whole microseconds, polarity is
                0/1, -1/+1 or bool. A mapping of numbers is one event. Or a stream of faery that ends; or `Events`,
                which get further rows.
            sensor: (width, height); tonic's (width, height, polarities) will do. A stream of faery knows it.
            repair: the name of one repair, or several.
            rows: what belongs to each event, by name: tensors or arrays (S, ...) of any type, found again in `rows`;
                with a list of recordings, a list of them.
        """
        names = as_repairs(repair)
        device = torch.device("cpu")
        if isinstance(x, Events):
            if sensor is not None and as_sensor(sensor) != x.sensor:
                raise ValueError(f"Events.of: sensor is {tuple(sensor)}, but these events have {x.sensor}")
            if rows:
                x = dataclasses.replace(x, rows={**x.rows, **rows})
            if not names:
                x.check("Events.of")
                return x
            sensor, device, rows = x.sensor, x.device, {}
            x = list(x.examples)
        if isinstance(x, str | PurePath):
            raise TypeError(f"Events.of takes arrays, not the path {str(x)!r}. Read files with gl.read_events(path).")
        several = isinstance(x, (list, tuple))
        held = [held_events(one) for one in (x if several else [x])]
        x = [one for one, _ in held] if several else held[0][0]
        if sensor is None and held:
            sensor = held[0][1]
        if sensor is None:
            raise ValueError("Events.of: the size of the camera is missing. Pass sensor=(width, height).")
        for name, values in rows.items() if several else ():
            if not isinstance(values, (list, tuple)) or len(values) != len(x):
                raise ValueError(f"Events.of: {name} must be a list of {len(x)} arrays, one for each recording")
        recordings = [r[:] if isinstance(r, Events) and r.padding else r for r in (x if several else [x])]
        columns = [recording_columns(r, "Events.of") for r in recordings]
        more = []
        for i, (recording, (_, time, _)) in enumerate(zip(recordings, columns, strict=True)):
            rows_of_one = {n: v[i] if several else v for n, v in rows.items()}
            own = recording.rows.map(Tensor.cpu) if isinstance(recording, Events) else {}
            more.append(Rows.of({**own, **rows_of_one}, torch.from_numpy(time), "Events.of"))
        events = unchecked(columns, sensor, names, more)
        events.check("Events.of")
        return events.to(device)

    def numpy(self) -> np.ndarray:
        """A structured array with the fields t, x, y, p, of all recordings one after the other."""
        out = np.empty(len(self) - self.padding, DTYPE)
        end = len(out)
        out["t"] = self.time[:end].cpu().numpy()
        out["x"], out["y"] = self.pixel[:end].cpu().numpy().T
        out["p"] = False if self.polarity is None else self.polarity[:end].cpu().numpy()
        return out

    def _facts(self) -> list[str]:
        many = [] if self.num_examples == 1 else [f"{self.num_examples:,} recordings"]
        facts = [*many, f"{len(self) - self.padding:,} events", f"{self.sensor[0]} x {self.sensor[1]} pixels"]
        if self._readable() and self.num_examples == 1 and not self.padding:
            seconds = int(self.time[-1] - self.time[0]) / 1e6
            facts.append(f"{seconds:.3g} s from {int(self.time[0]):,} us on")
            if self.polarity is not None:
                facts.append(f"{float(self.polarity.double().mean()):.0%} ON")
        if self.polarity is None:
            facts.append("no polarity")
        return facts + ([f"fired by {self.num_parent:,}"] if self.cause is not None else [])

    def check(self, what: str = "events") -> None:
        """Refuse times that step back, negative times and events outside the sensor, naming recording and row.

        Reads values, once, on the CPU: events on a GPU are copied.
        """
        if not self.is_checked:
            # Inside a transform of torch.func the copies that are read would have no memory.
            with torch._C._DisableFuncTorch():
                self._check(what)
            self.trusted()

    def _check(self, what: str) -> None:
        self.check_splits(what)
        fault = self.fault()
        if fault is not None:
            row, reason = fault
            recording = int(self.example[row])
            raise ValueError(f"{what}: row {row - int(self.splits[recording])} of recording {recording} {reason}")

    def fault(self) -> tuple[int, str] | None:
        """The first row that `check` refuses, and why; None when all is well."""
        end = len(self) - self.padding
        if not end:
            return None
        pixel, time = self.pixel[:end].cpu(), self.time[:end].cpu()
        # Imported here: events are often made without being checked, and compiled code takes a moment to load.
        from gridless.structures.kernels import BACK, OUTSIDE, first_fault

        kind, row = first_fault(pixel.numpy(), time.numpy(), self.splits.cpu().numpy(), *self.sensor)
        if not kind:
            return None
        if kind == OUTSIDE:
            x, y = pixel[row].tolist()
            reason = (
                f"is at pixel ({x}, {y}), outside the sensor of {self.sensor[0]} x {self.sensor[1]}. "
                "Pass repair='drop' to leave such events out."
            )
        elif kind == BACK:
            reason = (
                f"has time {int(time[row])} after {int(time[row - 1])}. Pass repair='sort' to sort the events, "
                "'hold' to keep their order, or 'unwrap' if a 32-bit counter overflowed."
            )
        else:
            reason = f"has the negative time {int(time[row])}. Pass repair='shift' to start at zero."
        return int(row), reason


def as_sensor(sensor: Any, what: str = "Events") -> tuple[int, int]:
    """(width, height), also of tonic's (width, height, polarities)."""
    try:
        sides = tuple(sensor[:2] if len(sensor) == 3 else sensor)
        width, height = (int(v) for v in sides)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what}: sensor must be (width, height), not {sensor!r}") from None
    if (width, height) != sides:
        raise ValueError(f"{what}: sensor must be two integers, (width, height), not {sensor!r}")
    if not (0 < width < 2**31 and 0 < height < 2**31):
        raise ValueError(f"{what}: sensor must be at least 1 x 1 and below 2^31 pixels a side, not {width} x {height}")
    return width, height


Columns = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


def unchecked(
    columns: Sequence[Columns], sensor: tuple[int, int], repair: Sequence[str] = (), rows: Sequence[Rows] = ()
) -> Events:
    """Events from the columns of each recording, of which only the types have been looked at.

    Args:
        columns: pixel (S, 2) int32, time (S) int64 and polarity (S) bool, or None, of each recording.
        sensor: (width, height).
        repair: names of repairs.
        rows: what else belongs to the events of each recording; none for any when left out.
    """
    sensor = as_sensor(sensor)
    rows = rows or [NO_ROWS] * len(columns)
    if repair:
        repaired = [_repaired(c, sensor, repair) for c in columns]
        columns = [c for c, _ in repaired]
        rows = [r if at is None else r.taken(torch.from_numpy(at)) for r, (_, at) in zip(rows, repaired, strict=True)]
    if len(columns) == 1:
        pixel, time, polarity = columns[0]
    else:
        pixel = np.concatenate([c[0] for c in columns] or [np.empty((0, 2), np.int32)])
        time = np.concatenate([c[1] for c in columns] or [np.empty(0, np.int64)])
        polarities = [c[2] for c in columns if c[2] is not None]
        if polarities and len(polarities) < len(columns):
            raise ValueError(
                f"Events.of: only {len(polarities)} of {len(columns)} recordings have polarity. Give it to all or none."
            )
        polarity = np.concatenate(polarities or [np.empty(0, bool)]) if polarities or not columns else None
    splits = torch.from_numpy(np.cumsum([0] + [len(c[1]) for c in columns]))
    return Events(
        torch.from_numpy(pixel),
        torch.from_numpy(time),
        None if polarity is None else torch.from_numpy(polarity),
        splits,
        sensor,
        rows=Rows.joined(rows, "Events.of") if rows else NO_ROWS,
    )


def as_repairs(repair: str | Sequence[str], known: Sequence[str] = REPAIRS) -> tuple[str, ...]:
    names = (repair,) if isinstance(repair, str) else tuple(repair)
    for name in names:
        if name not in known:
            raise ValueError(f"unknown repair {name!r}. Choose from {', '.join(known)}.")
    return names


def _repaired(columns: Columns, sensor: tuple[int, int], repair: Sequence[str]) -> tuple[Columns, np.ndarray | None]:
    """The columns, and which of the events they are, in which order; None for all, as they were."""
    pixel, time, polarity = columns
    at = None
    if "unwrap" in repair and len(time):
        step = np.diff(time, prepend=time[:1])
        wraps = np.cumsum((step < -WRAP // 2).astype(np.int64) - (step > WRAP - LATE))
        time = time + (wraps - np.minimum.accumulate(wraps)) * WRAP
    if "drop" in repair:
        keep = ((pixel >= 0) & (pixel < np.array(sensor))).all(1)
        if not keep.all():
            at = np.flatnonzero(keep)
            time = time[at]
    if "hold" in repair:
        time = np.maximum.accumulate(time) if len(time) else time
    if "sort" in repair and (np.diff(time) < 0).any():
        order = np.argsort(time, kind="stable")
        at, time = order if at is None else at[order], time[order]
    if "shift" in repair and len(time):
        time = time - time.min()
    if at is not None:
        pixel, polarity = pixel[at], None if polarity is None else polarity[at]
    return (pixel, time, polarity), at


def recording_columns(array: Any, what: str) -> Columns:
    """pixel, time and polarity of one recording, converted and checked for type but not for order."""
    if isinstance(array, Events):
        if array.num_examples != 1:
            raise ValueError(f"{what}: an entry of the list has {array.num_examples} recordings. Give one in each.")
        polarity = None if array.polarity is None else array.polarity.cpu().numpy()
        return array.pixel.cpu().numpy(), array.time.cpu().numpy(), polarity
    if isinstance(array, Mapping):
        fields = tuple(array)
    else:
        fields = array.dtype.names if isinstance(array, np.ndarray) else None
    if fields is None:
        shape = getattr(array, "shape", None)
        raise TypeError(
            f"{what}: {type(array).__name__}{'' if shape is None else f' of shape {tuple(shape)}'} has no names of "
            "columns. Name them: dict(x=a[:, 0], y=a[:, 1], t=a[:, 2], p=a[:, 3])."
        )
    values = {}
    for name, aliases in ALIASES.items():
        names = [f for f in fields if f.lower() in aliases]
        if len(names) != 1:
            said = f"has {' and '.join(names)}" if names else f"has no {' or '.join(aliases)}"
            raise ValueError(f"{what}: the array {said}. Its fields are {', '.join(fields)}.")
        value = np.asarray(array[names[0]])
        values[name] = value.reshape(-1) if value.ndim != 1 and value.size == max(value.shape, default=1) else value
    return columns_of(values["x"], values["y"], values["t"], values["p"], what)


def columns_of(x: np.ndarray, y: np.ndarray, t: np.ndarray, p: np.ndarray, what: str) -> Columns:
    """The three columns of a recording from its four fields; refuses what would change a value."""
    for name, value in (("x", x), ("y", y), ("t", t), ("p", p)):
        if value.ndim != 1 or len(value) != len(t):
            raise ValueError(f"{what}: {name} is {value.shape}, t is {t.shape}. Give x, y, t and p of one length.")
        # NumPy takes an empty list for float64.
        if len(value) and value.dtype.kind not in "iub":
            remedy = ". Give microseconds: (seconds * 1e6).round().astype('int64')" if name == "t" else ""
            raise TypeError(f"{what}: {name} must hold integers, not {value.dtype}{remedy}")
    pixel = np.empty((len(t), 2), np.int32)
    if not len(t):
        return pixel, np.empty(0, np.int64), np.empty(0, bool)
    for axis, value in enumerate((x, y)):
        if value.dtype.itemsize > 4 - (value.dtype.kind == "u"):
            _refuse_beyond(value, np.iinfo(np.int32).max, "xy"[axis], what)
        pixel[:, axis] = value
    if t.dtype == np.uint64:
        _refuse_beyond(t, np.iinfo(np.int64).max, "t", what)
    return pixel, np.array(t, np.int64), as_polarity(p, what)


def _refuse_beyond(value: np.ndarray, limit: int, name: str, what: str) -> None:
    low, high = int(value.min()), int(value.max())
    if high > limit or low < -limit - 1:
        bad = (value > limit) | (value < -limit - 1) if value.dtype.kind == "i" else value > limit
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{what}: row {row} has {name} = {value[row]}, outside {-limit - 1} to {limit}")


def as_polarity(p: np.ndarray, what: str) -> np.ndarray:
    """True for ON, from bool, 0/1 or -1/+1."""
    if p.dtype == bool:
        # Bytes of a camera's message may be any number where True is meant.
        return p.view(np.uint8) != 0
    if len(p):
        low, high = int(p.min()), int(p.max())
        if low < -1 or high > 1:
            row = int(np.flatnonzero((p < -1) | (p > 1))[0])
            raise ValueError(f"{what}: row {row} has polarity {p[row]}. Give 0 and 1, or -1 and 1.")
        if low == -1 and bool((p == 0).any()):
            zero, minus = (int(np.flatnonzero(p == value)[0]) for value in (0, -1))
            raise ValueError(f"{what}: row {zero} has polarity 0, row {minus} has -1. Give 0 and 1, or -1 and 1.")
    return p > 0
