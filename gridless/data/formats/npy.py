"""NumPy files: `.npy` with a structured array, `.npz` with arrays x, y, t, p or one structured array. Never unpickled.

Fields and names as `Events.of` knows them. An `.npz` may say its `sensor`, (width, height).
"""

from __future__ import annotations

import io
import math
import zipfile

import numpy as np

from gridless.data.formats.base import File, FormatError, Recording
from gridless.structures.events import ALIASES, _columns

NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"
FIELDS = {alias for aliases in ALIASES.values() for alias in aliases}


def sniff(head: bytes) -> bool:
    return head.startswith((NPY, ZIP))


def read(file: File) -> Recording:
    if file.bytes(0, 6) == NPY:
        return recording_of(file, _array(file, file.data.data, 0))
    arrays = _members(file)
    size = arrays.pop("sensor", None)
    sensor = None
    if size is not None:
        if size.shape != (2,) or size.dtype.kind not in "iu" or size.min() < 1 or size.max() >= 2**31:
            raise file.error(f"its sensor is {size.tolist()}, not (width, height)")
        sensor = int(size[0]), int(size[1])
    if len(arrays) == 1 and (only := next(iter(arrays.values()))).dtype.names:
        return recording_of(file, only, sensor)
    return recording_of(file, arrays, sensor)


def recording_of(
    file: File, array: np.ndarray | dict[str, np.ndarray], sensor: tuple[int, int] | None = None
) -> Recording:
    """From a structured array, or arrays by name."""
    if isinstance(array, dict):
        array = {name: value for name, value in array.items() if name.lower() in FIELDS}
    try:
        pixel, time, polarity = _columns(array, "events")
    except (ValueError, TypeError) as error:
        raise FormatError(file.path, str(error)) from None
    assert polarity is not None
    return Recording(pixel, time, polarity, sensor)


def _array(file: File, data: bytes | memoryview, at: int) -> np.ndarray:
    """One array, whose header may not promise more than the bytes hold."""
    # A header is at most 10,000 bytes long, or NumPy refuses it.
    stream = io.BytesIO(data[: 1 << 14])
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(stream)
    except Exception as error:
        raise file.error(f"not a NumPy array: {str(error)[:200]}", at) from None
    start, count = stream.tell(), math.prod(shape)
    if dtype.hasobject:
        raise file.error("holds Python objects, which are never unpickled: save plain numbers", at)
    if any(n < 0 for n in shape) or dtype.itemsize == 0 or count * dtype.itemsize != len(data) - start:
        raise file.error(f"the header promises {shape} of {dtype}, but {len(data) - start} bytes follow", at + start)
    return np.frombuffer(data, dtype, count, start).reshape(shape, order="F" if fortran else "C")


def _members(file: File) -> dict[str, np.ndarray]:
    """The arrays of an archive: those with the names of fields, or else the only one; and the sensor."""
    arrays = {}
    try:
        with zipfile.ZipFile(file.path) as archive:
            members = {info.filename[:-4]: info for info in archive.infolist() if info.filename.endswith(".npy")}
            others = [name for name in members if name != "sensor" and name.lower() not in FIELDS]
            if len(members.keys() - {"sensor"}) != 1:
                members = {name: info for name, info in members.items() if name not in others}
            for name, info in members.items():
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise file.error(f"{info.filename} is packed as NumPy never does", info.header_offset)
                file.limits.unpacked(info.filename, info.file_size, info.header_offset)
                arrays[name] = _array(file, archive.read(info), info.header_offset)
    except FormatError:
        raise
    except Exception as error:
        raise file.error(f"a broken archive: {str(error)[:200]}") from None
    return arrays
