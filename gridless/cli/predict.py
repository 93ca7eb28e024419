"""`gridless predict`: the answers of saved weights to files of the user's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from gridless.cli.options import Device, OwnTask, pick_device, weights_of
from gridless.kernels.progress import say, shown, track


def predict(
    files: Annotated[
        list[Path], typer.Argument(help="Clouds (PLY, PCD, LAS, NPY, XYZ...), meshes (OFF...) or recordings.")
    ],
    weights: Annotated[str, typer.Option(help="Shipped weights by name, or a path.")] = "modelnet40-plus",
    points: Annotated[
        int | None, typer.Option(min=1, help="Points of each cloud that are used; else as in training.")
    ] = None,
    up: Annotated[
        str | None, typer.Option(help="The axis that points up in the files: x, y or z; else as in training, or y.")
    ] = None,
    keep_scale: Annotated[
        bool, typer.Option("--keep-scale", help="Do not centre and scale to the unit sphere.")
    ] = False,
    votes: Annotated[
        int | None, typer.Option(min=1, help="Views averaged per cloud; else as the weights were saved with.")
    ] = None,
    repair: Annotated[
        list[str] | None, typer.Option(help="Of recordings: cut, unwrap, drop, hold, sort or shift; may be repeated.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to name per file.")] = 3,
    category: Annotated[str | None, typer.Option(help="Of networks that find parts: what the clouds show.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where clouds with their parts go, as PLY; of scenes the file, or a folder of them; else parts."
        ),
    ] = None,
    grid: Annotated[float | None, typer.Option(help="Of scenes: the cell of which one point is looked at.")] = None,
    tile: Annotated[float | None, typer.Option(help="Of scenes: the side of a tile; else chosen by memory.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Of scenes: processes on this machine.")] = 1,
    ray: Annotated[str | None, typer.Option(help="Of scenes: the address of a Ray cluster, or auto.")] = None,
    double: Annotated[
        bool, typer.Option("--double", help="Of scenes: compute in 64 bits, against ties within rounding on a GPU.")
    ] = False,
    task: OwnTask = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, with all probabilities.")] = False,
) -> None:
    """Class and probabilities of your own files; of networks that find parts, each cloud with them, as OUT/NAME.ply.

    Networks that label points by what is around them (point_unet) label scenes of any size, each a file, or a folder
    of files in one frame, tile by tile in constant memory. Killed and started again, the command goes on where it
    ended.
    """
    from gridless.kernels.memory import one_heap

    if tile is not None and not 0 < tile < math.inf:
        raise ValueError(f"--tile must be a length above 0, in the units of the points, not {tile:g}")
    one_heap()
    model, kind = weights_of(weights, device, task)
    given = {
        "points": points, "keep_scale": keep_scale or None, "votes": votes, "repair": repair or None, "up": up,
        "category": category, "out": out, "grid": grid, "tile": tile, "ray": ray, "double": double or None,
        "workers": workers if workers > 1 else None,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    kind.refuse("predict", options, weights)
    options |= {"top": top, "device": pick_device(device), "weights": weights}
    kind.check_files(files, options)
    failed: list[Exception] = []
    for file in track(files, "predict", shown=len(files) > 1):
        try:
            answer = kind.predict(model, file, options)
            print(json.dumps(answer.record) if as_json else shown(answer.line), flush=True)
        except Exception as error:
            if len(files) == 1 or isinstance(error, BrokenPipeError):
                raise
            # One bad file is no reason to leave out those behind it.
            say("gridless predict", error)
            failed.append(error)
    if failed:
        raise ValueError(f"{len(failed)} of {len(files)} files have no answer, see above") from failed[0]
