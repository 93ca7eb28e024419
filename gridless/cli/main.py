"""The command line: `gridless train | evaluate | predict | ...`.

A command is one function in one module, and one line in `COMMANDS`; only the module of the command that runs is
imported. The function's signature is the command's options (typer), its docstring the help.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from gridless.kernels.progress import say

# name -> (module:function, one line of help).
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("gridless.cli.train:train", "train a network by a recipe"),
    "precompute": ("gridless.cli.precompute:precompute", "make the geometry of a recipe's examples, ahead of time"),
    "evaluate": ("gridless.cli.evaluate:evaluate", "accuracy of saved weights"),
    "predict": ("gridless.cli.predict:predict", "class and probabilities of your own files"),
    "stream": ("gridless.cli.stream:stream", "run an event network live"),
    "export": ("gridless.cli.export:export", "write an event network as C"),
    "compile": ("gridless.cli.compile:compile_kernels", "compile all CPU kernels for this machine, ahead of time"),
    "demo": ("gridless.cli.demo:demo", "train two small networks, run one live, write a report"),
    "stats": ("gridless.cli.stats:stats", "points, events and neighbours at every level of a recipe's data"),
    "show": ("gridless.cli.show:show", "draw a cloud or a recording"),
    "clean": ("gridless.cli.clean:clean", "list and remove packs and caches"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command. Errors and warnings are one line; `--debug` shows where they came from."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    name = words[0] if words else "--help"
    if name not in (*COMMANDS, "-h", "--help", "-V", "--version"):
        say("gridless", f"no command {name!r}: there are {', '.join(COMMANDS)}")
        return 2
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _warn
            # Names of files that the terminal has no letters for.
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
            status = _run(name, words[1:]) if name in COMMANDS else _help(name)
            return 1 if sys.stdout is not None and _nobody_reads() else status
    except (KeyboardInterrupt, _Interrupted) as error:
        say(f"gridless {name}", str(error) or "interrupted")
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 1
        if debug:
            raise
        # A KeyError shows its text in quotation marks.
        text = str(error.args[0] if isinstance(error, KeyError) and error.args else error) or type(error).__name__
        if isinstance(error, ModuleNotFoundError) and error.name:
            text += f": pip install {error.name.partition('.')[0]}"
        say(f"gridless {name}", text)
        return 1


def _nobody_reads() -> bool:
    """Whether standard output is a pipe that was closed, as `| head` does; if so, what is left to print is dropped."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    say("gridless", message)


def _run(name: str, words: list[str]) -> int:
    import typer

    module, _, function = COMMANDS[name][0].partition(":")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(_interruptible(getattr(import_module(module), function)))
    try:
        return app(words, prog_name=f"gridless {name}", standalone_mode=False) or 0
    except Exception as error:
        # Wrong options: the parser's own message, which names the option, without its page of usage.
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            text = error.format_message()  # type: ignore[attr-defined]
            say(f"gridless {name}", f"{text} (gridless {name} --help lists the options)")
            return error.exit_code  # type: ignore[attr-defined]
        raise


class _Interrupted(BaseException):
    """A KeyboardInterrupt of a command: the parser would take that itself, and what it says would be lost."""


def _interruptible(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except KeyboardInterrupt as error:
            raise _Interrupted(*error.args) from None

    return run


def _help(name: str) -> int:
    if name in ("-V", "--version"):
        from gridless import __version__

        print(f"gridless {__version__}")
        return 0
    print("usage: gridless COMMAND ...   (gridless COMMAND --help says more)\n")
    for name, (_, text) in COMMANDS.items():
        print(f"  {name:<12}{text}")
    print("\n  --debug     show where an error came from\n  --version   the version")
    return 0
