"""The point-cloud networks: their sizes, their plans, and that they compute what they say."""

from __future__ import annotations

import json

import pytest
import torch

import gridless as gl
from gridless import models
from gridless.nn import blocks
from gridless.training.batch import Batch, Group
from gridless.training.captured import Slot, capacity


@pytest.fixture
def cloud() -> gl.Cloud:
    generator = torch.Generator().manual_seed(0)
    return gl.Cloud.of([torch.randn(n, 3, generator=generator) * 0.3 for n in (90, 1, 64, 120)])


def small(name: str, **changes):
    """A network of the same build that runs in no time."""
    torch.manual_seed(0)
    if name == "point_max_net":
        size = {"depths": (2, 1), "neighbours": 5, "lift": 16, "spacing": 0.2, "drop_path": 0.0}
    elif name == "point_resnet_plus":
        size = {"levels": 2, "lift": 16, "spacing": 0.2, "stem_radius": 0.25}
    else:
        size = {"levels": 2, "radius": 0.2}
    size = {"width": 8, **size, **changes}
    return getattr(models, name)(5, **size)


CLASSIFIERS = ["point_resnet_large", "point_resnet_small", "point_resnet_plus", "point_max_net"]
NAMES = [*CLASSIFIERS, "point_unet"]


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_large_has_as_many_parameters_as_the_papers():
    assert parameters(models.point_resnet_large()) == 769_992


def test_small_has_as_many_parameters_as_the_papers():
    assert parameters(models.point_resnet_small()) == 266_968


@pytest.mark.parametrize("size", [models.point_resnet_large, models.point_resnet_small])
def test_plan_has_seven_searches_and_three_samplings(size):
    lines = str(size().plan).splitlines()
    assert sum("= ball(" in line for line in lines) == 7
    assert sum("= rejection_sample(" in line for line in lines) == 3
    assert "radius=0.1125" in lines[1]
    assert "radius=0.9" in lines[-1]


@pytest.mark.parametrize(
    ("network", "classes", "digest"),
    [
        (models.PointResNet, 40, "84cb5b30b1ba711b"),
        (models.PointResNetPlus, 40, "12cf5f95d6413cc0"),
        (models.PointMaxNet, 40, "82b6caf636facfd2"),
        (models.PointUNet, 5, "3398002faf051630"),
        (models.PointUNetPlus, [3, 2], "99fdaadb6033af9c"),
    ],
)
def test_searches_and_samplings_stay_those_that_weights_were_trained_with(network, classes, digest):
    """Weights of other radii have the same shapes: nothing else would notice."""
    assert network(classes, width=8).plan.digest == digest


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_rebuilt_from_its_config_as_json(name):
    model = small(name)
    again = models.build(json.loads(json.dumps(model.config)))
    assert type(again) is type(model)
    assert again.plan == model.plan
    again.load_state_dict(model.state_dict())


def test_unknown_models_and_arguments_are_named():
    with pytest.raises(ValueError, match=r"'point_resnet_hug'.* EventCounts, EventResNet, "):
        models.build({"model": "point_resnet_hug"})
    with pytest.raises(TypeError, match=r"'widht'.*classes, width"):
        models.build({"model": "point_resnet_large", "widht": 3})
    for name in models.networks.NETWORKS:
        with pytest.raises(TypeError, match=rf"{name}.*'widht'.* (classes|parts|sensor)\b"):
            models.build({"model": name, "widht": 3})
    with pytest.raises(TypeError, match=r"PointUNetPlus: parts.*\[4\]"):
        models.point_unet_plus(4)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_parameter_gets_a_gradient(name, cloud):
    model = small(name)
    for norm in (m for m in model.modules() if isinstance(m, gl.nn.BatchNorm)):
        torch.nn.init.ones_(norm.weight)
    logits = model(model.plan(cloud))
    assert logits.shape == (4, 5)
    logits.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_cloud_is_classified_alike_alone_and_in_a_batch(name, cloud):
    model = small(name).eval()
    together = model(model.plan(cloud))
    alone = torch.cat([model(model.plan(one)) for one in cloud.examples])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_segmentation_gives_logits_for_every_point(cloud):
    model = small("point_unet")
    assert model(model.plan(cloud)).shape == (len(cloud), 5)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_takes_features_only_where_it_was_built_for_them(name, cloud):
    plain, fed = small(name), small(name, in_channels=3).eval()
    geometry, features = fed.plan(cloud), torch.randn(len(cloud), 3)
    logits = fed(features, geometry)
    assert logits.shape == plain.eval()(geometry).shape
    assert not torch.allclose(fed(2 * features, geometry), logits)
    with pytest.raises(ValueError, match=r"features \(S, 3\)"):
        fed(geometry)
    with pytest.raises(ValueError, match=r"features.*in_channels"):
        plain(features, geometry)
    with pytest.raises(ValueError, match=r"features.*\(\d+, 3\).*\(1, \d+, 3\).*flatten\(0, 1\)"):
        fed(features[None], geometry)
    with pytest.raises(ValueError, match=r"features.*\(\d+, 3\).*\(\d+, 4\)"):
        fed(fed.plan(gl.Cloud.of(cloud, features=torch.zeros(len(cloud), 4))))


