"""MATLAB `.mat`, versions 5 to 7, by SciPy, as ASL-DVS is stored: vectors x, y, ts (microseconds), pol.

Only variables with the names of fields are read. Version 7.3 is HDF5 and is read as such.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from gridless.data.errors import FormatError, library
from gridless.data.readers.events.base import File, Recording
from gridless.data.readers.events.npy import FIELDS, recording_of

CAMERAS = ((240, 180),)
NUMERIC = {"double", "single", "logical"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
# Bytes of a number while it is read.
NUMBER = 8


def sniff(head: bytes) -> bool:
    return len(head) >= 128 and head[124:128] in (b"\x00\x01IM", b"\x01\x00MI")


def read(file: File) -> Recording:
    matlab = library("scipy.io", file.path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fields = [entry for entry in matlab.whosmat(file.path) if entry[0].lower() in FIELDS]
            for name, shape, kind in fields:
                _check(file, name, shape, kind)
            names = [name for name, *_ in fields]
            arrays = matlab.loadmat(file.path, variable_names=names) if names else {}
    except FormatError:
        raise
    except MemoryError:
        raise file.error("declares more data than fits in memory") from None
    except Exception as error:  # SciPy raises many kinds
        raise file.error(f"this MATLAB file cannot be read: {str(error)[:200] or type(error).__name__}") from None
    recording = recording_of(file, {name: _whole(file, name, arrays.get(name)) for name in names})
    recording.cameras = CAMERAS
    return recording


def _check(file: File, name: str, shape: tuple[int, ...], kind: str) -> None:
    """Refuse, before it is unpacked, what is no vector of numbers."""
    if kind not in NUMERIC:
        raise file.error(f"{name} has the type {kind}, not real numbers")
    if min(shape, default=0) < 0 or math.prod(shape) != max(shape, default=0):
        raise file.error(f"{name} is {shape}, not a vector")
    file.limits.unpacked(name, math.prod(shape) * NUMBER)


def _whole(file: File, name: str, array: Any) -> np.ndarray:
    """Integers, from numbers that MATLAB may have stored as doubles."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise file.error(f"{name} does not hold real numbers")
    array = array.reshape(-1)
    if array.dtype.kind != "f":
        return array.astype(array.dtype.newbyteorder("="))
    # Not true of NaN.
    small = array.min(initial=0) > -(2**62) and array.max(initial=0) < 2**62
    if not small or not (array == np.round(array)).all():
        raise file.error(f"{name} must hold whole numbers")
    return array.astype(np.int64)
