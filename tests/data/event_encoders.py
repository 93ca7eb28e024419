"""Small files of every event format, written by encoders that know the formats but not the readers."""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import bag_files
import numpy as np
import pytest
from fuzz import Seed

import gridless as gl

SENSOR = (320, 240)
HEADER_EVT = "% Date 2024-01-01 00:00:00\n% evt {}\n% geometry 320x240\n"


def recording(count: int = 300, seed: int = 0, end: int = 40_000_000) -> gl.Events:
    """Random events in order of time, with pauses, equal times and runs of neighbours."""
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(0, end, count))
    t[count // 3 : count // 2] = t[count // 3]
    x, y = random.integers(0, SENSOR[0], count), random.integers(0, SENSOR[1], count)
    p = random.integers(0, 2, count)
    run = np.arange(count // 3, count // 2)
    x[run], y[run], p[run] = np.arange(len(run)) * 2 + 5, 77, 1
    return gl.Events.of({"t": t, "x": x, "y": y, "p": p}, sensor=SENSOR)


def fields(events: gl.Events) -> list[tuple[int, int, int, int]]:
    return [(int(t), int(x), int(y), int(p)) for t, x, y, p in events.numpy().tolist()]


def evt2(events: gl.Events) -> bytes:
    words, high = [], None
    for t, x, y, p in fields(events):
        if t >> 6 != high:
            high = t >> 6
            words += [0x8 << 28 | high & 0x0FFFFFFF, 0xA << 28 | 1]  # and a trigger, to be skipped
        words.append(p << 28 | (t & 63) << 22 | x << 11 | y)
    return HEADER_EVT.format("2.0").encode() + np.array(words, "<u4").tobytes()


def evt3(events: gl.Events) -> bytes:
    """Runs of one row, time and polarity become vectors; everything else single columns."""
    rows, words, high, low, row = fields(events), [], None, None, None
    i = 0
    while i < len(rows):
        t, x, y, p = rows[i]
        # A real camera repeats the high half often enough that no wrap is missed.
        while high is None or high < t >> 12:
            high = t >> 12 if high is None else min(high + 1024, t >> 12)
            words, low = [*words, 0x8000 | high & 0xFFF], None
        if low != t & 0xFFF:
            low = t & 0xFFF
            words.append(0x6000 | low)
        if row != y:
            row = y
            words.append(y)
        mask, j = 0, i
        while j < len(rows) and rows[j][0] == t and rows[j][2:] == (y, p) and 0 <= rows[j][1] - x < 20:
            if mask >> (rows[j][1] - x):
                break
            mask |= 1 << (rows[j][1] - x)
            j += 1
        if j - i > 1:
            words += [0x3000 | p << 11 | x, 0x4000 | mask & 0xFFF, 0x5000 | mask >> 12]
            i = j
        else:
            words += [0x2000 | p << 11 | x, 0xA001]
            i += 1
    return HEADER_EVT.format("3.0").encode() + np.array(words, "<u2").tobytes()


def aedat2(events: gl.Events) -> bytes:
    head = b"#!AER-DAT2.0\r\n# AEChip: eu.seebetter.ini.chips.davis.DAVIS346B\r\n#End Of ASCII Header\r\n"
    pairs = []
    for t, x, y, p in fields(events):
        pairs += [y << 22 | x << 12 | p << 11, t & 0xFFFFFFFF, 0x80000000, t & 0xFFFFFFFF]
    return head + np.array(pairs, ">u4").tobytes()


def aedat3(events: gl.Events) -> bytes:
    out = [b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DAVIS346\r\n#Start-Time: 2024\r\n#!END-HEADER\r\n"]
    rows = fields(events)
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        for overflow in sorted({t >> 31 for t, *_ in part}):
            body = [(x << 17 | y << 2 | p << 1 | 1, t & 0x7FFFFFFF) for t, x, y, p in part if t >> 31 == overflow]
            body.append((0, 0))  # an invalid event
            out.append(struct.pack("<hhiiiiii", 1, 1, 8, 4, overflow, len(body), len(body), len(body) - 1))
            out.append(np.array(body, "<u4").tobytes())
        out.append(struct.pack("<hhiiiiii", 3, 1, 36, 4, 0, 1, 1, 1) + bytes(36))  # inertial data
    return b"".join(out)


def flat_table(identifier: bytes, *values: bytes | None, vector: bytes = b"", count: int = 0) -> bytes:
    """A FlatBuffers table behind its size: scalar fields, then one vector as the last field."""
    slots = [v for v in values if v is not None]
    offsets, at = [], 4
    for value in values:
        offsets.append(at if value is not None else 0)
        at += len(value or b"")
    vtable = struct.pack("<HH", 6 + 2 * len(values), at + 4) + b"".join(struct.pack("<H", o) for o in [*offsets, at])
    root = 8 + len(vtable)
    body = struct.pack("<I", root) + identifier + vtable
    body += struct.pack("<i", len(vtable)) + b"".join(slots) + struct.pack("<I", 4) + struct.pack("<I", count) + vector
    return struct.pack("<I", len(body)) + body


def aedat4(events: gl.Events, compression: int = 0) -> bytes:
    info = '<dv version="2.0"><node name="outInfo" path="/"><node name="0" path="/0/">'
    info += (
        '<attr key="typeIdentifier" type="string">EVTS</attr><node name="info"><attr key="sizeX" type="int">320</attr>'
    )
    info += '<attr key="sizeY" type="int">240</attr></node></node></node></dv>'
    text = info.encode()
    header = flat_table(b"IOHE", struct.pack("<i", compression), struct.pack("<q", -1), vector=text, count=len(text))
    out, rows = [b"#!AER-DAT4.0\r\n", header], fields(events)
    for start in range(0, len(rows), 100):
        part = rows[start : start + 100]
        packed = b"".join(struct.pack("<qhhB3x", t, x, y, p) for t, x, y, p in part)
        body = flat_table(b"EVTS", vector=packed, count=len(part))
        if compression in (1, 2):
            body = pytest.importorskip("lz4.frame").compress(body)
        elif compression in (3, 4):
            body = pytest.importorskip("zstandard").ZstdCompressor().compress(body)
        out += [struct.pack("<ii", 0, len(body)), body, struct.pack("<ii", 1, 3), b"imu"]
    return b"".join(out)


def mat(events: gl.Events) -> bytes:
    io_module, out, array = pytest.importorskip("scipy.io"), io.BytesIO(), events.numpy()
    values = {"ts": array["t"], "x": array["x"], "y": array["y"], "pol": array["p"].astype(np.uint8)}
    io_module.savemat(out, {k: v.astype(np.float64)[:, None] for k, v in values.items()}, do_compression=True)
    return out.getvalue()


def hdf5(events: gl.Events) -> bytes:
    h5py, out, array = pytest.importorskip("h5py"), io.BytesIO(), events.numpy()
    with h5py.File(out, "w") as file:
        for name in "xytp":
            file.create_dataset(f"events/{name}", data=array[name].astype(np.int64), compression="gzip")
        file.attrs["geometry"] = "320x240"
    return out.getvalue()


def npz_with_rows(events: gl.Events) -> bytes:
    out, array = io.BytesIO(), events.numpy()
    rows = {"rows.weight": np.ones(len(array), np.float32), "rows.colour": np.zeros((len(array), 3), np.uint8)}
    np.savez_compressed(out, **{name: array[name] for name in "xytp"}, sensor=SENSOR, **rows)
    return out.getvalue()


def written(suffix: str) -> Callable[[gl.Events, Path], bytes]:
    def encode(events: gl.Events, folder: Path) -> bytes:
        path = folder / f"written{suffix}"
        gl.write_events(path, events)
        return path.read_bytes()

    return encode


# name -> (suffix, encoder)
ENCODERS = {
    "evt2": (".raw", evt2),
    "evt3": (".raw", evt3),
    "aedat2": (".aedat", aedat2),
    "aedat3": (".aedat", aedat3),
    "aedat4": (".aedat4", aedat4),
    "aedat4-lz4": (".aedat4", lambda events: aedat4(events, 1)),
    "aedat4-zstd": (".aedat4", lambda events: aedat4(events, 3)),
    "mat": (".mat", mat),
    "hdf5": (".h5", hdf5),
    "npz-rows": (".npz", npz_with_rows),
    **{suffix[1:]: (suffix, written(suffix)) for suffix in (".npz", ".npy", ".csv", ".es", ".dat", ".bin")},
}


def encoded(name: str, folder: Path) -> tuple[str, gl.Events, bytes]:
    """(suffix, events, the bytes of a file that holds them) of one format."""
    suffix, encode = ENCODERS[name]
    # N-MNIST's form holds 8-bit pixels and 23-bit times.
    events = recording() if name != "bin" else recording(end=8_000_000)
    if name == "bin":
        events = gl.Events.of({k: v % 200 if k in "xy" else v for k, v in _arrays(events).items()}, sensor=(304, 240))
    return suffix, events, encode(events, folder) if encode.__name__ == "encode" else encode(events)


def _arrays(events: gl.Events) -> dict[str, np.ndarray]:
    array = events.numpy()
    return {name: array[name] for name in "xytp"}


def _seed(name: str) -> Seed:
    def make() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            return encoded(name, Path(folder))[2]

    # The HDF5 library hangs on some damaged strings, so the sensor is not read from one.
    read = partial(gl.read_events, sensor=SENSOR) if name == "hdf5" else gl.read_events
    return Seed(f"events {name}", make, ENCODERS[name][0], read)


SEEDS = [_seed(name) for name in ENCODERS]
SEEDS += [
    Seed(f"events {kind}", partial(bag_files.seed, kind, True), f".{kind}", gl.read_events) for kind in bag_files.KINDS
]