@pytest.mark.parametrize("name", [*NAMES, "point_unet_plus"])
def test_features_may_be_rows_of_the_cloud(name, cloud):
    features = torch.randn(len(cloud), 3)
    carried = gl.Cloud.of(cloud, features=features)
    if name == "point_unet_plus":
        model = models.point_unet_plus([3], width=8, levels=1, in_channels=3).eval()
        with pytest.raises(ValueError, match=r"features \(S, 3\)"):
            model(model.plan(cloud))
        other = gl.Cloud.of(cloud, features=2 * features)
        assert not torch.allclose(model(model.plan(carried)), model(model.plan(other)))
        return
    model = small(name, in_channels=3).eval()
    torch.testing.assert_close(model(model.plan(carried)), model(features, model.plan(cloud)))


@pytest.mark.parametrize("name", [*NAMES, "point_unet_plus"])
def test_a_network_called_with_points_says_what_it_expects(name, cloud):
    model = small(name) if name in NAMES else models.point_unet_plus([3], width=8, levels=1)
    for x in (cloud, cloud.coords):
        with pytest.raises(TypeError, match=r"Geometry.*model\(model\.plan\(x\)\)"):
            model(x)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in CLASSIFIERS),
        ("point_resnet_plus", {"depthwise": 2.0}),
    ],
)
def test_padding_a_batch_changes_neither_logits_nor_gradients_nor_statistics(name, more, cloud):
    results = []
    for pad in (False, True):
        model = small(name, dropout=0.0, **more).double()
        geometry = model.plan(gl.Cloud(cloud.coords.double(), cloud.splits))
        batch = Batch(Group(model.plan, geometry, torch.arange(4)))
        if pad:
            batch = Slot(batch, capacity(batch.sizes)).batch
        logits = model(batch.geometry)
        torch.nn.functional.cross_entropy(logits, batch.labels).backward()
        results.append(
            {"logits": logits.detach()} | {k: p.grad for k, p in model.named_parameters()} | dict(model.named_buffers())
        )
    for key in results[0]:
        torch.testing.assert_close(results[0][key], results[1][key], msg=lambda m, key=key: f"{key}: {m}")


def test_the_small_network_samples_before_its_first_features(cloud):
    model = small("point_resnet_small")
    assert model.stem.edges.target == "X1"
    assert model(model.plan(cloud)).shape == (4, 5)


@pytest.mark.parametrize("make", [models.point_resnet_plus, lambda **more: models.point_unet_plus([5], **more)])
def test_depthwise_networks_have_wide_inverted_blocks_in_place_and_dense_ones_between(make, cloud):
    model = make(width=8, levels=2, ratio=0.5, depthwise=2.0)
    convs = [block.conv for block in model.modules() if isinstance(block, gl.nn.WideBlock)]
    assert {conv.edges.source == conv.edges.target for conv in convs} == {True, False}
    for conv in convs:
        assert isinstance(conv, gl.nn.DepthwiseConv) == (conv.edges.source == conv.edges.target)
    assert [c.channels for c in convs if isinstance(c, gl.nn.DepthwiseConv)][-1] in (64, 16)
    out = model(model.plan(cloud))
    out.square().mean().backward()
    assert out.isfinite().all()
    assert all(p.grad is not None for p in model.parameters())


