"""A run that was killed and resumed ends where the undisturbed one ends, to the bit."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from killing import KillAfter, Killed, weights
from small_run import shapes, small

import gridless as gl
from gridless.cli.main import main
from gridless.tasks.classify import Classify
from gridless.training import Clouds, Recipe, Recordings
from gridless.training.checkpoints import digest_of, share, write_checkpoint
from gridless.training.logs import EpochBar, Log
from gridless.training.run import run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "without_pictures")]


# In the middle of an epoch, at its end, and in the middle of a later one.
@pytest.mark.slow
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
    assert whole["history"] == resumed["history"]
    same_log(tmp_path)


def same_log(folder):
    whole, cut = ((folder / name / "metrics.csv").read_text() for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.slow
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
    same_log(tmp_path)


# Killed before the last validation, and after everything was written.
@pytest.mark.parametrize("validated", [False, True])
def test_a_run_resumed_after_its_last_step_has_its_accuracy(recipe, clouds, tmp_path, validated):
    recipe = recipe.changed(epochs=2)
    whole = run(recipe, clouds, clouds, tmp_path / "whole", progress=False, checkpoint_steps=1)
    if validated:
        shutil.copytree(tmp_path / "whole" / "checkpoints", tmp_path / "cut" / "checkpoints")
        shutil.copy(tmp_path / "whole" / "metrics.csv", tmp_path / "cut")
    else:
        with pytest.raises(Killed):
            run(recipe, clouds, clouds, tmp_path / "cut", progress=False, checkpoint_steps=1, callbacks=[KillLast(10)])
    resumed = run(recipe, clouds, clouds, tmp_path / "cut", progress=False, resume=True)
    assert resumed["history"][-1] == whole["history"][-1]
    for name in ("train_loss", "train_accuracy", "valid_accuracy", "learning_rate"):
        assert resumed[name] == whole[name]
    about = json.loads((tmp_path / "cut/weights.json").read_text())
    assert about["results"]["valid_accuracy"] == whole["valid_accuracy"]
    same_log(tmp_path)
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values()):
        assert torch.equal(a, b), name


def test_an_epoch_is_shown_with_the_examples_that_it_saw(capsys):
    bar = EpochBar(20, done=19)
    assert capsys.readouterr().err == ""
    bar.step(2, 19.5)
    bar.epoch({"epoch": 20, "train_loss": 0.5})
    assert capsys.readouterr().err.startswith("epoch 20/20: 0.500 loss, ")
    assert bar.seen == 0, "the examples of an epoch are counted once"


class KillLast:
    """Ends the run between the last step of an epoch and the validation after it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_validation_start(self, state):
        if state.step == self.step:
            raise Killed


def test_a_run_killed_before_a_validation_makes_it_when_resumed(recipe, clouds, tmp_path):
    settings = {"checkpoint_steps": 1, "progress": False}
    whole = run(recipe, clouds, clouds, tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        run(recipe, clouds, clouds, tmp_path / "cut", callbacks=[KillLast(10)], **settings)
    resumed = run(recipe, clouds, clouds, tmp_path / "cut", resume=True, **settings)
    assert whole["history"] == resumed["history"]
    same_log(tmp_path)


def test_the_accuracy_of_a_run_is_that_of_the_weights_it_leaves(recipe, clouds, tmp_path):
    results = run(recipe.changed(epochs=3, validate_every=2, votes=3), clouds, clouds, tmp_path, progress=False)
    assert ["valid_accuracy" in entry for entry in results["history"]] == [False, True, True]
    model = gl.load(tmp_path / "weights")
    for name, votes in (("valid_accuracy", 1), ("valid_accuracy_by_votes", 3)):
        right = Classify().probabilities(model, clouds, recipe, votes=votes).argmax(1) == clouds.labels
        assert results[name] == right.double().mean().item()


def test_the_loss_and_accuracy_of_an_epoch_are_means_over_its_examples(recipe, clouds, tmp_path):
    """Weights that do not move, and batches of ten and one of two."""
    scores, network = [], {"model": {**recipe.model, "dropout": 0.0}, "smoothing": 0.0, "average": None}
    recipe = Recipe.from_dict({**recipe.to_dict(), **network, "epochs": 1, "learning_rate": 1e-30, "l2": 0.0})
    model = recipe.make_model().train()

    class Look:
        def on_step_end(self, state, batch):
            logits = model(batch.geometry)
            loss = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="none")
            scores.extend(zip(loss.tolist(), (logits.argmax(1) == batch.labels).tolist()))

    results = run(recipe, clouds, None, tmp_path, progress=False, callbacks=[Look()])
    assert len(scores) == len(clouds) == 42
    losses, right = zip(*scores)
    assert results["train_accuracy"] == sum(right) / 42
    assert results["train_loss"] == pytest.approx(sum(losses) / 42, rel=1e-5)


