"""Many independent tasks: here, in processes on this machine, or on a Ray cluster, with the same results.

A worker is a class whose objects are callable: made once in each process, called for each task.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from typing import Any


def run(
    worker: Callable[..., Callable[[Any], Any]],
    arguments: dict[str, Any],
    tasks: Iterable[Any],
    workers: int = 1,
    ray: str | None = None,
) -> Iterator[tuple[Any, Any]]:
    """(task, result) of each task, in the order in which they are finished.

    Args:
        worker: `worker(**arguments)` is made once in each process, and called with a task.
        arguments: of the worker, pickled.
        tasks: one for each call, pickled.
        workers: processes on this machine; 1 is this one.
        ray: the address of a Ray cluster instead, with as many actors as it has room for.
    """
    if ray is not None:
        yield from _on_ray(worker, arguments, list(tasks), ray)
    elif workers > 1:
        yield from _in_processes(worker, arguments, iter(tasks), workers)
    else:
        call = worker(**arguments)
        for task in tasks:
            yield task, call(task)


def _in_processes(
    worker: Callable[..., Any], arguments: dict[str, Any], tasks: Iterator[Any], workers: int
) -> Iterator[tuple[Any, Any]]:
    """Two tasks for each process are under way at a time: the next one waits where this one ends."""
    context = _context()
    _try(context)
    pool = ProcessPoolExecutor(workers, context, _begin, (worker, arguments))
    try:
        busy = {pool.submit(_do, task) for task in islice(tasks, 2 * workers)}
        while busy:
            done, busy = wait(busy, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
            busy |= {pool.submit(_do, task) for task in islice(tasks, len(done))}
    except BrokenProcessPool:
        remedy = "Memory may have run out. Start again with fewer workers (finished tasks are kept)."
        raise RuntimeError(f"One of {workers} processes was killed. {remedy}") from None
    except BaseException:
        # Tasks that are under way are not waited for.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _try(context: Any) -> None:
    """Refuse where processes cannot begin, with the reason, which a pool does not know."""
    process = context.Process(target=_nothing)
    process.start()
    process.join()
    if process.exitcode:
        remedy = 'In a script call it under `if __name__ == "__main__":`, or use workers=1.'
        raise RuntimeError(f"A worker process could not start. {remedy}")


def _nothing() -> None:
    pass


def _context() -> Any:
    """The way to start processes: forks of one that has imported torch and nothing else, whose memory they share.

    This process may have threads, and would not be forked safely.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gridless.plan"])
    return context


def connect(address: str) -> Any:
    """The package Ray, connected to a cluster. A dead address is refused at once; Ray itself tries for minutes."""
    try:
        import ray  # type: ignore[import-not-found]
    except ImportError:
        raise ImportError("--ray: Ray is not installed. Run pip install ray.") from None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not ray.is_initialized():
        try:
            if port.isdigit():
                socket.create_connection((host.strip("[]"), int(port)), 10).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster at {address}: {error}. Start it: ray start --head.") from None
        try:
            ray.init(address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            remedy = "Start one (ray start --head), or give local to use the cores of this machine"
            raise ConnectionError(f"--ray {address}: no Ray cluster was found there. {remedy}.") from error
    return ray


# The worker of this process, and how to make it.
_make: Any = None
_worker: Any = None


def _begin(worker: Callable[..., Any], arguments: dict[str, Any]) -> None:
    global _make
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()

    # The processes share the machine.
    torch.set_num_threads(1)
    _make = partial(worker, **arguments)


def _end_with_parent() -> None:
    """Ends this process with its parent: a pool's processes would wait for ever after the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(task: Any) -> tuple[Any, Any]:
    global _worker
    # The first task creates the worker, so an error in its constructor is reported like an error of a task.
    _worker = _worker or _make()
    return task, _worker(task)


def _on_ray(
    worker: Callable[..., Any], arguments: dict[str, Any], tasks: list[Any], address: str
) -> Iterator[tuple[Any, Any]]:
    """An actor for each CPU, or each GPU where there are some; a task whose actor is lost is given to another."""
    ray = connect(address)
    on_gpu = str(arguments.get("device", "cpu")).startswith("cuda")
    kind = "GPU" if on_gpu else "CPU"
    many = max(1, int(ray.cluster_resources().get(kind, 1)))
    # Large arguments are stored once.
    stored = ray.put(arguments)

    class Actor:
        def __init__(self, arguments: dict[str, Any]) -> None:
            self.arguments, self.worker = arguments, None

        def do(self, task: Any) -> Any:
            # The first task creates the worker, so an error in its constructor ends the job. Lost actors are retried.
            self.worker = self.worker or worker(**self.arguments)
            return self.worker(task)

    remote: Any = ray.remote(num_cpus=0 if on_gpu else 1, num_gpus=1 if on_gpu else 0)(Actor)
    waiting, busy = tasks[::-1], {}
    idle = [remote.remote(stored) for _ in range(min(many, len(tasks)))]
    lost = 0
    while waiting or busy:
        while waiting and idle:
            actor, task = idle.pop(), waiting.pop()
            busy[actor.do.remote(task)] = actor, task
        ready, _ = ray.wait(list(busy), num_returns=1)
        actor, task = busy.pop(ready[0])
        try:
            result = ray.get(ready[0])
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
            lost += 1
            if lost > 3 * many + 3:
                raise
            waiting.append(task)
            # A new actor replaces the last one; others would have room for the task.
            if not busy and not idle:
                idle.append(remote.remote(stored))
            continue
        idle.append(actor)
        yield task, result
