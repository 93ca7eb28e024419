"""Augmentation of whole batches."""

from __future__ import annotations

import math

import pytest
import torch

from gridless.augment import points as P
from gridless.training import Clouds, Policy

POINTS = torch.nn.functional.normalize(torch.randn(30, 64, 3, generator=torch.Generator().manual_seed(0)), dim=2)
EVERY = torch.arange(30)


def apply(index=EVERY, epoch=0, **settings):
    return Clouds(POINTS, EVERY).draw(Policy(**settings), 0, epoch, index)


def examples(cloud):
    return [one.coords for one in cloud.examples]


def test_the_default_changes_nothing():
    cloud = apply()
    assert torch.equal(cloud.coords.view_as(POINTS), POINTS)
    assert cloud.splits.tolist() == list(range(0, 30 * 64 + 1, 64))


def test_settings_are_transforms_in_the_order_of_the_settings():
    every = {"shuffle": True, "drop": 0.5, "jitter": 0.01, "jitter_clip": 0.02, "tilt": 0.1, "tilt_clip": 0.2}
    every |= {"azimuth": True, "scale": (0.8, 1.25), "stretch": True, "mirror": True, "shift": 0.1}
    first = [P.Shuffle(), P.Drop(0.5), P.Jitter(0.01, 0.02, ball=True), P.Tilt(0.1, 0.2), P.RotateAboutUp("y")]
    assert Policy(**every).steps == [*first, P.Scale(0.8, 1.25, each_axis=True), P.Mirror(0), P.Mirror(2), P.Shift(0.1)]
    assert Policy(jitter=0.01).steps == [P.Jitter(0.01, math.inf)]


def test_dropping_keeps_the_first_points_and_a_uniform_number_of_them():
    many = Clouds(POINTS[:1].expand(3000, -1, -1), torch.zeros(3000))
    cloud = many.draw(Policy(drop=0.875), 0, 0, torch.arange(3000))
    sizes = cloud.sizes.double()
    assert sizes.min() == 8
    assert sizes.max() == 63
    assert abs(sizes.mean() - (8 + 64) / 2 + 0.5) < 1
    assert torch.equal(cloud.examples[7].coords, POINTS[0, : len(cloud.examples[7])])


def test_scales_are_one_per_cloud_or_one_per_axis():
    same = apply(scale=(0.5, 2.0)).coords.view_as(POINTS) / POINTS
    assert same.std(dim=(1, 2)).max() < 1e-4
    assert same.min() > 0.5
    assert same.max() < 2.0
    axes = apply(scale=(0.5, 2.0), stretch=True).coords.view_as(POINTS) / POINTS
    assert axes.std(dim=1).max() < 1e-4
    assert axes.mean(1).std(dim=1).min() > 1e-3


def test_a_shift_is_one_vector_per_cloud():
    moved = apply(shift=0.2).coords.view_as(POINTS) - POINTS
    assert moved.std(dim=1).max() < 1e-6
    assert 0.15 < moved.abs().max() <= 0.2


def test_an_example_is_augmented_alike_in_any_batch_and_anew_in_every_epoch():
    """To the bit: what is made one by one, for files, is what a batch has."""
    settings = {"shuffle": True, "drop": 0.5, "jitter": 0.01, "jitter_clip": 0.02, "tilt": 0.1, "azimuth": True}
    settings |= {"scale": (0.8, 1.25), "stretch": True, "mirror": True, "shift": 0.1}
    whole = examples(apply(**settings))
    part = examples(apply(torch.tensor([3, 11]), **settings))
    assert torch.equal(part[1], whole[11])
    for i in range(30):
        assert torch.equal(examples(apply(torch.tensor([i]), **settings))[0], whole[i])
    assert sum(map(len, examples(apply(epoch=1, **settings)))) != sum(map(len, whole))


def test_no_example_at_all_stays_none():
    settings = {"shuffle": True, "drop": 0.5, "jitter": 0.01, "tilt": 0.1, "scale": (0.8, 1.25), "shift": 0.1}
    cloud = apply(torch.tensor([], dtype=torch.int64), **settings)
    assert (len(cloud), cloud.num_examples) == (0, 0)


def test_a_policy_refuses_what_its_steps_refuse():
    with pytest.raises(ValueError, match=r"Drop: most .*1"):
        Policy(drop=1.0)
