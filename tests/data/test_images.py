"""Frames, voxel grids and time surfaces count every event once, in its place."""

import math

import numpy as np
import pytest
import torch

import gridless as gl


def recording(*rows):
    x, y, t, p = zip(*rows)
    return gl.Events.of({"x": np.array(x), "y": np.array(y), "t": np.array(t), "p": np.array(p)}, sensor=(4, 3))


FEW = recording((0, 0, 1000, 1), (3, 2, 1000, 0), (3, 2, 1400, 0), (1, 2, 2000, 1))


def test_frames_count_events():
    whole = gl.frames(FEW)
    assert whole.shape == (1, 2, 3, 4)
    assert whole[0, 0].nonzero().tolist() == [[2, 3]]
    assert whole[0, 0, 2, 3] == 2
    assert whole[0, 1].nonzero().tolist() == [[0, 0], [2, 1]]
    assert gl.frames(FEW, count=2).sum((1, 2, 3)).tolist() == [3, 1]
    assert gl.frames(FEW, duration=400).sum((1, 2, 3)).tolist() == [2, 1, 1]
    both = gl.frames(gl.collate([FEW, FEW[:2]]), count=5)
    assert both.shape == (2, 5, 2, 3, 4)
    assert both.sum((2, 3, 4)).tolist() == [[2, 0, 1, 0, 1], [2, 0, 0, 0, 0]]
    for wrong in ({"count": 0}, {"duration": 0}, {"count": 1, "duration": 1}):
        with pytest.raises(ValueError, match="frames"):
            gl.frames(FEW, **wrong)
    with pytest.raises(TypeError, match=r"gl\.Events\.of"):
        gl.frames(np.zeros(3))


def test_voxel_grids_share_events_in_time():
    grid = gl.voxel_grid(FEW, 3)
    assert grid.shape == (3, 3, 4)
    assert grid.sum((1, 2)).tolist() == pytest.approx([1 - 1 - 0.2, -0.8, 1])
    assert float(grid[0, 2, 3]) == pytest.approx(-1.2)
    assert float(gl.voxel_grid(FEW, 1).sum()) == 0
    assert gl.voxel_grid(gl.collate([FEW, FEW]), 3)[1].equal(grid)
    later = gl.voxel_grid(recording((0, 0, 0, 1), (1, 0, 700, 0), (0, 0, 1000, 1)), 3)
    assert later[:, 0, 1].tolist() == pytest.approx([0, -0.6, -0.4])
    assert gl.voxel_grid(FEW[:1], 3).sum((1, 2)).tolist() == [1, 0, 0]
    fired = gl.Events(FEW.pixel, FEW.time, None, FEW.splits, FEW.sensor)
    assert gl.voxel_grid(fired, 3).sum((1, 2)).tolist() == pytest.approx([2.2, 0.8, 1])


def test_time_surfaces_fade():
    surface = gl.time_surface(FEW, decay=1000)
    assert surface.shape == (2, 3, 4)
    assert float(surface[1, 2, 1]) == 1
    assert float(surface[0, 2, 3]) == pytest.approx(math.exp(-0.6))
    assert float(surface[1, 0, 0]) == pytest.approx(math.exp(-1))
    assert int((surface > 0).sum()) == 3
    early = gl.time_surface(FEW, decay=1000, at=100)
    assert float(early[0, 2, 3]) == pytest.approx(math.exp(-0.1))
    assert float(early[1, 2, 1]) == 0
    both = gl.time_surface(gl.collate([FEW[:1], FEW]), decay=1000)
    assert both[0].nonzero().tolist() == [[1, 0, 0]]
    assert both[1].equal(surface)
    with pytest.raises(ValueError, match=r"time_surface: decay .*0"):
        gl.time_surface(FEW, 0)


def test_whole_numbers_may_be_written_as_floats_and_others_are_refused():
    assert gl.frames(FEW, count=2.0).equal(gl.frames(FEW, count=2))  # type: ignore[arg-type]
    assert gl.frames(FEW, duration=4e2).equal(gl.frames(FEW, duration=400))  # type: ignore[arg-type]
    assert gl.voxel_grid(FEW, np.float32(3)).equal(gl.voxel_grid(FEW, np.int64(3)))  # type: ignore[arg-type]
    assert gl.time_surface(FEW, 1000, at=1e2).equal(gl.time_surface(FEW, 1000, at=100))  # type: ignore[arg-type]
    for make, message in (
        (lambda: gl.frames(FEW, count=2.5), r"frames: count .*2\.5"),
        (lambda: gl.frames(FEW, count=0), "frames: count .*not 0"),
        (lambda: gl.frames(FEW, duration=float("nan")), "duration .*nan"),
        (lambda: gl.frames(FEW, duration=float("inf")), "duration .*inf"),
        (lambda: gl.voxel_grid(FEW, "3"), "voxel_grid: bins .*'3'"),
        (lambda: gl.time_surface(FEW, 1000, at=-1), "time_surface: at .*-1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_padding_and_empty_recordings_count_nothing():
    batch = gl.collate([FEW, FEW[:0], FEW[:1]])
    padded = gl.structures.pad(batch, "power_of_two")
    assert padded.padding == 3
    assert gl.frames(padded).sum((1, 2, 3, 4)).tolist() == [4, 0, 1]
    for image in (gl.frames, lambda events: gl.voxel_grid(events, 2), lambda events: gl.time_surface(events, 10)):
        assert image(padded).equal(image(batch))
        assert image(batch).dtype == torch.float32
    assert gl.frames(FEW[:0], duration=400).shape == (1, 2, 3, 4)
    assert gl.voxel_grid(padded, 2)[1].abs().sum() == 0
    assert gl.time_surface(padded, 10)[1].sum() == 0
    fired = gl.Events(FEW.pixel, FEW.time, None, FEW.splits, FEW.sensor)
    assert gl.frames(fired, 3).shape == (3, 1, 3, 4)
    assert gl.frames(fired, 3).sum() == 4


def test_frames_across_a_jump_of_the_clock_are_refused_by_name():
    events = recording((0, 0, 5, 1), (0, 0, 1_700_000_000_000_000, 1), (0, 0, 1_700_000_000_000_010, 1))
    for options in ({"duration": 20}, {"count": 10_000}):
        with pytest.raises(ValueError, match=r"1,699,999,999,999,995 us .*row 0 of recording 0"):
            gl.frames(events, **options)
    assert gl.frames(events, count=2).sum((1, 2, 3)).tolist() == [1, 2]
    late = recording((0, 0, 10**15, 1), (0, 0, 10**15 + 6 * 10**9, 1))
    with pytest.raises(ValueError, match=r"6,000,000,000 us .*row 0 of recording 1"):
        gl.frames(gl.collate([FEW, late]), duration=1)
