"""Reading of event files: one synthetic recording in every format, checked event by event, then timed.

    python benchmarks/event_files.py [--events 5000000] [--peers FOLDER] [--out benchmarks/results/event_files.json]

Times are of `gl.read_events`: from the file (in the page cache) to checked tensors, best of nine, one thread; of the
process's CPU, so that other work on the machine matters less.
Other decoders are timed beside it where they can be imported, from `--peers` (a site-packages folder) if given.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, keep, machine

import gridless as gl

SENSOR = (240, 180)


def recording(count: int) -> gl.Events:
    """Random pixels; pauses as in a busy camera of 10 million events a second, every event of its own time or equal."""
    random = np.random.default_rng(0)
    t = np.cumsum(random.integers(0, 2, count))
    x, y = random.integers(0, SENSOR[0], count), random.integers(0, SENSOR[1], count)
    return gl.Events.of({"t": t, "x": x, "y": y, "p": random.integers(0, 2, count)}, sensor=SENSOR)


def interleaved(first: np.ndarray, before: np.ndarray, words: np.ndarray) -> np.ndarray:
    """`words`, with the words `first` put before the rows `before`."""
    out = np.empty(len(words) + len(first), words.dtype)
    places = before + np.arange(len(first))
    rest = np.ones(len(out), bool)
    rest[places] = False
    out[places], out[rest] = first, words
    return out


def evt2(a: np.ndarray) -> bytes:
    high = a["t"] >> 6
    before = np.flatnonzero(np.diff(high, prepend=-1))
    words = (a["p"].astype(np.int64) << 28 | (a["t"] & 63) << 22 | a["x"] << 11 | a["y"]).astype("<u4")
    times = (0x8 << 28 | high[before]).astype("<u4")
    return b"% evt 2.0\n% geometry 240x180\n" + interleaved(times, before, words).tobytes()


def evt3(a: np.ndarray) -> bytes:
    """Sorted by row within each microsecond, as a camera reads out; a column word for each event."""
    order = np.lexsort((np.arange(len(a)), a["y"], a["t"]))
    a = a[order]
    words = (0x2000 | a["p"].astype(np.int64) << 11 | a["x"]).astype("<u2")
    keys = (a["t"] >> 12, a["t"], a["y"].astype(np.int64) + (a["t"] << 12))
    marks = [np.flatnonzero(np.diff(k, prepend=-1)) for k in keys]
    values = (0x8000 | a["t"] >> 12 & 0xFFF, 0x6000 | a["t"] & 0xFFF, a["y"].astype(np.int64))
    before = np.concatenate(marks)
    first = np.concatenate([v[m].astype("<u2") for v, m in zip(values, marks, strict=True)])
    order = np.argsort(before, kind="stable")
    return b"% evt 3.0\n% geometry 240x180\n" + interleaved(first[order], before[order], words).tobytes()


def aedat2(a: np.ndarray) -> bytes:
    pairs = np.stack([a["y"].astype(np.int64) << 22 | a["x"] << 12 | a["p"].astype(np.int64) << 11, a["t"]], 1)
    return b"#!AER-DAT2.0\r\n# AEChip: DAVIS240C\r\n#End Of ASCII Header\r\n" + pairs.astype(">u4").tobytes()


def aedat3(a: np.ndarray, size: int = 4096) -> bytes:
    out = [b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DAVIS240C\r\n#!END-HEADER\r\n"]
    body = np.stack([a["x"].astype(np.int64) << 17 | a["y"] << 2 | a["p"].astype(np.int64) << 1 | 1, a["t"]], 1)
    body = body.astype("<u4")
    for start in range(0, len(body), size):
        part = body[start : start + size]
        out += [np.array([1 << 16 | 1, 8, 4, 0, *[len(part)] * 3], "<u4").tobytes(), part.tobytes()]
    return b"".join(out)


def flat(identifier: bytes, slots: list[bytes], vector: bytes, count: int) -> bytes:
    """A FlatBuffers table behind its size: scalars, then one vector."""
    at = 4 + np.cumsum([0] + [len(s) for s in slots])
    vtable = np.array([6 + 2 * len(slots), at[-1] + 4, *at], "<u2").tobytes()
    body = np.array([8 + len(vtable)], "<u4").tobytes() + identifier + vtable
    body += np.array([len(vtable)], "<i4").tobytes() + b"".join(slots) + np.array([4, count], "<u4").tobytes() + vector
    return np.array([len(body)], "<u4").tobytes() + body


def aedat4(a: np.ndarray, size: int = 10_000) -> bytes:
    from lz4 import frame

    info = '<dv version="2.0"><node name="outInfo"><node name="0"><attr key="compression" type="string">LZ4</attr>'
    info += (
        '<attr key="typeIdentifier" type="string">EVTS</attr><node name="info"><attr key="sizeX" type="int">240</attr>'
    )
    info += '<attr key="sizeY" type="int">180</attr></node></node></node></dv>'
    slots = [np.array([1], "<i4").tobytes(), np.array([-1], "<i8").tobytes()]
    out = [b"#!AER-DAT4.0\r\n", flat(b"IOHE", slots, info.encode(), len(info))]
    table = np.zeros(len(a), [("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "u1"), ("pad", "V3")])
    for name in "txyp":
        table[name] = a[name]
    for start in range(0, len(a), size):
        part = table[start : start + size]
        body = frame.compress(flat(b"EVTS", [], part.tobytes(), len(part)))
        out += [np.array([0, len(body)], "<i4").tobytes(), body]
    return b"".join(out)


def hdf5(a: np.ndarray, path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, dtype in (("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")):
            file[f"events/{name}"] = a[name].astype(dtype)
        file.attrs["geometry"] = "240x180"


def mat(a: np.ndarray, path: Path) -> None:
    from scipy.io import savemat

    fields = {"ts": a["t"].astype(np.uint32), "x": a["x"].astype(np.uint8), "y": a["y"].astype(np.uint8)}
    savemat(path, {k: v[:, None] for k, v in {**fields, "pol": a["p"].astype(np.uint8)}.items()})


def write_all(folder: Path, events: gl.Events) -> dict[str, tuple[Path, np.ndarray]]:
    """A file and the events it holds, by the name of the format."""
    array = events.numpy()
    files = {}
    for name, encode in (
        ("EVT2", evt2),
        ("EVT3", evt3),
        ("AEDAT 2", aedat2),
        ("AEDAT 3.1", aedat3),
        ("AEDAT4 LZ4", aedat4),
    ):
        path = folder / (name.replace(" ", "_") + (".raw" if name.startswith("EVT") else ".aedat4"))
        path.write_bytes(encode(array))
        files[name] = path, array
    files["EVT3"] = files["EVT3"][0], array[np.lexsort((np.arange(len(array)), array["y"], array["t"]))]
    for name, write in (("HDF5", hdf5), ("MATLAB", mat)):
        write(array, folder / name)
        files[name] = folder / name, array
    few = events[: len(events) // 5]
    for suffix, part in (
        (".bin", events),
        (".dat", events),
        (".es", events),
        (".npy", events),
        (".npz", few),
        (".csv", few),
    ):
        # The suffix of `.bin` is all there is to know it by; its times have 23 bits.
        part = part[: int(torch.searchsorted(part.time, 2**23))] if suffix == ".bin" else part
        gl.write_events(folder / f"file{suffix}", part)
        files[suffix] = folder / f"file{suffix}", part.numpy()
    return files


def best(read: Callable[[], object], repeats: int = 9) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        read()
        times.append(time.process_time() - start)
    return min(times)


def peers() -> dict[str, dict[str, Callable[[Path], object]]]:
    """Other decoders that can be imported, by format."""
    readers: dict[str, dict[str, Callable[[Path], object]]] = {}
    try:
        from expelliarmus import Wizard

        for name, encoding in (("EVT2", "evt2"), ("EVT3", "evt3"), (".dat", "dat")):
            readers.setdefault(name, {})["expelliarmus"] = lambda p, e=encoding: Wizard(encoding=e).read(p)
    except ImportError:
        pass
    try:
        import event_stream

        readers.setdefault(".es", {})["event_stream"] = lambda p: np.concatenate(list(event_stream.Decoder(str(p))))
    except ImportError:
        pass
    try:
        import aedat

        readers.setdefault("AEDAT4 LZ4", {})["aedat"] = lambda p: np.concatenate(
            [packet["events"] for packet in aedat.Decoder(str(p)) if "events" in packet]
        )
    except ImportError:
        pass
    return readers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "event_files.json")
    options = parser.parse_args()
    if options.peers:
        sys.path.append(str(options.peers))
    torch.set_num_threads(1)
    others, rows = peers(), {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (path, expected) in write_all(Path(folder), recording(options.events)).items():
            events = gl.read_events(path)
            assert np.array_equal(events.numpy(), expected), name
            rows[name] = {"gridless": len(expected) / best(lambda p=path: gl.read_events(p)) / 1e6}
            for peer, read in others.get(name, {}).items():
                try:
                    rows[name][peer] = len(expected) / best(lambda r=read, p=path: r(p)) / 1e6
                except Exception as error:
                    print(f"{name}: {peer} cannot read it: {error}")
            print(
                f"{name:12s} " + "  ".join(f"{k} {v:.1f}" for k, v in rows[name].items()),
                "million events/s",
                flush=True,
            )
    about = {"events": options.events, "unit": "million events per second of one core"}
    keep(options.out, {**about, "machine": machine() | {"gpu": None}, "speed": rows})


if __name__ == "__main__":
    main()
