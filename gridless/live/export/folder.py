"""The files of an export: the network's C, its test and its build files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gridless.data.files import whole_file
from gridless.live.engine import Engine
from gridless.live.export.golden import packets, recording
from gridless.live.export.writer import HERE, Writer, in_comment, renamed
from gridless.live.operations import of
from gridless.live.program import Program
from gridless.live.reading import eager, packet_of, private_copy
from gridless.structures import Events

# Events of the golden recording, and the largest error of the logits of C, relative to the largest logit.
GOLDEN, ERROR = 20_000, {32: 1e-5, 16: 1e-2}


def texts(model: nn.Module, bits: int = 32, chunk: int = 2048, name: str = "net") -> dict[str, str]:
    """The files of an export, by name."""
    model = eager(model)
    program = Engine(model).program
    writer = Writer(program, bits, chunk, name)
    code = writer.text
    logits, predictions, counts = _golden(model, program)
    width, height = program.streams[0].sensor
    values: dict[str, Any] = {
        "TITLE": f"{in_comment(type(model).__name__)}, {width} x {height} pixels, {len(logits)} classes",
        "DIGEST": writer.digest, "BYTES": writer.bytes, "CLASSES": len(logits), "WIDTH": width, "HEIGHT": height,
        "DURATION": program.duration or 0, "WHEN": in_comment(_when(program)), "GOLDEN": GOLDEN,
        "PREDICTIONS": predictions,
        "ERROR": ERROR[bits], "LOGITS": ", ".join(f"{v:.9g}" for v in logits), "SIZES": _sizes(writer),
        "COST": _cost(program, counts), "BITS": bits, "LIBRARY": writer.library,
    }  # fmt: skip
    files = {path.name: path.read_text("utf-8") for path in sorted((HERE / "files").iterdir())}
    for key, value in values.items():
        files = {file: text.replace(f"@{key}@", str(value)) for file, text in files.items()}
    return {"network.c": code, **{file: renamed(text, name) for file, text in files.items()}}


def as_folder(out: str | Path) -> Path:
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"export: {folder} is a file. Choose a folder (--out, --web).")
    return folder


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files to a folder, each whole or not at all. Files of an export are replaced, the user's own are not."""
    existing = [name for name in files if (folder / name).exists()]
    if existing and not any(name.startswith("network.") for name in existing):
        raise FileExistsError(
            f"export: {folder} holds {existing[0]} but no export. Choose another folder (--out, --web)."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with whole_file(folder / name) as file:
            file.write(text.encode())
    return folder


@torch.no_grad()
def _golden(model: nn.Module, program: Program) -> tuple[np.ndarray, int, dict[str, int]]:
    """For the golden recording: the logits after it, the number of predictions, and the events of every stream."""
    from gridless.live.session import Session

    sensor = program.streams[0].sensor
    # In float64, so that the difference to C is the rounding of C.
    try:
        session = Session(private_copy(model).double())
    except RuntimeError as error:
        raise TypeError(
            f"export: forward does not run in float64 ({error}). Give its values the dtype of a weight, such as "
            "polarity_features(events, self.logits.weight.dtype)."
        ) from error
    predictions = sum(len(list(session.push(packet))) for packet in packets(GOLDEN, sensor))
    if program.answers is None and program.duration is None:
        predictions = 0  # C answers only when asked; a session at the end of each packet
    plan: Any = model.plan
    geometry = plan(packet_of(plan, Events.of(recording(0, GOLDEN, sensor), sensor=sensor)))
    counts = {stream.name: len(geometry[stream.name]) for stream in program.streams}
    logits = session.predict().numpy()
    if not np.isfinite(logits).all():
        raise ValueError(
            f"export: the logits of the test recording are not finite, {logits.tolist()}. Find the module with "
            "gl.streaming.Session(model, features=[...])."
        )
    return logits, predictions, counts


def _when(program: Program) -> str:
    if program.answers:
        return f"Predicts after every event of {program.answers}."
    if program.duration:
        return f"Predicts at the end of every window of {program.duration} microseconds that holds events."
    return "Predicts only when asked (net_predict)."


def _sizes(writer: Writer) -> str:
    constants = 4 * writer.constants.size + 2 * writer.weights.size
    rows = {"constants": constants, "state: memory": writer.memory.bytes, "state: working memory": writer.work.bytes}
    # Decays and tiles, sums, lists of rows, and the rest.
    stack = 12 * writer.factors + 64 * (writer.block + 1) + writer.taps * (writer.block + 4) + 1024
    rows["stack, about"] = stack
    return "\n".join(f"| {name} | {size:,} |" for name, size in rows.items())


def _cost(program: Program, counts: dict[str, int]) -> str:
    """Cost of an event of each stream, and events of each stream for each input event."""
    lines, total, events = [], 0.0, max(counts[program.streams[0].name], 1)
    for stream in program.streams:
        rows = [row for row in program.rows if row.stream == stream.name]
        own = sum(of(row).multiply_adds(row)[0] for row in rows)
        own += sum(of(row).multiply_adds(row)[1] for row in program.rows if _source(program, row) == stream.name)
        share = counts[stream.name] / events
        total += own * share
        lines.append(f"| {stream.name} | {stream.sensor[0]} x {stream.sensor[1]} | {own:,} | {share:.4f} |")
    once = sum(of(row).multiply_adds(row)[0] for row in program.rows if row.stream is None)
    lines.append(f"| all, for each input event | | {round(total):,} | |")
    if once:
        lines.append(f"| for each answer | | {once:,} | |")
    return "\n".join(lines)


def _source(program: Program, row: Any) -> str | None:
    """Name of the stream whose events a row takes in."""
    if "source" in row.settings:
        return row.settings["source"]
    return program[row.inputs[0]].stream if row.inputs else None
