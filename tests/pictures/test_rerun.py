"""Data for the Rerun viewer: entities of a recording that is saved to .rrd, and a live stream."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import gridless as gl


def test_without_rerun_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ImportError, match=r"gridless\[rerun\]"):
        gl.show(torch.rand(9, 3), viewer="rerun")
    with pytest.raises(ValueError, match="viewer"):
        gl.show(torch.rand(9, 3), viewer="glasses")
    with pytest.raises(ValueError, match=r"predictions.*rerun"):
        gl.show(torch.rand(9, 3), predictions=[])


@pytest.fixture
def rerun(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return pytest.importorskip("rerun")


def logged(picture, rerun) -> set[str]:
    """The paths that a picture logs, by a stream that notes them."""
    paths: set[str] = set()
    recording = rerun.RecordingStream("test")
    recording.memory_recording()
    log, times = recording.log, []

    def note(path, *things, **options):
        paths.add(path)
        log(path, *things, **options)

    noted = SimpleNamespace(log=note, set_time=lambda name, duration: times.append(duration), flush=recording.flush)
    picture.log(noted)
    assert times == sorted(times) or paths & {"probability", "position"}
    return paths


def test_clouds_samples_and_neighbourhoods_are_saved(rerun, tmp_path):
    cloud = gl.Cloud.of(torch.rand(500, 3), label=torch.arange(500) % 3)
    sample = gl.rejection_sample(cloud, radius=0.3)
    near = gl.ball(cloud, sample, 0.3)
    picture = gl.show(cloud, sample, near, "label", class_names=["a", "b", "c"], viewer="rerun")
    assert logged(picture, rerun) == {"cloud", "cloud/points", "cloud/sample", "cloud/neighbourhoods", "legend"}
    path = picture.save(tmp_path / "cloud.rrd")
    assert path.read_bytes()[:3] == b"RRF"
    assert path.stat().st_size > 500 * 12
    with pytest.raises(ValueError, match=r"\.rrd"):
        picture.save(tmp_path / "cloud.html")
    assert "500 points" in repr(picture)


def test_events_and_predictions_are_saved_over_time(rerun, tmp_path):
    events = gl.data.MovingGlyphs(3)[2][0]
    predictions = [SimpleNamespace(time=1000 * k, logits=torch.eye(10)[k]) for k in range(10)]
    picture = gl.show(events, viewer="rerun", predictions=predictions, class_names=[f"digit {k}" for k in range(10)])
    assert logged(picture, rerun) == {"events", "events/sensor", "probability"}
    assert picture.save(tmp_path / "events.rrd").read_bytes()[:3] == b"RRF"
    empty = gl.show(events[:0], viewer="rerun")
    assert logged(empty, rerun) == {"events"}


def test_positions_of_a_network_that_tracks_are_saved_over_time(rerun, tmp_path):
    events = gl.data.MovingGlyphs(3)[2][0]
    answers = (SimpleNamespace(time=1000 * k, logits=torch.tensor([k + 0.5, 3.0])) for k in range(10))
    picture = gl.show(events, viewer="rerun", positions=answers)
    assert logged(picture, rerun) == {"events", "events/sensor", "events/position", "position"}
    assert picture.save(tmp_path / "events.rrd").read_bytes()[:3] == b"RRF"
    with pytest.raises(ValueError, match=r"positions.*viewer"):
        gl.show(events, positions=[])


def test_a_stream_of_positions_is_shown_in_rerun(rerun, monkeypatch):
    from gridless.live.view import Rerun
    from gridless.pictures import rerun_viewer

    positions = []
    monkeypatch.setattr(rerun_viewer, "log_position", lambda recording, *places: positions.append(places))
    recording = rerun.RecordingStream("test")
    recording.memory_recording()
    meter = SimpleNamespace(offset=None, lag=0.0, sensor=0.5)
    view = Rerun((640, 480), [], meter, recording=recording)
    view.add(gl.Events.of({"x": [9], "y": [7], "t": [5], "p": [1]}, sensor=(640, 480)), torch.tensor([100.5, 50.5]))
    view.close()
    assert positions[-1] == ([100.5, 50.5], (50.0, 25.0))


def test_a_stream_is_shown_in_rerun(rerun):
    from gridless.live.view import Rerun

    events = gl.data.MovingGlyphs(3)[2][0]
    recording = rerun.RecordingStream("test")
    memory = recording.memory_recording()
    meter = SimpleNamespace(offset=1.0, lag=0.0025, sensor=0.5)
    view = Rerun(events.sensor, [f"digit {k}" for k in range(10)], meter, recording=recording)
    view.open(1.0)
    view.add(events, torch.arange(10.0))
    view.close()
    data = memory.drain_as_bytes()
    assert data[:3] == b"RRF"
    assert len(data) > 2000