def test_there_is_a_checkpoint_every_ten_epochs_unless_it_is_said_otherwise(recipe, tmp_path):
    run(recipe.changed(epochs=11, batch_size=3), shapes(3), None, tmp_path, progress=False)
    assert torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["step"] == 10


def test_a_run_shows_and_logs_the_validation_of_each_epoch_as_its_own(recipe, clouds, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gridless.training.logs.EVERY", 0.0)
    results = run(recipe.changed(epochs=3, validate_every=2), clouds, clouds, tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert [" valid" in line for line in lines] == [False, True, True]
    with open(tmp_path / "metrics.csv") as file:
        rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    assert rows == results["history"], "one row for each epoch"
    assert ["valid_accuracy" in row for row in rows] == [False, True, True]


class Spoil:
    """Makes a weight no number before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_start(self, state, batch):
        if state.step == self.step:
            with torch.no_grad():
                next(state.model.parameters()).view(-1)[0] = torch.nan


# In the middle of an epoch, where the next checkpoint would be; and with none before the end of the epoch.
@pytest.mark.parametrize("checkpoint_steps", [1, None])
def test_a_run_that_diverges_ends_with_an_error_and_its_last_checkpoint(recipe, clouds, tmp_path, checkpoint_steps):
    with pytest.raises(FloatingPointError, match=r"epoch 2.*learning_rate.*0\.001"):
        run(recipe, clouds, None, tmp_path, progress=False, checkpoint_steps=checkpoint_steps, callbacks=[Spoil(7)])
    assert not (tmp_path / "weights.safetensors").exists()
    last = tmp_path / "checkpoints/last.ckpt"
    assert last.exists() == (checkpoint_steps is not None)
    if checkpoint_steps:
        saved = torch.load(last, weights_only=True)
        assert saved["step"] == 7
        assert all(bool(tensor.isfinite().all()) for tensor in saved["model"].values())


def test_results_are_json_whatever_the_figures(recipe, clouds, tmp_path, monkeypatch):
    monkeypatch.setattr("gridless.tasks.base.Task.judge", lambda *given, **more: {"accuracy": float("nan")})
    results = run(recipe.changed(epochs=1, validate_every=2), clouds, clouds, tmp_path, progress=False)
    assert results["valid_accuracy"] is None
    for name in ("results.json", "weights.json"):
        json.loads((tmp_path / name).read_text(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was killed in its middle."""
    folder, recipe, clouds = tmp_path_factory.mktemp("begun"), small(), shapes(42)
    with pytest.raises(Killed):
        run(recipe, clouds, None, folder, progress=False, checkpoint_steps=1, callbacks=[KillAfter(3)])
    return folder, recipe, clouds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed.*1.*0"),
        ({"model__width": 16}, "model.width.*16.*8"),
        ({"augment__shift": 0.1, "epochs": 7}, "augment.shift.*0.1.*0.0.*epochs.*7.*3"),
        ({"model__order": 1}, "model.order.*1.*None"),
    ],
)
def test_resuming_with_another_recipe_names_what_differs(begun, changes, message):
    folder, recipe, clouds = begun
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"last\.ckpt.*{message}"):
        run(recipe.changed(**changes), clouds, None, folder, progress=False, resume=True)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_resuming_with_other_examples_is_refused(begun):
    folder, recipe, clouds = begun
    rows = {"normal": torch.zeros_like(clouds.points)}
    points, labels, names = clouds.points, clouds.labels, clouds.class_names
    others = [
        shapes(41),
        replace(clouds, labels=labels.roll(1)),
        Clouds(points.roll(1, 1), labels, names),
        replace(clouds, class_names=["sphere", "rod", "disc"]),
        clouds.first(47),
        Clouds(points, labels, names, rows=rows),
        replace(clouds, parts=["a", "b"], values=[2, 5]),
    ]
    for other in others:
        with pytest.raises(ValueError, match=r"last\.ckpt.*training examples.*\d+.*42"):
            run(recipe, other, None, folder, progress=False, resume=True)


