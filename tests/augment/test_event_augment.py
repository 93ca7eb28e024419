"""Augmentation of events: what each transform does to pixels, times and order."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.augment import events as ev
from gridless.structures import pad

SENSOR = (34, 28)


def recording(count: int = 500, seed: int = 0, start: int = 1000, sensor: tuple[int, int] = SENSOR) -> gl.Events:
    random = np.random.default_rng(seed)
    t = start + np.sort(random.integers(0, 300_000, count))
    x, y = random.integers(0, sensor[0], count), random.integers(0, sensor[1], count)
    return gl.Events.of({"x": x, "y": y, "t": t, "p": random.integers(0, 2, count)}, sensor=sensor)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def same(a: gl.Events, b: gl.Events) -> bool:
    return a.sensor == b.sensor and np.array_equal(a.numpy(), b.numpy()) and torch.equal(a.splits, b.splits)


ALL = [
    ev.Rotate(math.pi / 8),
    ev.Zoom(0.8, 1.25),
    ev.Translate(3, 2),
    ev.Flip(0),
    ev.Flip(1),
    ev.ReverseTime(),
    ev.StretchTime(0.5, 2.0),
    ev.Thin(0.5),
    ev.ThinTo(20),
    ev.SwapPolarity(),
    ev.Stretch(0.8, 1.25),
    ev.Jitter(0.7),
    ev.Erase(0.1, 0.6),
    ev.ToOrigin(),
    ev.FirstEvents(100),
    ev.FirstMicroseconds(50_000),
    ev.Crop(3, 2, 20, 10),
    ev.Repair("sort"),
    ev.PoolPixels(2),
    ev.Recentre(),
    ev.StartAtZero(),
    ev.n_mnist(),
    ev.mnist_dvs(),
    ev.cifar10_dvs(),
    ev.n_caltech101(),
    ev.asl_dvs(),
]


@pytest.mark.parametrize("transform", ALL, ids=lambda t: type(t).__name__)
class TestAll:
    def test_results_are_valid_and_arguments_are_untouched(self, transform):
        events = recording()
        before = events.numpy()
        for number in range(5):
            result = transform(events, seed(number))
            result.check()
            assert result.num_examples == 1
        assert np.array_equal(events.numpy(), before)

    def test_the_seed_decides(self, transform):
        events = recording()
        assert same(transform(events, seed(3)), transform(events, seed(3)))
        torch.manual_seed(3)
        first = transform(events)
        torch.manual_seed(3)
        assert same(first, transform(events))

    def test_empty_recordings_stay_empty(self, transform):
        empty = recording(0)
        assert len(transform(empty, seed())) == 0
        batch = gl.collate([recording(50), empty, recording(20, 1), empty])
        assert transform(batch, seed()).sizes.tolist()[1] == 0

    def test_it_is_a_frozen_value(self, transform):
        assert transform == dataclasses.replace(transform)
        assert hash(transform) == hash(dataclasses.replace(transform))
        name = dataclasses.fields(transform)[0].name if dataclasses.fields(transform) else "anything"
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(transform, name, 1)


@pytest.mark.parametrize("transform", [t for t in ALL if not isinstance(t, ev.Thin | ev.ThinTo | ev.Jitter | ev.Chain)])
def test_a_batch_of_equal_draws_is_the_recordings_one_by_one(transform, monkeypatch):
    monkeypatch.setattr(
        ev,
        "draw",
        lambda e, g, low=0.0, high=1.0: torch.full((e.num_examples,), low + 0.3 * (high - low), dtype=torch.float64),
    )
    parts = [recording(60, 0), recording(7, 1, start=50), recording(200, 2)]
    batch = transform(gl.collate(parts))
    for i, part in enumerate(parts):
        assert np.array_equal(batch.examples[i].numpy(), transform(part).numpy())


def test_recordings_of_a_batch_draw_their_own_numbers():
    part = recording()
    batch = ev.Rotate(1.0)(gl.collate([part, part]), seed())
    assert not np.array_equal(batch.examples[0].numpy(), batch.examples[1].numpy())


def test_rotation_by_a_right_angle_turns_about_half_the_sensor(monkeypatch):
    monkeypatch.setattr(
        ev, "draw", lambda e, g, low, high: torch.full((e.num_examples,), math.pi / 2, dtype=torch.float64)
    )
    events = _of([17, 20, 0], [17, 17, 0], (34, 34))
    turned = ev.Rotate(1.0)(events)
    # About (17, 17): (20, 17) goes to (17, 20), and (0, 0) to (34, 0), outside, where it is dropped.
    assert turned.pixel.tolist() == [[17, 17], [17, 20]]


def test_rotation_keeps_distances_to_within_rounding():
    events = recording()
    turned = ev.Rotate(math.pi / 8)(events, seed(1))
    row_at = {int(t): i for i, t in enumerate(events.time.tolist())}
    half = torch.tensor(SENSOR) / 2
    for row in range(0, len(turned), 25):
        source = events.pixel[row_at[int(turned.time[row])]]
        gap = (turned.pixel[row] - half).norm() - (source - half).norm()
        assert abs(gap) <= math.sqrt(0.5) + 1e-6


def _of(x, y, sensor, t=None, p=None) -> gl.Events:
    t = np.arange(len(x)) if t is None else np.asarray(t)
    p = np.ones(len(x), bool) if p is None else np.asarray(p)
    return gl.Events.of({"x": np.array(x), "y": np.array(y), "t": t, "p": p}, sensor=sensor)


def test_flips_mirror_one_axis_and_undo_themselves():
    events = recording()
    for axis in (0, 1):
        flip = ev.Flip(axis, probability=1.0)
        once = flip(events)
        assert torch.equal(once.pixel[:, axis], SENSOR[axis] - 1 - events.pixel[:, axis])
        assert torch.equal(once.pixel[:, 1 - axis], events.pixel[:, 1 - axis])
        assert same(flip(once), events)


def test_time_reversal_turns_order_time_and_polarity_round():
    events = _of([1, 2, 3], [4, 5, 6], SENSOR, t=[10, 15, 40], p=[True, False, False])
    back = ev.ReverseTime(probability=1.0)(events)
    assert back.numpy().tolist() == [(0, 3, 6, True), (25, 2, 5, True), (30, 1, 4, False)]


def test_about_half_the_recordings_are_flipped():
    batch = gl.collate([_of([0], [0], SENSOR)] * 1000)
    assert 400 < int((ev.Flip(0)(batch, seed()).pixel[:, 0] > 0).sum()) < 600


def test_translation_reaches_every_whole_offset_equally():
    batch = gl.collate([_of([10], [10], SENSOR)] * 3500)
    pixel = ev.Translate(3, 0)(batch, seed()).pixel
    assert torch.equal(pixel[:, 1].unique(), torch.tensor([10], dtype=torch.int32))
    counts = torch.bincount(pixel[:, 0].long())[7:]
    assert len(counts) == 7
    assert (counts - 500).abs().max() < 60


def test_zoom_magnifies_about_half_the_sensor():
    events = _of([17, 20, 0], [17, 16, 0], (34, 34))
    # (0, 0) goes to (-17, -17), outside, where it is dropped.
    assert ev.Zoom(2.0, 2.0)(events).pixel.tolist() == [[17, 17], [23, 15]]
    assert ev.Zoom(0.5, 0.5)(_of([21, 0], [13, 0], (34, 34))).pixel.tolist() == [[19, 15], [8, 8]]
    factors = (ev.Zoom(0.5, 2.0)(gl.collate([_of([600], [500], (1000, 1000))] * 500), seed()).pixel[:, 0] - 500) / 100
    assert bool(((factors >= 0.5) & (factors <= 2)).all())
    # As many below 1 as above it: logarithms are uniform.
    assert 200 < int((factors < 1).sum()) < 300


def test_times_are_stretched_from_the_first_event_on():
    events = _of([1, 2, 3], [4, 5, 6], SENSOR, t=[1000, 1010, 1041])
    assert ev.StretchTime(2.0, 2.0)(events).time.tolist() == [1000, 1020, 1082]
    batch = gl.collate([_of([1, 2], [1, 2], SENSOR, t=[1000, 2000])] * 500)
    factors = (ev.StretchTime(0.5, 2.0)(batch, seed()).time.view(-1, 2).diff() / 1000).flatten()
    assert bool(((factors >= 0.5) & (factors <= 2)).all())
    assert 200 < int((factors < 1).sum()) < 300


def test_a_crop_is_a_part_of_the_sensor_with_its_events():
    pixel = torch.tensor([[9, 5], [10, 5], [10, 4], [29, 14], [30, 14], [29, 15]], dtype=torch.int32)
    events = gl.Events(pixel, torch.arange(6), torch.ones(6, dtype=torch.bool), torch.tensor([0, 6]), (40, 30))
    part = ev.Crop(10, 5, 20, 10)(events)
    assert part.sensor == (20, 10)
    assert part.pixel.tolist() == [[0, 0], [19, 9]]
    assert part.time.tolist() == [1, 3]


def test_repairs_are_those_of_the_reader():
    events = gl.Events(
        torch.tensor([[1, 1], [50, 1], [2, 2]], dtype=torch.int32), torch.tensor([7, 8, 3]),
        torch.ones(3, dtype=torch.bool), torch.tensor([0, 3]), (40, 30),
    )  # fmt: skip
    assert ev.Repair(("drop", "sort"))(events).time.tolist() == [3, 7]
    with pytest.raises(ValueError, match=r"\(50, 1\).* 40 x 30"):
        ev.Repair("sort")(events)
    with pytest.raises(ValueError, match="repair 'mend'"):
        ev.Repair("mend")


def test_pooling_and_recentring_follow_the_authors():
    events = _of([0, 101, 233], [0, 50, 100], (234, 174))
    pooled = ev.PoolPixels(2)(events)
    assert pooled.sensor == (117, 87)
    assert pooled.pixel.tolist() == [[0, 0], [50, 25], [116, 50]]
    # (117 - 116) // 2 = 0 and (87 - 50) // 2 = 18.
    assert ev.Recentre()(pooled).pixel.tolist() == [[0, 18], [50, 43], [116, 68]]


def test_cutting_keeps_the_first_events():
    batch = gl.collate([recording(50), recording(5, 1), recording(30, 2)])
    cut = ev.FirstEvents(20)(batch)
    assert cut.sizes.tolist() == [20, 5, 20]
    assert np.array_equal(cut.examples[2].numpy(), recording(30, 2)[:20].numpy())
    timed = ev.FirstMicroseconds(100_000)(batch)
    early = [part[part.time - part.time[0] < 100_000] for part in batch.examples]
    assert same(timed, gl.collate(early))
    assert len(timed) < len(batch)
    # Not the one that happens when the time is over.
    assert len(ev.FirstMicroseconds(10)(_of([0, 0, 0], [0, 0, 0], SENSOR, t=[5, 14, 15]))) == 2


def test_thinning_keeps_order_and_never_leaves_more_than_its_share_out():
    events = recording(20_000)
    thin = ev.Thin(0.5)(events, seed())
    assert 0.45 * len(events) < len(thin) < len(events)
    assert bool((thin.time.diff() >= 0).all())
    assert set(map(bytes, thin.numpy())) <= set(map(bytes, events.numpy()))
    left_out = 1 - ev.Thin(0.5)(gl.collate([events[:1000]] * 100), seed()).sizes / 1000
    assert left_out.min() < 0.05
    assert 0.45 < left_out.max() < 0.55
    assert float(left_out.mean()) == pytest.approx(0.25, abs=0.05)


def test_recipes_prepare_without_augmenting_when_not_training():
    events = recording(sensor=(240, 180))
    assert same(ev.asl_dvs(train=False)(events, seed(0)), ev.asl_dvs(train=True)(events, seed(1)))
    plain = ev.n_caltech101(train=False)(events, seed(0))
    assert same(plain, ev.n_caltech101(train=False)(events, seed(1)))
    assert plain.sensor == ev.asl_dvs()(events).sensor == (120, 90)
    assert plain.time[0] == 0
    for recipe in (ev.n_mnist, ev.mnist_dvs, ev.cifar10_dvs, ev.n_caltech101):
        assert same(recipe(train=False)(events, seed(0)), recipe(train=False)(events, seed(1)))
        assert not same(recipe()(events, seed(0)), recipe()(events, seed(1)))


def test_a_chain_ends_in_a_plan_or_any_other_step():
    assert ev.Chain((ev.StartAtZero(), len))(recording(12)) == 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ev.Flip(2), "Flip: axis .*2"),
        (lambda: ev.Zoom(0, 1), "Zoom: .* 0"),
        (lambda: ev.Thin(1.0), r"Thin: most .*1\.0"),
        (lambda: ev.PoolPixels(0), "PoolPixels: size .*0"),
        (lambda: ev.StretchTime(2, 1), "StretchTime: .*2.* 1"),
        (lambda: ev.Erase(0.5, 0.2), r"Erase: .*0\.5.* 0\.2"),
        (lambda: ev.Erase(0.1, 0.2, probability=7), "Erase: probability .*7"),
        (lambda: ev.Stretch(0, 1), "Stretch: .* 0"),
        (lambda: ev.ThinTo(0), "ThinTo: least .*0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_no_recording_is_refused_by_name():
    with pytest.raises(TypeError, match=r"Rotate.*Events.*Tensor"):
        ev.Rotate(1.0)(torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"Rotate: .*padded"):
        ev.Rotate(1.0)(pad(recording(5), [8]))


@pytest.mark.parametrize("transform", ALL, ids=lambda t: type(t).__name__)
def test_events_without_polarity_are_augmented_alike(transform):
    events = recording()
    turned, wanted = transform(events._changed(polarity=None), seed(3)), transform(events, seed(3))
    assert turned.polarity is None
    assert torch.equal(turned.pixel, wanted.pixel)
    assert torch.equal(turned.time, wanted.time)


def test_swapped_polarity_is_that_of_whole_recordings():
    events = gl.collate([recording(50, seed=i) for i in range(40)])
    swapped = ev.SwapPolarity()(events, seed())
    differs = [bool((a.polarity != b.polarity).all()) for a, b in zip(parts(events), parts(swapped), strict=True)]
    same_still = [torch.equal(a.polarity, b.polarity) for a, b in zip(parts(events), parts(swapped), strict=True)]
    assert all(a != b for a, b in zip(differs, same_still, strict=True))
    assert 10 < sum(differs) < 30
    assert same(ev.SwapPolarity(1.0)(ev.SwapPolarity(1.0)(events)), events)


def test_stretching_keeps_the_origin_and_changes_the_ratio_of_the_sides():
    events = gl.collate([recording(300, seed=i, sensor=(20, 20)) for i in range(30)])._changed(sensor=(60, 60))
    stretched = ev.Stretch(0.5, 2.0)(events, seed())
    assert len(stretched) == len(events)
    sides = torch.stack([p.pixel.amax(0) + 1 for p in parts(stretched)]).double()
    assert bool(((sides >= 9) & (sides <= 40)).all())
    ratio = sides[:, 0] / sides[:, 1]
    assert ratio.min() < 0.6
    assert ratio.max() > 1.7
    assert all(p.pixel.amin() == 0 for p in parts(stretched))
    assert same(ev.Stretch(1.0, 1.0)(events, seed()), events)


def test_jitter_moves_each_event_by_itself():
    events = recording(4000, sensor=(200, 200))
    jittered = ev.Jitter(2.0)(events._changed(pixel=events.pixel * 0 + 100), seed())
    by = (jittered.pixel - 100).double()
    assert by.std().item() == pytest.approx(2.0, abs=0.1)
    assert abs(by.mean().item()) < 0.1


def test_a_rectangle_of_each_recording_is_erased():
    everywhere = torch.cartesian_prod(torch.arange(30), torch.arange(20)).int()
    one = recording(600, sensor=(60, 40))._changed(pixel=everywhere + 5)
    erased = parts(ev.Erase(0.3, 0.5, probability=0.75)(gl.collate([one] * 40), seed()))
    untouched = sum(len(each) == 600 for each in erased)
    assert 2 < untouched < 20
    middles = []
    for each in erased:
        left = {tuple(pixel) for pixel in (each.pixel - 5).tolist()}
        gone = torch.tensor([pixel for pixel in everywhere.tolist() if tuple(pixel) not in left])
        if len(gone):
            sides = gone.amax(0) - gone.amin(0) + 1
            assert len(gone) == sides.prod()
            assert bool((sides <= torch.tensor([15, 10])).all())
            middles.append(gone.double().mean(0))
    ends = torch.stack(middles).aminmax(dim=0)
    assert bool((ends.min < torch.tensor([7, 5])).all() and (ends.max > torch.tensor([22, 14])).all())
    assert same(ev.Erase(0.0, 0.0)(one, seed()), one)
    # The middle is inside the recording: something is always left out.
    assert ev.Erase(0.3, 0.5, probability=1.0)(gl.collate([one] * 40), seed()).sizes.max() < 600
    # A rectangle inside the recording has 0.4 of 30 times 0.4 of 20 pixels.
    assert 600 - ev.Erase(0.4, 0.4, probability=1.0)(gl.collate([one] * 40), seed()).sizes.min() == 12 * 8


def test_a_recording_moves_to_the_origin():
    events = gl.collate([recording(50, seed=i) for i in range(3)] + [recording(50)[:0]])
    away = events._changed(pixel=events.pixel + 7, sensor=(50, 50))
    moved = ev.ToOrigin()(away)
    for a, b in zip(parts(away), parts(moved), strict=True):
        assert torch.equal(a.pixel - b.pixel, (a.pixel - b.pixel)[:1].expand(len(a), 2))
        assert not len(b) or b.pixel.amin(0).tolist() == [0, 0]


def parts(events: gl.Events) -> list[gl.Events]:
    return list(events.examples)


def test_thinned_recordings_have_any_number_of_events_down_to_the_least():
    events = gl.collate([recording(4000, seed=i) for i in range(60)] + [recording(10)])
    sizes = ev.ThinTo(40)(events, seed()).sizes
    assert sizes[-1] == 10
    logs = sizes[:-1].double().log()
    assert math.log(25) < logs.min() < math.log(90)
    assert math.log(2500) < logs.max() <= math.log(4000)
    assert logs.mean().item() == pytest.approx(math.log(400), abs=0.5)
