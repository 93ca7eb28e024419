"""What session and engine share: packets in, predictions out, windows of the voxel head, saved state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gridless.models.events import EventResNet, StreamHead, VoxelHead
from gridless.structures import Events


class Prediction(NamedTuple):
    """logits (classes) that were true at `time` (microseconds). A voxel head's are those of a finished window."""

    time: int
    logits: Tensor


class Stream:
    """One live stream through one network. Packets of any size: how the stream is cut into them changes nothing, not a
    bit in an `Engine`, and only rounding in a `Session`.

    `stream(packet)` is the newest prediction that the packet brought, or None; `push` gives all of them. A voxel head
    predicts at the end of each window of its `duration`, counted from the first event; windows without events are
    passed over. A stream head predicts after every event of the last stream. `predict()` answers at any moment.

    A packet with a bad event is refused whole, by index and reason, and leaves the stream as it was.
    """

    def __init__(self, model: nn.Module) -> None:
        model = event_network(model)
        if model.training:
            raise ValueError("stream: the network is in training mode: call model.eval() first")
        if any(layer.near.window is not None for layer in _convolutions(model)):
            raise ValueError(
                "stream: this network cuts its history (form='edges'), which a live stream does not: build it with "
                "form='scan' and load the same weights"
            )
        self.model = model
        width, height = model.config["sensor"]
        self.sensor: tuple[int, int] = width, height
        self.duration: int | None = None
        if isinstance(model.head, VoxelHead):
            if model.head.duration is None:
                raise ValueError(
                    "stream: the voxel head waits for the end of the recording: build the network with duration=..."
                )
            self.duration = model.head.duration
        elif not isinstance(model.head, StreamHead):
            raise TypeError(f"stream: head ({type(model.head).__name__}) is neither a voxel nor a stream head")
        self._prepare()
        self.reset()

    # What a kind of stream provides.

    def _prepare(self) -> None:
        """Once, before anything else."""

    def _clear(self) -> None:
        raise NotImplementedError

    def _advance(self, events: Events, begin: int, end: int) -> list[Prediction]:
        """Push the events begin to end, which lie in one window; the predictions of a stream head."""
        raise NotImplementedError

    def _restart(self, windows: int) -> None:
        raise NotImplementedError

    def _logits(self) -> Tensor:
        raise NotImplementedError

    def _memory(self) -> dict[str, Tensor]:
        """Every tensor that the future depends on, by name, in place."""
        raise NotImplementedError

    # What all kinds share.

    def reset(self) -> None:
        """Forget everything: as before the first event."""
        self.events_seen = 0
        self.time = -(2**63)
        self.start = 0
        self._clear()

    def __repr__(self) -> str:
        seen = f"{self.events_seen:,} events so far" + (f", the last at {self.time:,} us" if self.events_seen else "")
        return f"{type(self).__name__}({type(self.model).__name__}, {self.sensor[0]} x {self.sensor[1]} pixels, {seen})"

    def __call__(self, packet: Any) -> Tensor | None:
        last = None
        for last in self.push(packet):  # noqa: B007
            pass
        return None if last is None else last.logits

    def push(self, packet: Any) -> Iterator[Prediction]:
        """Take in a packet: `Events` of one recording, or an array that `Events.of` takes. Yields predictions."""
        events = packet if isinstance(packet, Events) else Events.of(packet, sensor=self.sensor)
        if events.sensor != self.sensor:
            raise ValueError(f"stream: the network is for a sensor of {self.sensor}, the packet is of {events.sensor}")
        if events.num_examples != 1:
            raise ValueError(f"stream: a packet is part of one recording, this one has {events.num_examples}")
        if events.polarity is None:
            raise ValueError("stream: the events of a packet need a polarity")
        if events.padding:
            raise ValueError(f"stream: a packet has no padding, this one has {events.padding} rows of it")
        if not len(events):
            return iter(())
        if events is packet:
            self._check(events)  # what Events.of makes is checked
        if int(events.time[0]) < self.time:
            raise ValueError(
                f"stream: event 0 of the packet is at {int(events.time[0])} us, before the last one at {self.time} us; "
                "the packet was not taken"
            )
        return iter(self._take(events))

    def _check(self, events: Events) -> None:
        """Refuse by index what `Events.check` refuses."""
        # Imported here: compiled code takes a moment to load.
        from gridless.structures.kernels import first_fault

        kind, row = first_fault(events.pixel.numpy(), events.time.numpy(), events.splits.numpy(), *self.sensor)
        if kind:
            _, words = events.fault()  # type: ignore[misc]
            raise ValueError(f"stream: event {row} of the packet {words}; the packet was not taken")

    def _take(self, events: Events) -> list[Prediction]:
        times = events.time.numpy()
        if self.events_seen == 0:
            self.start = int(times[0])
        self.events_seen += len(times)
        predictions: list[Prediction] = []
        at = 0
        while self.duration is not None and times[-1] >= self.start + self.duration:
            end = int(np.searchsorted(times, self.start + self.duration, side="left"))
            if end > at:
                predictions += self._advance(events, at, end)
            finished = self.start + self.duration
            if end > at or self.time >= self.start:
                predictions.append(Prediction(finished, self._logits()))
            windows = int((times[end] - self.start) // self.duration)
            self._restart(windows)
            self.start += windows * self.duration
            # The events so far lie in windows that have ended.
            at = end
        if at < len(times):
            predictions += self._advance(events, at, len(times))
        self.time = int(times[-1])
        return predictions

    def predict(self) -> Tensor:
        """Logits (classes) at this moment: of the window so far, or after the last event."""
        return self._logits()

    def state_dict(self) -> dict[str, Tensor]:
        """All that the future depends on, as tensors: a stream that loads it continues bit for bit."""
        numbers = torch.tensor([self.events_seen, self.time, self.start])
        return {"numbers": numbers} | {k: v.clone() for k, v in self._memory().items()}

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
        for name, value in mine.items():
            value.copy_(state[name])
        self.events_seen, self.time, self.start = numbers.tolist()


def event_network(model: nn.Module) -> EventResNet:
    """The model, which must be an event network."""
    if not isinstance(model, EventResNet):
        raise TypeError(
            f"stream: {type(model).__name__} is not an event network: only those run live "
            "(gl.models.event_resnet and the networks made of it)"
        )
    return model


def _convolutions(model: nn.Module) -> list[Any]:
    from gridless.nn.events import EventConv

    return [layer for layer in model.modules() if isinstance(layer, EventConv)]
