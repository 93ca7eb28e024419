"""Text on stderr: errors and warnings as one line each, and the progress of long jobs if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def shown(text: object) -> str:
    """A text from a file, such as a class name, with control characters escaped: they would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def say(who: str, message: object) -> None:
    """An error or a warning, as one line."""
    print(f"{who}: {shown(' '.join(str(message).split()))}", file=sys.stderr, flush=True)


def is_terminal(file: Any) -> bool:
    """True if a file is a terminal. Desktop programs have None for stdout and stderr."""
    return file is not None and file.isatty()


def line(*columns: str) -> Any:
    """An unstarted rich progress display on stderr, each task one line that ends with the given columns."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        # A narrow terminal shortens the bar and the description.
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        *(TextColumn(column) for column in columns),
        console=Console(stderr=True),
        refresh_per_second=4,
        # Printed text goes above the line, but never to stderr in place of a file or pipe.
        redirect_stdout=is_terminal(sys.stdout),
    )


@contextmanager
def bar(what: str, total: int, shown: bool = True, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a job of `total` parts while the block runs. The block calls the result with the parts just finished."""
    if not shown or not is_terminal(sys.stderr):
        yield lambda parts: None
        return
    with line() as display:
        task = display.add_task(what, total=total, completed=done)
        yield lambda parts: display.advance(task, parts)


def track(items: Iterable[T], what: str, total: int | None = None, shown: bool = True) -> Iterator[T]:
    """The items, one after the other, with a line that counts them."""
    with bar(what, len(items) if total is None else total, shown) as advance:  # type: ignore[arg-type]
        for item in items:
            yield item
            advance(1)
