"""A run that is killed once, twice or three times, at any step, ends as the undisturbed run does, to the bit."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from killing import KillAfter, Killed, assert_same, step_of
from small_run import shapes, tiny

from gridless.training import Recipe
from gridless.training.run import run

pytestmark = pytest.mark.usefixtures("one_thread", "without_pictures")

# Nine clouds in batches of three: three steps an epoch, nine in all.
STEPS, TOTAL = 3, 9
SETTINGS = [
    {"checkpoint_steps": steps, "validate": validate, "schedule": schedule, "average": average}
    for steps, validate, schedule, average in [
        (1, 1, "cosine", 0.9),
        (1, None, "plateau", None),
        (2, 2, "plateau", 0.9),
        (3, 1, "plateau", None),
        (3, None, "cosine", 0.9),
        (3, 3, "cosine", None),
        (4, 1, "cosine", None),
        (6, 2, "plateau", 0.9),
        (None, 1, "cosine", 0.9),
    ]
]


class Count:
    """The steps that a run makes."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.labels: list[list[int]] = []

    def on_step_end(self, state: Any, batch: Any) -> None:
        self.steps.append(state.step)
        self.labels.append(batch.labels.tolist())


def settings_of(choice: dict[str, Any], geometry: str = "online") -> tuple[Recipe, dict[str, Any], Any]:
    """The recipe, the options and the held-out clouds of a choice."""
    validate = choice["validate"]
    recipe = tiny(schedule=choice["schedule"], patience=1, average=choice["average"], geometry=geometry)
    recipe = recipe.changed(validate_every=validate or 1)
    options = {"checkpoint_steps": choice["checkpoint_steps"], "progress": False, "workers": 0}
    return recipe, options, None if validate is None else shapes(6, 16, seed=1)


def interrupted(folder: Path, recipe: Recipe, valid: Any, options: dict[str, Any], kills: tuple[int, ...]) -> Any:
    """The results of a run that is killed before these steps, one after the other, and resumed each time.

    Every part goes on from the last checkpoint: the steps that it makes follow each other from there.
    """
    data, last = shapes(9, 16), folder / "checkpoints/last.ckpt"
    every = options["checkpoint_steps"] or 30
    for kill in (*kills, None):
        resume, count = last.is_file(), Count()
        done = step_of(last) if resume else 0
        stop = TOTAL if kill is None else kill
        callbacks = [count] if kill is None else [count, KillAfter(kill)]
        try:
            results = run(recipe, data, valid, folder, resume=resume, callbacks=callbacks, **options)
            assert kill is None, f"step {kill} was never made"
        except Killed:
            results = None
        assert count.steps == list(range(done + 1, stop + 1)), "each step is made once"
        if last.is_file():
            assert step_of(last) == max(done, stop // every * every)
    assert len(results["history"]) == TOTAL // STEPS
    return results


def some_kills(chance: random.Random) -> list[tuple[int, ...]]:
    """Every step in one of three runs, each of which is killed three times. `tests/fuzz_resume.py` has all."""
    steps = chance.sample(range(TOTAL), TOTAL)
    return [tuple(sorted(steps[at : at + 3])) for at in range(0, TOTAL, 3)]


def reachable(kills: tuple[int, ...], every: int | None) -> tuple[int, ...]:
    """Those kills that a run meets: none lies before the checkpoint from which it goes on."""
    done, reached_kills = 0, []
    for kill in kills:
        if kill >= done:
            reached_kills.append(kill)
            done = max(done, kill // (every or 30) * (every or 30))
    return tuple(reached_kills)


@pytest.mark.slow
@pytest.mark.parametrize("choice", SETTINGS, ids=lambda c: f"{c['checkpoint_steps']}-{c['validate']}-{c['schedule']}")
def test_however_often_a_run_is_killed_it_ends_the_same(tmp_path, choice):
    recipe, options, valid = settings_of(choice)
    run(recipe, shapes(9, 16), valid, tmp_path / "whole", **options)
    chance = random.Random(str(choice))
    cases = dict.fromkeys(reachable(kills, choice["checkpoint_steps"]) for kills in some_kills(chance))
    for number, kills in enumerate(cases):
        interrupted(tmp_path / str(number), recipe, valid, options, kills)
        assert_same(tmp_path / "whole", tmp_path / str(number))


@pytest.mark.slow
def test_two_kills_after_a_checkpoint_at_the_end_of_an_epoch_train_no_epoch_twice(tmp_path):
    recipe, options, valid = settings_of(SETTINGS[3])
    run(recipe, shapes(9, 16), valid, tmp_path / "whole", **options)
    interrupted(tmp_path / "cut", recipe, valid, options, (4, 7))
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_kills_do_not_matter_where_workers_make_the_geometry(tmp_path, workers):
    recipe, options, valid = settings_of(SETTINGS[3], "workers")
    options["workers"] = workers
    run(recipe.changed(geometry="online"), shapes(9, 16), valid, tmp_path / "whole", **options)
    for number, kills in enumerate([(3,), (4, 7), (2, 5, 8)]):
        interrupted(tmp_path / str(number), recipe, valid, options, kills)
        assert_same(tmp_path / "whole", tmp_path / str(number))


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from small_run import shapes
from gridless.training import Recipe
from gridless.training.run import run

class Kill:
    def __init__(self, step):
        self.step = step

    def on_step_start(self, state, batch):
        if state.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

def begin(kill):
    run(
        Recipe.from_dict(json.loads({recipe!r})), shapes(9, 16), shapes(6, 16, seed=1), Path({out!r}), progress=False,
        checkpoint_steps=3, resume=Path({out!r}, "checkpoints/last.ckpt").is_file(), callbacks=[Kill(kill)],
    )

# Each run is a process of its own, which begins with everything imported.
for kill in map(int, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        begin(kill)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_a_process_that_is_killed_twice_ends_the_same(tmp_path):
    recipe, options, valid = settings_of(SETTINGS[3])
    run(recipe, shapes(9, 16), valid, tmp_path / "whole", **options)
    settings = {"recipe": json.dumps(recipe.to_dict()), "out": str(tmp_path / "cut")}
    script = SCRIPT.format(tests=str(Path(__file__).parent), **settings)
    command = [sys.executable, "-c", script, "4", "8", "-1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == [f"{-signal.SIGKILL:d}"] * 2 + ["0"], done.stderr[-2000:]
    assert_same(tmp_path / "whole", tmp_path / "cut")
