"""Event files: what the readers return, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl

# Counted, and compared event by event, with independent decoders.
SAMPLES = {
    "dvs.es": (473225, (320, 240)),
    "dvs128_aedat2.aedat": (160245, (128, 128)),
    "evt2.raw": (521252, (640, 480)),
    "evt3_sample.raw": (219596, (1280, 720)),
    "ncars_sample.dat": (2009, (304, 240)),
    "nmnist_train_00001.bin": (4681, (34, 34)),
    "sample.aedat4": (111954, (320, 240)),
}


def test_every_format_returns_what_was_written(event_format, tmp_path: Path):
    suffix, events, data = event_format
    path = tmp_path / f"file{suffix}"
    path.write_bytes(data)
    back = gl.read_events(path, sensor=events.sensor)
    assert np.array_equal(back.numpy(), events.numpy())
    assert back.pixel.dtype == torch.int32
    assert back.time.dtype == torch.int64


def test_content_counts_more_than_the_suffix(event_format, tmp_path: Path):
    suffix, events, data = event_format
    if suffix == ".bin":
        pytest.skip("nothing in it to know it by")
    path = tmp_path / "file.unknown"
    path.write_bytes(data)
    assert len(gl.read_events(path)) == len(events)


@pytest.mark.parametrize(("name", "count", "sensor"), [(n, *v) for n, v in SAMPLES.items()])
def test_real_recordings_decode(shared_data: Path, name, count, sensor):
    events = gl.read_events(shared_data / "formats" / name)
    events.check()
    assert len(events) == count
    assert events.sensor == sensor
    assert 0.2 < events.polarity.float().mean() < 0.8
    assert events.pixel.float().std(0).min() > 1


def test_a_recording_of_nmnist_is_the_first_of_the_pack(shared_data: Path):
    events = gl.read_events(shared_data / "formats" / "nmnist_train_00001.bin")
    assert events.numpy()[:3].tolist() == [(893, 18, 16, True), (1060, 20, 17, True), (2443, 17, 9, False)]
