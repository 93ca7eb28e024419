"""NumPy's files, `.npy` and `.npz`, within the limits of a file. Never unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Collection

import numpy as np

from gridless.data.errors import FormatError
from gridless.data.limits import Limits
from gridless.kernels.threads import ForkSafeLock

NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"
# NumPy parses headers as Python, and Python 3.11 fails at times where two threads do so at once.
_PARSING = ForkSafeLock()


def array_of(limits: Limits, data: bytes | memoryview, at: int = 0) -> np.ndarray:
    """The array that `data` holds, from byte `at` of the file; its header may not promise more than the bytes hold."""
    # A header is at most 10,000 bytes long, or NumPy refuses it.
    stream = io.BytesIO(data[: 1 << 14])
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with _PARSING:
            shape, fortran, dtype = header(stream)
    except Exception as error:
        raise FormatError(limits.path, f"not a NumPy array: {str(error)[:200]}", at) from None
    start, count = stream.tell(), math.prod(shape)
    if dtype.hasobject:
        message = "holds Python objects, which gridless never unpickles. Save plain numbers."
        raise FormatError(limits.path, message, at)
    if any(n < 0 for n in shape) or dtype.itemsize == 0 or count * dtype.itemsize != len(data) - start:
        message = f"the header promises {shape} of {dtype}, but {len(data) - start} bytes follow"
        raise FormatError(limits.path, message, at + start)
    return np.frombuffer(data, dtype, count, start).reshape(shape, order="F" if fortran else "C")


def arrays_of(
    limits: Limits, chosen: Callable[[Collection[str]], Collection[str]] = lambda names: names
) -> dict[str, np.ndarray]:
    """The arrays of an archive whose names `chosen` returns, by default all."""
    arrays = {}
    try:
        with zipfile.ZipFile(limits.path) as archive:
            members = {info.filename[:-4]: info for info in archive.infolist() if info.filename.endswith(".npy")}
            for name in chosen(members):
                info, at = members[name], members[name].header_offset
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise FormatError(
                        limits.path, f"{info.filename} is compressed in a way that NumPy does not use", at
                    )
                limits.unpacked(info.filename, info.file_size, at)
                # With a size: archive.read(info) unpacks all that is there, and only then finds that it is too much.
                with archive.open(info) as member:
                    arrays[name] = array_of(limits, member.read(info.file_size), at)
    except (FormatError, MemoryError):
        raise
    except Exception as error:
        raise FormatError(limits.path, f"the archive is broken: {str(error)[:200]}") from None
    return arrays
