"""Readers that misbehave, for the tests of isolation."""

import os
import time
from pathlib import Path


def die(path: Path, max_bytes: int | None) -> None:
    os.abort()


def eat(path: Path, max_bytes: int | None) -> int:
    return len(bytearray(1 << 40))


def raise_it(path: Path, max_bytes: int | None, words: str) -> None:
    raise KeyError(words)


def chatter(path: Path, max_bytes: int | None) -> tuple[Path, int | None]:
    os.write(1, b"nonsense" * 99)
    print("nonsense", flush=True)
    return path, max_bytes


def hang(path: Path, max_bytes: int | None) -> None:
    path.with_suffix(".pid").write_text(str(os.getpid()))
    time.sleep(1000)
