"""Labelled points: the figures of merit, and a network that learns parts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.augment.policy import Policy
from gridless.cli.main import main
from gridless.tasks.scores import mean_ious, shape_ious
from gridless.tasks.segment import LabelParts, LabelScenes
from gridless.training.batch import Batch, Group, transposed
from gridless.training.captured import Slot, capacity
from gridless.training.examples import Clouds, TrainingSet
from gridless.training.recipe import Recipe
from gridless.training.run import run
from gridless.training.step import TrainStep

PARTS = [2, 3, 1]


def by_hand(predicted: list[int], part: list[int], first: int, count: int) -> float:
    """The mean over a category's parts of |both| / |either|, 1 where neither is there, by sets of points."""
    ious = []
    for k in range(first, first + count):
        a = {i for i, p in enumerate(predicted) if p == k}
        b = {i for i, p in enumerate(part) if p == k}
        ious.append(1.0 if not a | b else len(a & b) / len(a | b))
    return sum(ious) / count


@pytest.mark.parametrize("seed", range(5))
def test_intersection_over_union_is_that_of_sets(seed):
    random = np.random.default_rng(seed)
    first = np.cumsum([0, *PARTS])
    category = random.integers(0, 3, 12)
    sizes = random.integers(1, 9, 12)
    # Predictions of parts of other categories count for no part of this one, but leave it smaller.
    predicted = [random.integers(0, 6, n) for n in sizes]
    part = [first[k] + random.integers(0, PARTS[k], n) for k, n in zip(category, sizes, strict=True)]
    example = torch.from_numpy(np.repeat(np.arange(12), sizes))
    flat = [torch.from_numpy(np.concatenate(rows)) for rows in (predicted, part)]
    ious = shape_ious(*flat, example, torch.from_numpy(category), PARTS)
    wanted = [
        by_hand(a.tolist(), b.tolist(), int(first[k]), PARTS[k])
        for a, b, k in zip(predicted, part, category, strict=True)
    ]
    assert ious.tolist() == pytest.approx(wanted, abs=1e-12)
    means = mean_ious(ious, torch.from_numpy(category), ["one", "two", "three", "of which there is none"])
    assert means["instance_iou"] == pytest.approx(np.mean(wanted))
    each = [np.mean([w for w, c in zip(wanted, category, strict=True) if c == k]) for k in np.unique(category)]
    assert means["category_iou"] == pytest.approx(np.mean(each))
    assert means["examples"] == 12


def test_parts_that_are_nowhere_count_as_right():
    ious = shape_ious(
        *torch.tensor([[2, 2, 2], [2, 2, 3]]), torch.zeros(3, dtype=torch.int64), torch.tensor([1]), PARTS
    )
    # Part 2: two of three; part 3: none of one; part 4: nowhere.
    assert ious.tolist() == pytest.approx([(2 / 3 + 0 + 1) / 3])


def test_parts_that_a_network_does_not_have_are_refused():
    with pytest.raises(ValueError, match=r"part 6.*has 6"):
        shape_ious(*torch.tensor([[0, 2], [6, 2]]), torch.tensor([0, 1]), torch.tensor([0, 1]), PARTS)


def test_points_without_a_part_are_not_judged():
    model = gl.models.point_unet_plus([2, 3], width=8, levels=2, spacing=0.2, stem_radius=0.25, hidden=16).eval()
    category, part = torch.tensor([0, 1]), torch.tensor([[0], [2]]).repeat(1, 20)
    part[:, 5:] = -1
    points = torch.rand(2, 20, 3, generator=torch.Generator().manual_seed(0))
    geometry = model.plan(gl.Cloud.of(points, part=part.flatten()))
    scores = LabelParts().score(model, Group(model.plan, geometry, category)[0])
    right = model(geometry, category).argmax(1).view(2, 20)[:, :5] == part[:, :5]
    assert scores[:, :2].tolist() == [[int(right[0].sum()), 5], [int(right[1].sum()), 5]]


def test_accuracy_is_the_share_of_points_whatever_the_sizes_of_blocks():
    # 90 of 100 points of a block, none of 10 of another; two classes.
    scans = torch.tensor([[50.0, 5, 5, 40], [0, 5, 5, 0]], dtype=torch.float64)
    assert LabelScenes().figures(scans, blocks_of_scans())["accuracy"] == pytest.approx(90 / 110)
    shapes = torch.tensor([[90.0, 100, 0.5], [0, 10, 0.1]], dtype=torch.float64)
    assert LabelParts().figures(shapes, labelled(2))["accuracy"] == pytest.approx(90 / 110)


class Guess(torch.nn.Module):
    """Says class 1 of points to the right."""

    config = {"model": "PointUNet", "classes": 2}

    def __init__(self):
        super().__init__()
        self.plan, self.cloud = gl.models.point_unet(2, width=8, levels=1, radius=0.5).plan, "points"
        self.slope = torch.nn.Parameter(torch.ones(()))

    def forward(self, geometry, category=None):
        x = next(iter(geometry.values())).coords[:, 0] * self.slope
        return torch.stack([-x, x], 1)


