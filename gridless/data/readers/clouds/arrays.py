"""NumPy files. Never unpickled.

One array: (S, 2) or (S, 3 or more), of which the columns behind the third are `features`; or structured, with fields x,
y, z and others. An archive: `coords`, `xyz`, `points` or `pos` (S, D), or x, y, z (S), and other arrays of S rows.
"""

from __future__ import annotations

import numpy as np

from gridless.data.numpy_files import NPY, array_of, arrays_of
from gridless.data.readers.clouds.base import Parts, Points, Source, in_parts, named, natural

COORDS = ("coords", "xyz", "points", "pos")


def read(source: Source) -> Points:
    if source.data.startswith(NPY):
        return _one(source, array_of(source.limits, source.data))
    stored = arrays_of(source.limits)
    arrays = {name.lower(): array for name, array in stored.items()}
    if len(arrays) < len(stored):
        raise source.error("the names of two arrays differ only in capitals")
    if not arrays:
        raise source.error("holds no points: the archive has no arrays")
    if len(arrays) == 1:
        return _one(source, next(iter(arrays.values())))
    whole = [name for name in COORDS if name in arrays]
    if len(whole) > 1:
        raise source.error(f"both {whole[0]!r} and {whole[1]!r} may be the coordinates. Keep one of them.")
    points = _one(source, arrays.pop(whole[0])) if whole else None
    if points is None:
        count = len(arrays["x"]) if "x" in arrays and arrays["x"].ndim else 0
    else:
        count = len(points.coords)
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != count or array.dtype.kind not in "fiub":
            hint = ". Write a number for each name." if array.dtype.kind in "US" else ""
            problem = f"{name!r} {array.shape} of {array.dtype} does not hold numbers for {count} points"
            raise source.error(problem + hint)
    if points is None:
        return named(source, arrays.items())
    twice = points.rows.keys() & arrays.keys()
    if twice:
        raise source.error(f"two arrays have the name {twice.pop()!r}")
    return points._replace(rows=points.rows | arrays)


def parts(source: Source) -> Parts:
    """One array in pieces of as many points as PART."""
    return in_parts(_one(source, array_of(source.limits, memoryview(source.data))))


def _one(source: Source, array: np.ndarray) -> Points:
    if array.dtype.names:
        columns = [(name, array[name]) for name in array.dtype.names]
        odd = [name for name, column in columns if column.dtype.kind not in "fiub"]
        if array.ndim != 1 or odd:
            raise source.error(
                f"an array of points must be rows of numbers, not {array.shape} of {str(array.dtype)[:200]}"
            )
        return named(source, columns)
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind not in "fiu":
        raise source.error(f"an array of points must be (points, 2 or more), not {array.shape} of {array.dtype}")
    rows = {"features": array[:, 3:]} if array.shape[1] > 3 else {}
    return Points(array[:, :3], rows, natural(array.dtype))
