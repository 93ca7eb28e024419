"""Limits of memory and loops that a file may ask of its reader: one rule for all readers of clouds and events.

- What a file stores uncompressed must be there: a declared count times the size of a record must fit in the rest of the
  file. This check is exact and has no option.
- What a file stores compressed may unpack to `max_bytes` in all. The default is the larger of 256 MiB and 100 times the
  length of the file. `read_events(path, max_bytes=...)` and `read_cloud(path, max_bytes=...)` raise it.

Readers check before they allocate or loop.
"""

from __future__ import annotations

from pathlib import Path

from gridless.data.errors import FormatError

MINIMUM = 256 << 20
RATIO = 100


class Limits:
    """The limits of one file. `left` is the number of bytes that it may still unpack to."""

    def __init__(self, path: str | Path, max_bytes: int | None = None) -> None:
        if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1):
            raise ValueError(f"max_bytes must be a positive whole number of bytes, not {max_bytes!r}")
        self.path = Path(path)
        self.max_bytes = max(MINIMUM, RATIO * self.path.stat().st_size) if max_bytes is None else max_bytes
        self.left = self.max_bytes

    def stored(self, what: str, count: int, size: int, rest: int, offset: int | None = None) -> None:
        """Refuse `count` records of `size` bytes that are stored as they are, where only `rest` bytes follow."""
        if count < 0:
            raise FormatError(self.path, f"declares {count} {what}, a negative number", offset)
        if count * size > rest:
            message = (
                f"truncated, or a wrong count: it declares {count} {what} of {size} bytes. The {max(rest, 0)} bytes "
                f"that follow hold {max(rest, 0) // size}."
            )
            raise FormatError(self.path, message, offset)

    def unpacked(self, what: str, size: int, offset: int | None = None) -> None:
        """Count `size` bytes that `what` unpacks to, and refuse them where the file's total goes over the limit."""
        if size < 0:
            raise FormatError(self.path, f"{what} declares {size} bytes, a negative size", offset)
        if size > self.left:
            before = f", after {self.max_bytes - self.left} bytes of other parts" if self.left < self.max_bytes else ""
            message = (
                f"{what} unpacks to at least {size} bytes{before}: over the file's limit of {self.max_bytes}. "
                "If you trust the file, pass a larger max_bytes."
            )
            raise FormatError(self.path, message, offset)
        self.left -= size
