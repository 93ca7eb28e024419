"""What session and engine share: packets in, predictions out, saved state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from threading import RLock
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from gridless.live.program import Program
from gridless.live.reading import eager, input_stream
from gridless.live.table import LONGEST
from gridless.nn.norm import BatchNorm
from gridless.structures import Events

# Layers that compute something else in training.
_TRAINED = (BatchNorm, nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def alone(method: _Method) -> _Method:
    """A method that no other of the same stream runs beside, in whatever thread: compiled code runs without the GIL."""

    @wraps(method)
    def waits(self: Stream, *args: Any, **named: Any) -> Any:
        with self._lock:
            return method(self, *args, **named)

    return cast(_Method, waits)


class Prediction(NamedTuple):
    """logits (classes) that were true at `time` (microseconds). With voxels they are those of a finished window."""

    time: int
    logits: Tensor


class Stream:
    """One live stream through one network. Packets of any size: how the stream is cut into them changes nothing, not a
    bit in an `Engine`, and only rounding in a `Session` of a forward that it allows.

    The network is any module with a `plan` that begins with events and a `forward(geometry, memory)` that returns one
    tensor. `stream(packet)` is the newest prediction that the packet brought, or None; `push` gives all of them. When
    there is one depends on what `forward` returns:

    - a row for every event of a stream, or the `gl.nn.Last` of them: after every event of that stream;
    - with `VoxelMean` layers: at the end of each window of their `duration`, counted from the first event; windows
      without events are passed over;
    - one row otherwise, such as a `MeanPool`: at the end of each packet.

    `predict()` answers at any moment, also in another thread: it waits for the packet that a stream is
    taking in. A packet with a bad event is refused whole, by index and reason, and leaves the stream as it was.

    `features` are names of modules of the network, whose values of the last packet are kept, see `features()`.
    """

    events_seen: int
    time: int
    start: int
    _lock: RLock

    def __new__(cls, *args: Any, **named: Any) -> Self:
        # Here, since copies are made without __init__; a lock cannot be copied.
        stream = super().__new__(cls)
        stream._lock = RLock()
        return stream

    def __init__(self, model: nn.Module, features: Iterable[str] = ()) -> None:
        model = eager(model)
        _, _, self.sensor = input_stream(model)
        for name, module in model.named_modules():
            if module.training and (module is model or isinstance(module, _TRAINED)):
                what = f"module {name!r} of the network" if name else "the network"
                raise ValueError(f"stream: {what} is in training mode: call model.eval() first")
        names = [features] if isinstance(features, str) else list(features)
        for name in names:
            if name not in dict(model.named_modules()):
                raise ValueError(f"stream: the network has no module {name!r}, whose features could be kept")
        self._title, self._names = type(model).__name__, names
        self._prepare(model)
        self.reset()

    # What a kind of stream provides.

    def _prepare(self, model: nn.Module) -> None:
        """Once, before anything else."""

    def reset(self) -> None:
        """Forget everything: as before the first event."""
        raise NotImplementedError

    def _take(self, events: Events) -> Iterable[Prediction]:
        """Push events that were found good."""
        raise NotImplementedError

    def _numbers(self, numbers: list[int]) -> None:
        """Set events_seen, time and start."""
        self.events_seen, self.time, self.start = numbers

    def predict(self) -> Tensor:
        """Logits (classes) at this moment: of the window so far, or after the last event."""
        raise NotImplementedError

    def features(self, name: str) -> tuple[Events, Tensor]:
        """What the module of this name returned for the last packet: events of its stream, and their rows (S, C)."""
        raise NotImplementedError

    def _memory(self) -> dict[str, Tensor]:
        """Every tensor that the future depends on, by name, in place."""
        raise NotImplementedError

    def _fits(self, state: dict[str, Tensor]) -> bool:
        """Whether a saved state, whose names, shapes and types are right, can be gone on from."""
        return True

    # What all kinds share.

    def __repr__(self) -> str:
        seen = f"{self.events_seen:,} events so far" + (f", the last at {self.time:,} us" if self.events_seen else "")
        return f"{type(self).__name__}({self._title}, {self.sensor[0]} x {self.sensor[1]} pixels, {seen})"

    @alone
    def __getstate__(self) -> Any:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __call__(self, packet: Any) -> Tensor | None:
        last = None
        for last in self.push(packet):  # noqa: B007
            pass
        return None if last is None else last.logits

    @alone
    def push(self, packet: Any) -> Iterator[Prediction]:
        """Take in a packet: `Events` of one recording, an array that `Events.of` takes, or one record of it. Yields
        predictions."""
        events = self._events(packet)
        self._check(events)
        return iter(self._take(events))

    def _events(self, packet: Any) -> Events:
        """The packet as events of this sensor."""
        if isinstance(packet, np.ndarray | np.void):
            packet = np.atleast_1d(packet)
        events = packet if isinstance(packet, Events) else Events.of(packet, sensor=self.sensor)
        if events.sensor != self.sensor:
            raise ValueError(
                f"stream: the network is for a sensor of {self.sensor}, the packet is of {events.sensor}: make it fit "
                "with gl.augment.Crop or gl.augment.PoolPixels"
            )
        if events.num_examples != 1:
            raise ValueError(f"stream: a packet is part of one recording, this one has {events.num_examples}")
        if events.polarity is None:
            raise ValueError("stream: the events of a packet need a polarity")
        if events.padding:
            raise ValueError(f"stream: a packet has no padding, this one has {events.padding} rows of it")
        if events.device.type != "cpu":
            raise ValueError(f"stream: a live stream runs on the CPU, this packet is on {events.device}: move it")
        return events

    def _check(self, events: Events) -> None:
        """Refuse by index what `Events.check` refuses, and what is before the last event."""
        fault = events.fault()
        if fault is None and len(events) and int(events.time[0]) < self.time:
            words = "call reset() if the camera began anew; count on if its 32-bit counter did; leave out late events"
            fault = 0, f"is at {int(events.time[0])} us, before the last one at {self.time} us ({words})"
        if fault is None and len(events) and int(events.time[-1]) >= LONGEST:
            late = int((events.time < LONGEST).sum())
            fault = late, f"is at {int(events.time[late])} us, but times end at {LONGEST}"
        if fault is not None:
            raise ValueError(f"stream: event {fault[0]} of the packet {fault[1]}; the packet was not taken")

    def _kept(self, name: str) -> None:
        if name not in self._names:
            raise ValueError(
                f"the features of {name!r} were not kept: make the stream with features=[{name!r}]"
                + (f" (kept: {', '.join(self._names)})" if self._names else "")
            )

    @alone
    def state_dict(self) -> dict[str, Tensor]:
        """All that the future depends on, as tensors: a stream that loads it continues bit for bit."""
        numbers = torch.tensor([self.events_seen, self.time, self.start])
        return {"numbers": numbers} | {k: v.clone() for k, v in self._memory().items()}

    @alone
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved state. One that does not fit is refused, and the stream stays as it was."""
        numbers = torch.tensor([self.events_seen, self.time, self.start])
        mine = {"numbers": numbers} | self._memory()
        if set(state) != set(mine):
            strange = sorted(set(state) ^ set(mine))
            raise ValueError(f"stream: this state is of another network: {strange[0]!r} is missing or unknown")
        for name, value in mine.items():
            if state[name].shape != value.shape or state[name].dtype != value.dtype:
                raise ValueError(
                    f"stream: this state is of another network: {name!r} is {tuple(state[name].shape)} "
                    f"{state[name].dtype}, here it is {tuple(value.shape)} {value.dtype}"
                )
        seen, time, start = state["numbers"].tolist()
        if seen and not (seen > 0 and 0 <= start <= time):
            raise ValueError(
                f"stream: this state is damaged: {seen} events, the last at {time} us, in a window from {start} us"
            )
        if not self._fits(state):
            raise ValueError("stream: this state is of another network: of its shape, but with other weights")
        for name, value in mine.items():
            value.copy_(state[name])
        self._numbers([seen, time, start])


class ProgramStream(Stream):
    """A live stream through the program of a network, which holds the weights: copies, and what was pickled, compute
    the same, whatever becomes of the network."""

    program: Program

    # What a copy is made of, besides the state.
    _parts: tuple[str, ...] = ("program", "sensor", "_title", "_names")

    def _build(self) -> None:
        """All that is made of these parts."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.program)

    @property
    def duration(self) -> int | None:
        """Microseconds of a window, where predictions are made at the end of each."""
        return self.program.duration

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {name: getattr(self, name) for name in self._parts}, self.state_dict()

    def __setstate__(self, saved: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
        parts, state = saved
        self.__dict__.update(parts)
        self._build()
        self.reset()
        self.load_state_dict(state)
