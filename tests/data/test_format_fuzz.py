"""Damaged event files: the documented error, or events that are in order; never anything else."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gridless as gl
from gridless.data import FormatError

SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MEMORY = 1 << 30
SUFFIXES = [".raw", ".aedat", ".aedat4", ".dat", ".es", ".mat", ".h5", ".csv", ".npy", ".npz", ".bin"]


def damaged(data: bytes, cut: float, flips: list[tuple[float, int]], junk: bytes) -> bytes:
    out = bytearray(data[: int(len(data) * cut)])
    for place, value in flips:
        if out:
            # Squared, so that headers are hit more often than events.
            out[int(place * place * (len(out) - 1))] = value
    return bytes(out) + junk


def events_or_none(path: Path) -> gl.Events | None:
    """The checked events of a file, or None where it raises the documented error, by which the file is named."""
    try:
        events = gl.read_events(path)
    except FormatError as error:
        if error.path != path or str(path) not in str(error):
            raise AssertionError(f"the error does not name {path}") from error
        return None
    events.check()
    return events


@SETTINGS
@given(
    cut=st.one_of(st.just(1.0), st.floats(0, 1)),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6),
    junk=st.binary(max_size=8),
)
def test_a_damaged_file_raises_only_the_documented_error(event_format, tmp_path: Path, cut, flips, junk):
    suffix, _, data = event_format
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(damaged(data, cut, flips, junk))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    events = events_or_none(path)
    assert events is None or len(events) <= 12 * len(data)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY


@pytest.mark.parametrize("suffix", SUFFIXES)
@SETTINGS
@given(data=st.binary(max_size=200))
def test_noise_raises_only_the_documented_error(suffix, tmp_path: Path, data):
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(data)
    events_or_none(path)
