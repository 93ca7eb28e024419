"""Events: made from other libraries' arrays, cut, checked, repaired."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import gridless as gl

SENSOR = (8, 6)


def array(t, x=None, y=None, p=None, names=("t", "x", "y", "p"), types=("<i8", "<i2", "<i2", "?")) -> np.ndarray:
    out = np.zeros(len(t), list(zip(names, types, strict=True)))
    ones = [1] * len(t)
    for name, values in zip(names, (t, ones if x is None else x, ones if y is None else y, ones if p is None else p)):
        out[name] = values
    return out


@pytest.mark.parametrize(
    ("names", "types"),
    [
        (("t", "x", "y", "p"), ("<u8", "<u2", "<u2", "?")),
        (("t", "x", "y", "on"), ("<u8", "<u2", "<u2", "?")),
        (("timestamp", "x", "y", "polarity"), ("<i8", "<i2", "<i2", "i1")),
        (("ts", "X", "Y", "pol"), ("<u4", "u1", "u1", "u1")),
        (("time", "x", "y", "p"), (">i4", ">u2", ">u2", ">i4")),
    ],
)
def test_arrays_of_other_libraries_plug_in(names, types):
    source = array([5, 5, 9], [0, 7, 3], [1, 5, 0], [1, 0, 1], names, types)
    for reordered in (source, source[[names[2], names[3], names[0], names[1]]]):
        events = gl.Events.of(reordered, sensor=SENSOR)
        assert events.pixel.tolist() == [[0, 1], [7, 5], [3, 0]]
        assert events.time.tolist() == [5, 5, 9]
        assert events.polarity.tolist() == [True, False, True]
        assert (events.pixel.dtype, events.time.dtype, events.polarity.dtype) == (torch.int32, torch.int64, torch.bool)
        assert events.sensor == SENSOR


def test_polarity_may_be_minus_and_plus_one():
    source = array([1, 2], p=[-1, 1], types=("<i8", "<i2", "<i2", "i1"))
    assert gl.Events.of(source, sensor=SENSOR).polarity.tolist() == [False, True]


def test_rows_lie_one_behind_the_other_and_true_is_one():
    source = array([1, 2], p=[0, 1], types=("<i8", "<i2", "<i2", "?"))
    source.view(np.uint8).reshape(2, -1)[1, -1] = 255
    events = gl.Events.of(source, sensor=SENSOR)
    assert events.polarity.view(torch.uint8).tolist() == [0, 1]
    lying = gl.Events(events.pixel.T.contiguous().T, events.time, None, events.splits, SENSOR)
    assert lying.pixel.is_contiguous()
    spread = gl.Events(events.pixel, torch.arange(4)[::2], None, events.splits, SENSOR)
    assert spread.time.is_contiguous()


@pytest.mark.parametrize("nothing", [[], np.empty(0, object), np.empty(0, "datetime64[us]")])
def test_no_events_are_events_whatever_their_columns_hold(nothing):
    events = gl.Events.of(dict.fromkeys("xytp", nothing), sensor=SENSOR)
    assert (len(events), events.num_examples) == (0, 1)
    assert events.polarity is not None
    with pytest.raises(ValueError, match=r"x is \(0,\)"):
        gl.Events.of({"x": nothing, "y": [1], "t": [2], "p": [0]}, sensor=SENSOR)


def test_a_list_is_a_batch():
    batch = gl.Events.of([array([1, 2]), array([]), array([0])], sensor=SENSOR)
    assert batch.splits.tolist() == [0, 2, 2, 3]
    assert [len(batch.examples[i]) for i in range(3)] == [2, 0, 1]
    assert batch.examples[-1].time.tolist() == [0]
    assert gl.Events.of([], sensor=SENSOR).num_examples == 0
    again = gl.Events.of(list(batch.examples), sensor=SENSOR)
    assert torch.equal(again.time, batch.time)
    assert torch.equal(gl.collate(list(batch.examples)).splits, batch.splits)


def test_the_source_is_not_shared():
    t = np.array([1, 2])
    events = gl.Events.of({"t": t, "x": t, "y": t, "p": np.array([True, False])}, sensor=SENSOR)
    t[0] = 0
    assert events.time.tolist() == [1, 2]


def test_slices_are_recordings():
    events = gl.Events.of(array(range(10)), sensor=SENSOR)
    assert len(events) == 10
    assert events[3:5].time.tolist() == [3, 4]
    assert len(events[7:3]) == 0
    assert events[-2:].splits.tolist() == [0, 2]
    with pytest.raises(TypeError, match="slice"):
        events[3]
    with pytest.raises(IndexError, match=r"recording 1 .*1"):
        events.examples[1]


def test_selection_keeps_recordings_apart():
    batch = gl.Events.of([array([1, 2, 3]), array([4]), array([5, 6])], sensor=SENSOR)
    masked = batch[torch.tensor([True, False, True, False, False, True])]
    assert masked.time.tolist() == [1, 3, 6]
    assert masked.splits.tolist() == [0, 2, 2, 3]


def test_to_numpy_and_back():
    source = array([1, 2, 3], [0, 1, 2], [3, 4, 5], [1, 0, 1])
    events = gl.Events.of(source, sensor=SENSOR)
    assert np.array_equal(gl.Events.of(events.numpy(), sensor=SENSOR).numpy(), events.numpy())
    assert np.array_equal(pickle.loads(pickle.dumps(events)).numpy(), events.numpy())


def test_padding_is_neither_checked_nor_exported():
    from gridless.structures import pad

    padded = pad(gl.Events.of(array([5, 6, 7]), sensor=SENSOR), [16])
    assert len(padded) == 16
    padded.check()
    assert len(padded.numpy()) == 3
    assert padded[1:].time.tolist() == [6, 7]
    assert gl.Events.of([padded], sensor=SENSOR, repair="sort").time.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (array([5, 4]), r"row 1 of recording 0 .*time 4 .*5.*'sort'"),
        (array([-5, 4]), r"row 0 of recording 0 .*time -5.*'shift'"),
        (array([1, 2], x=[0, 8]), r"row 1 .*\(8, 1\).* 8 x 6.*'drop'"),
        (array([1, 2], y=[-1, 0]), r"row 0 .*\(1, -1\)"),
        ([array([1, 2]), array([0, 9, 8])], r"row 2 of recording 1 .*time 8 .*9"),
        (array([1], p=[7], types=("<i8", "<i2", "<i2", "i4")), "polarity 7"),
        (array([1], p=[-2], types=("<i8", "<i2", "<i2", "i4")), "polarity -2"),
        (
            array([1, 2], p=[-1, 0], types=("<i8", "<i2", "<i2", "i4")),
            "row 1 .*polarity 0.* row 0 .*-1",
        ),
        (array([1], x=[2**40], types=("<i8", "<i8", "<i2", "?")), f"x = {2**40}"),
        (array([1], x=[2**31], types=("<i8", "<u4", "<i2", "?")), f"x = {2**31}"),
        (array([2**63 + 5], types=("<u8", "<i2", "<i2", "?")), f"t = {2**63 + 5}"),
        (array([1], names=("t", "x", "z", "p")), "no y"),
        (array([1], names=("t", "x", "y", "q")), "no p or on"),
        ({"t": np.arange(3), "x": np.arange(2), "y": np.arange(3), "p": np.ones(3, bool)}, r"x is \(2,\)"),
        (dict.fromkeys("xytp", np.ones((2, 2), int)), r"x is \(2, 2\)"),
    ],
)
def test_bad_recordings_are_refused_by_row(source, message):
    with pytest.raises(ValueError, match=message):
        gl.Events.of(source, sensor=SENSOR)


def test_checked_events_in_another_order_are_checked_again():
    events = gl.Events.of(array([5, 6, 7]), sensor=SENSOR)
    with pytest.raises(ValueError, match=r"row 1 of recording 0 .*time 6 .*7"):
        events[::-1].check()


def test_recordings_may_begin_before_the_last_one_ended():
    gl.Events.of([array([8, 9]), array([1, 2])], sensor=SENSOR).check()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (np.zeros((5, 4)), TypeError, r"\(5, 4\).*a\[:, 0\]"),
        ("events", TypeError, r"'events'.*read_events"),
        (array([0.5], types=("<f8", "<i2", "<i2", "?")), TypeError, "t .*float64.*microseconds"),
        (array([1], types=("<i8", "<f4", "<i2", "?")), TypeError, "x .*float32"),
    ],
)
def test_what_is_no_recording_is_refused(source, error, message):
    with pytest.raises(error, match=message):
        gl.Events.of(source, sensor=SENSOR)


def test_a_sensor_is_needed_and_must_make_sense():
    with pytest.raises(ValueError, match="sensor="):
        gl.Events.of(array([1]))
    with pytest.raises(ValueError, match="sensor="):
        gl.Events.of([])
    assert gl.Events.of(array([1], x=[0], y=[0]), sensor=(4.0, np.int32(5), 2)).sensor == (4, 5)
    for sensor in ((0, 5), (5,), "ab", (5, 2**31), (101.7, 37), (5, float("nan"))):
        with pytest.raises(ValueError, match="sensor"):
            gl.Events.of(array([1], x=[0], y=[0]), sensor=sensor)


def test_numbers_are_one_event():
    assert gl.Events.of({"t": 1, "x": 2, "y": 3, "p": 1}, sensor=(5, 5)).numpy().tolist() == [(1, 2, 3, True)]


@pytest.mark.parametrize(
    ("repair", "source", "expected"),
    [
        ("sort", array([5, 3, 5, 1], x=[0, 1, 2, 3]), [(1, 3), (3, 1), (5, 0), (5, 2)]),
        ("hold", array([5, 3, 7, 6], x=[0, 1, 2, 3]), [(5, 0), (5, 1), (7, 2), (7, 3)]),
        ("drop", array([1, 2, 3], x=[0, 99, 2]), [(1, 0), (3, 2)]),
        ("shift", array([-5, 3], x=[0, 1]), [(0, 0), (8, 1)]),
        ("unwrap", array([2**32 - 2, 3, 9], x=[0, 1, 2]), [(2**32 - 2, 0), (2**32 + 3, 1), (2**32 + 9, 2)]),
        (("shift", "unwrap"), array([2**32 - 2, 3], x=[0, 1]), [(0, 0), (5, 1)]),
        (
            ("unwrap", "shift", "sort"),
            array([2**32 - 9, 3, 2**32 - 4, 4], x=range(4)),
            [(0, 0), (5, 2), (12, 1), (13, 3)],
        ),
        ("unwrap", array([2**32 - 9, 3, 3 * 2**30], x=range(3)), [(2**32 - 9, 0), (2**32 + 3, 1), (7 * 2**30, 2)]),
        (("sort", "drop", "shift"), array([9, -1, 4], x=[1, 99, 2]), [(0, 2), (5, 1)]),
        ("sort", array([1, 2], x=[3, 4]), [(1, 3), (2, 4)]),
        (
            "sort",
            array([1, 0] * 40, x=[*range(8)] * 10),
            [(0, 1), (0, 3), (0, 5), (0, 7)] * 10 + [(1, 0), (1, 2), (1, 4), (1, 6)] * 10,
        ),
        (("sort", "hold", "drop", "shift", "unwrap"), array([]), []),
    ],
)
def test_repairs_are_made_on_request(repair, source, expected):
    events = gl.Events.of(source, sensor=SENSOR, repair=repair)
    assert list(zip(events.time.tolist(), events.pixel[:, 0].tolist())) == expected
    batch = gl.Events.of([source, source], sensor=SENSOR, repair=repair)
    for i in range(2):
        assert torch.equal(batch.examples[i].time, events.time)


def test_events_themselves_are_checked_and_repaired():
    good = gl.Events.of([array([1, 2]), array([5])], sensor=SENSOR)
    assert gl.Events.of(good) is good
    splits = torch.tensor([0, 2])
    pixel = torch.ones(2, 2, dtype=torch.int32)
    bad = gl.Events(pixel, torch.tensor([5, 3]), torch.tensor([True, False]), splits, SENSOR)
    with pytest.raises(ValueError, match=r"time 3 .*5"):
        gl.Events.of(bad)
    assert gl.Events.of(bad, repair="sort").time.tolist() == [3, 5]
    with pytest.raises(ValueError, match=r"sensor .*\(9, 9\).*\(8, 6\)"):
        gl.Events.of(good, sensor=(9, 9))


def test_polarities_follow_events_that_are_dropped_or_put_in_order():
    source = array([5, 3, 4, 1], x=[0, 99, 2, 3], p=[1, 1, 0, 1])
    events = gl.Events.of(source, sensor=SENSOR, repair=("drop", "sort"))
    assert list(zip(events.time.tolist(), events.polarity.tolist())) == [(1, True), (4, False), (5, True)]


def test_a_step_back_of_less_than_half_a_counter_is_no_new_start():
    with pytest.raises(ValueError, match=f"row 1 of recording 0 .*time {2**29}"):
        gl.Events.of(array([2**31, 2**29]), sensor=SENSOR, repair="unwrap")


def test_an_unknown_repair_is_refused():
    with pytest.raises(ValueError, match=r"repair 'fix'.*sort"):
        gl.Events.of(array([1]), sensor=SENSOR, repair="fix")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixel": torch.zeros(2, 3, dtype=torch.int32)}, r"pixel .*\(2, 3\)"),
        ({"pixel": torch.zeros(2, 2)}, "pixel .*float32"),
        ({"time": torch.zeros(3, dtype=torch.int64)}, r"time .*\(2,\)"),
        ({"time": torch.zeros(2)}, "time .*int64"),
        ({"polarity": torch.zeros(2, dtype=torch.int64)}, "polarity .*bool"),
        ({"splits": torch.tensor([0, 1])}, "splits .*1.* 2 rows"),
    ],
)
def test_tensors_of_the_wrong_shape_or_type_are_refused(change, message):
    fields = {
        "pixel": torch.zeros(2, 2, dtype=torch.int32),
        "time": torch.zeros(2, dtype=torch.int64),
        "polarity": torch.zeros(2, dtype=torch.bool),
        "splits": torch.tensor([0, 2]),
        "sensor": SENSOR,
    }
    with pytest.raises(ValueError, match=message):
        gl.Events(**{**fields, **change})


def test_events_without_polarity_stay_without():
    events = gl.Events(torch.zeros(2, 2, dtype=torch.int32), torch.arange(2), None, torch.tensor([0, 2]), SENSOR)
    assert gl.Events.of([events, events], sensor=SENSOR).polarity is None
    assert events[1:].polarity is None
    assert events[torch.tensor([True, False])].polarity is None
