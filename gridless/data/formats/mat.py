"""MATLAB `.mat` up to version 7, as ASL-DVS is stored: arrays x, y, ts (microseconds), pol. Read by SciPy.

Version 7.3 is HDF5 and is read as such.
"""

from __future__ import annotations

import io
import warnings

import numpy as np

from gridless.data.formats.base import File, Recording
from gridless.data.formats.npy import recording_of
from gridless.events import ALIASES

CAMERAS = ((240, 180),)


def sniff(head: bytes) -> bool:
    return head.startswith(b"MATLAB 5.0") or (len(head) >= 128 and head[124:128] in (b"\x00\x01IM", b"\x01\x00MI"))


def read(file: File) -> Recording:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ImportError(f"{file.path} is a MATLAB file: pip install scipy, or gridless[data]") from None
    names = [alias for aliases in ALIASES.values() for alias in aliases]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = loadmat(io.BytesIO(file.data.tobytes()), variable_names=names)
    except Exception as error:
        raise file.error(f"not a MATLAB file that can be read: {str(error)[:200]}") from None
    arrays = {k: whole(file, k, v) for k, v in found.items() if k in names and isinstance(v, np.ndarray)}
    recording = recording_of(file, arrays)
    recording.cameras = CAMERAS
    return recording


def whole(file: File, name: str, array: np.ndarray) -> np.ndarray:
    """Integers, from numbers that MATLAB may have stored as doubles."""
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            integers = array.astype(np.int64)
        if not np.array_equal(integers, array):
            raise file.error(f"{name} must hold whole numbers")
        return integers
    return array
