"""Throughput, latency and lag of a live stream, on standard error."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from gridless.kernels.progress import is_terminal, shown
from gridless.structures import Events


class Meter:
    """Throughput, latency and lag on standard error: once a second in a terminal, and at the end.

    Sensor and host have clocks of their own. Lag is the host's time from the earliest moment at which the first event
    of a packet could have arrived until the packet is done. The smallest difference between the clocks so far tells
    that moment, so lag is never negative.
    """

    # A sensor's clock may run so much slower than the host's without that counting as lag.
    DRIFT = 1e-4

    def __init__(self, quiet: bool, counts: Callable[[], dict[str, int]]) -> None:
        self.quiet, self.counts = quiet, counts
        self.events = 0
        # Seconds.
        self.busy = self.host = self.sensor = self.lag = self.longest_lag = 0.0
        # Percentiles are of the last hundred thousand packets: a stream may run for months.
        self.latency: deque[float] = deque(maxlen=100_000)
        self.printed = time.perf_counter()
        self.begin: float | None = None
        self.restart()

    def restart(self) -> None:
        """Forget the sensor's clock: another stream begins."""
        self.last_time_us: int | None = None
        self.offset: float | None = None

    def tick(self, events: Events, begin: float, received: float | None) -> None:
        """Count a packet whose work began at `begin` and has ended; live sources say when it was `received`."""
        if not len(events):
            return
        now = time.perf_counter()
        first, last = int(events.time[0]), int(events.time[-1])
        self.begin = begin if self.begin is None else self.begin
        self.sensor += (last - (first if self.last_time_us is None else self.last_time_us)) * 1e-6
        since, self.host, self.last_time_us = now - (self.host or now), now, last
        self.events, self.busy = self.events + len(events), self.busy + now - begin
        self.latency.append(now - begin)
        if received is not None:
            offset = received - first * 1e-6
            drifted = offset if self.offset is None else self.offset + self.DRIFT * since
            self.offset = min(offset, drifted)
            self.lag = now - first * 1e-6 - self.offset
            self.longest_lag = max(self.longest_lag, self.lag)
        if not self.quiet and now - self.printed > 1 and is_terminal(sys.stderr):
            self.printed = now
            print("\r" + self.line(), end="", file=sys.stderr, flush=True)

    def line(self) -> str:
        """All figures so far, in one line."""
        p50, p99, p999 = np.percentile(self.latency or [0.0], [50, 99, 99.9]) * 1e6
        rate, host = self.events / max(self.busy, 1e-9) / 1e6, self.host - (self.begin or 0.0)
        lag = f", lag {1e3 * self.lag:.1f} ms, at most {1e3 * self.longest_lag:.1f} ms"
        return (
            f"{self.events:,} events, {rate:.2f} M events/s of work, "
            f"packet p50 {p50:.0f} us, p99 {p99:.0f} us, p99.9 {p999:.0f} us, "
            f"{self.sensor:.3f} s of sensor time in {host:.3f} s{'' if self.offset is None else lag}"
        ) + "".join(f", {k.replace('_', ' ')} {v:,}" for k, v in self.counts().items())

    def close(self, reason: str) -> None:
        """Print the last line, and why something was not taken."""
        if not self.quiet and (self.events or any(self.counts().values())):
            remark = f"\nnot taken: {shown(reason)}" if reason else ""
            begin = "\r" if is_terminal(sys.stderr) else ""
            print(begin + self.line() + remark, file=sys.stderr, flush=True)
