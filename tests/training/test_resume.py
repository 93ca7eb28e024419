"""A run that was killed and resumed ends where the undisturbed one ends, to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import lightning
import pytest
import torch
from killing import KillAfter, Killed, weights

from gridless.__main__ import main
from gridless.training.run import run


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


@pytest.mark.parametrize("validated", [True, False])
def test_a_run_resumed_from_the_end_of_an_epoch_ends_with_the_same_weights(recipe, clouds, tmp_path, validated):
    # Checkpoints are written every ten epochs; an epoch is two steps.
    recipe, valid = recipe.changed(epochs=12, batch_size=22), clouds if validated else None
    whole = run(recipe, clouds, valid, tmp_path / "whole", progress=False)
    with pytest.raises(Killed):
        run(recipe, clouds, valid, tmp_path / "cut", progress=False, callbacks=[KillAfter(21)])
    resumed = run(recipe, clouds, valid, tmp_path / "cut", progress=False, resume=True)
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values()):
        assert torch.equal(a, b), name
    assert whole["history"] == resumed["history"]


def test_resuming_with_another_network_names_the_first_mismatch(recipe, clouds, tmp_path):
    run(recipe.changed(epochs=1), clouds, None, tmp_path, progress=False, checkpoint_steps=1)
    words = r"another network: 'blocks.0.branch.reduce.weight' of this PointResNet is \(8, 16\), in the file \(4, 8\)"
    with pytest.raises(ValueError, match=words):
        run(recipe.changed(model__width=16), clouds, None, tmp_path, progress=False, resume=True)


def test_resuming_nothing_says_so(recipe, clouds, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        run(recipe, clouds, None, tmp_path, resume=True)


class InterruptAfter(lightning.Callback):
    """Ctrl-C in the middle of a step, twice where a step is not waited for."""

    def __init__(self, steps: int, times: int = 1) -> None:
        self.steps, self.times = steps, times

    def on_train_batch_start(self, trainer, module, batch, number):
        if trainer.global_step == self.steps:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


# Five steps are an epoch. In its middle; and in its last step, where the validation comes first.
@pytest.mark.parametrize(("steps", "kept"), [(2, 3), (4, 6)])
def test_a_run_interrupted_by_hand_and_resumed_ends_with_the_same_weights(recipe, clouds, tmp_path, steps, kept):
    whole = run(recipe, clouds, clouds, tmp_path / "whole", progress=False)
    # No other checkpoint is due so early.
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted; go on with --resume$"):
        run(recipe, clouds, clouds, tmp_path / "cut", progress=False, callbacks=[InterruptAfter(steps)])
    assert torch.load(tmp_path / "cut/checkpoints/last.ckpt", weights_only=False)["global_step"] == kept
    resumed = run(recipe, clouds, clouds, tmp_path / "cut", progress=False, resume=True)
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values()):
        assert torch.equal(a, b), name
    assert whole["history"] == resumed["history"]


def test_a_second_interrupt_ends_a_run_at_once(recipe, clouds, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted before a checkpoint$"):
        run(recipe, clouds, None, tmp_path, progress=False, callbacks=[InterruptAfter(2, times=2)])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def one_thread():
    """Two processes that share the cores with other tests: what is compared here is where they stop and go on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("geometry", ["online", "workers"])
def test_ctrl_c_in_a_terminal_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, one_thread, geometry):
    small = ["--set", "data_options.size=140", "--set", "data_options.held_out=28", "--set", "points=64"]
    words = ["train", "shapes", *small, "--epochs", "12", "--geometry", geometry, "--workers", "1", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    # As a terminal does it: the signal goes to the whole group, workers included.
    process = subprocess.Popen(
        [sys.executable, "-m", "gridless", *words, "--out", str(tmp_path / "cut")],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = []
    while not any(line.startswith("epoch 1/") for line in lines):
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1:] == ["gridless train: interrupted; go on with --resume"]
    assert "Traceback" not in err
    assert not (tmp_path / "cut/weights.safetensors").exists()
    assert main([*words, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values()):
        assert torch.equal(a, b), name
