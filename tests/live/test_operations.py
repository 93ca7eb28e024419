"""Every live operation is complete: it is read, runs in the engine as in a session, and is written in C."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from live import assert_close, busy, settled
from test_export import needs_compiler
from torch import nn

import gridless as gl
from gridless.live import Session, operations, registry, stream
from gridless.live.export import check
from gridless.live.export import folder as exporting
from gridless.live.operation import Elementwise, Operation, Sink
from gridless.live.operations import OPERATIONS
from gridless.live.program import Program
from gridless.live.table import ROW, ROW_FIELDS
from gridless.nn.events import polarity_features

ROOT = Path(__file__).resolve().parents[2]


class Example(nn.Module):
    """A network around the example of an operation: its value, or the mean of that over all cells."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.plan = gl.Plan()
        self.camera = self.plan.events((21, 17))
        self.stream = self.plan.lif(self.camera, decay_time=3000.0, threshold=0.6, reset=-0.4)
        self.sensor = (11, 9)
        self.first = gl.nn.PolarityConv(self.plan.causal(self.camera, self.stream, 3, 2), 6)
        self.example = operation.example(self)
        with torch.no_grad():
            geometry = self.plan(busy("plain", (21, 17), 50))
            self.axes = self.example(self.first(geometry), geometry, None).ndim

    def polarity(self, geometry):
        return polarity_features(geometry[self.camera], self.first.weight.dtype)

    def forward(self, geometry, memory=None):
        value = self.example(self.first(geometry, memory), geometry, memory)
        return value.mean(tuple(range(1, self.axes - 1))) if self.axes > 2 else value


def network(name: str) -> nn.Module:
    return settled(lambda: Example(OPERATIONS[name]))


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_all_its_forms(name):
    operation = OPERATIONS[name]
    kind = type(operation)
    assert kind.__module__ == f"{operations.__name__}.{name}"
    assert sys.modules[kind.__module__].__doc__
    assert len(operation.fields) <= ROW_FIELDS - len(ROW)
    assert not {*operation.fields} & {*ROW}
    assert callable(operation.body)
    assert kind.c is not Operation.c
    assert kind.example is not Operation.example
    if isinstance(operation, Elementwise):
        assert operation.expression
        assert kind.numba is not Elementwise.numba or kind.body is not Elementwise.body
    assert operation.is_sink == isinstance(operation, Sink)
    if isinstance(operation, Sink):
        assert kind.remember is not Sink.remember
        assert kind.c_take is not Sink.c_take
        assert operation.answer is not None


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_example_of_an_operation_runs_live_as_in_a_session(name):
    model, events = network(name), busy("plain", (21, 17), 400)
    program = Program.of(model)
    assert name in {row.operation for row in program.rows}
    live, session = stream(model), Session(model)
    for at in range(0, 400, 57):
        live(events[at : at + 57])
        session(events[at : at + 57])
    assert_close(live.predict(), session.predict(), 1e-5)
    own, source = OPERATIONS[name].multiply_adds(next(row for row in program.rows if row.operation == name))
    assert own >= 0
    assert source >= 0


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_example_of_an_operation_is_written_in_c(name, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "GOLDEN", 300)
    # No level of optimisation changes a bit (test_export.py), and this one compiles several times as fast.
    monkeypatch.setattr(check, "NATIVE", ("-std=c99", "-O0"))
    model, events = network(name), busy("plain", (21, 17), 400)
    board, session = stream(model, compiled=tmp_path / "c"), Session(model)
    for at in range(0, 400, 57):
        board(events[at : at + 57])
        session(events[at : at + 57])
    assert_close(board.predict(), session.predict(), 1e-5)


def test_every_file_of_the_folder_holds_one_operation():
    files = {path.stem for path in Path(operations.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {type(operation).__module__.rpartition(".")[2] for operation in OPERATIONS.values()}
    assert files == set(OPERATIONS)


def test_an_operation_that_is_there_already_or_comes_too_late_is_refused(monkeypatch):
    class Again(Elementwise):
        name = "relu"

    monkeypatch.setattr(registry, "frozen", False)
    with pytest.raises(ValueError, match="'relu'"):
        operations.register(Again)
    monkeypatch.setattr(registry, "frozen", True)
    with pytest.raises(RuntimeError, match="'relu'"):
        operations.register(Again)


def example_of_contributing() -> dict[str, str]:
    """The blocks of code of the worked example, by the file that they say they are."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    text = text[text.index("## A new activation, also live and in C") :]
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:3]]
    return {block.splitlines()[0].removeprefix("# "): block for block in blocks}


@pytest.mark.slow
@needs_compiler
def test_the_new_activation_of_contributing_is_trained_runs_live_and_in_c(tmp_path: Path):
    files = example_of_contributing()
    assert list(files) == ["gridless/live/operations/softsign.py", "use.py"]
    for name, text in files.items():
        (tmp_path / Path(name).name).write_text(text, "utf-8")
    script = (tmp_path / "use.py").read_text("utf-8")
    # Registered here, where a contributor puts the file into the folder.
    begin = f"import sys\nsys.path += {[str(ROOT / 'tests'), str(ROOT / 'tests/live')]}\n"
    begin += "import softsign\nfrom gridless.live.operations import register\nregister(softsign.Softsign)\n"
    # The loop is compiled once for this test, with the operations of this network alone: that saves 20 s.
    begin += "import compiler\nfrom live import compile_only\ncompiler.quicken()\n"
    begin += "compile_only(['affine', 'cause', 'convolve', 'dense', 'last', 'polarity', 'softsign'])\n"
    (tmp_path / "use.py").write_text(begin + script, "utf-8")
    env = os.environ | {"NUMBA_OPT": "1"}
    command = [sys.executable, "use.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    engine, board = (float(line.split()[-1]) for line in done.stdout.splitlines()[-2:])
    assert max(engine, board) < 1e-5
    assert not math.isnan(engine + board)
