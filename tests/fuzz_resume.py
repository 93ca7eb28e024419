"""Random runs that are killed up to three times and resumed: `python tests/fuzz_resume.py --seconds 60`.

Each must end with the weights, results and logs of the undisturbed run, to the bit. Case n of run r is always the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "training"), str(TESTS.parent)]

PLACES = ("on_step_start", "on_step_end", "on_validation_start", "on_epoch_end")


def case(number: int, run: int) -> dict[str, Any]:
    """The settings of a run, and where it is killed: (place, steps made by then)."""
    chance = random.Random(f"{run} {number}")
    examples, batch, epochs = chance.randint(3, 12), chance.randint(1, 5), chance.randint(1, 4)
    total = -(-examples // batch) * epochs
    kills = [(chance.choice(PLACES), chance.randint(0, total)) for _ in range(chance.randint(1, 3))]
    changes = {
        "epochs": epochs, "batch_size": batch, "seed": chance.randint(0, 9), "validate_every": chance.randint(1, 3),
        "schedule": chance.choice(["plateau", "cosine"]), "patience": 1, "average": chance.choice([None, 0.9]),
        "geometry": chance.choice(["online", "workers"]), "votes": chance.choice([1, 2]),
    }  # fmt: skip
    options = {"checkpoint_steps": chance.choice([None, 1, 2, 3, total, chance.randint(1, total)]), "workers": 0}
    return {
        "examples": examples, "valid": chance.random() < 0.7, "changes": changes, "options": options, "kills": kills,
    }  # fmt: skip


def check(settings: dict[str, Any], folder: Path) -> None:
    """Raises where the interrupted run differs."""
    from killing import KillAt, Killed, assert_same
    from small_run import shapes, tiny

    from gridless.training.run import run

    recipe, data = tiny().changed(**settings["changes"]), shapes(settings["examples"], 16)
    valid, options = shapes(5, 16, seed=1) if settings["valid"] else None, {"progress": False, **settings["options"]}
    run(recipe, data, valid, folder / "whole", **options)
    last, results = folder / "cut/checkpoints/last.ckpt", None
    for kill in (*settings["kills"], None):
        callbacks = [] if kill is None else [KillAt(*kill)]
        try:
            results = run(recipe, data, valid, folder / "cut", resume=last.is_file(), callbacks=callbacks, **options)
        except Killed:
            continue
        # A kill at a place that a run does not come to again.
        break
    assert results is not None
    assert_same(folder / "whole", folder / "cut")


def findings(run: int, seconds: float) -> Iterator[str]:
    """Failures of as many cases as the time allows; one at least."""
    import torch

    torch.set_num_threads(1)
    number, stop = 0, time.monotonic() + seconds
    while number == 0 or time.monotonic() < stop:
        settings = case(number, run)
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(settings, Path(folder))
            except Exception:
                yield f"resume, case {number} of run {run}: {settings}\n{traceback.format_exc(limit=-4)}"
        number += 1
    print(f"run {run}: {number} interrupted trainings", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--run", type=int, help="its number; without one, the time of day")
    options = parser.parse_args()
    count = 0
    for finding in findings(int(time.time()) if options.run is None else options.run, options.seconds):
        print(finding, flush=True)
        count += 1
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
