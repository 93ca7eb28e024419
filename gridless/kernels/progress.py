"""What stderr is told: errors and warnings as one line each, and how far a long job is, where it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def shown(text: object) -> str:
    """A text from a file, such as a class name, with control characters escaped: they would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def say(who: str, words: object) -> None:
    """An error or a warning, as one line."""
    print(f"{who}: {shown(' '.join(str(words).split()))}", file=sys.stderr, flush=True)


def is_terminal(file: Any) -> bool:
    """Whether it is one; in programs without standard output and error, such as those of a desktop, they are None."""
    return file is not None and file.isatty()


def line(*words: str) -> Any:
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
        # Where the terminal is narrow, the bar and the words give way.
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        *(TextColumn(word) for word in words),
        console=Console(stderr=True),
        refresh_per_second=4,
        # What is printed meanwhile goes above the line, but never to stderr in place of a file or pipe.
        redirect_stdout=is_terminal(sys.stdout),
    )


@contextmanager
def bar(what: str, total: int, shown: bool = True, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a job of `total` parts while the block runs; what is given is called with how many more are done."""
    if not shown or not is_terminal(sys.stderr):
        yield lambda more: None
        return
    with line() as display:
        task = display.add_task(what, total=total, completed=done)
        yield lambda more: display.advance(task, more)


def track(items: Iterable[T], what: str, total: int | None = None, shown: bool = True) -> Iterator[T]:
    """The items, one after the other, with a line that counts them."""
    with bar(what, len(items) if total is None else total, shown) as advance:  # type: ignore[arg-type]
        for item in items:
            yield item
            advance(1)