def judged(model, data, settings, batch_size=None):
    return LabelScenes().evaluate(model, data, settings, batch_size)


def blocks_of_scans() -> TrainingSet:
    """Three blocks of two scans, of 60, 60 and 6 points; wrong in the small one alone, and one point has no label."""
    coords = torch.randn(3, 60, 3, generator=torch.Generator().manual_seed(0))
    part = (coords[..., 0] > 0).long()
    part[2] = 1 - part[2]
    part[0, 0] = -1
    sizes, files = torch.tensor([60, 60, 6]), torch.tensor([4, 4, 7])
    labels, more = torch.zeros(3, dtype=torch.int64), {"parts": "ab", "values": (2, 5), "files": files}
    return Clouds(coords, labels, ["sites"], sizes, {"part": part}, **more)


def test_blocks_are_judged_by_their_points_and_counted_by_their_scans():
    data = blocks_of_scans()
    model = Guess()
    scores = judged(model, data, recipe(), batch_size=2)
    assert model.training, "as it was"
    assert scores["accuracy"] == pytest.approx(119 / 125)
    assert (scores["scans"], scores["examples"]) == (2, 3)
    assert judged(Guess(), data.take(torch.tensor([0, 1])), recipe())["scans"] == 1


@pytest.mark.parametrize("batch_size", [2, 3])
def test_blocks_without_any_label_are_not_judged(batch_size):
    data = blocks_of_scans()
    data.rows["part"][120:] = -1
    scores = judged(Guess(), data, recipe(), batch_size=batch_size)
    assert (scores["accuracy"], scores["mean_iou"], scores["examples"]) == (1, 1, 3)


def test_a_set_without_any_label_is_known():
    data = blocks_of_scans()
    data.rows["part"][:] = -1
    assert not data.is_labelled
    data.rows["part"][125] = 0
    assert data.is_labelled


def test_the_padding_of_a_block_is_no_point():
    assert [len(tensor) for tensor in blocks_of_scans().tensors()] == [3, 126, 4, 126]


