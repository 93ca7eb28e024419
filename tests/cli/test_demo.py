"""The demo runs from end to end on its own data, and its page opens in a browser without a complaint."""

import json
import re
import subprocess
from importlib.util import find_spec

import pytest
from browser import CHROMIUM

from gridless.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


def test_the_demo_trains_runs_live_and_reports(folder, capsys):
    assert main(["--debug", "demo", "--quick", "--json", "--out", str(folder)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["live_error"] < 1e-5
    # By chance 1 in 14 shapes and 1 in 10 digits are right.
    assert facts["shapes_accuracy"] > 0.3
    assert facts["glyphs_accuracy"] > 0.2
    text = (folder / "report.html").read_text()
    assert text.count("<canvas") == 3
    # Radii are rounded, and the weights that come with the package were asked.
    assert not re.search(r"radius=\d+\.\d{6}", text)
    assert "A drawn chair and its parts" in text
    assert "<td>cone</td><td>cone " in text
    assert "https://" not in text
    assert "http://" not in text
    for name in ("shapes", "glyphs"):
        assert (folder / name / "weights.safetensors").is_file()


def test_a_folder_with_other_files_is_left_alone(tmp_path, capsys):
    mine = tmp_path / "shapes" / "chair.ply"
    mine.parent.mkdir()
    mine.touch()
    assert main(["demo", "--quick", "--out", str(tmp_path)]) == 1
    assert "holds other files" in " ".join(capsys.readouterr().err.split())
    assert mine.exists()


def test_what_the_demo_lacks_is_said_before_it_trains(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gridless.cli.demo.find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    assert main(["demo", "--quick", "--out", str(tmp_path / "demo")]) == 1
    assert "pip install matplotlib" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "demo").exists()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_report_opens_without_a_complaint(folder):
    page = folder / "report.html"
    if not page.is_file():
        pytest.skip("the demo did not finish")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.count("<canvas") == 3
    assert "CONSOLE" not in done.stderr
