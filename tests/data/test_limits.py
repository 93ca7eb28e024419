"""Limits on the memory that a file makes its reader allocate."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gridless.data import FormatError, read_cloud
from gridless.data.limits import Limits


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "some.file"
    path.write_bytes(bytes(1000))
    return path


def test_the_default_limit_is_the_larger_of_256_mib_and_100_times_the_file(path: Path):
    assert Limits(path).max_bytes == 256 * 2**20
    with path.open("r+b") as file:
        file.truncate(2**30)
    assert Limits(path).max_bytes == 100 * 2**30
    assert Limits(path, max_bytes=5).max_bytes == 5


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(path: Path, value):
    with pytest.raises(ValueError, match="max_bytes"):
        Limits(path, value)


def test_what_is_stored_must_be_there(path: Path):
    limits = Limits(path)
    limits.stored("points", 10, 12, 120)
    limits.stored("points", 0, 12, 0)
    with pytest.raises(FormatError, match=r"some.file, byte 7: .*10 points of 12 bytes.*119 bytes.* 9"):
        limits.stored("points", 10, 12, 119, 7)
    with pytest.raises(FormatError, match=r"-1 (points|bytes)"):
        limits.stored("points", -1, 12, 120)
    with pytest.raises(FormatError, match=f"{10**30} points.* 0"):
        limits.stored("points", 10**30, 12, -5)


def test_the_parts_of_a_file_share_one_limit(path: Path):
    limits = Limits(path, max_bytes=100)
    limits.unpacked("a", 60)
    limits.unpacked("b", 40)
    assert limits.left == 0
    with pytest.raises(FormatError, match=r"some.file, byte 3: c .* 1 bytes.* 100 .*max_bytes"):
        limits.unpacked("c", 1, 3)
    with pytest.raises(FormatError, match=r"-1 (points|bytes)"):
        limits.unpacked("d", -1)


def test_an_archive_whose_directory_understates_a_member_is_not_unpacked_beyond_it(tmp_path: Path):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, points=np.zeros((1_000_000, 3)))
    data = bytearray(buffer.getvalue())
    # The directory's field for the unpacked size.
    struct.pack_into("<I", data, data.rfind(b"PK\x01\x02") + 24, 200)
    path = tmp_path / "small.npz"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"small\.npz: .*archive"):
            read_cloud(path)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