def test_labels_of_points_and_events_are_part_of_what_examples_are(clouds):
    part = torch.zeros(clouds.points.shape[:2], dtype=torch.int64)
    more = {"parts": ["a", "b"], "values": [2, 5]}

    def of(part):
        return Clouds(clouds.points, clouds.labels, clouds.class_names, rows={"part": part}, **more)

    labelled, other = of(part), part.clone()
    other[7, 3] = 1
    glyphs = gl.data.MovingGlyphs(6, seed=0)
    events = gl.Events(glyphs.pixel, glyphs.time, glyphs.polarity, glyphs.splits, glyphs.sensor)
    later = gl.Events(glyphs.pixel, glyphs.time + 1, glyphs.polarity, glyphs.splits, glyphs.sensor)
    recordings = [Recordings.of(e, glyphs.labels, glyphs.class_names) for e in (events, later)]
    sets = [labelled, of(other), replace(labelled, values=[2, 6]), *recordings]
    assert len({digest_of(data) for data in sets}) == len(sets)
    assert digest_of(labelled) == digest_of(of(part.clone()))


def test_a_second_run_does_not_overwrite_the_first(begun, capsys):
    folder, recipe, clouds = begun
    with pytest.raises(FileExistsError, match=rf"{folder}.*--resume.*--out"):
        run(recipe, clouds, None, folder, progress=False)
    assert main(["train", "shapes", "--out", str(folder), "--device", "cpu"]) == 1
    assert re.search(f"{folder}.*--resume.*--out", capsys.readouterr().err)


def test_two_runs_do_not_share_a_folder(recipe, clouds, tmp_path):
    class Second:
        def on_train_start(self, *_):
            with pytest.raises(ValueError, match=f"another run .*{tmp_path}"):
                run(recipe.changed(seed=5), clouds, None, tmp_path, progress=False)

    result = run(recipe, clouds, None, tmp_path, progress=False, callbacks=[Second()])
    assert result == json.loads((tmp_path / "results.json").read_text())
    assert f"seed: {recipe.seed}\n" in (tmp_path / "recipe.yaml").read_text()
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("files", [[], ["checkpoints/last.ckpt", "results.json"]])
def test_a_run_that_ended_stays_as_it_is(capsys, tmp_path, files):
    folder = tmp_path / "my run"
    for name in ("weights.safetensors", *files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for resume in ([], ["--resume"]):
        # The folder is refused before its data is read: there is none.
        assert main(["train", "own-clouds", "--data", "nowhere", "--out", str(folder), *resume]) == 1
        error = capsys.readouterr().err
        assert "--out" in error
        assert f"--set 'start={folder}/weights'" in error


@pytest.mark.parametrize("below", ["", "runs/1"])
def test_a_file_is_no_folder_of_a_run(capsys, tmp_path, below):
    (tmp_path / "file").touch()
    # It is refused before the data is read: there is none.
    assert main(["train", "own-clouds", "--data", "nowhere", "--out", str(tmp_path / "file" / below)]) == 1
    assert f"{tmp_path / 'file'} is a file" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["", "runs/1"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_data_is_read(capsys, tmp_path, monkeypatch, below):
    # The superuser may write anywhere, so that no mode of the folder would do.
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == tmp_path) and access(path, mode)
    )
    assert main(["train", "own-clouds", "--data", "nowhere", "--out", str(tmp_path / below)]) == 1
    assert re.search(f"{re.escape(str(tmp_path))} .*--out", capsys.readouterr().err)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_checkpoint_is_named(begun, tmp_path, share):
    folder, recipe, clouds = begun
    whole = (folder / "checkpoints/last.ckpt").read_bytes()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"last\.ckpt.*truncated"):
        run(recipe, clouds, None, tmp_path, progress=False, resume=True)


def test_a_foreign_checkpoint_is_named(begun, tmp_path):
    _, recipe, clouds = begun
    (tmp_path / "checkpoints").mkdir()
    torch.save({"state_dict": {}}, tmp_path / "checkpoints/last.ckpt")
    with pytest.raises(ValueError, match=r"last\.ckpt.*truncated"):
        run(recipe, clouds, None, tmp_path, progress=False, resume=True)


def test_a_checkpoint_of_an_earlier_version_is_named(begun, tmp_path):
    _, recipe, clouds = begun
    (tmp_path / "checkpoints").mkdir()
    for old in ({"pytorch-lightning_version": "2.5.1", "global_step": 3}, {"format": 1, "step": 3}):
        torch.save(old, tmp_path / "checkpoints/last.ckpt")
        with pytest.raises(ValueError, match=r"last\.ckpt.*version"):
            run(recipe, clouds, None, tmp_path, progress=False, resume=True)


def test_resuming_nothing_says_so(recipe, clouds, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}.*last\.ckpt"):
        run(recipe, clouds, None, tmp_path, resume=True)


