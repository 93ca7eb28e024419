"""HDF5, in the layouts that are in use; read by h5py.

- arrays x, y, t, p in a group `events`, or at the top (names as `Events.of` knows them, also xs, ys, ts, ps); a dataset
  `t_offset` beside them is added to the times; times stored as floats are seconds, unless all are whole;
- one structured dataset, `events` or `CD/events` (Prophesee);
- one (events, 4) dataset `events` with the columns t, x, y, p, or x, y, t, p: whichever has times that never step back,
  and else the first for integers, the second for floats; so those of MVSEC, `davis/left/events`, or with `stream=1`
  `davis/right/events`.

The sensor is the attribute `sensor` or `geometry` ("640x480"), or `width` and `height`, or `sensor_resolution`
(height, width), of the file or of the group. Attributes are read only where the caller gives no sensor.

Only what the file itself holds is read: links that are not hard, virtual datasets and external storage are refused. The
HDF5 library hangs on some damaged strings, and may do worse: `read_events(path, isolated=True)` is for files that are
not trusted.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gridless.data.errors import FormatError, library
from gridless.data.readers.events.base import File, Recording
from gridless.data.readers.events.npy import recording_of
from gridless.structures.events import ALIASES

MAGIC = b"\x89HDF\r\n\x1a\n"
PLACES = ("CD/events", "events", "/", "davis/left/events")
PLURALS = {"xs": "x", "ys": "y", "ts": "t", "ps": "p"}


def sniff(head: bytes) -> bool:
    return head.startswith(MAGIC) or head[512:520] == MAGIC


def read(file: File) -> Recording:
    h5py = library("h5py", file.path)
    try:
        # Without the file locks, which a read-only disk may refuse.
        with h5py.File(file.path, "r", locking=False) as root:
            arrays, node = _events(file, root)
            sensor = None if file.sensor else _sensor(file, node, root)
    except (FormatError, MemoryError):
        raise
    except Exception as error:  # h5py raises many kinds
        raise file.error(f"this HDF5 file cannot be read: {str(error)[:400] or type(error).__name__}") from None
    return recording_of(file, arrays, sensor)


def _events(file: File, root: Any) -> tuple[Any, Any]:
    """The events, as `recording_of` takes them, and the dataset or group that held them."""
    if file.stream not in (None, 0, 1):
        raise file.error(f"has no event stream {file.stream}. 0 is the first or left one, 1 the right one.")
    places = ("davis/right/events",) if file.stream == 1 else PLACES
    for place in places:
        node = _open(file, root, place)
        if hasattr(node, "dtype"):
            array = _load(file, node)
            if array.dtype.names:
                return array, node
            if array.ndim == 2 and array.shape[1] == 4:
                order = _order(array)
                return _whole(file, {name: array[:, i] for i, name in enumerate(order)}), node
            raise file.error(f"{place} is {array.shape} {array.dtype}, neither structured nor (events, 4)")
        if node is not None and (names := _fields(node)):
            return _group(file, root, node, names), node
    actual = ", ".join(name for name, _ in zip(root, range(20))) or "nothing"
    raise file.error(f"has no events. The reader looked for {', '.join(places)} and found {actual}.")


def _order(array: np.ndarray) -> str:
    """The column of each field."""
    usual, other = ("xytp", "txyp") if array.dtype.kind == "f" else ("txyp", "xytp")
    times = {name: array[:, name.index("t")] for name in (usual, other)}
    ordered = {name: bool((t[1:] >= t[:-1]).all()) for name, t in times.items()}
    return other if ordered[other] and not ordered[usual] else usual


def _open(file: File, group: Any, place: str) -> Any:
    """The dataset or group at a place, or None. No link is followed that could lead elsewhere."""
    import h5py
    from h5py import h5l  # type: ignore[attr-defined]

    for name in filter(None, place.split("/")):
        # `name in group` would follow the link.
        if not isinstance(group, h5py.Group) or not group.id.links.exists(name.encode()):
            return None
        if group.id.links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise file.error(f"{place} is a link to another place, which is not followed")
        group = group[name]
    return group


def _fields(group: Any) -> dict[str, str]:
    """Name in the file of each of x, y, t, p; empty unless all four are there."""
    fields = {}
    for name in group:
        plain = PLURALS.get(name.lower(), name.lower())
        for field, aliases in ALIASES.items():
            if plain in aliases:
                fields.setdefault(field, name)
    return fields if len(fields) == 4 else {}


def _group(file: File, root: Any, group: Any, names: dict[str, str]) -> dict[str, np.ndarray]:
    arrays = _whole(file, {field: _load(file, _open(file, group, name)) for field, name in names.items()})
    node = _open(file, group, "t_offset") or _open(file, root, "t_offset")
    if node is not None:
        offset = _load(file, node)
        if offset.size != 1 or offset.dtype.kind not in "iu":
            raise file.error(f"t_offset is {offset.shape} {offset.dtype}, not one integer")
        latest = int(arrays["t"].max(initial=0)) + int(offset.item())
        if latest >= 2**63:
            raise file.error(f"has the time {latest}, with its t_offset, which does not fit in 64 bits")
        arrays["t"] = arrays["t"].astype(np.int64) + int(offset.item())
    return arrays


def _whole(file: File, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Floats as whole numbers: times in microseconds, and what else holds no others."""
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            whole = bool((array == np.round(array)).all())
            values = array.astype(np.float64) if whole else np.round(array.astype(np.float64) * 1e6)
            if not np.isfinite(array).all() or (np.abs(values) >= 2**62).any():
                raise file.error(f"has {'times' if name == 't' else name} that are not finite")
            if name == "t" or whole:
                arrays[name] = values.astype(np.int64)
    return arrays


def _load(file: File, node: Any) -> np.ndarray:
    """The numbers of a dataset, checked before anything is allocated."""
    import h5py

    if not isinstance(node, h5py.Dataset):
        raise file.error(f"{node.name} is not a dataset")
    # Asked before its shape, for which the library would open the sources of a virtual dataset.
    if node.is_virtual or node.external:
        raise file.error(f"{node.name} is stored in other files, which are not read")
    if node.dtype.hasobject or node.dtype.kind not in "iufbV" or node.shape is None:
        raise file.error(f"{node.name} holds {node.dtype}, not numbers")
    file.limits.unpacked(str(node.name), max(node.size, np.prod(node.chunks or 0, dtype=object)) * node.dtype.itemsize)
    try:
        return node[()]
    except OSError as error:
        plugin = "plugin" in str(error) or "required filter" in str(error)
        remedy = ". Install the HDF5 plugin of Prophesee's codec." if plugin else ""
        raise file.error(f"{node.name} cannot be read: {str(error)[:200]}{remedy}") from None


def _sensor(file: File, *nodes: Any) -> tuple[int, int] | None:
    for node in nodes:
        attributes, size = node.attrs, None
        if "sensor_resolution" in attributes:
            size = attributes["sensor_resolution"][::-1]
        elif "width" in attributes and "height" in attributes:
            size = attributes["width"], attributes["height"]
        else:
            # Last, because the library hangs on the heap of a damaged string.
            for name in ("geometry", "sensor"):
                value = attributes.get(name) if size is None else None
                text = value.decode("latin-1") if isinstance(value, bytes) else value
                said = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text) if isinstance(text, str) else None
                size = said.groups() if said else value if isinstance(value, np.ndarray) else size
        if size is not None:
            width, height = (int(v) for v in size)
            if not (0 < width < 2**31 and 0 < height < 2**31):
                raise file.error(f"says the sensor is {width} x {height}")
            return width, height
    return None
