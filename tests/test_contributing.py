"""The worked examples of CONTRIBUTING run: a format of recordings, and a command. Others have their own tests:
the activation in live/test_operations.py, the task in test_examples.py, searches and ops in test_docs.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gridless as gl
from gridless.cli import main as commands
from gridless.data.readers import events as readers

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")


def install(monkeypatch: pytest.MonkeyPatch, file: str) -> ModuleType:
    """Import the example that says it is `file`, as if it were there."""
    code = next(b.split("```")[0] for b in TEXT.split("```python\n") if b.startswith(f"# {file}\n"))
    module = ModuleType(file.removesuffix(".py").replace("/", "."))
    exec(compile(code, file, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module = install(monkeypatch, "gridless/data/readers/events/plain.py")
    monkeypatch.setattr(readers, "READERS", ("plain", *readers.READERS))
    monkeypatch.setitem(readers.SUFFIXES, ".plain", "plain")
    rows = np.array([(10, 3, 2, 1), (25, 7, 0, 0), (25, 1, 4, 1)], module.EVENT)
    (tmp_path / "a.plain").write_bytes(module.MAGIC + rows.tobytes())
    return tmp_path / "a.plain"


def test_the_new_format_is_read_and_names_its_faults(recording: Path):
    events = gl.read_events(recording)
    assert events.time.tolist() == [10, 25, 25]
    assert events.pixel.tolist() == [[3, 2], [7, 0], [1, 4]]
    assert events.polarity is not None
    assert events.polarity.tolist() == [True, False, True]
    with pytest.raises(gl.data.FormatError, match=r"a\.plain, byte 13: event 1 .*\(7, 0\)"):
        gl.read_events(recording, sensor=(5, 5))
    recording.write_bytes(recording.read_bytes()[:-1])
    with pytest.raises(gl.data.FormatError, match=r"a\.plain, byte 22"):
        gl.read_events(recording)


def test_the_new_command_runs_and_has_help(recording: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    install(monkeypatch, "gridless/cli/count.py")
    line = next(line for line in TEXT.splitlines() if line.startswith("Its line in `COMMANDS`"))
    monkeypatch.setattr(commands, "COMMANDS", commands.COMMANDS | eval("{" + line.split("`")[3] + "}"))
    assert commands.main(["count", str(recording)]) == 0
    assert capsys.readouterr().out == "3 events\n"
    assert commands.main(["count", "--help"]) == 0
    assert "number of events" in capsys.readouterr().out
