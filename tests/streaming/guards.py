"""Guard zones around every buffer of a live engine, so that a write outside one is found, and a read shows as NaN."""

from __future__ import annotations

import numpy as np
import pytest

from gridless.streaming import Engine
from gridless.streaming.lowering import Flat

# Elements before and after each buffer: more than a block of rows of any network here is wide.
ZONE = 1023
WHOLE = 0x5AFE5AFE


def canary(array: np.ndarray) -> np.ndarray:
    """What a guard zone of this type holds; as floats, NaN."""
    if array.dtype.kind == "f":
        return np.array(np.nan, array.dtype)
    return np.array(WHOLE if array.dtype.itemsize == 8 else 1, array.dtype)


class Guards:
    """Puts guard zones between the parts of all flat arrays that are made while it is active."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: dict[int, list[tuple[str, int]]] = {}
        plain, arrays = Flat.add, Flat.array
        self.zones: list[np.ndarray] = []

        def add(flat: Flat, name: str, values: object) -> int:
            zone = np.zeros(ZONE, flat.TYPES.get(name, np.float32))
            before = plain(flat, name, zone)
            at = plain(flat, name, values)  # type: ignore[arg-type]
            after = plain(flat, name, zone)
            self.places.setdefault(id(flat), []).extend([(name, before), (name, after)])
            return at

        def array(flat: Flat, name: str) -> np.ndarray:
            made = arrays(flat, name)
            self.zones += [made[at : at + ZONE] for n, at in self.places.get(id(flat), []) if n == name]
            return made

        monkeypatch.setattr(Flat, "add", add)
        monkeypatch.setattr(Flat, "array", array)

    def inside(self, array: np.ndarray) -> np.ndarray:
        """A copy of an array between two guard zones."""
        room = np.zeros(len(array) + 2 * ZONE, array.dtype)
        room[ZONE:-ZONE] = array
        self.zones += [room[:ZONE], room[-ZONE:]]
        return room[ZONE:-ZONE]

    def engine(self, *arguments: object, **options: object) -> Engine:
        """An engine whose every array lies between guard zones. Its buffers begin as NaN, or as large numbers."""
        self.places, self.zones = {}, []
        engine = Engine(*arguments, **options)  # type: ignore[arg-type]
        depth = len(engine._sizes)
        engine._source, engine._features = self.inside(engine._source), self.inside(engine._features)
        engine._cursor = cursor = self.inside(engine._cursor)
        engine.fired, engine._kept = cursor[2 + 2 * depth : 2 + 3 * depth], cursor[2 + 3 * depth :]
        buffers = [engine._work, engine._event, engine._source]
        if hasattr(engine, "_voxel_head"):
            head = engine._voxel_head
            head.buffers = (head.buffers[0], *map(self.inside, head.buffers[1:]))
            buffers += head.buffers
        for array in (*buffers, *self.zones):
            array[:] = canary(array)
        return engine

    def check(self) -> None:
        for zone in self.zones:
            untouched = np.isnan(zone) if zone.dtype.kind == "f" else zone == canary(zone)
            assert untouched.all(), f"{(~untouched).sum()} elements beside a buffer of {zone.dtype} were written"
