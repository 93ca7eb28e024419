"""Files of a folder are read once for all its splits, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gridless.data.files import FileState, state_of
from gridless.kernels.progress import bar
from gridless.kernels.threads import in_threads

T = TypeVar("T")


class Readings:
    """Cache of readings of the folder that was read last.

    All files together decide the labels of points and the size of the sensor. So a split reads the files of others,
    too, and asks here first. The examples that a split took are not cached, only the facts about their file.
    """

    def __init__(self) -> None:
        self.key: Any = None
        self._entries: dict[Path, tuple[FileState | None, Any]] = {}
        self._lock = threading.Lock()

    def select(self, key: Any) -> None:
        """Forget readings of another folder, or with other settings."""
        with self._lock:
            if key != self.key:
                self.key, self._entries = key, {}

    def get(self, path: Path) -> Any:
        """The reading of this file, or None if there is none or the file has changed."""
        state, reading = self._entries.get(path, (None, None))
        return reading if state is not None and state == state_of(path) else None

    def keep(self, path: Path, reading: Any) -> None:
        self._entries[path] = state_of(path), reading


READINGS = Readings()


def read_files(
    paths: Sequence[Path],
    read: Callable[[Path], T],
    progress: bool,
    remedy: str = "Mend or remove them.",
    cached: Callable[[Path], T | None] = lambda path: None,
) -> dict[Path, T]:
    """Read each file that is not `cached`, in several threads. The files that `read` refuses are named together."""
    errors = list[str]()
    with bar("read", len(paths), progress) as advance:

        def one(path: Path) -> Any:
            try:
                reading = cached(path)
                return read(path) if reading is None else reading
            except (ValueError, OSError) as error:
                errors.append(str(error).rstrip("."))
                return None
            finally:
                advance(1)

        readings = in_threads(one, [(path,) for path in paths])
    if errors:
        first = "; ".join(sorted(errors)[:3]) + ("; ..." if len(errors) > 3 else "")
        raise ValueError(f"{len(errors)} of {len(paths)} files cannot be used: {first}. {remedy}")
    return dict(zip(paths, readings, strict=True))
