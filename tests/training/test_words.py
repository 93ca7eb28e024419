"""Words of a run: what is done to its examples, and what a gap between accuracies may mean."""

from __future__ import annotations

import inspect

import pytest
from small_run import small

import gridless as gl
from gridless.augment.events import EventTransform
from gridless.augment.points import PointTransform
from gridless.tasks import find
from gridless.training.recipe import load_recipe
from gridless.training.words import gap


def transforms(module, kind) -> list[type]:
    return [
        value
        for name, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, kind) and value is not kind and value.__module__ == module.__name__ and name[0] != "_"
    ]


@pytest.mark.parametrize(
    "transform",
    [*transforms(gl.augment.points, PointTransform), *transforms(gl.augment.events, EventTransform)],
    ids=lambda transform: f"{transform.__module__.rpartition('.')[2]}.{transform.__name__}",
)
def test_every_transform_describes_itself(transform):
    assert "describe" in vars(transform)
    special = {"names": "sort", "steps": ()}
    needed = [p.name for p in inspect.signature(transform).parameters.values() if p.default is p.empty]
    described = transform(
        *[
            special.get(name, 0.5 if name in ("least", "most") and transform.__name__ != "ThinTo" else 1)
            for name in needed
        ]
    ).describe()
    assert isinstance(described, str)
    assert transform.__name__ not in described


def augmentation(recipe):
    return find(recipe.task_name).describe_augmentation(recipe)


def test_augmentation_is_said_in_plain_words():
    recordings = load_recipe("own-recordings")
    assert augmentation(recordings) == "0.8 to 1.25 times the speed", "gestures to the left and right differ"
    mirrored = recordings.changed(transforms=[{"Flip": 0}, {"StretchTime": [0.8, 1.25]}])
    assert augmentation(mirrored) == "mirrored left to right, 0.8 to 1.25 times the speed"
    assert augmentation(load_recipe("n-mnist")) == "played backwards, turned by up to 22 degrees"
    assert "up to 30% of the points left out, points moved by about 0.01, 0.9 to 1.1 times" in augmentation(small())
    assert augmentation(load_recipe("glyphs").changed(transforms=[])) == "nothing"


def history(*pairs):
    return [{"epoch": i + 1, "train_accuracy": a, "valid_accuracy": b} for i, (a, b) in enumerate(pairs)]


def test_a_small_gap_is_not_named():
    assert gap(history((0.9, 0.8)), 1000) is None
    assert gap(history((0.5, 0.9)), 1000) is None
    assert gap([{"epoch": 1, "train_accuracy": 0.9}], 1000) is None
    assert gap([{"epoch": 1, "train_loss": 0.9, "valid_accuracy": 0.1}], 1000) is None
    assert gap(history((0.9, float("nan"))), 1000) is None


@pytest.mark.parametrize(
    ("figures", "steps", "sessions", "reason"),
    [
        ([(0.95, 0.25)], 12, True, "12 steps are few"),
        ([(0.8, 0.7), (0.99, 0.6)], 1000, True, "it was 70.0% after epoch 1: the network overfits"),
        ([(0.8, 0.5), (0.99, 0.5)], 1000, True, "another kind of session"),
        ([(0.8, 0.5), (0.99, 0.5)], 1000, False, "the network overfits"),
    ],
)
def test_a_large_gap_is_named_with_its_likely_reason(figures, steps, sessions, reason):
    advice = gap(history(*figures), steps, sessions)
    assert advice is not None
    assert reason in advice
    assert f"{figures[-1][0]:.1%} in training and {figures[-1][1]:.1%}" in advice
