"""The error of all readers of files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def check_file(path: Path, kind: str = "CloudFolder") -> None:
    """Refuse what is no file: of a folder, `kind` is what reads it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give one file, or read all files with gl.data.{kind}.")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")


def library(module: str, path: Path | str, extra: str = "data") -> Any:
    """The module of an optional dependency that reads or writes `path`; `extra` installs it."""
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(f"{path}: needs {module.partition('.')[0]}. Run pip install 'gridless[{extra}]'.") from None


class FormatError(ValueError):
    """A file that is not what it should be. Says which (`path`) and, where known, at which byte (`offset`)."""

    def __init__(self, path: Path | str, message: str, offset: int | None = None) -> None:
        super().__init__(f"{path}{'' if offset is None else f', byte {offset}'}: {message}")
        self.path, self.offset, self.message = Path(path), offset, message

    def __reduce__(self) -> tuple:
        return FormatError, (self.path, self.message, self.offset)