def test_a_residual_block_adds_what_its_branch_finds(cloud):
    plan = gl.Plan()
    points = plan.points()
    block, geometry = blocks.ResBlock(plan.ball(points, points, 0.2), 8).eval(), plan(cloud)
    features = torch.randn(len(cloud), 8)
    with torch.no_grad():
        assert torch.equal(block(features, geometry), (features + block.branch(features, geometry)).relu())


def test_rows_of_padding_share_no_parent():
    """On a GPU, gradients of many rows that share one wait for each other."""
    plan = gl.Plan()
    points = plan.points()
    near = plan.ball(points, points, 0.2)
    samples = plan.rejection_sample(near)
    geometry = gl.collate([plan(torch.rand(40, 3)) for _ in range(2)], bucket=[400])
    assert geometry[samples].padding > 300
    features = torch.randn(400, 5, requires_grad=True)
    blocks.sampled(features, geometry, samples).sum().backward()
    assert features.grad.max() <= 2  # a sample, and a row of padding


@pytest.mark.parametrize("depths", [(), (2, 0)])
def test_a_network_of_maxima_without_maxima_is_refused(depths):
    with pytest.raises(ValueError, match="PointMaxNet: depths"):
        small("point_max_net", depths=depths)


@pytest.mark.slow
def test_drop_path_leaves_the_branches_of_whole_clouds_out(cloud):
    model = small("point_resnet_plus", drop_path=0.5, levels=1)
    path = model.blocks[1].drop_path
    geometry = model.plan(cloud)
    points = geometry[path.cloud]
    values = torch.rand(len(points), 3) + 1
    seen = set()
    for seed in range(40):
        torch.manual_seed(seed)
        out = path.train()(values, geometry)
        for i in range(points.num_examples):
            part = slice(*points.splits[i : i + 2].tolist())
            dropped = not out[part].any()
            assert dropped or torch.equal(out[part], values[part] * 2)
            seen.add((i, dropped))
    assert len(seen) == 2 * points.num_examples
    assert torch.equal(path.eval()(values, geometry), values)
    with pytest.raises(ValueError, match=r"DropPath.* 1$"):
        small("point_resnet_plus", drop_path=1)


def test_parts_of_other_categories_are_never_predicted(cloud):
    torch.manual_seed(0)
    size = {"width": 8, "levels": 2, "spacing": 0.2, "stem_radius": 0.25, "hidden": 16}
    model = models.point_unet_plus([2, 3], **size).eval()
    assert models.build(json.loads(json.dumps(model.config))).config == model.config
    geometry = model.plan(cloud)
    category = torch.tensor([0, 1, 1, 0])
    logits = model(geometry, category)
    assert logits.shape == (len(cloud), 5)
    mine = torch.tensor([[True, True, False, False, False], [False, False, True, True, True]])
    assert torch.equal(logits.isfinite(), mine[category[cloud.example]])
    alone = torch.cat([model(model.plan(one), category[i : i + 1]) for i, one in enumerate(cloud.examples)])
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match=r"category.*\b2\b"):
        model(geometry)
    assert models.point_unet_plus([4], **size)(geometry).shape == (len(cloud), 4)


def test_points_without_a_part_add_nothing_to_the_loss_of_parts(cloud):
    torch.manual_seed(0)
    model = models.point_unet_plus([4], width=8, levels=2, spacing=0.2, stem_radius=0.25, hidden=16).eval()
    part = torch.randint(0, 4, (len(cloud),))
    part[::3] = -1
    geometry, none = model.plan(gl.Cloud.of(cloud, part=part)), torch.zeros(4, dtype=torch.int64)
    loss, right = model.loss(geometry, none)
    logits, known = model(geometry), part >= 0
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits[known], part[known]))
    assert right.item() == pytest.approx(4 * (logits.argmax(1) == part)[known].float().mean().item())
    nothing = gl.Cloud.of([torch.zeros(0, 3)] * 4, part=[torch.zeros(0, dtype=torch.int64)] * 4)
    assert torch.stack(model.loss(model.plan(nothing), none)).tolist() == [0, 0]