def test_the_iou_of_a_class_is_over_the_points_of_all_blocks():
    data = blocks_of_scans()
    real = data.rows["part"] >= 0
    guess, part = (data.examples.coords[real][:, 0] > 0).long(), data.rows["part"][real]
    each = [((guess == k) & (part == k)).sum().item() / ((guess == k) | (part == k)).sum().item() for k in (0, 1)]
    scores = judged(Guess(), data, recipe(), batch_size=2)
    assert scores["by_class"] == pytest.approx({"a": each[0], "b": each[1]})
    assert scores["mean_iou"] == pytest.approx(sum(each) / 2)
    # A class that is nowhere does not count.
    scans = torch.tensor([[3.0, 1, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    figures = LabelScenes().figures(scans, data)
    assert figures["by_class"] == pytest.approx({"0": 3 / 4, "1": 0.0})
    assert figures["confusion"] == [[3, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_the_accuracy_of_training_is_the_share_of_points_over_all_steps():
    model = Guess()
    model.loss = lambda *given: gl.models.PointUNet.loss(model, *given)  # type: ignore[assignment]
    model.cloud = next(iter(model.plan(blocks_of_scans().draw(None, 0, 0, torch.arange(3)))))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), 0.0))
    for batch in LabelScenes().loader(recipe(), blocks_of_scans(), model.plan, train=False, batch_size=2):
        step(batch)
    assert step.read()[1] == pytest.approx(119 / 125)


# Learning parts.

SMALL = {"width": 8, "levels": 2, "spacing": 0.3, "stem_radius": 0.3, "hidden": 16, "dropout": 0.0}


def labelled(count: int, seed: int = 0, points: int = 60) -> TrainingSet:
    """Balls of two categories whose parts are halves: left and right, or below, in the middle and above."""
    random = torch.Generator().manual_seed(seed)
    coords = torch.randn(count, points, 3, generator=random)
    coords /= coords.norm(dim=2, keepdim=True)
    category = torch.arange(count) % 2
    sideways, upwards = (coords[..., 0] > 0).long(), 2 + (coords[..., 1] > -0.4).long() + (coords[..., 1] > 0.4).long()
    part = torch.where(category[:, None] == 0, sideways, upwards)
    sizes = torch.randint(points // 2, points + 1, (count,), generator=random)
    part[torch.arange(points) >= sizes[:, None]] = -1
    return Clouds(coords, category, ["left", "high"], sizes, {"part": part})


def recipe(**changes) -> Recipe:
    values = {"model": {"model": "point_unet_plus", "parts": [2, 3], **SMALL}, "data": "shapenetpart", "points": 60}
    values |= {"augment": {"shuffle": True, "jitter": 0.01}, "epochs": 8, "batch_size": 8, "learning_rate": 0.01}
    values |= {"optimiser": "adamw", "schedule": "cosine", "norm_momentum": 0.1, "validate_every": 8}
    return Recipe.from_dict(values | changes)


@pytest.mark.parametrize("policy", [Policy(), Policy(shuffle=True), Policy(shuffle=True, drop=0.5, scale=(0.5, 2.0))])
def test_parts_follow_their_points_and_what_does_not_count_stays_out(policy):
    data = labelled(6)
    cloud = data.draw(policy, 3, 1, torch.tensor([4, 1, 5]))
    part = cloud.rows["part"]
    assert bool((part >= 0).all())
    assert bool((cloud.sizes <= data.sizes[[4, 1, 5]]).all())
    assert policy.drop > 0 or torch.equal(cloud.sizes, data.sizes[[4, 1, 5]])
    for i, one in zip([4, 1, 5], cloud.examples, strict=True):
        back = one.coords / one.coords.norm(dim=1, keepdim=True)
        whole = data.examples.examples[i]
        row = (back[:, None] - whole.coords).norm(dim=2).argmin(1)
        assert len(row.unique()) == len(row)
        assert torch.equal(one.rows["part"], whole.rows["part"][row])


def test_a_cut_and_padded_batch_has_the_loss_of_its_clouds():
    torch.manual_seed(0)
    model = recipe().make_model().double()
    data = labelled(8)
    data = replace(data, examples=data.examples._changed(coords=data.examples.coords.double()))
    plan = model.plan
    geometry = transposed(plan(data.draw(None, 0, 0, torch.arange(8))))
    group = Group(plan, geometry, data.labels, [1.0, 1.0], [3, 5])
    alone = plan(data.draw(None, 0, 0, torch.arange(3, 8)))
    wanted = model.loss(alone, data.labels[3:], 0.1)
    cut: Batch = group[1]
    slot = Slot(cut, capacity(cut.sizes))
    for batch in (cut, slot.batch):
        losses = model.loss(batch.geometry, batch.labels, 0.1)
        torch.testing.assert_close(losses[0], wanted[0])
        assert losses[1].item() == pytest.approx(wanted[1].item())


@pytest.mark.slow
def test_a_network_learns_parts_and_is_judged_by_mean_iou(tmp_path):
    results = run(recipe(), labelled(48), labelled(16, seed=1), tmp_path, progress=False)
    assert results is not None
    assert results["valid_instance_iou"] > 0.6
    assert results["train_accuracy"] > 0.8
    again = LabelParts().evaluate(gl.load(tmp_path / "weights"), labelled(16, seed=1), recipe())
    assert again["instance_iou"] == pytest.approx(results["valid_instance_iou"])
    assert again["category_iou"] == pytest.approx(results["valid_category_iou"])
    assert again["accuracy"] == pytest.approx(results["valid_accuracy"])
    assert set(again["by_category"]) == {"left", "high"}
    with pytest.raises(ValueError, match="votes"):
        recipe(votes=2)


def release(root: Path) -> None:
    """Mugs in the layout of the official folder."""
    lists = {"train": "abcd", "val": "ef", "test": "gh"}
    (root / "train_test_split").mkdir(parents=True)
    (root / "03797390").mkdir()
    for part, names in lists.items():
        listing = [f"shape_data/03797390/{name}" for name in names]
        (root / "train_test_split" / f"shuffled_{part}_file_list.json").write_text(json.dumps(listing))
        for name in names:
            coords = np.random.default_rng(ord(name)).normal(size=(80, 3))
            rows = np.concatenate([coords, np.zeros((80, 3)), 36 + (coords[:, :1] > 0)], 1)
            np.savetxt(root / "03797390" / f"{name}.txt", rows, "%.6f")


@pytest.mark.slow
def test_the_recipe_trains_evaluates_and_writes_parts_as_ply(tmp_path, capsys):
    root, out = tmp_path / "set", tmp_path / "run"
    release(root)
    options = [word for name, value in SMALL.items() for word in ("--set", f"model.{name}={value}")]
    options += ["--set", "points=64", "--set", "batch_size=2", "--epochs", "1", "--device", "cpu"]
    assert main(["train", "shapenetpart", "--data", str(root), "--out", str(out), *options]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["valid_instance_iou"] <= 1
    weights = str(out / "weights.safetensors")
    assert main(["evaluate", weights, "--data", str(root), "--split", "test", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "instance mIoU" in text
    assert "of the points of 2 shapes" in text
    assert main(["evaluate", weights, "--data", str(root), "--split", "test", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["by_category"].keys() == {"mug"}
    coords = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    np.save(tmp_path / "cup.npy", coords)
    ask = ["predict", str(tmp_path / "cup.npy"), "--weights", weights, "--out", str(tmp_path / "parts")]
    assert main([*ask, "--category", "mug", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    cloud = gl.read_cloud(tmp_path / "parts" / "cup.ply")
    assert np.array_equal(cloud.coords.numpy(), coords)
    assert cloud.rows["rgb"].shape == (500, 3)
    assert line["parts"] == {f"mug {i}": int((cloud.rows["part"] == i).sum()) for i in range(2)}
    for i in range(2):
        assert len(cloud.rows["rgb"][cloud.rows["part"] == i].unique(dim=0)) <= 1
    assert len(cloud.rows["rgb"].unique(dim=0)) == len(cloud.rows["part"].unique())
    assert main(ask) != 0
    assert re.search(r"cup\.npy.*--category.*airplane, bag,", capsys.readouterr().err)
