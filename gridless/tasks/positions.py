"""Known positions of an object in recordings: as rows of events, in training pieces, mirrored, and in files.

A position belongs to the last event up to its time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.augment.draws import Draws
from gridless.augment.events import EventTransform, draw, replaced
from gridless.data.files import write_whole
from gridless.kernels.progress import track
from gridless.structures import Rows
from gridless.training.examples import TrainingSet

# Name of the rows with the known position (x, y) of an event; NaN for events without one.
TRUTH = "truth"


def training_set(data: Any) -> TrainingSet:
    """The training set of a data set with `sensor`, `batch()`, `positions` and `listing`, such as `gl.data.Spots`.

    Labels (N, P, 3) are the known positions from the first event on, padded with NaN; events have the rows `truth`.
    """
    events = data.batch()
    times = events.time.split(events.splits.diff().tolist())
    truths, known = zip(*map(truth_of, times, data.positions), strict=True)
    files = None
    if data.listing is not None:
        numbers = {file: i for i, file in enumerate(data.listing.files)}
        files = torch.tensor([numbers[file] for file in data.names])
    events = events._changed(rows=Rows({TRUTH: torch.cat(truths)}))
    return TrainingSet.of(events, padded(known, torch.nan), files=files, listing=data.listing)


def truth_of(time: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The rows `truth` (S, 2) of a recording with events at `time` (S), and its known positions from then on."""
    truth = torch.full((len(time), 2), torch.nan)
    known = known[known[:, 0] >= time[0]] if len(time) else known[:0]
    truth[last_event(time, known[:, 0])] = known[:, 1:].float()
    return truth, known


def padded(rows: Sequence[Tensor], value: float) -> Tensor:
    """Rows of different lengths as one tensor, with `value` behind the shorter ones."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), True, value)


def last_event(time: Tensor, known: Tensor) -> Tensor:
    """The number of the last event up to each known time."""
    return torch.searchsorted(time, known.to(torch.int64), right=True) - 1


def pieces(data: TrainingSet, piece: int, warm_up: int) -> TrainingSet:
    """Pieces of `piece` microseconds, each after `warm_up` microseconds of events that have no loss.

    Labels (N, P) are the places of the events with a known position in the piece, then -1.
    """
    parts, places = [], []
    for i in track(range(len(data)), "cut", shown=data.on_disk):
        events = data.cut(torch.tensor([i]))
        own, known = events.time.cpu(), events.rows[TRUTH].isfinite().all(1).cpu()
        starts = torch.arange(int(own[0]), int(own[-1]) + 1, piece) if len(own) else own
        seen, judged, ends = (torch.searchsorted(own, starts + by) for by in (-warm_up, 0, piece))
        for a, b, c in zip(seen.tolist(), judged.tolist(), ends.tolist(), strict=True):
            place = known[b:c].nonzero()[:, 0] + (b - a)
            if len(place):
                parts.append((i, a, c - a))
                places.append(place)
    if not places:
        raise ValueError("track: no position is known in these recordings. Give positions at times of events.")
    index, begin, sizes = torch.tensor(parts).unbind(1)
    return data.parts_of(index, begin, sizes, padded(places, -1).to(data.device))


def write_positions(path: Path, columns: np.ndarray) -> None:
    """Write (K, 3) of time in microseconds, x and y as a CSV or, by its suffix, JSON file."""
    if path.suffix == ".json":
        time, x, y = columns.T.tolist()
        text = json.dumps({"time_us": list(map(int, time)), "x": x, "y": y})
    else:
        text = "time_us,x,y\n" + "".join(f"{int(time)},{x:.4f},{y:.4f}\n" for time, x, y in columns)
    write_whole(path, text.encode())


@dataclass(frozen=True)
class Turn(EventTransform):
    """Mirror each recording along x, along y, and on a square sensor about the diagonal, each with probability 1/2.

    The rows `truth` follow the pixels.
    """

    def describe(self) -> str:
        return "mirrored and turned by right angles"

    def apply(self, events: Any, draws: Draws) -> Any:
        pixel, truth = events.pixel.clone(), events.rows[TRUTH].clone()
        for axis, side in enumerate(events.sensor):
            chosen = (draw(events, draws) < 0.5)[events.example]
            for place in (pixel, truth):
                place[:, axis] = torch.where(chosen, side - 1 - place[:, axis], place[:, axis])
        if events.sensor[0] == events.sensor[1]:
            chosen = (draw(events, draws) < 0.5)[events.example][:, None]
            pixel, truth = (torch.where(chosen, place.flip(1), place) for place in (pixel, truth))
        return replaced(events, pixel=pixel, rows={**events.rows, TRUTH: truth})