def test_the_loss_of_parts_is_smoothed_among_those_of_the_category(cloud):
    torch.manual_seed(0)
    size = {"width": 8, "levels": 2, "spacing": 0.2, "stem_radius": 0.25, "hidden": 16}
    model = models.point_unet_plus([2, 3], **size).double().eval()
    category = torch.tensor([0, 1, 1, 0])
    first = torch.tensor([0, 2])[category[cloud.example]]
    part = first + torch.randint(0, 2, (len(cloud),))
    geometry = model.plan(gl.Cloud.of(gl.Cloud(cloud.coords.double(), cloud.splits), part=part))
    loss, right = model.loss(geometry, category, smoothing=0.2)
    each, correct = [], 0
    for row, target, k in zip(model(geometry, category), part, category[cloud.example], strict=True):
        mine = slice(0, 2) if k == 0 else slice(2, 5)
        target = int(target) - mine.start
        each.append(torch.nn.functional.cross_entropy(row[mine], torch.tensor(target), label_smoothing=0.2))
        correct += int(row[mine].argmax()) == target
    torch.testing.assert_close(loss, torch.stack(each).mean())
    assert right.item() == pytest.approx(4 * correct / len(cloud))
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_overlap_adds_what_is_missing_of_the_expected_miou(cloud):
    torch.manual_seed(0)
    size = {"width": 8, "levels": 2, "spacing": 0.2, "stem_radius": 0.25, "hidden": 16}
    plain, model = (models.point_unet_plus([2, 3], overlap=o, **size).double().eval() for o in (0.0, 0.5))
    model.load_state_dict(plain.state_dict())
    category = torch.tensor([0, 1, 1, 0])
    part = torch.tensor([0, 2])[category[cloud.example]] + torch.randint(0, 2, (len(cloud),))
    part[::7] = -1  # not known
    geometry = model.plan(gl.Cloud.of(gl.Cloud(cloud.coords.double(), cloud.splits), part=part))
    chance, shapes = model(geometry, category).double().softmax(1), []
    for shape, k in enumerate(category.tolist()):
        rows, ious = (cloud.example == shape) & (part >= 0), []
        for kind in ((0, 1), (2, 3, 4))[k]:
            p, y = chance[rows, kind], (part[rows] == kind).double()
            ious.append((1 + (p * y).sum()) / (1 + (p + y - p * y).sum()))
        shapes.append(torch.stack(ious).mean())
    loss, right = model.loss(geometry, category)
    without, same = plain.loss(geometry, category)
    missing = 1 - torch.stack(shapes).mean()
    torch.testing.assert_close((loss - without).double(), 0.5 * missing, rtol=1e-5, atol=0)
    assert torch.equal(right, same)
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    with pytest.raises(ValueError, match=r"overlap.*-1"):
        models.point_unet_plus([2, 3], overlap=-1.0)


@pytest.mark.parametrize("points", [0, 60])
def test_a_loss_of_parts_without_a_known_part_is_nothing(points):
    model = models.point_unet_plus([2, 3], width=8, levels=2, hidden=16, overlap=1.0)
    part = torch.full((points,), -1)
    loss, right = model.loss(model.plan(gl.Cloud.of(torch.rand(points, 3), part=part)), torch.tensor([0]))
    assert loss.item() == right.item() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_network_on_the_cpu_does_not_mind_another_default_device(name, cloud):
    model = small(name)
    # Tensors there have no values: whatever is made on the default device is noticed.
    with torch.device("meta"):
        data = gl.data.Shapes(2, points=64, transform=[gl.augment.RotateAboutUp(), gl.augment.Jitter(0.01)])
        examples = [gl.Cloud.of(data[0][0]), *cloud.examples, cloud[::2]]
        model(model.plan(gl.collate(examples, "power_of_two"))).sum().backward()
        assert gl.torch_cluster.radius_graph(data[1][0], 0.1).device.type == "cpu"
