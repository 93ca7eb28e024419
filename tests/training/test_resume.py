"""A run that was killed and resumed ends where the undisturbed one ends, to the bit."""

from __future__ import annotations

import lightning
import pytest
import torch
from safetensors.torch import load_file

from gridless.training.run import run


class Killed(Exception):
    """What ends a run in these tests."""


class KillAfter(lightning.Callback):
    """Ends the run without warning after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer, module, batch, number):
        if trainer.global_step == self.steps:
            raise Killed


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


# In the middle of an epoch, at its end, and in the middle of a later one.
@pytest.mark.parametrize(("steps", "schedule"), [(3, "cosine"), (5, "plateau"), (8, "plateau")])
def test_a_run_killed_at_any_step_and_resumed_ends_with_the_same_weights(recipe, clouds, tmp_path, steps, schedule):
    recipe = recipe.changed(schedule=schedule, patience=1)
    settings = {"device": "cpu", "checkpoint_steps": 1, "progress": False}
    whole = run(recipe, clouds, clouds, tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        run(recipe, clouds, clouds, tmp_path / "cut", callbacks=[KillAfter(steps)], **settings)
    resumed = run(recipe, clouds, clouds, tmp_path / "cut", resume=True, **settings)
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values()):
        assert torch.equal(a, b), name
    for name in ("train_loss", "train_accuracy", "valid_accuracy", "learning_rate"):
        assert whole[name] == resumed[name]


def test_resuming_with_another_network_names_the_first_mismatch(recipe, clouds, tmp_path):
    run(recipe.changed(epochs=1), clouds, None, tmp_path, progress=False, checkpoint_steps=1)
    words = r"another network: 'blocks.0.branch.reduce.weight' of this PointResNet is \(8, 16\), in the file \(4, 8\)"
    with pytest.raises(ValueError, match=words):
        run(recipe.changed(model__width=16), clouds, None, tmp_path, progress=False, resume=True)


def test_resuming_nothing_says_so(recipe, clouds, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        run(recipe, clouds, None, tmp_path, resume=True)
