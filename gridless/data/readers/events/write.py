"""Writing events: the forms that need no more than a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gridless.data.files import whole_file, write_whole
from gridless.structures import Events

PAUSE, LONGEST = 0xFF, 127
MAX_PAUSES = 256 << 20


def write_events(path: str | Path, events: Events) -> None:
    """Write one recording. The suffix decides the format.

    `.npz` (x, y, t, p, sensor, and rows), `.npy` (a structured array), `.csv` (t,x,y,p with a line of names and the
    geometry), `.es` (Event Stream 2.0), `.dat` (Prophesee, 32-bit times), `.bin` (N-MNIST's, 23-bit times, pixels below
    256). Padding is not written. Values that a format cannot store are refused. If writing fails, an existing file is
    unchanged.
    """
    if not isinstance(events, Events):
        kind = type(events).__name__
        raise TypeError(
            f"write_events: the second argument must be Events, not {kind}. Use gl.write_events(path, events)."
        )
    path = Path(path)
    if path.suffix.lower() not in WRITERS:
        raise ValueError(
            f"{path}: events are written as {', '.join(WRITERS)}, not as {path.suffix or 'a file without suffix'}"
        )
    if events.num_examples != 1 or events.polarity is None:
        raise ValueError(f"{path}: a file holds one recording with polarity, not {events.num_examples}")
    if events.rows and path.suffix.lower() != ".npz":
        raise ValueError(f"{path}: these events have the rows {', '.join(events.rows)}. Only .npz can hold rows.")
    events.check(str(path))
    WRITERS[path.suffix.lower()](path, events)


def _fields(events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    array = events.numpy()
    return array["x"], array["y"], array["t"], array["p"]


def _refuse_over(path: Path, what: str, value: int, limit: int) -> None:
    if value >= limit:
        raise ValueError(f"{path}: {what} {value} is above the format's limit, {limit - 1}. Write .npz instead.")


def _npz(path: Path, events: Events) -> None:
    x, y, t, p = _fields(events)
    # Through a file object: given a name, NumPy would add its own suffix.
    rows: dict[str, Any] = {f"rows.{n}": v[: len(t)].cpu().numpy() for n, v in events.rows.items()}
    with whole_file(path) as out:
        small = np.uint16 if max(events.sensor) <= 1 << 16 else np.int32
        sensor = np.array(events.sensor, np.int32)
        np.savez(out, x=x.astype(small), y=y.astype(small), t=t, p=p, sensor=sensor, **rows)


def _npy(path: Path, events: Events) -> None:
    with whole_file(path) as out:
        np.save(out, events.numpy(), allow_pickle=False)


def _csv(path: Path, events: Events) -> None:
    x, y, t, p = _fields(events)
    with whole_file(path) as out:
        out.write(f"%geometry:{events.sensor[0]},{events.sensor[1]}\nt,x,y,p\n".encode())
        # Some at a time: as Python's numbers they take ten times the memory.
        for at in range(0, len(t), 1 << 16):
            rows = zip(*(column[at : at + (1 << 16)].tolist() for column in (t, x, y, p)))
            out.writelines(f"{a},{b},{c},{int(d)}\n".encode() for a, b, c, d in rows)


def _es(path: Path, events: Events) -> None:
    _refuse_over(path, "a sensor side of", max(events.sensor), 1 << 16)
    x, y, t, p = _fields(events)
    gap = np.diff(t, prepend=0)
    pauses = gap // LONGEST
    if pauses.sum() > MAX_PAUSES:
        raise ValueError(
            f"{path}: the format needs a byte for every {LONGEST} us without events from time 0, here "
            f"{int(pauses.sum())} bytes. Start times at zero (repair='shift'), or write .npz."
        )
    start = np.arange(len(t)) * 5 + np.cumsum(pauses)
    out = np.full(5 * len(t) + int(pauses.sum()), PAUSE, np.uint8)
    out[start] = (gap % LONGEST) << 1 | p
    for i, value in enumerate((x & 0xFF, x >> 8, y & 0xFF, y >> 8)):
        out[start + 1 + i] = value
    head = b"Event Stream" + bytes([2, 0, 0, 1]) + np.array(events.sensor, "<u2").tobytes()
    write_whole(path, head + out.tobytes())


def _dat(path: Path, events: Events) -> None:
    x, y, t, p = _fields(events)
    _refuse_over(path, "a time of", int(t.max(initial=0)), 1 << 32)
    _refuse_over(path, "a sensor side of", max(events.sensor), 1 << 14)
    out = np.empty((len(t), 2), "<u4")
    out[:, 0], out[:, 1] = t, x | y << 14 | p.astype(np.int32) << 28
    head = f"% Data file containing CD events.\n% Version 2\n% Width {events.sensor[0]}\n% Height {events.sensor[1]}\n"
    write_whole(path, head.encode() + bytes([12, 8]) + out.tobytes())


def _bin(path: Path, events: Events) -> None:
    x, y, t, p = _fields(events)
    _refuse_over(path, "a time of", int(t.max(initial=0)), 1 << 23)
    _refuse_over(path, "a column of", int(x.max(initial=0)), 256)
    _refuse_over(path, "a row of", int(y.max(initial=0)), 240)
    out = np.empty((len(t), 5), np.uint8)
    for i, value in enumerate((x, y, p.astype(np.int64) << 7 | t >> 16, t >> 8 & 0xFF, t & 0xFF)):
        out[:, i] = value
    write_whole(path, out.tobytes())


WRITERS = {".npz": _npz, ".npy": _npy, ".csv": _csv, ".es": _es, ".dat": _dat, ".bin": _bin}
