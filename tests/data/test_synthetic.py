"""The data sets the package makes itself: seeded, balanced, the same whatever their size."""

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.data import MovingGlyphs, Shapes


def test_a_shorter_set_of_shapes_is_a_prefix_of_a_longer_one():
    long, short = Shapes(200, points=64), Shapes(45, points=64)
    assert torch.equal(long.coords[:45], short.coords)
    assert torch.equal(long.labels[:45], short.labels)


def test_shapes_fit_the_unit_sphere_and_another_seed_is_another_set():
    one, two = Shapes(28, points=128), Shapes(28, points=128, seed=1)
    norms = one.coords.norm(dim=-1).amax(1)
    assert torch.allclose(norms, torch.ones(28), atol=1e-5)
    assert not torch.equal(one.coords, two.coords)
    assert len(one.class_names) >= 10
    assert one.labels.bincount().tolist() == [2] * 14


@pytest.mark.parametrize("name", ["crate", "drum", "cone"])
def test_points_fall_uniformly_by_area(name):
    """The share of points in the lower half of a solid is that of its area there."""
    coords = Shapes(64, points=2000, class_names=[name], noise=0.0).coords.double()
    z = coords[..., 2]
    low, high = z.amin(1, keepdim=True), z.amax(1, keepdim=True)
    share = (z < (low + high) / 2).double().mean()
    if name == "cone":
        # base + lower frustum: computed from each cone's own proportions
        r = coords[..., :2].norm(dim=-1).amax(1)
        h = (high - low).squeeze(1)
        slant = torch.pi * r * torch.hypot(r, h)
        expected = ((torch.pi * r**2 + 0.75 * slant) / (torch.pi * r**2 + slant)).mean()
    else:
        expected = torch.tensor(0.5)
    assert abs(share - expected) < 0.02


def test_unknown_shape_names_what_exists():
    with pytest.raises(ValueError, match=r"class 'teapot'.*ball"):
        Shapes(1, class_names=["teapot"])


def test_glyph_recordings_are_valid_events_in_time_order():
    data = MovingGlyphs(20, background=5.0)
    for events, label in (data[i] for i in range(20)):
        assert 0 <= label < 10
        assert events.sensor == (34, 34)
        assert (events.time.diff() >= 0).all()
        assert events.time.min() >= 0
        assert events.time.max() < 100_000
        assert events.pixel.min() >= 0
        assert events.pixel.max() < 34


def test_a_shorter_set_of_glyphs_is_a_prefix_of_a_longer_one_on_any_number_of_threads():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        long = MovingGlyphs(30)
        torch.set_num_threads(1)
        short = MovingGlyphs(11)
    finally:
        torch.set_num_threads(threads)
    rows = len(short.time)
    assert torch.equal(long.time[:rows], short.time)
    assert torch.equal(long.pixel[:rows], short.pixel)


def test_a_pixel_rests_after_an_event():
    data = MovingGlyphs(10, background=0.0, refractory=3000)
    events, _ = data[8]
    key = events.pixel[:, 1] * 34 + events.pixel[:, 0]
    for pixel in key.unique():
        gaps = events.time[key == pixel].diff()
        assert (gaps > 3000).all()


def test_a_lower_threshold_fires_more_and_background_adds_its_rate():
    quiet = MovingGlyphs(20, background=0.0)
    assert len(MovingGlyphs(20, background=0.0, threshold=0.12).time) > 1.2 * len(quiet.time)
    noisy = MovingGlyphs(20, background=10.0)
    added = len(noisy.time) - len(quiet.time)
    assert abs(added / (20 * 34 * 34 * 0.1 * 10) - 1) < 0.05


def test_transforms_are_applied_in_order():
    data = Shapes(3, points=16, transform=[lambda x: x * 2, lambda x: x + 1])
    assert torch.equal(data[1][0], Shapes(3, points=16).coords[1] * 2 + 1)


def test_glyph_settings_are_checked():
    with pytest.raises(ValueError, match=r"sensor .*\(4, 4\)"):
        MovingGlyphs(1, sensor=(4, 4))
    with pytest.raises(ValueError, match="threshold is 0"):
        MovingGlyphs(1, threshold=0)
    with pytest.raises(IndexError, match=r"MovingGlyphs .*example 3.* 3"):
        MovingGlyphs(3)[3]


def test_an_empty_set_is_a_set():
    assert len(Shapes(0)) == 0
    assert len(MovingGlyphs(0)) == 0
    assert isinstance(gl.data.Shapes(1, points=4)[0][0], torch.Tensor)
    assert np.isfinite(gl.data.Shapes(14, points=4).coords.numpy()).all()
