"""`gridless train`, `gridless precompute`, `gridless evaluate` and `gridless predict`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gridless.backends import existing

RecipeName = Annotated[str, typer.Argument(help="A shipped recipe's name, such as modelnet40-large, or a YAML file.")]
Data = Annotated[Path | None, typer.Option(help="The folder of the data set, unless it is generated.")]
AllData = Annotated[bool, typer.Option("--all-data", help="Train on every example, none held out.")]
Seed = Annotated[int | None, typer.Option(help="Instead of the recipe's.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe; may be repeated.")]
Repeats = Annotated[int | None, typer.Option(help="Epochs whose augmentations are kept offline; else the recipe's.")]
Cache = Annotated[Path, typer.Option(help="The folder of geometry that is made offline.")]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Processes that make geometry; else as many as there are threads.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only so many training examples, for a trial.")]
Device = Annotated[str, typer.Option(help="cuda, cpu, or auto for a GPU where there is one.")]


def train(
    recipe: RecipeName,
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Where logs, checkpoints and weights go.")] = Path("runs/latest"),
    all_data: AllData = False,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Seed = None,
    changes: Changes = None,
    geometry: Annotated[
        str | None, typer.Option(help="online, workers or offline: where it is made; else as the recipe says.")
    ] = None,
    repeats: Repeats = None,
    cache: Cache = Path("cache"),
    workers: Workers = None,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Processes, each with a device, on this machine.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in OUT.")] = False,
    checkpoint_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps between checkpoints; else every 10 epochs.")
    ] = None,
    limit: Limit = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Train from so many seeds, one after the other, into OUT/seed-N.")
    ] = None,
) -> None:
    """Train a network by a recipe; the weights end in OUT/weights.safetensors and OUT/weights.json.

    Without --all-data a part of the training examples is held out and evaluated as training goes on: of named data sets
    a fixed list; of your own folder (recipes own-*) whole sessions, where file names tell them, see OUT/split.txt.
    The result is printed as one JSON object, alone on standard output; progress goes to standard error.
    Ctrl-C leaves a checkpoint, from which --resume goes on as if nothing had happened.
    With --seeds, mean, deviation and best of all figures are printed, and written to OUT/seeds.json.
    """
    if seeds is not None:
        from gridless.training.seeds import run_seeds

        options = {name: value for name, value in locals().items() if name not in ("seeds", "out", "run_seeds")}
        print(json.dumps(run_seeds(train, options, out, seeds)))
        return
    from gridless.training.examples import load_data
    from gridless.training.run import check_folder, run

    check_folder(out, resume)
    place = pick_device(device)
    chosen = _recipe(recipe, changes, epochs=epochs, seed=seed, geometry=geometry, repeats=repeats)
    if chosen.geometry == "offline":
        _check_writable(cache, "--cache")
    listed = _listed(out)
    if listed is not None and chosen.data == "folder" and data is not None:
        _check_listed(listed, data, "remove it, or choose another folder (--out)")
    learn = _examples(chosen, data, all_data, limit, listed)
    chosen = chosen.fitted(learn)
    valid = None if all_data else load_data(chosen, data, "validation", listed)
    held_out = [] if chosen.data != "folder" else _tell(chosen, data, learn, listed)
    with _naming(out):
        result = run(
            chosen, learn, valid, out, device=place, devices=devices, nodes=nodes, resume=resume,
            checkpoint_steps=checkpoint_steps, workers=workers, cache=cache, held_out=[] if all_data else held_out,
        )  # fmt: skip
    if result is not None:
        print(json.dumps({k: v for k, v in result.items() if k != "history"}))


def precompute(
    recipe: RecipeName,
    data: Data = None,
    cache: Cache = Path("cache"),
    all_data: AllData = False,
    seed: Seed = None,
    changes: Changes = None,
    repeats: Repeats = None,
    workers: Workers = None,
    ray: Annotated[
        str | None, typer.Option(help="The address of a Ray cluster that makes it instead, or auto.")
    ] = None,
    limit: Limit = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make the geometry of a recipe's training examples, for `gridless train RECIPE --geometry offline`.

    Give both the same data and settings. Files that exist are kept: what was interrupted goes on where it ended.
    """
    from gridless.training.workers import precomputed, processes

    chosen = _recipe(recipe, changes, seed=seed, repeats=repeats)
    _check_writable(cache, "--cache")
    learn = _examples(chosen, data, all_data, limit)
    chosen = chosen.fitted(learn)
    files = precomputed(chosen, learn, chosen.make_model().plan, cache, processes(workers), ray)
    size = sum(path.stat().st_size for path in files.folder.iterdir())
    if as_json:
        facts = {"folder": str(files.folder), "examples": len(files), "repeats": files.repeats, "bytes": size}
        print(json.dumps(facts))
    else:
        print(f"{len(files)} examples, {files.repeats} times each, {size / 1e6:,.1f} MB in {files.folder}")


