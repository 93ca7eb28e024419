"""Prefetch of GPU work by a thread with its own stream."""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

import torch

from gridless.backends import existing
from gridless.kernels.threads import ForkSafeLock
from gridless.plan import Plan
from gridless.structures import Geometry
from gridless.training.batch import transposed

# Thread -> event that ends it.
_ENDS: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()

# Held while a thread prepares a batch, and during the capture of a graph, which needs exclusive use of the device.
ALONE = ForkSafeLock()


def ahead(plan: Plan, clouds: Iterable[Any], device: torch.device | str, depth: int = 2) -> Iterator[Geometry]:
    """The geometries of clouds or events, each computed while the network works on the ones before it.

    On a GPU a thread moves the clouds to the device and runs the plan in its own stream. On the CPU each geometry is
    computed on request.

    Args:
        plan: the network's plan.
        clouds: inputs of the plan: clouds or events with their rows; dicts for a plan with several inputs.
        device: device on which geometries are computed and used.
        depth: maximum number computed ahead.
    """
    where = torch.empty(0, device=existing(device)).device
    if where.type != "cuda":
        yield from (plan(_moved(cloud, where)) for cloud in clouds)
        return

    def make(_: Any, cloud: Any = None) -> Geometry:
        # An empty geometry marks the end.
        return Geometry({}) if cloud is None else transposed(plan(_moved(cloud, where)))

    owner, jobs = threading.Event(), chain(((cloud,) for cloud in clouds), [()])
    running = Prefetch(owner, make, jobs, 0, depth, where)
    try:
        while geometry := running.take():
            yield geometry
    finally:
        running.close()


def _moved(cloud: Any, device: torch.device) -> Any:
    if isinstance(cloud, Mapping):
        return {name: _moved(part, device) for name, part in cloud.items()}
    return cloud.to(device, non_blocking=True)


class Prefetch:
    """A thread that runs make(owner, *job) for each of `jobs`, at most `depth` results ahead of `take`.

    `last` is the last epoch of the jobs. The thread ends after the last job, by `close`, or when the owner is deleted.
    """

    def __init__(
        self,
        owner: Any,
        make: Callable[..., Any],
        jobs: Iterator[tuple],
        last: int,
        depth: int,
        device: torch.device,
    ) -> None:
        self.last, self.device, self.ready, self.stop = last, device, queue.Queue(depth), threading.Event()
        self._end = weakref.finalize(owner, self.stop.set)
        # The first job may read tensors that the current stream is still writing.
        begun = torch.cuda.current_stream(device).record_event()
        work = _work, weakref.ref(owner), make, jobs, device, begun, self.ready, self.stop
        self.thread = threading.Thread(
            target=contextvars.copy_context().run, args=work, daemon=True, name="gridless-prepare"
        )
        self.thread.start()
        _ENDS[self.thread] = self.stop

    def take(self) -> Any:
        """Wait for the next result. The current stream may use it from now on."""
        while True:
            try:
                item, done, error = self.ready.get(timeout=1)
                break
            except queue.Empty:
                if not self.thread.is_alive() and self.ready.empty():
                    raise RuntimeError("the thread that prepares batches has ended. Start a new iteration.") from None
        if error is not None:
            raise error
        current = torch.cuda.current_stream(self.device)
        current.wait_event(done)
        for tensor in item.tensors():
            if tensor.is_cuda:
                tensor.record_stream(current)
        return item

    def close(self) -> None:
        """Tell the thread to end after its current job, and wait for it up to one second."""
        self.stop.set()
        self._end.detach()
        if threading.current_thread() is not self.thread:
            # The timeout prevents a deadlock: the thread may wait for a lock that the caller holds.
            self.thread.join(1)


def _work(owner: Any, make: Any, jobs: Any, device: Any, begun: Any, ready: Any, stop: Any) -> None:
    """The body of the thread. It holds a reference to the owner only during a job."""

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    try:
        stream = _side_stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream), torch.no_grad():
            stream.wait_event(begun)
            for job in jobs:
                if stop.is_set() or (present := owner()) is None:
                    return
                with ALONE:
                    item = make(present, *job)
                    done = stream.record_event()
                del present
                put((item, done, None))
                del item, done
    except BaseException as error:
        put((None, None, error))


@atexit.register
def _end_all() -> None:
    """End all threads: Python would abort at exit if a thread is still inside torch."""
    for thread, stop in list(_ENDS.items()):
        stop.set()
        thread.join(60)


@cache
def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)
