"""Progress bars: on a terminal's stderr, and nowhere else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gridless as gl
from gridless.kernels.progress import bar, track

ROOT = Path(gl.__file__).parents[1]

SCRIPT = textwrap.dedent("""
    import sys, time
    import gridless as gl
    from gridless.cli.main import main
    from gridless.data import Shapes
    model = gl.models.PointResNet(14, width=8, levels=1, radius=0.4)
    gl.save(model, sys.argv[1] + "/net", recipe={"data": "shapes", "data_options": {"held_out": 12}, "points": 48})
    plan = model.plan
    gl.Precomputed(Shapes(12, points=48), sys.argv[1], plan, shard=4)
    main(["evaluate", sys.argv[1] + "/net", "--device", "cpu", "--batch-size", "4", "--json"])
    file = sys.argv[1] + "/one.npy"
    import numpy as np
    np.save(file, Shapes(1, points=48).coords[0].numpy())
    main(["predict", file, file, "--weights", sys.argv[1] + "/net", "--device", "cpu", "--json"])
""")


def on_a_terminal(folder: Path) -> tuple[str, str]:
    """Output of the script: stdout, through a pipe, and stderr."""
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "100"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:
                # Linux: the other end of a terminal was closed.
                break
            if not more:
                break
            shown += more
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    return printed, shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_bars_are_shown_on_a_terminal_and_never_in_what_is_printed(tmp_path, monkeypatch, capsys, terminal):
    """Progress bars of a cache, an evaluation and two predictions."""
    if terminal:
        printed, shown = on_a_terminal(tmp_path)
    else:
        monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path)])
        exec(SCRIPT, {})
        printed, shown = capsys.readouterr()
    lines = [json.loads(line) for line in printed.splitlines()]
    # A remark about a low probability names the command, too.
    shown = "\n".join(line for line in shown.splitlines() if "under 40" not in line)
    assert [sorted(line)[0] for line in lines] == ["accuracy", "class", "class"]
    for job, total in (("geometry", 12), ("evaluate", 12), ("predict", 2)):
        assert (job in shown) == terminal
        assert (f"{total}/{total}" in shown) == terminal


def test_without_a_terminal_items_just_come(capsys):
    assert list(track([3, 1, 2], "count")) == [3, 1, 2]
    with bar("count", 3) as advance:
        advance(3)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_programs_without_standard_output_and_error_have_no_bar(monkeypatch):
    """Those of a desktop (pythonw), and those that were started with both closed."""
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert list(track([1, 2], "x")) == [1, 2]
