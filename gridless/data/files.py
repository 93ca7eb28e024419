"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

# Folder of packs and caches beside the data; readers of folders ignore it.
BESIDE = ".gridless"
_MARK = ".unfinished-"
_A_DAY = 86_400
_FULL = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "no space left",
    errno.EFBIG: "files may not be so large here (ulimit -f)",
}


def full(error: OSError) -> str | None:
    """The reason why nothing more can be written, in words; None for other errors."""
    return _FULL.get(error.errno or 0)


# Size of a file, and time of its last change.
FileState = tuple[int, int]


def state_of(path: Path) -> FileState | None:
    """Changes when the file does; None if there is no file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Write a file beside `path`, and put it in its place only when it is complete and on the disk.

    Whatever goes wrong, an exception, a full disk, an interrupt, leaves an existing file as it was and no other trace.
    Threads, processes and machines may write the same path at once: the last one to finish wins.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    check_below(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Names are 255 bytes long at most, and a character takes up to four.
    unfinished = path.with_name(f"{path.name[:40]}{_MARK}{_machine()}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink()
        # NumPy says how many numbers it wrote, and no more.
        if type(error) is OSError and error.errno is None:
            raise OSError(errno.ENOSPC, str(error), str(path)) from None
        if isinstance(error, OSError) and full(error) and error.filename is None:
            error.filename = str(path)
        raise
    _sync_folder(path.parent)


def check_below(folder: Path) -> None:
    """Refuse a folder that cannot be made, as it, or one that it is in, is a file."""
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(f"{path} is a file, not a folder. Choose another path.")


def check_writable(folder: Path, option: str) -> None:
    """Refuse a folder that cannot be made or written to, before any work is done for it. Nothing is left behind."""
    check_below(folder)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    writable = os.access(existing, os.W_OK | os.X_OK)
    with suppress(OSError):
        # File systems refuse what permissions allow the superuser: /proc, and those mounted read-only.
        with TemporaryFile(dir=existing):
            pass
        if writable:
            return
    raise PermissionError(f"{existing} is not writable. Choose another folder ({option}).")


@contextmanager
def locked(path: Path, out: Path) -> Iterator[None]:
    """The lock file `path` of who writes `out`, held until the process ends, however it does.

    On systems without such locks (Windows) there is none.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another run may have removed the file just now, and a third one may have made it again.
            held = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
        except OSError as error:
            # Some network file systems have no locks.
            held = error.errno not in (errno.EACCES, errno.EAGAIN)
        if not held:
            raise ValueError(f"another run is writing {out}. Wait for it, or give another --out.")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def write_whole(path: str | Path, content: bytes | memoryview) -> Path:
    """A whole file from its content (see `whole_file`)."""
    with whole_file(path) as file:
        file.write(content)
    return Path(path)


def _sync_folder(folder: Path) -> None:
    """Make the new name last, too, where folders can be synchronised."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what killed processes left unfinished: those of this machine at once, those of others after a day."""
    for path in folder.glob(f"*{_MARK}*") if folder.is_dir() else ():
        machine, _, rest = path.name.rpartition(_MARK)[2].partition("-")
        pid = rest.partition("-")[0]
        with suppress(OSError):
            dead = machine == _machine() and pid.isdigit() and not _alive(int(pid))
            if dead or time.time() - path.stat().st_mtime > _A_DAY:
                path.unlink()


@cache
def _machine() -> str:
    """Identifies the space of process ids: this boot of this machine, or this container of it."""
    parts = [platform.node()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # there, the signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
