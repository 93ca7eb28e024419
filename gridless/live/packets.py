"""The base of sessions and engines: packets in, predictions out, saved state."""

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

# Layers whose output differs in training.
_TRAINED = (BatchNorm, nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def alone(method: _Method) -> _Method:
    """Decorate a method so that no other one of the same stream runs beside it: compiled code runs without the GIL."""

    @wraps(method)
    def locked(self: Stream, *args: Any, **named: Any) -> Any:
        with self._lock:
            return method(self, *args, **named)

    return cast(_Method, locked)


# Key of packets that a source has checked for the loop. Parts and copies of a packet do not have it: unlike the mark of
# `Events.trusted`, nobody else sets it, and the loop writes where the pixels of such a packet say.
CHECKED = "_checked_by_source"


def checked_by_source(events: Events) -> Events:
    """Mark a packet that a source has made and checked, so that the engine does not check it again."""
    events.__dict__[CHECKED] = True
    return events


class Prediction(NamedTuple):
    """Logits (classes) at `time` (microseconds); with voxels, of a finished window."""

    time: int
    logits: Tensor


class Stream:
    """One live stream through one network, in packets of any size.

    The size of packets does not change the result: not a bit in an `Engine`, and only rounding in a `Session`.

    The network is any module with a `plan` that begins with events and a `forward(geometry, memory)` that returns one
    tensor. `stream(packet)` returns the newest prediction of the packet, or None; `push` returns all of them.
    Predictions are made:

    - after every event of a stream, if `forward` returns a row for each of them, or their `gl.nn.Last`;
    - at the end of each window, with `VoxelMean` layers. Windows of their `duration` begin with the first event;
      windows without events are skipped;
    - at the end of each packet otherwise, for one row such as that of a `MeanPool`.

    `predict()` answers at any moment, also from another thread: it waits until the packet is done. A packet with a bad
    event is refused as a whole, with the event's index, and the stream stays as it was.

    `features`: names of modules whose values for the last packet are kept, see `features()`.
    """

    events_seen: int
    time: int
    start: int
    _lock: RLock

    def __new__(cls, *args: Any, **named: Any) -> Self:
        # Copies are made without __init__, and a lock cannot be copied.
        stream = super().__new__(cls)
        stream._lock = RLock()
        return stream

    def __init__(self, model: nn.Module, features: Iterable[str] = ()) -> None:
        model = eager(model)
        _, _, self.sensor = input_stream(model)
        for name, module in model.named_modules():
            if module.training and (module is model or isinstance(module, _TRAINED)):
                part = f"module {name!r} of the network" if name else "the network"
                raise ValueError(f"stream: {part} is in training mode. Call model.eval() first.")
        names = [features] if isinstance(features, str) else list(features)
        for name in names:
            if name not in dict(model.named_modules()):
                raise ValueError(
                    f"stream: features: the network has no module {name!r}. Use a name of model.named_modules()."
                )
        self._title, self._names = type(model).__name__, names
        self._prepare(model)
        self.reset()

    # Methods of each kind of stream.

    def _prepare(self, model: nn.Module) -> None:
        """Prepare the stream for its network, once."""

    def reset(self) -> None:
        """Return to the state before the first event."""
        raise NotImplementedError

    def _take(self, events: Events) -> Iterable[Prediction]:
        """Push checked events."""
        raise NotImplementedError

    def _numbers(self, numbers: list[int]) -> None:
        """Set events_seen, time and start."""
        self.events_seen, self.time, self.start = numbers

    def predict(self) -> Tensor:
        """Logits (classes) at this moment: for the window so far, or after the last event."""
        raise NotImplementedError

    def features(self, name: str) -> tuple[Events, Tensor]:
        """Output of a module for the last packet: events of its stream, and their rows (S, C)."""
        raise NotImplementedError

    def _memory(self) -> dict[str, Tensor]:
        """All tensors of the state, by name; not copied."""
        raise NotImplementedError

    def _fits(self, state: dict[str, Tensor]) -> bool:
        """True if a saved state with the right names, shapes and types is one of this network."""
        return True

    # Methods of all streams.

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
        """Take in a packet, and return its predictions.

        A packet is `Events` of one recording, an array that `Events.of` takes, or one record of it.
        """
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
                f"stream: the network has the sensor {self.sensor}, but the packet has {events.sensor}. Use "
                "gl.augment.Crop or gl.augment.PoolPixels."
            )
        if events.num_examples != 1:
            raise ValueError(f"stream: the packet has {events.num_examples} recordings. Pass one recording at a time.")
        if events.polarity is None:
            raise ValueError("stream: the events of the packet have no polarity. Add it to the packet.")
        if events.padding:
            raise ValueError(f"stream: the packet has {events.padding} rows of padding. Pass events without padding.")
        if events.device.type != "cpu":
            raise ValueError(f"stream: the packet is on {events.device}. Move it to the CPU.")
        return events

    def _check(self, events: Events) -> None:
        """Refuse, by its index, an event that `Events.check` refuses or that is before the last one."""
        fault = events.fault()
        if fault is None and len(events) and int(events.time[0]) < self.time:
            remedy = "Call reset() after a restart of the camera, unwrap its 32-bit counter, or leave out late events"
            fault = 0, f"is at {int(events.time[0])} us, before the last one at {self.time} us. {remedy}"
        if fault is None and len(events) and int(events.time[-1]) >= LONGEST:
            late = int((events.time < LONGEST).sum())
            fault = late, f"is at {int(events.time[late])} us, but times end at {LONGEST}"
        if fault is not None:
            raise ValueError(
                f"stream: event {fault[0]} of the packet {fault[1].rstrip('.')}. The packet was not taken."
            )

    def _check_name(self, name: str) -> None:
        if name not in self._names:
            raise ValueError(
                f"stream: the features of {name!r} are not kept, only those of [{', '.join(self._names)}]. "
                f"Make the stream with features=[{name!r}]."
            )

    @alone
    def state_dict(self) -> dict[str, Tensor]:
        """The state as tensors. A stream that loads it continues bit for bit."""
        return {name: value.clone() for name, value in self._full_state().items()}

    def _full_state(self) -> dict[str, Tensor]:
        return {"numbers": torch.tensor([self.events_seen, self.time, self.start])} | self._memory()

    @alone
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved state. A state that does not fit is refused, and the stream stays as it was."""
        own = self._full_state()
        if set(state) != set(own):
            strange = sorted(set(state) ^ set(own))
            raise ValueError(
                f"stream: the state is of another network: {strange[0]!r} is missing or unknown. Load it into its own."
            )
        for name, value in own.items():
            if state[name].shape != value.shape or state[name].dtype != value.dtype:
                raise ValueError(
                    f"stream: the state is of another network: {name!r} is {tuple(state[name].shape)} "
                    f"{state[name].dtype}, not {tuple(value.shape)} {value.dtype}. Load it into its own."
                )
        seen, time, start = state["numbers"].tolist()
        if seen and not (seen > 0 and 0 <= start <= time):
            raise ValueError(
                f"stream: the state is damaged: {seen} events, the last at {time} us, in a window from {start} us. "
                "Load another state."
            )
        if not self._fits(state):
            raise ValueError("stream: the state is of another network: the weights differ. Load it into its own.")
        for name, value in own.items():
            value.copy_(state[name])
        self._numbers([seen, time, start])


class ProgramStream(Stream):
    """A live stream through the program of a network. The program holds the weights: copies and pickled streams do not
    depend on the network."""

    program: Program

    # Attributes that a copy is made from, besides the state.
    _parts: tuple[str, ...] = ("program", "sensor", "_title", "_names")

    def _build(self) -> None:
        """Make everything else from these attributes."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.program)

    @property
    def duration(self) -> int | None:
        """Microseconds of a window, if predictions are made at the end of windows."""
        return self.program.duration

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {name: getattr(self, name) for name in self._parts}, self.state_dict()

    def __setstate__(self, saved: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
        parts, state = saved
        self.__dict__.update(parts)
        self._build()
        self.reset()
        self.load_state_dict(state)
