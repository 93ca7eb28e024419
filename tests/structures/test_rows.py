"""Rows: what belongs to each point or event travels with it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gridless as gl
from gridless.structures import pad

SENSOR = (16, 12)


def points(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(seed))


def marked(n: int, seed: int = 0) -> gl.Cloud:
    """A cloud whose rows can be told from its coordinates."""
    x = points(n, seed)
    return gl.Cloud.of(x, twice=2 * x, byte=(x[:, 0] * 255).byte(), wide=x[:, :, None].expand(-1, 3, 2).double())


def follows(cloud: gl.Cloud) -> None:
    """The rows of every point are those that `marked` gave it."""
    x = cloud.coords
    assert torch.equal(cloud.rows["twice"], 2 * x)
    assert torch.equal(cloud.rows["byte"], (x[:, 0] * 255).byte())
    assert torch.equal(cloud.rows["wide"], x[:, :, None].expand(-1, 3, 2).double())


def recording(n: int, seed: int = 0, **rows) -> gl.Events:
    generator = torch.Generator().manual_seed(seed)
    fields = {"x": torch.randint(16, (n,), generator=generator), "y": torch.randint(12, (n,), generator=generator)}
    fields |= {"t": torch.arange(n) * 7 + seed, "p": torch.randint(2, (n,), generator=generator)}
    time = fields["t"]
    return gl.Events.of({k: v.numpy() for k, v in fields.items()}, SENSOR, weight=time.float() / 2, **rows)


def test_rows_have_any_type_and_any_shape():
    x = points(5)
    names = np.arange(5, dtype=np.uint16)
    cloud = gl.Cloud.of(x, rgb=np.zeros((5, 3), np.uint8), label=[1, 2, 3, 4, 5], id=names, none=torch.zeros(5, 0))
    assert cloud.rows["rgb"].shape == (5, 3)
    assert cloud.rows["rgb"].dtype == torch.uint8
    assert cloud.rows["label"].tolist() == [1, 2, 3, 4, 5]
    assert cloud.rows["id"].dtype == torch.uint16
    assert cloud.rows["none"].shape == (5, 0)
    assert gl.Cloud.of(x[:, :2], z=x[:, 2]).rows["z"].is_contiguous()
    assert list(cloud.rows) == ["rgb", "label", "id", "none"]
    assert "rgb: (5, 3) uint8" in repr(cloud)


@pytest.mark.filterwarnings("error")
def test_memory_that_may_not_be_written_to_is_copied():
    fixed = np.ones((5, 3), np.float32)
    fixed.flags.writeable = False
    cloud = gl.Cloud.of(fixed, rgb=fixed)
    cloud.coords[0] = cloud.rows["rgb"][0] = 7
    assert fixed.max() == 1


def test_a_batch_has_lists_of_rows():
    parts = [points(n, n) for n in (4, 0, 7)]
    cloud = gl.Cloud.of(parts, label=[torch.full((len(p),), i) for i, p in enumerate(parts)])
    assert cloud.rows["label"].tolist() == [0] * 4 + [2] * 7
    assert [set(one.rows["label"].tolist()) for one in cloud.examples] == [{0}, set(), {2}]


def test_rows_are_added_to_a_cloud_and_to_events():
    cloud = gl.Cloud.of(gl.Cloud.of(points(5), a=torch.arange(5)), b=torch.arange(5) * 2)
    assert (cloud.rows["a"].tolist(), cloud.rows["b"].tolist()) == ([0, 1, 2, 3, 4], [0, 2, 4, 6, 8])
    events = gl.Events.of(recording(5), label=torch.arange(5))
    assert set(events.rows) == {"weight", "label"}


def test_rows_cannot_be_written_to():
    cloud = gl.Cloud.of(points(3))
    with pytest.raises(TypeError):
        cloud.rows["rgb"] = torch.zeros(3)
    assert len(gl.Cloud.of(points(3)).rows) == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"rgb": torch.zeros(4, 3)}, r"rgb .*\(4, 3\).* 5"),
        ({"rgb": torch.tensor(1.0)}, r"rgb .*\(\).* 5"),
        ({"rgb": torch.zeros(5, device="meta")}, "rgb .*meta.*cpu"),
        ({"name": ["a"] * 5}, "name .*numbers"),
        ({"sensr": (3, 4)}, r"sensr .*\(2,\).* 5"),
        ({"dtype": torch.float32}, "dtype .*numbers"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(rows, message):
    with pytest.raises((ValueError, TypeError), match=message):
        gl.Cloud.of(points(5), **rows)
    with pytest.raises((ValueError, TypeError), match=message):
        recording(5, **rows)


def test_batches_of_rows_that_do_not_fit_are_refused():
    two = [points(3), points(4)]
    with pytest.raises(ValueError, match=r"rgb .*list of 2"):
        gl.Cloud.of(two, rgb=torch.zeros(7, 3))
    with pytest.raises(ValueError, match=r"rgb .*list of 2"):
        gl.Cloud.of(two, rgb=[torch.zeros(3)])
    with pytest.raises(ValueError, match=r"'rgb' .*float32.*uint8"):
        gl.Cloud.of(two, rgb=[torch.zeros(3), torch.zeros(4, dtype=torch.uint8)])
    with pytest.raises(ValueError, match=r"'rgb' .*\(3, 2\).*\(4, 3\)"):
        gl.Cloud.of(two, rgb=[torch.zeros(3, 2), torch.zeros(4, 3)])
    with pytest.raises(ValueError, match=r"collate: .*rows a.*none"):
        gl.collate([gl.Cloud.of(two[0], a=torch.zeros(3)), gl.Cloud.of(two[1])])
    with pytest.raises(TypeError, match=r"gl.collate"):
        gl.Cloud.of([gl.Cloud.of(two[0])])
    with pytest.raises(KeyError, match=r"'rgb'.* a"):
        gl.Cloud.of(two[0], a=torch.zeros(3)).rows["rgb"]


def test_moving_and_pickling(device):
    cloud = marked(9).to(device)
    assert cloud.rows["twice"].device.type == device.type
    follows(pickle.loads(pickle.dumps(cloud)))
    assert len(pickle.dumps(gl.Cloud.of(points(9)))) < len(pickle.dumps(cloud)) - 9 * 3 * 4
    many = marked(10_000).rows
    assert len(pickle.dumps(many.taken(slice(5, 8)))) < 3000


def test_slices_masks_and_positions_are_of_points():
    cloud = gl.collate([marked(6, 1), marked(3, 2), marked(5, 3)])
    x = cloud.coords
    part = cloud[4:10]
    assert torch.equal(part.coords, x[4:10])
    assert part.splits.tolist() == [0, 2, 5, 6]
    mask = torch.arange(14) % 3 == 0
    assert torch.equal(cloud[mask].coords, x[mask])
    assert cloud[mask].splits.tolist() == [0, 2, 3, 5]
    assert torch.equal(cloud[::3].coords, cloud[mask].coords)
    order = torch.tensor([5, 5, 0, 7, -1, 9])
    assert torch.equal(cloud[order].coords, x[order])
    assert cloud[order].splits.tolist() == [0, 3, 4, 6]
    assert torch.equal(cloud[np.array([1])].coords, x[1:2])
    assert torch.equal(cloud[[-14]].coords, x[:1])
    assert len(cloud[[]]) == 0
    assert cloud[9:4].splits.tolist() == [0, 0, 0, 0]
    for one in (part, cloud[mask], cloud[order], cloud[20:], cloud.examples[1], cloud.examples[-1]):
        follows(one)
    with pytest.raises(ValueError, match=r"positions.*example"):
        cloud[torch.tensor([9, 0])]
    with pytest.raises(IndexError, match="14 points"):
        cloud[torch.tensor([14])]
    with pytest.raises(TypeError, match=r"1-D.*\(2, 2\)"):
        cloud[torch.zeros(2, 2).long()]
    with pytest.raises(TypeError, match=r"slices.*x\[a:b\]"):
        cloud[0, 1]
    with pytest.raises(IndexError, match=r"mask.* 3 .*14 points"):
        cloud[torch.tensor([True, False, True])]


def test_a_cut_leaves_padding_out():
    cloud = pad(gl.collate([marked(6, 1), marked(3, 2)]), [16])
    for part in (cloud[:], cloud[torch.ones(16, dtype=torch.bool)], cloud[torch.arange(9)]):
        assert (len(part), part.padding, part.splits.tolist()) == (9, 0, [0, 6, 9])
        follows(part)


@pytest.mark.parametrize("batch", [gl.Cloud.of([points(3), points(4)]), gl.collate([recording(3), recording(4)])])
def test_examples_are_one_property(batch):
    assert len(batch) == 7
    assert len(batch.examples) == 2
    assert [len(one) for one in batch.examples] == [3, 4]
    assert [len(one) for one in batch.examples[1:]] == [4]
    assert len(batch.examples[-1]) == 4
    with pytest.raises(IndexError, match=r"(example|recording) 2 .*2"):
        batch.examples[2]
    with pytest.raises(TypeError, match=r"x\.examples"):
        list(batch)
    with pytest.raises(TypeError, match=r"x\.examples\[i\]"):
        batch[0]


def test_a_part_of_a_sample_forgets_where_it_came_from():
    cloud = marked(60)
    sample = gl.rejection_sample(cloud, radius=0.2, distance=True)
    part = sample[:4]
    assert (part.parent_index, part.num_parent, part.distance) == (None, 0, None)
    part.check()
    follows(gl.collate([part, part]))


@pytest.mark.parametrize("bucket", [None, "power_of_two"])
def test_collating(bucket):
    parts = [marked(n, n) for n in (5, 0, 3)]
    batch = gl.collate(parts, bucket)
    assert torch.equal(batch.rows["byte"][:8], torch.cat([p.rows["byte"] for p in parts]))
    assert len(batch.rows["wide"]) == len(batch)
    follows(batch[:])


def test_what_belongs_to_points_beside_a_geometry_is_refused_with_the_remedy():
    plan = gl.Plan()
    plan.points()
    examples = [(plan(points(n)), torch.zeros(n, 3)) for n in (200, 300)]
    with pytest.raises(ValueError, match=r"\(200, 3\), \(300, 3\).*gl\.Cloud\.of\(xyz, rgb=rgb\)"):
        gl.collate(examples)


def test_features_of_stacked_examples_are_refused_with_the_remedy():
    plan = gl.Plan()
    cloud = plan.points()
    conv = gl.nn.PointConv(plan.ball(cloud, cloud, 0.3), 3, 4)
    xyz, rgb = gl.collate([(torch.rand(20, 3), torch.rand(20, 3)) for _ in range(2)])
    geometry = plan(xyz)
    with pytest.raises(ValueError, match=r"\(2, 20, 3\).*flatten\(0, 1\)"):
        conv(rgb, geometry)
    assert conv(rgb.flatten(0, 1), geometry).shape == (40, 4)
    with pytest.raises(ValueError, match=r"\(2, 20, 3\).*gl\.Cloud\.of\(x\)"):
        gl.augment.Jitter(0.1)(xyz)


def test_samples_have_the_rows_of_the_points_they_kept(backend, device):
    cloud = gl.collate([marked(40, 1), marked(1, 2), marked(30, 3)]).to(device)
    near = gl.ball(cloud, cloud, 0.3)
    generator = torch.Generator(device).manual_seed(0)
    for sample in (
        gl.rejection_sample(cloud, near),
        gl.rejection_sample(cloud, radius=0.3),
        gl.farthest_sample(cloud, 7),
        gl.farthest_sample(cloud, 0.5, near=near, reject=True),
        gl.random_sample(cloud, 5, generator),
    ):
        follows(sample.cpu())


class Clouds:
    def __init__(self, plan: gl.Plan) -> None:
        self.plan = plan

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[gl.Geometry, int]:
        return self.plan(marked(20 + i, i)), i


@pytest.mark.slow
def test_a_plan_keeps_them_and_a_loader_brings_them():
    plan = gl.Plan()
    cloud = plan.points()
    coarse = plan.rejection_sample(plan.ball(cloud, cloud, 0.3))
    for geometry, label in DataLoader(Clouds(plan), 3, num_workers=1, collate_fn=gl.collate):  # type: ignore[arg-type]
        assert label.shape == (3,)
        follows(geometry[cloud])
        follows(geometry[coarse])
        assert 0 < len(geometry[coarse]) < len(geometry[cloud])


@pytest.mark.parametrize("examples", [1, 3])
def test_every_augmentation_takes_them_along(examples):
    augment = gl.augment
    parts = [marked(30, i) for i in range(examples)]
    steps = [augment.First(20), augment.Shuffle(), augment.Drop(0.5), augment.Shuffle()]
    batch = gl.collate(parts)
    for step in steps:
        batch = step(batch, torch.Generator().manual_seed(1))
        follows(batch)
    assert batch.num_examples == examples
    before = batch
    moves = [augment.Jitter(), augment.Normalise(), augment.Tilt(), augment.RotateAboutUp()]
    for step in [*moves, augment.Scale(), augment.Shift(), augment.Mirror(0, 1.0)]:
        batch = step(batch)
        assert torch.equal(batch.rows["twice"], before.rows["twice"])
        assert not torch.equal(batch.coords, before.coords)


def surfaces(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points, two tangents of a surface there, and its normal."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, 25, 3, generator=generator, dtype=torch.float64)
    normal = torch.linalg.cross(a, b)
    return torch.stack([a, b], 1), normal / normal.norm(dim=1, keepdim=True), torch.rand(25, 3, dtype=torch.float64)


@pytest.mark.parametrize("examples", [1, 3])
def test_directions_turn_with_the_points(examples):
    """Two points a little apart along the surface stay across the normal there, whatever is done to the cloud."""
    tangents, normals, x = (torch.cat(parts) for parts in zip(*map(surfaces, range(examples)), strict=True))
    here = [x, x + tangents[:, 0], x + tangents[:, 1]]
    sizes = [25] * examples
    cloud = gl.Cloud.of(
        [torch.cat(p) for p in zip(*(h.split(sizes) for h in here), strict=True)],
        normal=[n.repeat(3, 1) for n in normals.split(sizes)],
        colour=[n.repeat(3, 1) for n in normals.split(sizes)],
        pair=[torch.stack([n, -n], 1).repeat(3, 1, 1) for n in normals.split(sizes)],
        directions=("normal", "pair"),
    )
    steps = [
        gl.augment.RotateAboutUp("z"),
        gl.augment.Tilt(0.5, 1.0),
        gl.augment.Mirror(1, 1.0),
        gl.augment.Scale(0.5, 2.0, each_axis=True),
        gl.augment.Scale(0.5, 2.0),
        gl.augment.Normalise(),
        gl.augment.Shift(),
    ]
    for number, step in enumerate(steps):
        before, cloud = cloud, step(cloud, torch.Generator().manual_seed(number))
        assert torch.equal(cloud.rows["colour"], before.rows["colour"])
        assert torch.allclose(cloud.rows["pair"], torch.stack([cloud.rows["normal"], -cloud.rows["normal"]], 1))
        for one in cloud.examples:
            p, a, b = one.coords.split(25)
            normal = one.rows["normal"][:25]
            assert torch.allclose(normal.norm(dim=1), torch.ones(25).double())
            for along in (a - p, b - p):
                assert ((along * normal).sum(1).abs() < 1e-9 * along.norm(dim=1)).all()
    assert cloud.directions == ("normal", "pair")
    assert gl.collate([cloud, cloud]).directions == ("normal", "pair")
    assert gl.Cloud.of(cloud, tangent=cloud.coords, directions="tangent").directions == ("normal", "pair", "tangent")
    assert gl.random_sample(cloud, 3).directions == ("normal", "pair")


def test_directions_are_checked():
    x = points(4)
    with pytest.raises(KeyError, match=r"'normal'.*none"):
        gl.Cloud.of(x, directions="normal")
    with pytest.raises(ValueError, match=r"'normal' .*\(S, 3\).*\(4, 2\)"):
        gl.Cloud.of(x, normal=torch.zeros(4, 2), directions=("normal",))
    with pytest.raises(ValueError, match=r"'normal' .*\(4, 3\).*int64"):
        gl.Cloud.of(x, normal=torch.ones(4, 3).long(), directions="normal")
    with pytest.raises(ValueError, match=r"directions.*'n'"):
        gl.collate([gl.Cloud.of(x, n=x), gl.Cloud.of(x, n=x, directions="n")])


def test_an_array_of_more_than_coordinates_is_not_augmented():
    x = torch.rand(10, 6)
    with pytest.raises(ValueError, match=r"Normalise.*rgb=x\[:, 3:\]"):
        gl.augment.Normalise()(x)
    with pytest.raises(TypeError, match=r"Normalise.*list.*gl\.Cloud\.of"):
        gl.augment.Normalise()([x, x])
    assert gl.augment.Normalise()(x[:, :3]).shape == (10, 3)
    assert gl.augment.Normalise()(gl.Cloud.of(x)).dim == 6


def test_events_keep_them_through_slices_repairs_and_batches():
    events = gl.collate([recording(9, 1), recording(5, 2)])
    for part in (
        events[3:11],
        events[events.polarity],
        events.examples[1],
        gl.Events.of(list(events.examples), SENSOR),
    ):
        assert torch.equal(part.rows["weight"], part.time.float() / 2)
        part.check()
    t = np.array([30, 10, 20, 40])
    array = {"t": t, "x": np.array([1, 2, 99, 3]), "y": np.zeros(4, int), "p": np.ones(4, int)}
    mended = gl.Events.of(array, SENSOR, repair=("drop", "sort", "shift"), was=t)
    assert mended.time.tolist() == [0, 20, 30]
    assert mended.rows["was"].tolist() == [10, 30, 40]
    again = gl.Events.of([mended, mended], SENSOR, repair="shift", label=[torch.arange(3)] * 2)
    assert again.rows["was"].tolist() == [10, 30, 40] * 2
    assert again.rows["label"].tolist() == [0, 1, 2] * 2


def test_events_keep_them_through_augmentation():
    events = gl.collate([recording(40, 1), recording(50, 2)])
    events = gl.Events.of(events, place=events.pixel)
    augment = gl.augment
    for step in (augment.Thin(0.5), augment.FirstEvents(30), augment.FirstMicroseconds(150)):
        events = step(events)
        assert torch.equal(events.rows["weight"], events.time.float() / 2)
    turned = augment.ReverseTime(1.0)(events)
    for one, other in zip(turned.examples, events.examples, strict=True):
        assert torch.equal(one.rows["weight"], other.rows["weight"].flip(0))
        assert torch.equal(one.rows["place"], one.pixel)
    moved = augment.Translate(4, 4)(events)
    assert len(moved) == len(moved.rows["weight"])
    assert torch.equal(moved.rows["weight"], moved.time.float() / 2)


def test_events_that_are_fired_have_those_of_their_causes(backend, device):
    events = gl.collate([recording(200, 1), recording(100, 2)]).to(device)
    fired = gl.lif(events, threshold=0.4, decay_time=1000.0, reset=-0.4)
    assert len(fired) > 10
    assert torch.equal(fired.rows["weight"], fired.time.float() / 2)


def test_recordings_of_which_some_have_a_polarity_are_refused():
    fired = gl.lif(recording(200), stride=1, threshold=0.1)
    assert fired.polarity is None
    with pytest.raises(ValueError, match=r"1 of 2 recordings.*polarity"):
        gl.Events.of([recording(3), fired], SENSOR)


def test_events_are_looked_at_once(monkeypatch):
    events = recording(5)
    monkeypatch.setattr(gl.Events, "fault", lambda self: pytest.fail("looked at again"))
    events.check()
    events[1:4].check()