def evaluate(
    weights: Annotated[str, typer.Argument(help="Shipped weights by name, or the path of a .safetensors file.")],
    data: Data = None,
    split: Annotated[str, typer.Option(help="test, train, fit or validation.")] = "test",
    points: Annotated[list[int] | None, typer.Option(help="Use so many points; may be repeated, for a curve.")] = None,
    votes: Annotated[
        int | None, typer.Option(min=1, help="Views averaged per example; else as the weights were saved with.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Examples at a time.")] = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Accuracy of saved weights on a split of their data set.

    Where they were trained on examples of that split, the first line says so (in JSON, `seen_in_training`).
    """
    from gridless.training.evaluate import judged, report, seen
    from gridless.training.examples import load_data
    from gridless.training.recipe import Recipe
    from gridless.weights import load

    model: Any = load(weights, pick_device(device))
    recipe = Recipe.from_dict({"model": model.config, **model.about.get("recipe", {})})
    if points and recipe.recordings:
        raise ValueError(f"--points is for clouds, and these weights are for {recipe.data}")
    results, known = {}, seen(model.about, split)
    listed = _listed(Path(weights).parent) if recipe.data == "folder" else None
    if listed is not None and data is not None and split in ("fit", "validation"):
        _check_listed(listed, data, "bring them back, or give the folder that the run had (--data)")
    examples = load_data(recipe.changed(points=max(points)) if points else recipe, data, split, listed, model.about)
    examples = examples.to(pick_device(device))
    parts = "part" in getattr(examples, "rows", {})
    if parts and (votes or 1) > 1:
        raise ValueError(f"--votes is for classes, and of {recipe.data} the parts of points are judged")
    for count in points or [recipe.points]:
        chosen = recipe.changed(points=count)
        if parts:
            result = judged(model, examples, chosen, batch_size, progress=True)
        else:
            p = examples.probabilities(model, chosen, batch_size, votes, progress=True)
            result = report(p, examples.labels, examples.class_names)
        results[count] = result | {"seen_in_training": known}
    if as_json:
        print(json.dumps(results if points else next(iter(results.values()))))
        return
    if known in ("all", "some"):
        many = "these" if known == "all" else "most of these"
        print(f"{weights} was trained on {many} examples: on unseen ones expect less")
    for count, result in results.items():
        if "mean_iou" in result:
            print(f"{result['mean_iou']:.2%} mIoU, {result['accuracy']:.2%} of the points of {result['scans']} scans")
            continue
        if parts:
            print(
                f"{result['instance_iou']:.2%} instance mIoU, {result['category_iou']:.2%} category mIoU; "
                f"{result['accuracy']:.2%} of the points of {result['examples']} shapes, {count} points each at most"
            )
            continue
        what = "recordings" if recipe.recordings else f"clouds of {count} points"
        print(
            f"{result['accuracy']:.2%} of {result['examples']} {what}, "
            f"{result['mean_class_accuracy']:.2%} as the mean over classes"
        )


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
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, with all probabilities.")] = False,
) -> None:
    """Class and probabilities of your own files; of networks that find parts, each cloud with them, as OUT/NAME.ply.

    Networks that label points by what is around them (point_unet) label scenes of any size, each a file, or a folder
    of files in one frame, tile by tile in constant memory. Killed and started again, the command goes on where it
    ended.
    """
    from gridless.kernels.memory import one_heap
    from gridless.kernels.progress import say, track
    from gridless.training.predict import classify, classify_events, is_event_network, stem, write_labels, write_parts
    from gridless.weights import class_names, load

    if tile is not None and not 0 < tile < math.inf:
        raise ValueError(f"--tile must be a length above 0, in the units of the points, not {tile:g}")
    one_heap()
    model: Any = load(weights, pick_device(device))
    live, parts, scenes = is_event_network(model), "parts" in model.config, model.config["model"] == "PointUNet"
    where = out or Path("parts")
    if parts or scenes:
        _check_out(where, scenes, len(files))
    given = {
        "--points": points, "--keep-scale": keep_scale, "--votes": votes, "--repair": repair, "--category": category,
        "--out": out, "--up": up, "--grid": grid is not None, "--tile": tile, "--workers": workers > 1, "--ray": ray,
        "--double": double,
    }  # fmt: skip
    kind = "scenes" if scenes else "parts" if parts else "recordings" if live else "clouds"
    for option in (name for name, value in given.items() if value and name not in _OF_PREDICT[kind]):
        raise ValueError(f"{option} does nothing here, {weights} is {_NETWORKS[kind]}: leave it out")
    if (parts or scenes) and len({stem(file) for file in files}) < len(files):
        raise ValueError(f"two of the files have one name, and would be one file in {where}: give them in two calls")
    names = class_names(model, model.config.get("classes", 0))

    def answer(file: Path) -> str:
        if scenes:
            settings = {"size": tile, "grid": grid, "device": str(pick_device(device)), "workers": workers, "ray": ray}
            settings["double"] = double
            written, counts = write_labels(model, file, where, weights, up, **settings)
            if as_json:
                return json.dumps({"file": str(file), "written": str(written), "labels": counts})
            return f"{file}: {', '.join(f'{name} {n}' for name, n in counts.items() if n)} points, in {written}"
        _check_kind(file, live)
        if parts:
            written, counts = write_parts(model, file, where, category, points, up, keep_scale)
            if as_json:
                return json.dumps({"file": str(file), "written": str(written), "parts": counts})
            return f"{file}: {', '.join(f'{name} {n}' for name, n in counts.items())} points, in {written}"
        if live:
            p = classify_events(model, file, repair=repair or (), votes=votes)
        else:
            try:
                p = classify(model, file, points=points, up=up, keep_scale=keep_scale, votes=votes)
            except ValueError:
                if _is_recording(file):
                    raise _wrong_kind(file, live) from None
                raise
        if as_json:
            best = names[int(p.argmax())]
            return json.dumps({"file": str(file), "class": best, "probabilities": dict(zip(names, p.tolist()))})
        order = p.argsort(descending=True)[:top].tolist()
        return f"{file}: " + ", ".join(f"{names[i]} {p[i]:.1%}" for i in order)

    failed: list[Exception] = []
    for file in track(files, "predict", shown=len(files) > 1):
        try:
            print(answer(file), flush=True)
        except Exception as error:
            if len(files) == 1 or isinstance(error, BrokenPipeError):
                raise
            # One bad file is no reason to leave out those behind it.
            say("gridless predict", error)
            failed.append(error)
    if failed:
        raise ValueError(f"{len(failed)} of {len(files)} files have no answer, see above") from failed[0]


# Options of `predict` that each kind of network knows, of those that not all do.
_OF_PREDICT = {
    "clouds": ("--points", "--up", "--keep-scale", "--votes"),
    "parts": ("--points", "--up", "--keep-scale", "--category", "--out"),
    "scenes": ("--up", "--out", "--grid", "--tile", "--workers", "--ray", "--double"),
    "recordings": ("--votes", "--repair"),
}
_NETWORKS = {
    "clouds": "a network that names whole clouds", "parts": "a network that finds parts of clouds",
    "scenes": "a network that labels all points of scenes", "recordings": "a network that names recordings",
}  # fmt: skip


def _check_kind(file: Path, live: bool) -> None:
    """Refuse a folder, a cloud where weights are an event network's (`live`), and a recording where they are not."""
    from gridless.data.folder import CLOUDS, RECORDINGS

    if file.is_dir():
        raise ValueError(f"{file} is a folder, and these weights take files: give those in it, {file}/*")
    # Some suffixes are of both kinds.
    right, wrong = (RECORDINGS, CLOUDS) if live else (CLOUDS, RECORDINGS)
    if file.suffix.lower() in wrong and file.suffix.lower() not in right:
        raise _wrong_kind(file, live)


def _wrong_kind(file: Path, live: bool) -> ValueError:
    found, wanted = ("a cloud", "recordings") if live else ("a recording", "clouds")
    return ValueError(
        f"{file} is {found}, and these weights are for {wanted}: give --weights that were trained on such"
    )


def _is_recording(file: Path) -> bool:
    """Whether a file whose suffix is of both kinds holds events."""
    from gridless.data import read_events
    from gridless.data.folder import RECORDINGS

    if file.suffix.lower() not in RECORDINGS:
        return False
    try:
        read_events(file)
    except ValueError:
        return False
    return True


def _check_out(out: Path, scenes: bool, files: int) -> None:
    """Refuse the name of a file that is not written, which would become a folder, and one for several scenes."""
    from gridless.data.folder import CLOUDS
    from gridless.scenes.label import OUTPUTS

    suffix = out.suffix.lower()
    if scenes and files > 1 and suffix in OUTPUTS and not out.is_dir():
        raise ValueError(f"--out {out} is one file, and there are {files} scenes: give a folder for them")
    if suffix not in (*CLOUDS, *OUTPUTS) or out.is_dir() or (scenes and suffix in OUTPUTS):
        return
    one = (
        f"scenes are written as {', '.join(OUTPUTS)}: give one of these, or"
        if scenes
        else "parts go to OUT/NAME.ply: give"
    )
    raise ValueError(f"--out {out}: {one} a folder")


def _recipe(name: str, changes: list[str] | None, **more: Any) -> Any:
    """A recipe with what the command line says of it."""
    from gridless.training.recipe import load_recipe

    chosen = dict(_assignment(c) for c in changes or [])
    chosen |= {k: v for k, v in more.items() if v is not None}
    return load_recipe(name).changed(**chosen)


def _check_writable(folder: Path, option: str) -> None:
    """Make a folder, before any work is done for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise OSError(f"{option} {folder}: nothing can be written in this folder: give another")


@contextmanager
def _naming(out: Path) -> Iterator[None]:
    """Name the folder of a run where the disk is full, unless the error does, and say how to go on."""
    from gridless.data.files import full

    try:
        yield
    except OSError as error:
        if full(error) is None or error.strerror != os.strerror(error.errno or 0):
            raise
        there = (out / "checkpoints" / "last.ckpt").is_file()
        remedy = "go on from the last checkpoint with --resume" if there else "start again"
        raise OSError(error.errno, f"{full(error)} while writing {out}: make room and {remedy}") from error


def _listed(folder: Path) -> Path | None:
    """The list of what a run in this folder held out, if there is one."""
    return folder / "split.txt" if (folder / "split.txt").is_file() else None


def _check_listed(listed: Path, data: Path, remedy: str) -> None:
    """Refuse the list of another folder, or of one that has lost files."""
    names = [name for name in listed.read_text("utf-8").split("\n") if name]
    missing = [name for name in names if not (data / name).is_file()]
    if data.is_dir() and (missing or not names):
        found = f"{len(missing)} of the {len(names)} files that it lists are not there"
        found += f", such as {missing[0]}" if missing else ""
        raise ValueError(f"{listed}, what a run there held out, does not fit {data}: {found}: {remedy}")


def _tell(recipe: Any, data: Path | None, learn: Any, listed: Path | None) -> list[str]:
    """Say on standard error what a folder of the user's holds; returns the files that are held out."""
    from gridless.data.folder import CLOUDS, RECORDINGS, listing
    from gridless.training.statistics import statistics

    suffixes = RECORDINGS if recipe.recordings else CLOUDS
    options = recipe.data_options
    by_class = not (recipe.of_points or "label" in options)
    names = options.get("class_names") if by_class else None
    found = listing(data or "", suffixes, by_class, listed or options.get("held_out_list"), names)
    print("\n".join(statistics(recipe, found, learn, recipe.make_model())), file=sys.stderr, flush=True)
    return found.held_out


def _examples(recipe: Any, data: Path | None, all_data: bool, limit: int | None, listed: Path | None = None) -> Any:
    """The training examples of a recipe."""
    from gridless.training.examples import load_data

    learn = load_data(recipe, data, "train" if all_data else "fit", listed)
    if limit is None:
        return learn
    return learn.take(torch.linspace(0, len(learn) - 1, min(limit, len(learn))).long())


def pick_device(name: str) -> torch.device:
    """auto is a GPU where there is one; an explicit choice never falls back."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not number.isdecimal()):
        raise ValueError(f"--device is cuda, cpu or auto, not {name!r}")
    return existing(name)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, such as epochs=10 or augment.shift=0.1, not {text!r}")
    from gridless.training.recipe import read_yaml

    return name.strip().replace(".", "__"), read_yaml(value, f"--set {text}:")