def test_checkpoints_are_written_beside_their_place(recipe, clouds, tmp_path, monkeypatch):
    # A file written in another folder would be copied over the last checkpoint, if that is on another file system.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(Killed):
        run(recipe, clouds, None, tmp_path, progress=False, checkpoint_steps=1, callbacks=[KillAfter(2)])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path):
    path, soft = tmp_path / "last.ckpt", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_checkpoint(path, {"step": 1})
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, soft[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_checkpoint(path, {"step": 2, "weights": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
        signal.signal(signal.SIGXFSZ, before)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_full_disk_is_named_with_the_folder_of_the_run(tmp_path, capsys):
    (tmp_path / "metrics.csv").symlink_to("/dev/full")
    small = ["--set", "data_options.size=14", "--set", "data_options.held_out=7", "--set", "points=32"]
    small += ["--set", "model.width=8", "--set", "model.levels=1", "--set", "batch_size=7"]
    command = ["train", "shapes", *small, "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert main([*command, "--checkpoint-steps", "1"]) == 1
    assert re.search(f"space.*{tmp_path}.*--resume", capsys.readouterr().err)


def test_a_full_disk_is_named_by_the_log_of_tensorboard_too(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    log = Log(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(log.board, "add_scalar", full)
    with pytest.raises(OSError, match="No space left on device"):
        log.epoch([{"epoch": 1, "loss": 1.0}], 1)


def test_totals_are_shared_by_another_number_of_processes():
    totals = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    assert torch.equal(share(totals, 2), totals)
    assert share(totals, 1).tolist() == [[6, 8, 10, 12]]
    assert share(totals[:1], 2).tolist() == [[1, 2, 3, 4], [0, 0, 0, 0]]


def test_a_run_of_two_processes_goes_on_in_one(recipe, clouds, tmp_path):
    whole = run(recipe, clouds, None, tmp_path / "whole", progress=False)
    with pytest.raises(Killed):
        run(recipe, clouds, None, tmp_path / "cut", progress=False, checkpoint_steps=1, callbacks=[KillAfter(3)])
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    saved = torch.load(last, weights_only=True)
    # As two processes leave it.
    saved["totals"] = saved["totals"].expand(2, 4) / 2
    torch.save(saved, last)
    resumed = run(recipe, clouds, None, tmp_path / "cut", progress=False, resume=True)
    assert whole["history"] == resumed["history"]


class InterruptAfter:
    """Ctrl-C in the middle of a step, twice where a step is not waited for."""

    def __init__(self, steps: int, times: int = 1) -> None:
        self.steps, self.times = steps, times

    def on_step_start(self, state, batch):
        if state.step == self.steps:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


# Five steps are an epoch. In its middle; and in its last step, where the validation comes first.
@pytest.mark.parametrize(("steps", "step"), [(2, 3), (4, 5)])
def test_a_run_interrupted_by_hand_and_resumed_ends_with_the_same_weights(recipe, clouds, tmp_path, steps, step):
    whole = run(recipe, clouds, clouds, tmp_path / "whole", progress=False)
    # No other checkpoint is due so early.
    with pytest.raises(KeyboardInterrupt, match=r"interrupted.*--resume"):
        run(recipe, clouds, clouds, tmp_path / "cut", progress=False, callbacks=[InterruptAfter(steps)])
    assert torch.load(tmp_path / "cut/checkpoints/last.ckpt", weights_only=True)["step"] == step
    resumed = run(recipe, clouds, clouds, tmp_path / "cut", progress=False, resume=True)
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values()):
        assert torch.equal(a, b), name
    assert whole["history"] == resumed["history"]


def test_a_second_interrupt_ends_a_run_at_once(recipe, clouds, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="interrupted before a checkpoint"):
        run(recipe, clouds, None, tmp_path, progress=False, callbacks=[InterruptAfter(2, times=2)])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, one_thread):
    small = ["--set", "data_options.size=70", "--set", "data_options.held_out=14", "--set", "points=64"]
    command = ["train", "shapes", *small, "--epochs", "8", "--geometry", "workers", "--workers", "1", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    # As a terminal does it: the signal goes to the whole group, workers included.
    process = subprocess.Popen(
        [sys.executable, "-m", "gridless", *command, "--out", str(tmp_path / "cut")],
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
    assert err.splitlines()[-1:] == ["gridless train: interrupted. Continue with --resume."]
    assert "Traceback" not in err
    assert not (tmp_path / "cut/weights.safetensors").exists()
    assert main([*command, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values()):
        assert torch.equal(a, b), name


def test_tensorboard_shows_each_step_of_a_resumed_run_once(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for done, end in ((0, 8), (5, 10)):
        log = Log(tmp_path, done)
        for step in range(done + 1, end + 1):
            log.epoch([{"epoch": step, "loss": float(step)}], step)
        log.close()
    curves = events.EventAccumulator(str(tmp_path / "tensorboard"))
    curves.Reload()
    assert [point.step for point in curves.Scalars("loss")] == list(range(1, 11))
