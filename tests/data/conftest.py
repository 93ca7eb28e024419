"""Fixtures of the tests of data."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_encoders import ENCODERS, encoded

import gridless as gl


@pytest.fixture(params=list(ENCODERS))
def event_format(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, gl.Events, bytes]:
    """(suffix, events, the bytes of a file that holds them), of each format in turn."""
    return encoded(request.param, tmp_path)
