"""When events come faster than they can be worked on: the source waits, packets are dropped, or events are thinned."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import torch

from gridless.live.sources import MOMENT, NewStream
from gridless.structures import Events


class Overload(StrEnum):
    wait = "wait"
    drop = "drop"
    thin = "thin"


# Events that may wait. Those that will be worked on make the lag; those that will be thinned only need memory.
ROOM = {Overload.wait: 1 << 13, Overload.drop: 1 << 13, Overload.thin: 1 << 20}


# Of the lag that an event may have, what the packet that it waits for, and then its own, may each take: less than half,
# because a packet can be dearer than those before it.
SHARE = 0.4


class Buffered:
    """A source read by a thread of its own, with room for `ROOM` events. All packets that wait come as one.

    So a consumer that has fallen behind pays for events, not for packets: the cost of a call, and above all that of
    taking the interpreter back from a busy reader, is paid once for all of them.

    When the room is full the reader waits (nothing is lost), or with `drop` throws the packet away and counts it in
    `dropped_packets` and `dropped_events`. With `thin` it does so too, but the room is hardly ever full: of the events
    that wait, as many as the consumer can work on in less than half of `lag` seconds are kept, evenly, and
    `thinned_events` counts the others. No event then waits for longer than the consumer worked before it, so that it is
    done within `lag`. `clock` tells the time in seconds.
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
        # When the first of the packets that are now one was received.
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
                kept = thinned(events, self._budget.events)
                self.thinned_events += len(events) - len(kept)
                events = kept
            begin = self.clock()
            yield events
            self._budget.spent(len(events), self.clock() - begin)

    def close(self) -> None:
        """Take no more packets. The reader ends with the packet it is at; one that waits for its source is left behind.

        A thread that is at work when the interpreter ends can take the process down with it.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(0.2)

    def _taken(self) -> list[Events] | NewStream:
        """All packets that wait, up to the next new stream; or that."""
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
    """How many events can be worked on in `target` seconds, as the packets so far tell: the dearest of the last ones.

    What an event costs differs from packet to packet by half, with how many others it makes fire.
    """

    # What is left of the memory of a dear packet after another one.
    FADE = 0.99

    def __init__(self, target: float) -> None:
        self.target, self.events, self.cost = target, 1024, 0.0

    def spent(self, events: int, seconds: float) -> None:
        # Only a packet that took too long, or that was as large as allowed, tells: small ones cost more per event.
        if events and (seconds > self.target or events >= self.events):
            self.cost = max(seconds / events, self.FADE * self.cost, 1e-12)
            # By a factor of two at most: one slow packet may be another process's doing.
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
    """Packets of one stream as one."""
    if len(packets) == 1:
        return packets[0]
    pixel, times, polarity = (torch.cat([getattr(p, k) for p in packets]) for k in ("pixel", "time", "polarity"))
    return Events(pixel, times, polarity, torch.tensor([0, len(times)]), packets[0].sensor)
