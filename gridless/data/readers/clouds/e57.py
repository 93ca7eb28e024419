"""E57, by the reader `e57`: the points of all scans, each where its pose puts it, with colour and intensity.

Points that a scanner marks as invalid are left out, as the reader does.
"""

from __future__ import annotations

import numpy as np

from gridless.data.errors import library
from gridless.data.readers.clouds.base import Points, Source
from gridless.structures.interchange import narrowest


def read(source: Source) -> Points:
    e57 = library("e57", source.path, "e57")
    try:
        scans = e57.read_points(str(source.path))  # pyright: ignore[reportAttributeAccessIssue]
    except MemoryError:
        raise source.error("declares more data than fits in memory") from None
    except BaseException as error:
        # Panics of the reader are no Exception; interrupts stay what they are.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise source.error(f"this E57 file cannot be read: {str(error)[:200]}") from None
    coords = np.asarray(scans.points)
    rows = {}
    # A row that some scan lacks is empty.
    if len(coords) and len(scans.intensity) == len(coords):
        rows["intensity"] = np.asarray(scans.intensity)[:, 0]
    # The library gives the intensity as grey if a file has no colours.
    colour = np.asarray(scans.color)
    is_grey = "intensity" in rows and len(colour) == len(coords) and bool((colour == rows["intensity"][:, None]).all())
    if len(coords) and len(colour) == len(coords) and not is_grey:
        rows["rgb"] = _colour(colour)
    return Points(coords, rows, narrowest(coords))


def _colour(colour: np.ndarray) -> np.ndarray:
    """Colours from 0 to 1 as bytes, where they are such."""
    scaled = colour * 255
    whole = np.round(scaled)
    return whole.astype(np.uint8) if (np.abs(scaled - whole) < 1e-3).all() else colour
