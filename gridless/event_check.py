"""The search for the first bad event, in one pass; imported when events on the CPU are first checked."""

from __future__ import annotations

import numpy as np

from gridless.compiled import njit

OUTSIDE, BACK, NEGATIVE = 1, 2, 3


@njit(nogil=True, cache=True)
def first_fault(pixel, time, splits, width, height):  # type: ignore[no-untyped-def]
    """(kind, row) of the first event outside the sensor, or else the first that steps back in time or is negative."""
    bad = False
    for i in range(len(time)):
        # A negative number read as unsigned is large.
        bad |= (np.uint32(pixel[i, 0]) >= width) | (np.uint32(pixel[i, 1]) >= height)
    if bad:
        for i in range(len(time)):
            if np.uint32(pixel[i, 0]) >= width or np.uint32(pixel[i, 1]) >= height:
                return OUTSIDE, i
    for example in range(len(splits) - 1):
        start, end = splits[example], splits[example + 1]
        bad = False
        for i in range(start + 1, end):
            bad |= time[i] < time[i - 1]
        if bad:
            for i in range(start + 1, end):
                if time[i] < time[i - 1]:
                    return BACK, i
        if end > start and time[start] < 0:
            return NEGATIVE, start
    return 0, 0
