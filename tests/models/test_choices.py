"""Design choices of the paper's point networks."""

from __future__ import annotations

import json

import pytest
import torch

import gridless as gl
from gridless import models
from gridless.nn import Choices
from gridless.training.recipe import load_recipe


@pytest.fixture(scope="module")
def clouds() -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.rand(n, 3, generator=g) for n in (120, 60)]


CHOICES = [
    {"order": 0},
    {"order": 1},
    {"order": 3},
    {"basis": "kernel points"},
    {"nearest": 6},
    {"nearest": 6, "self_edge": False},
    {"limit": 6},
    {"limit": 6, "self_edge": False},
    {"falloff": None},
    {"normalise": False},
    {"falloff": None, "normalise": False},
    {"sampler": "farthest"},
    {"sampler": "approximate farthest", "fraction": 0.2},
    {"sampler": "random"},
    {"self_edge": False},
]


@pytest.mark.parametrize("name", ["point_resnet_large", "point_resnet_small"])
@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_every_choice_makes_a_network_that_learns_and_sees_a_cloud_alike_in_a_batch(name, changes, clouds):
    torch.manual_seed(0)
    model = models.build({"model": name, "classes": 5, "width": 8, "radius": 0.25, **changes})
    logits = model(model.plan(gl.Cloud.of(clouds)))
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    together = model(model.plan(gl.Cloud.of(clouds)))
    # Without normalisation activations are large, and rounding is relative to the largest of them.
    scale = float(together.detach().abs().max().clamp(min=1))
    for logits, cloud in zip(together, clouds):
        torch.testing.assert_close(logits, model(model.plan(cloud))[0], rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_a_network_is_rebuilt_with_its_choices_from_json(changes):
    model = models.build({"model": "point_resnet_large", **changes})
    config = json.loads(json.dumps(model.config))
    assert config["choices"] == changes
    again = models.build(config)
    assert again.config == model.config
    assert again.plan == model.plan
    assert repr(again) == repr(model)


def test_the_papers_choices_are_no_entry_of_a_config():
    assert models.PointResNet(choices=Choices()).config == models.PointResNet().config
    assert "choices" not in models.PointResNet().config


def test_a_recipe_changes_one_choice_at_a_time():
    recipe = load_recipe("modelnet40-large").changed(model__order=1).changed(model__sampler="random")
    model = recipe.make_model()
    assert model.config["choices"] == {"order": 1, "sampler": "random"}
    assert model.stem.weight.shape[0] == 4
    assert "random_sample" in str(model.plan)


def test_basis_and_weights_of_a_network_are_those_chosen():
    model = models.build({"model": "point_resnet_large", "order": 0, "falloff": None, "normalise": False})
    convs = [m for m in model.modules() if isinstance(m, gl.nn.PointConv | gl.nn.FeaturelessConv)]
    assert len(convs) == 7
    assert {(conv.basis.size, conv.falloff, conv.normalise) for conv in convs} == {(1, None, False)}


def test_a_network_without_self_edges_has_none(clouds):
    model = models.build({"model": "point_resnet_large", "radius": 0.25, "self_edge": False})
    geometry = model.plan(clouds[0])
    convs = [m for m in model.modules() if isinstance(m, gl.nn.PointConv | gl.nn.FeaturelessConv)]
    for conv in convs:
        edges, target = geometry[conv.edges], geometry[conv.edges.target]
        own = target.parent_index if conv.edges.source != conv.edges.target else torch.arange(len(target))
        assert not (edges.source == own[edges.target.long()]).any()
    # Rejection sampling is along whole balls.
    assert len(geometry["X1"]) == len(models.PointResNet(radius=0.25).plan(clouds[0])["X1"])


@pytest.mark.parametrize("self_edge", [True, False])
def test_a_limit_keeps_the_nearest_of_a_ball_and_samples_as_whole_balls_do(clouds, self_edge):
    whole = models.PointResNet(radius=0.25, choices=Choices(self_edge=self_edge)).plan(clouds[0])
    model = models.PointResNet(radius=0.25, choices=Choices(limit=6, self_edge=self_edge))
    geometry = model.plan(clouds[0])
    cut = 0
    for conv in (m for m in model.modules() if isinstance(m, gl.nn.PointConv | gl.nn.FeaturelessConv)):
        edges = geometry[conv.edges]
        most = 6 if conv.edges.source == conv.edges.target else 12
        assert edges.counts.max() <= most
        cut += int(edges.counts.max() == most)
    assert cut
    assert (geometry["X1"].coords == whole["X1"].coords).all()


def test_nearest_and_limit_exclude_each_other():
    with pytest.raises(ValueError, match="exclude"):
        Choices(nearest=6, limit=6)


@pytest.mark.parametrize("choice", [{"sampler": "grid"}, {"basis": "splines"}, {"falloff": "cubic"}, {"self_edge": 2}])
def test_a_choice_that_does_not_exist_is_refused_by_name(choice):
    (name, value), *_ = choice.items()
    with pytest.raises(ValueError, match=f"Choices: {name} is {value!r}"):
        Choices(**choice)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"sampler": "farthest", "fraction": 0}, "fraction is 0"),
        ({"sampler": "farthest", "fraction": 2}, "fraction is 2"),
        ({"sampler": "random", "fraction": float("nan")}, "fraction is nan"),
        ({"fraction": 0.5}, "fraction is 0.5, but rejection has none"),
        ({"order": 1.5}, "order is 1.5"),
        ({"order": -1}, "order is -1"),
    ],
)
def test_a_number_that_no_network_can_have_is_refused(choices, message):
    with pytest.raises(ValueError, match=f"Choices: {message}"):
        Choices(**choices)


def test_a_whole_fraction_keeps_all_points(clouds):
    model = models.build({"model": "point_resnet_small", "classes": 3, "sampler": "farthest", "fraction": 1})
    geometry = model.plan(gl.Cloud.of(clouds))
    assert all(len(geometry[f"X{n}"].coords) == 180 for n in range(4))
