"""NumPy files: `.npy` with a structured array, `.npz` with arrays x, y, t, p or one structured array. Never unpickled.

Fields and names as `Events.of` knows them. An `.npz` may say its `sensor`, (width, height), and hold rows, `rows.NAME`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from gridless.data.numpy_files import NPY, ZIP, array_of, arrays_of
from gridless.data.readers.events.base import File, Recording
from gridless.structures.events import ALIASES, recording_columns

ROWS = "rows."
FIELDS = {alias for aliases in ALIASES.values() for alias in aliases}


def sniff(head: bytes) -> bool:
    return head.startswith((NPY, ZIP))


def read(file: File) -> Recording:
    if file.bytes(0, 6) == NPY:
        return recording_of(file, array_of(file.limits, file.data.data))
    arrays = arrays_of(file.limits, _chosen)
    # Copies, because tensors must be of memory that can be written.
    rows = {name.removeprefix(ROWS): arrays.pop(name).copy() for name in list(arrays) if name.startswith(ROWS)}
    size = arrays.pop("sensor", None)
    sensor = None
    if size is not None:
        if size.shape != (2,) or size.dtype.kind not in "iu" or size.min() < 1 or size.max() >= 2**31:
            raise file.error(f"its sensor is {size.tolist()}, not (width, height)")
        sensor = int(size[0]), int(size[1])
    # One alone holds all fields, or is refused by its shape.
    content = next(iter(arrays.values())) if len(arrays) == 1 else arrays
    return replace(recording_of(file, content, sensor), rows=rows)


def recording_of(
    file: File, array: np.ndarray | dict[str, np.ndarray], sensor: tuple[int, int] | None = None
) -> Recording:
    """From a structured array, or arrays by name."""
    if isinstance(array, dict):
        array = {name: value for name, value in array.items() if name.lower() in FIELDS}
    try:
        pixel, time, polarity = recording_columns(array, "events")
    except (ValueError, TypeError) as error:
        raise file.error(str(error)) from None
    assert polarity is not None
    return Recording(pixel, time, polarity, sensor)


def _chosen(names: Collection[str]) -> list[str]:
    """Arrays with the names of fields, or else the only one; and the sensor, and rows."""
    beside = {name for name in names if name == "sensor" or name.startswith(ROWS)}
    fields = [name for name in names if name in beside or name.lower() in FIELDS]
    return list(names) if len(set(names) - beside) == 1 else fields
