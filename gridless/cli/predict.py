"""`gridless predict`: the answers of saved weights to the user's files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gridless.cli.options import Device, OwnTask, Votes, Weights, given, in_options, pick_device, weights_of
from gridless.kernels.progress import say, shown, track

# The best class of a file that is like those of training has more than this.
DOUBTFUL = 0.4


def predict(
    files: Annotated[
        list[Path], typer.Argument(help="Clouds (PLY, PCD, LAS, NPY, XYZ...), meshes (OFF...) or recordings.")
    ],
    weights: Weights = "modelnet40-plus",
    points: Annotated[
        int | None, typer.Option(min=1, help="Points of each cloud that are used; default: as in training.")
    ] = None,
    up: Annotated[
        str | None, typer.Option(help="The axis that points up in the files: x, y or z; default: as in training, or y.")
    ] = None,
    keep_scale: Annotated[
        bool, typer.Option("--keep-scale", help="Do not centre and scale to the unit sphere.")
    ] = False,
    votes: Votes = None,
    repair: Annotated[
        list[str] | None, typer.Option(help="Recordings: cut, unwrap, drop, hold, sort or shift; may be repeated.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Recordings of ROS: the topic, if several can be read; default: as in training.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to name per file.")] = 3,
    category: Annotated[str | None, typer.Option(help="Networks that find parts: what the clouds show.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Parts: a folder. Scenes: a file or a folder. Tracked objects: .csv, .json or a folder."),
    ] = None,
    grid: Annotated[
        float | None, typer.Option(help="Scenes: the cell of which one point is seen; default: as in training.")
    ] = None,
    tile: Annotated[float | None, typer.Option(help="Scenes: the side of a tile; default: chosen by memory.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Scenes: processes on this machine.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(help="Scenes: the address of a Ray cluster, auto for a running one, local for this machine."),
    ] = None,
    double: Annotated[
        bool, typer.Option("--double", help="Scenes: compute in 64 bits, against ties within rounding on a GPU.")
    ] = False,
    task: OwnTask = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, with all probabilities.")] = False,
) -> None:
    """Print class and probabilities of your own files; networks that find parts write each cloud to OUT/NAME.ply.

    Networks that track an object write its positions in each recording to OUT/NAME.csv.

    Networks that label points by what is around them (point_unet) label scenes of any size, tile by tile in constant
    memory. A scene is a file, or a folder of files in one frame. If the command is killed, the same command continues
    where it ended.
    """
    from gridless.kernels.memory import one_heap

    if tile is not None and not 0 < tile < math.inf:
        raise ValueError(f"--tile is {tile:g}. Give a length above 0, in the units of the points.")
    one_heap()
    model, kind = weights_of(weights, device, task)
    options = given(
        points=points, keep_scale=keep_scale, votes=votes, repair=repair, up=up, topic=topic, category=category,
        out=out, grid=grid, tile=tile, ray=ray, double=double, workers=workers if workers > 1 else None,
    )  # fmt: skip
    kind.refuse("predict", options, weights)
    hints = doubts(kind, model, options)
    options |= {"top": top, "device": pick_device(device), "weights": weights}
    kind.check_files(files, options)
    best, failures = _print_answers(files, lambda file: kind.predict(model, file, options), as_json)
    doubtful = [probability for probability in best if probability < DOUBTFUL]
    if doubtful:
        subject = "the best class has only" if len(files) == 1 else f"{len(doubtful)} of {len(files)} files have under"
        say("gridless predict", f"{subject} {min(doubtful) if len(files) == 1 else DOUBTFUL:.0%}: {hints}")
    if failures:
        message = f"{len(failures)} of {len(files)} files have no answer. The errors are above."
        raise ValueError(message) from failures[0]


def _print_answers(
    files: Sequence[Path], predict: Callable[[Path], Any], as_json: bool
) -> tuple[list[float], list[Exception]]:
    """Print the answer to each file; returns the largest probability of each, and the errors."""
    best: list[float] = []
    failures: list[Exception] = []
    for file in track(files, "predict", shown=len(files) > 1):
        try:
            answer = predict(file)
            print(json.dumps(answer.record) if as_json else shown(answer.line), flush=True)
            best.append(max(answer.record.get("probabilities", {"": 1.0}).values()))
        except Exception as error:
            if len(files) == 1 or isinstance(error, BrokenPipeError):
                raise
            # One bad file is no reason to leave out those behind it.
            say("gridless predict", in_options(error, "predict"))
            failures.append(error)
    return best, failures


def doubts(task: Any, model: Any, options: Mapping[str, Any]) -> str:
    """The likely reasons for a low probability, each with its remedy, by the options that a task has."""
    available = task.options.get("predict", ())
    data_options = getattr(model, "about", {}).get("recipe", {}).get("data_options", {})
    reasons = []
    if "--up" in available:
        up = options.get("up") or data_options.get("up", "y")
        others = " or ".join(f"--up {axis}" for axis in "zyx" if axis != up)
        reasons.append(f"another axis than {up} points up ({others})")
    if "--keep-scale" in available:
        if options.get("keep_scale") or data_options.get("keep_scale"):
            reasons.append("it is in other units than those of training")
        else:
            reasons.append("it shows part of an object, or has stray points: each cloud is scaled to the unit sphere")
    if names := list(getattr(model, "about", {}).get("class_names") or []):
        listed = f"{', '.join(names[:5])}, ..." if len(names) > 6 else ", ".join(names)
        reasons.append(f"it shows none of the {len(names)} classes ({listed})")
    reasons.append("it was recorded in another way than the training files")
    return f"possible reasons: {'; '.join(reasons)}"
