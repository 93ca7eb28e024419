"""Damaged files: the documented error, or events and points that are in order; never anything else."""

from __future__ import annotations

from pathlib import Path

import fuzz
import pytest

import gridless as gl
from gridless.data import FormatError

pytestmark = pytest.mark.slow


def test_damaged_files_raise_only_the_documented_error():
    """Twelve of each format, in a process with limited memory; `make fuzz` runs on."""
    findings = list(fuzz.findings([], run=0, end=12 * len(fuzz.whole_files([]))))
    assert not findings, "\n".join(f"{f.name}, case {f.number}: {f.what}" for f in findings)


def test_the_fuzzer_damages_every_file(tmp_path: Path):
    files = fuzz.whole_files([])
    assert len({seed.name for seed, _ in files}) == len(files)
    for number, (seed, whole) in enumerate(files):
        cases = {fuzz.case(files, run, number)[1] for run in range(20)} - {whole}
        assert len(cases) > 10, seed.name
        assert fuzz.case(files, 0, number) == (seed, fuzz.case(files, 0, number)[1])


def _elsewhere(path: Path) -> gl.Events:
    raise FormatError("another file", "broken")


def _wrong(path: Path) -> gl.Events:
    return {}["key"]


def _backwards(path: Path) -> gl.Events:
    events = gl.Events.of({"x": [0, 0], "y": [0, 0], "t": [0, 5], "p": [0, 1]}, sensor=(1, 1))
    return gl.Events(events.pixel, events.time.flip(0), events.polarity, events.splits, events.sensor)


@pytest.mark.parametrize(
    ("read", "error"), [(_elsewhere, AssertionError), (_wrong, KeyError), (_backwards, ValueError)]
)
def test_the_fuzzer_knows_what_is_wrong(tmp_path: Path, read, error):
    with pytest.raises(error):
        fuzz.check(fuzz.Seed("bad", bytes, ".bad", read), tmp_path / "file.bad")


def test_the_fuzzer_notices_a_death_and_goes_on():
    findings = list(fuzz.findings(["dies"], run=0, end=2))
    assert [(f.name, f.number) for f in findings] == [("dies", 0), ("dies", 1)]
    assert all("SIGABRT" in f.what for f in findings)
