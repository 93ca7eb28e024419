"""Many recordings in one file: `.npz.xz`, columns of all recordings one after the other, times as small steps.

x, y (uint8); dt (uint8, with 255 standing for the next entry of dt_big); p (bits); offsets (N + 1); label (N); sensor.
"""

from __future__ import annotations

import io
import lzma
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gridless.data.errors import FormatError
from gridless.data.limits import Limits
from gridless.data.numpy_files import array_of
from gridless.kernels.threads import in_threads
from gridless.structures import Events

FIELDS = ("x", "y", "dt", "dt_big", "p", "offsets", "label", "sensor")


@dataclass(frozen=True)
class Archive:
    """Recordings in memory, 7 bytes an event: x, y (S) uint8, t (S) int32 from each start, p (S) bool."""

    x: np.ndarray
    y: np.ndarray
    t: np.ndarray
    p: np.ndarray
    offsets: np.ndarray  # (N + 1,)
    label: np.ndarray  # (N,)
    sensor: tuple[int, int]

    def __len__(self) -> int:
        return len(self.label)

    def events(self, rows: Sequence[int] | np.ndarray) -> Events:
        """The recordings `rows`, in that order, as one ragged batch."""
        rows = np.asarray(rows, np.int64)
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        splits = np.concatenate([[0], np.cumsum(sizes)])
        # Position in the pack of every event: the start of its recording, and its place there.
        at = np.arange(splits[-1]) + np.repeat(self.offsets[rows] - splits[:-1], sizes)
        pixel = np.empty((len(at), 2), np.int32)
        pixel[:, 0], pixel[:, 1] = self.x[at], self.y[at]
        time, polarity = torch.from_numpy(self.t[at]).long(), torch.from_numpy(self.p[at])
        return Events(torch.from_numpy(pixel), time, polarity, torch.from_numpy(splits), self.sensor)


def read_archives(paths: Sequence[Path]) -> Archive:
    """One pack from the parts of a data set, several unpacked at a time."""
    parts = in_threads(_read, [(path,) for path in paths])
    if any(p.sensor != parts[0].sensor for p in parts):
        raise ValueError(f"{paths[0]} and the packs beside it have different sensors")
    ends = np.cumsum([0] + [p.offsets[-1] for p in parts])
    offsets = np.concatenate([[0], *(p.offsets[1:] + end for p, end in zip(parts, ends[:-1], strict=True))])
    x, y, t, p, label = (np.concatenate([getattr(q, name) for q in parts]) for name in ("x", "y", "t", "p", "label"))
    return Archive(x, y, t, p, offsets, label, parts[0].sensor)


def _read(path: Path) -> Archive:
    try:
        with zipfile.ZipFile(io.BytesIO(lzma.decompress(path.read_bytes()))) as archive:
            values = {name: array_of(Limits(path), archive.read(f"{name}.npy")) for name in FIELDS}
    except (lzma.LZMAError, zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        message = error.message if isinstance(error, FormatError) else error
        raise FormatError(path, f"not a pack of recordings: {message}") from None
    step, offsets = values["dt"].astype(np.int64), values["offsets"].astype(np.int64)
    long = step == 255
    if int(long.sum()) != len(values["dt_big"]) or offsets[0] != 0 or offsets[-1] != len(step):
        raise FormatError(path, "not a pack of recordings: its arrays do not match")
    step[long] = values["dt_big"]
    time = np.cumsum(step)
    start = np.concatenate([[0], time])[offsets[:-1]]
    time -= np.repeat(start, np.diff(offsets))
    polarity = np.unpackbits(values["p"])[: len(step)].astype(bool)
    width, height = values["sensor"].tolist()
    columns = (values["x"], values["y"], time.astype(np.int32), polarity)
    return Archive(*columns, offsets, values["label"].astype(np.int64), (width, height))
