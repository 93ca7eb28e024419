"""Files that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_MARK = ".unfinished-"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file beside `path`, and put it in its place only when it is complete and on the disk.

    Whatever goes wrong, an exception, a full disk, an interrupt, leaves an existing file as it was and no other trace.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}{_MARK}{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
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
    """Remove what killed processes of this machine left unfinished."""
    for path in _unfinished(folder):
        pid = path.name.rpartition(_MARK)[2]
        if pid.isdigit() and not _alive(int(pid)):
            with suppress(OSError):
                path.unlink()


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
