"""Guard zones around every buffer of a live engine, so that a write outside one is found, and a read shows as NaN."""

from __future__ import annotations

import numpy as np
import pytest

from gridless.live import Engine
from gridless.live.lowering import Flat, Place

# Elements before and after each buffer: more than a block of rows of any network here is wide.
ZONE = 1023
WHOLE = 0x5AFE5AFE


def canary(array: np.ndarray) -> np.ndarray:
    """The content of a guard zone of this type. Read as floats it is NaN."""
    if array.dtype.kind == "f":
        return np.array(np.nan, array.dtype)
    return np.array(WHOLE if array.dtype.itemsize == 8 else 1, array.dtype)


class Guards:
    """Puts guard zones between the parts of all arrays that are made while it is active."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, arrays = Flat.add, Flat.arrays
        places: dict[int, list[Place]] = {}
        self.zones: list[np.ndarray] = []

        def add(flat: Flat, section: str, values: object) -> Place:
            zone = np.zeros(ZONE, flat.TYPES[section])
            before = plain(flat, section, zone) if section != "table" else None
            at = plain(flat, section, values)
            after = plain(flat, section, zone)
            places.setdefault(id(flat), []).extend(place for place in (before, after) if place is not None)
            return at

        def made(flat: Flat) -> list[np.ndarray]:
            guarded, begins = arrays(flat), flat.begins()
            whole = {s: array for array, (_, names) in zip(guarded, Flat.ARRAYS.values(), strict=True) for s in names}
            for section, at in places.get(id(flat), []):
                self.zones.append(whole[section][begins[section] + at :][:ZONE])
            return guarded

        monkeypatch.setattr(Flat, "add", add)
        monkeypatch.setattr(Flat, "arrays", made)

    def engine(self, *arguments: object, **options: object) -> Engine:
        """An engine whose every part lies between guard zones. Its buffers begin as NaN, or as large numbers."""
        self.zones.clear()
        engine = Engine(*arguments, **options)  # type: ignore[arg-type]
        lowered = engine._lowered
        begins = lowered.flat.begins()
        work = lowered.f[begins["work"] :]
        events = [(lowered.number(s["event"]), 4 * s["capacity"]) for s in lowered.streams.values()]
        for array in (work, *(lowered.i[at : at + size] for at, size in events)):
            array[:] = canary(array)
        self.arm(engine)
        return engine

    def arm(self, engine: Engine) -> None:
        """Fill the zones. Values that a reset clears are 0, until they are filled again."""
        for zone in self.zones:
            zone[:] = canary(zone)

    def check(self) -> None:
        for zone in self.zones:
            untouched = np.isnan(zone) if zone.dtype.kind == "f" else zone == canary(zone)
            assert untouched.all(), f"{(~untouched).sum()} elements beside a buffer of {zone.dtype} were written"
