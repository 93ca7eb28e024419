"""HDF5, in the layouts that are in use; read by h5py.

- arrays x, y, t, p in a group `events`, or at the top (names as `Events.of` knows them, also xs, ys, ts, ps); a dataset
  `t_offset` beside them is added to the times; times stored as floats are seconds;
- one structured dataset, `events` or `CD/events` (Prophesee);
- one (events, 4) integer dataset `events` with the columns t, x, y, p.

The sensor is the attribute `sensor` or `geometry` ("640x480"), or `width` and `height`, or `sensor_resolution`
(height, width), of the file or of the group.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gridless.data.formats.base import File, FormatError, Recording
from gridless.data.formats.npy import recording_of
from gridless.events import ALIASES

MAGIC = b"\x89HDF\r\n\x1a\n"
PLACES = ("CD/events", "events", "/")
PLURALS = {"xs": "x", "ys": "y", "ts": "t", "ps": "p"}
MAX_RATIO = 1100


def sniff(head: bytes) -> bool:
    return head.startswith(MAGIC) or head[512:520] == MAGIC


def read(file: File) -> Recording:
    try:
        import h5py
    except ImportError:
        raise ImportError(f"{file.path} is an HDF5 file: pip install h5py, or gridless[data]") from None
    try:
        with h5py.File(file.path, "r") as root:
            return _read(file, root, h5py)
    except FormatError:
        raise
    except Exception as error:
        raise file.error(f"not an HDF5 file that can be read: {str(error)[:200]}") from None


def _read(file: File, root: Any, h5py: Any) -> Recording:
    for place in PLACES:
        node = root.get(place)
        if isinstance(node, h5py.Dataset):
            sensor = _sensor(file, node.attrs, root.attrs)
            array = _load(file, node)
            if array.dtype.names:
                return recording_of(file, array, sensor)
            if array.ndim == 2 and array.shape[1] == 4:
                return recording_of(file, {name: array[:, i] for i, name in enumerate("txyp")}, sensor)
            raise file.error(f"{place} is {array.shape} {array.dtype}, neither structured nor (events, 4)")
        if isinstance(node, h5py.Group) and _fields(node, h5py):
            return _group(file, node, _sensor(file, node.attrs, root.attrs), h5py)
    raise file.error(
        f"has no events: looked for {', '.join(PLACES)} and found {', '.join(list(root)[:20]) or 'nothing'}"
    )


def _fields(group: Any, h5py: Any) -> dict[str, str]:
    """Name in the file of each of x, y, t, p; empty unless all four are there."""
    found = {}
    for name in group:
        plain = PLURALS.get(name.lower(), name.lower())
        for field, aliases in ALIASES.items():
            if plain in aliases and field not in found and isinstance(group.get(name), h5py.Dataset):
                found[field] = name
    return found if len(found) == 4 else {}


def _group(file: File, group: Any, sensor: tuple[int, int] | None, h5py: Any) -> Recording:
    arrays = {field: _load(file, group[name]) for field, name in _fields(group, h5py).items()}
    if arrays["t"].dtype.kind == "f":
        micro = np.round(arrays["t"].astype(np.float64) * 1e6)
        if not np.isfinite(micro).all() or (np.abs(micro) >= 2**62).any():
            raise file.error("has times that are not finite")
        arrays["t"] = micro.astype(np.int64)
    if arrays["p"].dtype.kind == "f" and np.isin(arrays["p"], (-1, 0, 1)).all():
        arrays["p"] = arrays["p"].astype(np.int8)
    offset = group.get("t_offset", group.file.get("t_offset"))
    if isinstance(offset, h5py.Dataset):
        if offset.size != 1 or offset.dtype.kind not in "iu":
            raise file.error(f"t_offset is {offset.shape} {offset.dtype}, not one whole number")
        arrays["t"] = arrays["t"].astype(np.int64) + int(offset[()].item())
    return recording_of(file, arrays, sensor)


def _load(file: File, dataset: Any) -> np.ndarray:
    if dataset.dtype.kind not in "iufbV" or dataset.dtype.hasobject:
        raise file.error(f"{dataset.name} holds {dataset.dtype}, not numbers")
    size = dataset.size * dataset.dtype.itemsize
    if size > MAX_RATIO * len(file):
        raise file.error(f"{dataset.name} would unpack to {size} bytes")
    try:
        return dataset[()]
    except OSError as error:
        remedy = "; Prophesee's codec needs its HDF5 plugin" if "filter" in str(error) or "plugin" in str(error) else ""
        raise file.error(f"{dataset.name} cannot be read: {str(error)[:200]}{remedy}") from None


def _sensor(file: File, *places: Any) -> tuple[int, int] | None:
    for attributes in places:
        size: Any = None
        for name in ("sensor", "geometry"):
            value = attributes.get(name)
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            said = re.match(r"(\d{1,5})x(\d{1,5})$", value) if isinstance(value, str) else None
            size = said.groups() if said else value if isinstance(value, np.ndarray) else size
        if "width" in attributes and "height" in attributes:
            size = attributes["width"], attributes["height"]
        if "sensor_resolution" in attributes:
            size = attributes["sensor_resolution"][::-1]
        if size is not None:
            width, height = (int(v) for v in size)
            if not (0 < width < 2**31 and 0 < height < 2**31):
                raise file.error(f"says the sensor is {width} x {height}")
            return width, height
    return None
