"""HDF5, in the layouts that are in use; read by h5py, in a process of its own (see `hdf5_worker`).

- arrays x, y, t, p in a group `events`, or at the top (names as `Events.of` knows them, also xs, ys, ts, ps); a dataset
  `t_offset` beside them is added to the times; times stored as floats are seconds;
- one structured dataset, `events` or `CD/events` (Prophesee);
- one (events, 4) integer dataset `events` with the columns t, x, y, p.

The sensor is the attribute `sensor` or `geometry` ("640x480"), or `width` and `height`, or `sensor_resolution`
(height, width), of the file or of the group.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import struct
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gridless.data.formats.base import File, Recording
from gridless.data.formats.npy import recording_of
from gridless.structures.events import ALIASES

MAGIC = b"\x89HDF\r\n\x1a\n"
MEMORY = 2 << 30
# Seconds for any file, and bytes a second beyond that; a library that takes longer hangs.
PATIENCE, PACE = 20.0, 5e6


def sniff(head: bytes) -> bool:
    return head.startswith(MAGIC) or head[512:520] == MAGIC


def read(file: File) -> Recording:
    if find_spec("h5py") is None:
        raise ImportError(f"{file.path} is an HDF5 file: pip install h5py, or gridless[data]")
    with _lock:
        answer, arrays = _ask(file)
    if "error" in answer:
        raise file.error(f"not an HDF5 file that can be read: {answer['error']}")
    sensor = tuple(answer["sensor"]) if answer["sensor"] else None
    return recording_of(file, arrays.get("", arrays), sensor)  # type: ignore[arg-type]


_lock = threading.Lock()
_workers: dict[int, subprocess.Popen] = {}


def _worker() -> subprocess.Popen:
    """This process's worker, started when first needed; a forked process does not share its parent's."""
    worker = _workers.get(os.getpid())
    if worker is None or worker.poll() is not None:
        script = Path(__file__).with_name("hdf5_worker.py")
        pipe = subprocess.PIPE
        worker = subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        _workers[os.getpid()] = worker
    return worker


@atexit.register
def _end() -> None:
    """No process is left behind."""
    worker = _workers.pop(os.getpid(), None)
    if worker is not None and worker.stdin is not None and worker.stdout is not None:
        worker.kill()
        worker.wait()
        worker.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def _ask(file: File) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    worker = _worker()
    assert worker.stdin is not None
    request = {
        "path": str(file.path.resolve()),
        "size": len(file),
        "aliases": ALIASES,
        "memory": MEMORY + 64 * len(file),
    }
    timer = threading.Timer(PATIENCE + len(file) / PACE, worker.kill)
    timer.start()
    try:
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        worker.stdin.flush()
        (length,) = struct.unpack("<q", _receive(worker, 8))
        answer = json.loads(_receive(worker, length, limit=1 << 24))
        arrays = {}
        for name, descr, shape in answer.get("arrays", ()):
            dtype = np.lib.format.descr_to_dtype(_tuples(descr))
            data = _receive(worker, math.prod(shape) * dtype.itemsize, limit=request["memory"])
            arrays[name] = np.frombuffer(data, dtype).reshape(shape)
        return answer, arrays
    except (EOFError, BrokenPipeError):
        return {"error": "the HDF5 library crashed on it, or did not come to an end"}, {}
    finally:
        timer.cancel()


def _receive(worker: subprocess.Popen, count: int, limit: int = 8) -> bytes:
    assert worker.stdout is not None
    data = worker.stdout.read(count) if 0 <= count <= limit else b""
    if len(data) != count:
        worker.kill()
        worker.wait()
        raise EOFError
    return data


def _tuples(descr: Any) -> Any:
    """JSON made lists of the tuples that describe a structured type."""
    return (
        descr
        if isinstance(descr, str)
        else [tuple(_tuples(f) if i == 1 else f for i, f in enumerate(d)) for d in descr]
    )
