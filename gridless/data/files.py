"""Files that are either whole or not there."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import IO

_MARK = ".unfinished-"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file beside `path`, and put it in its place only when it is complete and on the disk.

    Whatever goes wrong, an exception, a full disk, an interrupt, leaves an existing file as it was and no other trace.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two threads, processes or machines may write the same file at once: the last to finish wins.
    unfinished = path.with_name(f"{path.name}{_MARK}{_machine()}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name last, too, where folders can be synchronised."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what killed processes of this machine left unfinished; what another machine is writing stays."""
    for path in _unfinished(folder):
        machine, _, rest = path.name.rpartition(_MARK)[2].partition("-")
        pid = rest.partition("-")[0]
        if machine == _machine() and pid.isdigit() and not _alive(int(pid)):
            with suppress(OSError):
                path.unlink()


@cache
def _machine() -> str:
    """This machine since it was started, and what its process numbers count: those of another container are others."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return sha256(" ".join(parts).encode()).hexdigest()[:12]


def _unfinished(folder: Path) -> Iterable[Path]:
    return folder.glob(f"*{_MARK}*") if folder.is_dir() else ()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
