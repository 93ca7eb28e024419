"""Augmentation of point clouds."""

from __future__ import annotations

import math

import pytest
import torch

import gridless as gl
from gridless.augment import points as P
from gridless.structures import pad

STEPS = [
    P.First(5), P.Shuffle(), P.Drop(), P.Normalise(), P.Jitter(), P.Jitter(ball=True), P.Tilt(), P.RotateAboutUp(),
    P.Scale(), P.Scale(each_axis=True), P.Shift(), P.Mirror(0),
]  # fmt: skip
RIGID = [P.Tilt(1.0, 3.0), P.RotateAboutUp(), P.Shift(), P.Mirror(1, 1.0)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud() -> gl.Cloud:
    return gl.Cloud.of([torch.rand(n, 3, generator=generator(n)) for n in (7, 0, 1, 64)])


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_the_generator_decides_everything(step):
    first, again, other = (step(cloud(), generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.coords, again.coords)
    assert torch.equal(first.splits, again.splits)
    fixed = isinstance(step, P.First | P.Normalise)
    assert fixed == (first.coords.shape == other.coords.shape and torch.equal(first.coords, other.coords))


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_settings_are_frozen_comparable_and_take_tensors_too(step):
    with pytest.raises(AttributeError):
        step.anything = 1
    assert eval(repr(step), vars(P)) == step
    example = torch.rand(9, 3)
    before = example.clone()
    result = step(example, generator())
    assert torch.equal(result, step(gl.Cloud.of(example), generator()).coords)
    assert torch.equal(example, before)
    assert step(example.double(), generator()).dtype == torch.float64


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_an_empty_cloud_stays_one(step):
    assert step(torch.empty(0, 3), generator()).shape == (0, 3)


@pytest.mark.parametrize("step", RIGID, ids=repr)
def test_turns_and_shifts_keep_distances_within_each_example(step):
    before = cloud()
    after = step(before, generator())
    for i in range(before.num_examples):
        a, b = before.examples[i].coords, after.examples[i].coords
        torch.testing.assert_close(torch.cdist(b, b), torch.cdist(a, a), rtol=1e-4, atol=2e-3)
    assert not torch.equal(before.coords, after.coords)


def test_every_example_draws_its_own_numbers():
    one = torch.rand(10, 3)
    after = P.Scale()(gl.Cloud.of([one, one, one]), generator())
    factors = [float(after.examples[i].coords[0, 0] / one[0, 0]) for i in range(3)]
    assert len({round(f, 4) for f in factors}) == 3
    assert all(0.8 <= f <= 1.25 for f in factors)


def test_shuffle_permutes_within_each_example():
    before = cloud()
    after = P.Shuffle()(before, generator())
    for i in range(before.num_examples):
        rows = [sorted(map(tuple, c.examples[i].coords.tolist())) for c in (before, after)]
        assert rows[0] == rows[1]
    assert not torch.equal(before.coords, after.coords)


def test_drop_keeps_the_first_points_and_at_least_one():
    example = torch.rand(1024, 3)
    sizes = []
    for seed in range(400):
        dropped = P.Drop(0.875)(example, generator(seed))
        assert torch.equal(dropped, example[: len(dropped)])
        sizes.append(len(dropped))
    assert min(sizes) >= 128
    assert max(sizes) <= 1024
    assert abs(sum(sizes) / len(sizes) - 576) < 60
    assert len(P.Drop(0.99)(torch.rand(1, 3), generator())) == 1


def test_jitter_is_bounded_by_coordinate_or_by_norm():
    example = torch.zeros(5000, 3)
    assert float(P.Jitter(0.1, 0.05)(example, generator()).abs().max()) == pytest.approx(0.05)
    ball = P.Jitter(0.1, 0.05, ball=True)(example, generator()).norm(dim=1)
    assert float(ball.max()) == pytest.approx(0.05)
    small = P.Jitter(0.01, 1.0)(example, generator())
    assert float(small.std()) == pytest.approx(0.01, rel=0.05)


def test_tilts_are_small_and_turns_about_up_keep_the_height():
    example = torch.rand(50, 3)
    tilted = P.Tilt(10.0, 0.18)(example, generator())
    cosine = torch.nn.functional.cosine_similarity(example, tilted)
    assert float(cosine.min()) >= math.cos(0.18) - 1e-5
    for up, axis in enumerate("xyz"):
        torch.testing.assert_close(P.RotateAboutUp(axis)(example, generator())[:, up], example[:, up])


def test_angles_of_tilts_have_the_deviation_that_was_given():
    turned = P.Tilt(0.1, math.inf)(gl.Cloud.of([torch.eye(3)] * 1000), generator()).coords.view(-1, 3, 3)
    trace = turned.diagonal(dim1=1, dim2=2).sum(1)
    assert float(((trace - 1) / 2).clamp(max=1).acos().square().mean().sqrt()) == pytest.approx(0.1, rel=0.1)


def test_numbers_are_drawn_from_the_whole_range():
    one = torch.tensor([[1.0, 2.0, 3.0]])
    many = gl.Cloud.of([one] * 400)
    x, _, z = P.RotateAboutUp("y")(many, generator()).coords.unbind(1)
    quarters = ((torch.atan2(x, z) / math.pi + 1) * 2).long().clamp(0, 3).bincount(minlength=4)
    assert quarters.min() > 75
    by = P.Shift(0.1)(many, generator()).coords - one
    factors = P.Scale(0.5, 2.0, each_axis=True)(many, generator()).coords / one
    for values, low, high in ((by, -0.1, 0.1), (factors, 0.5, 2.0)):
        assert low - 1e-6 <= values.min() < values.amin(0).max() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.amax(0).min() < values.max() <= high + 1e-6
    assert bool((P.Scale(0.5, 2.0)(many, generator()).coords / one).std(1).max() < 1e-6)
    signs = P.Mirror(1)(many, generator()).coords / one
    assert signs[:, [0, 2]].unique().tolist() == [1]
    assert signs[:, 1].unique().tolist() == [-1, 1]
    assert abs(signs[:, 1].mean()) < 0.2


@pytest.mark.parametrize("count", [1, 3, 10, 33])
def test_equal_points_are_normalised_to_the_origin(count):
    """The mean of float64 numbers is rounded, and what was left of a point without it had become its direction."""
    points = torch.tensor([[0.1, 0.7, 1e5 / 3]], dtype=torch.float64).expand(count, 3)
    assert not P.Normalise()(points).any()


def test_normalise_fits_the_unit_sphere():
    after = P.Normalise()(cloud())
    assert float(after.examples[3].coords.mean(0).abs().max()) < 1e-6
    assert float(after.examples[3].coords.norm(dim=1).max()) == pytest.approx(1)
    assert after.coords.isfinite().all()


def test_refuses_settings_and_clouds_that_make_no_sense():
    for make, message in (
        (lambda: P.First(0), "First: count .*0"),
        (lambda: P.Drop(1.0), r"Drop: most .*1\.0"),
        (lambda: P.RotateAboutUp("w"), "RotateAboutUp: up .*'w'"),
        (lambda: P.Scale(0, 1), "Scale: .* 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    for step in (P.Tilt(), P.RotateAboutUp()):
        with pytest.raises(ValueError, match=f"{type(step).__name__} .*3 dimensions.* 2"):
            step(torch.rand(4, 2))
    with pytest.raises(ValueError, match=r"Shift: .*padded"):
        P.Shift()(pad(gl.Cloud.of(torch.rand(4, 3)), [8]))
    assert len(P.First(1)(torch.rand(4, 3))) == 1


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (torch.rand(5, 6), r"\(5, 6\).*gl\.Cloud\.of\(x\[:, :3\], rgb=x\[:, 3:\]\)"),
        (torch.rand(2, 5, 3), r"\(2, 5, 3\).*gl\.Cloud\.of\(x\)"),
        ([[0.0, 1.0, 2.0]], r"list.*gl\.Cloud\.of\(\[\.\.\.\]\)"),
    ],
)
def test_what_is_no_cloud_is_refused_with_the_way_to_one(points, message):
    with pytest.raises((TypeError, ValueError), match=message):
        P.Shift()(points)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: P.Mirror("x"), "Mirror: axis .*'x'"),
        (lambda: P.Mirror(0, 2.0), r"Mirror: probability .*2\.0"),
        (lambda: P.Mirror(3)(torch.rand(4, 3)), "Mirror: .* 3 .*axis 3"),
        (lambda: P.Jitter(float("nan")), "Jitter: sigma .*nan"),
        (lambda: P.Shift(float("inf")), "Shift: limit .*inf"),
        (lambda: P.Tilt(-1.0), r"Tilt: sigma .*-1\.0"),
        (lambda: gl.augment.Rotate(float("nan")), "Rotate: limit .*nan"),
        (lambda: gl.augment.Flip(0, 5.0), r"Flip: probability .*5\.0"),
        (lambda: gl.augment.FirstEvents(-1), "FirstEvents: count .*-1"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("sigma", "clip", "most"), [(0.01, math.inf, 0.1), (0.0, 0.0, 0.0), (0.1, 0.0, 0.0)])
def test_jitter_in_a_ball_of_any_size_is_finite(sigma, clip, most):
    moved = P.Jitter(sigma, clip, ball=True)(cloud(), generator()).coords - cloud().coords
    assert moved.abs().max() <= most
    assert bool(moved.any()) == bool(sigma and clip)


@pytest.mark.parametrize("unit", [1e-25, 1e-30, 1e25, 1e38])
def test_normalise_takes_any_unit(unit):
    points = torch.rand(20, 3, generator=generator())
    torch.testing.assert_close(P.Normalise()(points * unit), P.Normalise()(points), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: P.Scale(1.0, math.inf), "Scale: .*inf"),
        (lambda: P.Shift(1e300), "Shift: limit .*1e.300"),
        (lambda: P.Tilt(1e300), "Tilt: sigma .*1e.300"),
    ],
)
def test_settings_beyond_float32_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
