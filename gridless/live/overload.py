"""Overload: events come faster than the engine works. The source waits, packets are dropped, or events are thinned."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import pairwise

import torch

from gridless.live.packets import CHECKED, checked_by_source
from gridless.live.sources import MOMENT, NewStream
from gridless.structures import Events


class Overload(StrEnum):
    wait = "wait"
    drop = "drop"
    thin = "thin"


# Events that may wait. Waiting events add lag, unless they will be thinned.
ROOM = {Overload.wait: 1 << 13, Overload.drop: 1 << 13, Overload.thin: 1 << 20}


# Share of the allowed lag that one packet may take. An event waits for one packet, then for its own; less than half
# each, because a packet can cost more than those before it.
SHARE = 0.4


class Buffered:
    """Reads a source in a thread of its own, with room for `ROOM` events. All packets that wait come as one.

    A consumer that has fallen behind thus pays once for a call, and for taking the interpreter back from the reader.

    When the room is full:

    - `wait`: the reader waits, and nothing is lost;
    - `drop`: the reader drops the packet, and counts it in `dropped_packets` and `dropped_events`;
    - `thin`: the same, but the room is hardly ever full. The buffer keeps as many waiting events as the consumer works
      on in less than half of `lag` seconds, evenly, and counts the others in `thinned_events`. Each event is done
      within `lag`.

    `clock` returns the time in seconds.
    """

    def __init__(
        self,
        source: Iterable[Events | NewStream],
        overload: Overload = Overload.wait,
        lag: float = 0.005,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.overload, self.clock = overload, clock
        self.dropped_packets = self.dropped_events = self.thinned_events = 0
        # Time at which the first of the packets that are now one was received.
        self.received = 0.0
        self._source, self._room, self._budget = source, ROOM[overload], Budget(SHARE * lag)
        self._waiting: deque[tuple[float, Events | NewStream]] = deque()
        self._events = 0
        self._error: BaseException | None = None
        self._done = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True, name="gridless-source")

    def _read(self) -> None:
        try:
            for packet in self._source:
                if self._closed:
                    break
                self._put(packet, self.clock())
        except BaseException as error:
            self._error = error
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _put(self, packet: Events | NewStream, now: float) -> None:
        size = len(packet) if isinstance(packet, Events) else 0
        with self._changed:
            # A packet larger than the room passes alone; one without events, and a new stream, need none.
            while size and self._events and self._events + size > self._room and not self._closed:
                if self.overload is not Overload.wait:
                    self.dropped_packets += 1
                    self.dropped_events += size
                    return
                self._changed.wait()
            self._waiting.append((now, packet))
            self._events += size
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Events | NewStream]:
        self._thread.start()
        while True:
            with self._changed:
                while not self._waiting and not self._done:
                    self._changed.wait(MOMENT)
                packets = self._taken()
            if not packets:
                if self._error is not None:
                    raise self._error
                return
            if isinstance(packets, NewStream):
                yield packets
                continue
            events = joined(packets)
            if self.overload is Overload.thin:
                count = len(events)
                events = thinned(events, self._budget.events)
                self.thinned_events += count - len(events)
            begin = self.clock()
            yield events
            self._budget.spent(len(events), self.clock() - begin)

    def close(self) -> None:
        """Take no more packets. The reader ends after its packet; a reader that waits for its source is left behind.

        A thread that still works when the interpreter ends can crash the process.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(0.2)

    def _taken(self) -> list[Events] | NewStream:
        """All packets that wait, up to the next `NewStream`; or that alone."""
        packets: list[Events] = []
        while self._waiting:
            received, packet = self._waiting[0]
            if isinstance(packet, NewStream):
                if not packets:
                    self._waiting.popleft()
                    return packet
                break
            self._waiting.popleft()
            self._events -= len(packet)
            if not packets:
                self.received = received
            packets.append(packet)
        self._changed.notify_all()
        return packets


class Budget:
    """Estimates how many events can be worked on in `target` seconds, from the most expensive of the last packets.

    The cost of an event varies by half from packet to packet, with the number of events that it fires.
    """

    # Factor by which the remembered cost fades with each packet.
    FADE = 0.99

    def __init__(self, target: float) -> None:
        self.target, self.events, self.cost = target, 1024, 0.0

    def spent(self, events: int, seconds: float) -> None:
        # Small packets are ignored, because they cost more per event, unless they took too long.
        if events and (seconds > self.target or events >= self.events):
            self.cost = max(seconds / events, self.FADE * self.cost, 1e-12)
            # By a factor of two at most: another process may have slowed one packet down.
            self.events = max(1, self.events // 2, min(int(self.target / self.cost), 2 * self.events))


def thinned(events: Events, keep: int) -> Events:
    """At most `keep` of the events of one recording, evenly spread over them."""
    if len(events) <= keep:
        return events
    rows = torch.arange(keep) * len(events) // keep
    mask = torch.zeros(len(events), dtype=torch.bool)
    mask[rows] = True
    return events[mask]


def joined(packets: list[Events]) -> Events:
    """Packets of one stream as one. Packets that a source has checked, and whose times go on, stay checked."""
    if len(packets) == 1:
        return packets[0]
    pixel, times, polarity = (torch.cat([getattr(p, k) for p in packets]) for k in ("pixel", "time", "polarity"))
    events = Events.made(
        pixel=pixel, time=times, polarity=polarity, splits=torch.tensor([0, len(times)]), sensor=packets[0].sensor
    )
    in_order = all(int(a.time[-1]) <= int(b.time[0]) for a, b in pairwise([p for p in packets if len(p)]))
    return checked_by_source(events) if in_order and all(CHECKED in p.__dict__ for p in packets) else events
