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
    "predict": ("gridless.cli.predict:predict", "answers of saved weights to your own files"),
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
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    name = arguments[0] if arguments else "--help"
    if name not in (*COMMANDS, "-h", "--help", "-V", "--version"):
        say("gridless", f"no command {name!r}: there are {', '.join(COMMANDS)}")
        return 2
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _warn
            # Terminals without the letters of a file's name show them escaped.
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
            status = _run(name, arguments[1:]) if name in COMMANDS else _help(name)
            return 1 if sys.stdout is not None and _is_output_closed() else status
    except (KeyboardInterrupt, _Interrupted) as error:
        say(f"gridless {name}", str(error) or "interrupted")
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            return 1
        if debug:
            raise
        # A KeyError shows its text in quotation marks.
        text = str(error.args[0] if isinstance(error, KeyError) and error.args else error) or type(error).__name__
        if isinstance(error, ModuleNotFoundError) and error.name:
            text += f". Run: pip install {error.name.partition('.')[0]}"
        from gridless.cli.options import in_options

        say(f"gridless {name}", in_options(text, name))
        return 1


def _is_output_closed() -> bool:
    """True if the reader of standard output closed the pipe, as `| head` does. Further output is then discarded."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line."""
    say("gridless", message)


def _run(name: str, arguments: list[str]) -> int:
    """Parse the options of a command and run it; returns the exit status."""
    import typer

    module, _, function = COMMANDS[name][0].partition(":")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(_interruptible(getattr(import_module(module), function)))
    try:
        return app(arguments, prog_name=f"gridless {name}", standalone_mode=False) or 0
    except Exception as error:
        # Wrong options get the parser's message, which names the option, without its page of usage.
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            text = error.format_message()  # type: ignore[attr-defined]
            say(f"gridless {name}", f"{text} (gridless {name} --help lists the options)")
            return error.exit_code  # type: ignore[attr-defined]
        raise


class _Interrupted(BaseException):
    """A KeyboardInterrupt of a command. The parser would catch the original and drop its message."""


def _interruptible(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same command, whose KeyboardInterrupt reaches `main`."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except KeyboardInterrupt as error:
            raise _Interrupted(*error.args) from None

    return run


def _help(name: str) -> int:
    """Print the version, or the list of commands."""
    if name in ("-V", "--version"):
        from gridless import __version__

        print(f"gridless {__version__}")
        return 0
    print("usage: gridless COMMAND ...   (gridless COMMAND --help says more)\n")
    for command, (_, text) in COMMANDS.items():
        print(f"  {command:<12}{text}")
    print("\n  --debug     show where an error came from\n  --version   the version")
    return 0
