"""A live stream through the C of a network, compiled on this machine and loaded into Python."""

from __future__ import annotations

import re
from ctypes import CDLL, CFUNCTYPE, POINTER, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.live.engine import Engine
from gridless.live.export import export
from gridless.live.export.check import library
from gridless.live.export.writer import MOST, Writer
from gridless.live.lowering import lines
from gridless.live.packets import Prediction, ProgramStream, alone
from gridless.live.sources import RECORD
from gridless.structures import Events

_CALLBACK = CFUNCTYPE(None, c_void_p, c_int64, POINTER(c_float))


def _settings(text: str) -> tuple[Any, ...]:
    """Bits, chunk and name of an exported network.c; nothing for another text."""
    lines = (r"^#define CHUNK ([1-9]\d{0,6})$", r"^#define SMALL ([01])$", r"^size_t ([A-Za-z]\w*)_bytes\(void\)")
    match = re.search(".*?".join(lines), text, re.MULTILINE | re.DOTALL | re.ASCII)
    return (16 if match[2] == "1" else 32, min(int(match[1]), MOST), match[3]) if match else ()


class Compiled(ProgramStream):
    """A live stream through `network.c` in a folder: the same bits as on a board or a robot.

    `gl.export` writes the folder, unless it holds this very network already, with 32 or 16 bits, any chunk and any
    name. The C compiler of this machine compiles it. Use it as an `Engine`; it keeps no features. Copies of the stream
    run the same file.
    """

    _parts = (*ProgramStream._parts, "_path", "_prefix")

    def __init__(self, model: nn.Module, folder: str | Path) -> None:
        self._folder = Path(folder)
        super().__init__(model)

    def _prepare(self, model: nn.Module) -> None:
        self.program = Engine(model).program
        writer, text = self._written()
        if writer.text != text:
            export(model, self._folder)
            writer, _ = self._written()
        self._prefix = writer.name
        path = self._folder / f"lib{writer.library}-{writer.digest}.so"
        self._path = (path if path.is_file() else library(self._folder, path)).resolve()
        self._build()

    def _written(self) -> tuple[Writer, str]:
        """A writer with the settings of the folder's network, and the folder's text."""
        code = self._folder / "network.c"
        text = code.read_text("utf-8") if code.is_file() else ""
        return Writer(self.program, *_settings(text)), text

    def _build(self) -> None:
        if not self._path.is_file():
            raise FileNotFoundError(
                f"stream: {self._path}, which this stream ran, is gone. Make it again with gl.stream(model, "
                f"compiled={str(self._path.parent)!r})."
            )
        library = CDLL(str(self._path))
        push, size, reset, predict = (library[f"{self._prefix}_{n}"] for n in ("push", "bytes", "reset", "predict"))
        push.argtypes, push.restype = [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p], c_int
        reset.argtypes, reset.restype = [c_void_p], None
        predict.argtypes, predict.restype = [c_void_p, c_void_p], None
        size.restype = c_size_t
        self._push, self._reset, self._predict = push, reset, predict
        self._state = lines(size()).view(np.int64)
        self._logits = np.zeros(self.program[self.program.output].channels, np.float32)
        self._predictions: list[Prediction] = []
        self._callback = _CALLBACK(self._predicted)

    def _predicted(self, user: Any, time: int, logits: Any) -> None:
        values = np.ctypeslib.as_array(logits, self._logits.shape).copy()
        self._predictions.append(Prediction(time, torch.from_numpy(values)))

    @alone
    def reset(self) -> None:
        self._reset(self._state.ctypes.data)
        self._numbers([0, -(2**63), 0])

    def _take(self, events: Events) -> list[Prediction]:
        if not len(events):
            return []
        records = np.empty(len(events), RECORD)
        records["t"], records["p"] = events.time.numpy(), events.polarity.numpy()  # type: ignore[union-attr]
        records["x"], records["y"] = events.pixel.numpy().T
        self._predictions = []
        bad = self._push(self._state.ctypes.data, records.ctypes.data, len(records), self._callback, None)
        if bad:
            raise ValueError(
                f"stream: C rejects event {bad - 1} of the packet. Correct the event and send the packet again."
            )
        self._numbers([self.events_seen + len(records), int(records["t"][-1]), 0])
        if self.program.answers is None and self.duration is None:
            return [Prediction(self.time, self.predict())]
        return self._predictions

    @alone
    def predict(self) -> Tensor:
        self._predict(self._state.ctypes.data, self._logits.ctypes.data)
        return torch.from_numpy(self._logits.copy())

    def features(self, name: str) -> tuple[Events, Tensor]:
        raise ValueError("stream: a compiled stream keeps no features. Use gl.stream(model, features=[...]).")

    @property
    def memory_bytes(self) -> int:
        """Bytes of the stream's memory, without the weights; constant while it runs."""
        return self._state.nbytes

    def _memory(self) -> dict[str, Tensor]:
        return {"state": torch.from_numpy(self._state)}

    def _fits(self, state: dict[str, Tensor]) -> bool:
        # A push of no events tells whether C knows the state.
        memory = np.ascontiguousarray(state["state"].numpy())
        return self._push(memory.ctypes.data, None, 0, None, None) == 0
