"""`gridless demo`: the first five minutes. Two small networks on data the package makes itself, then one of them live.

Trains a point network on `gl.data.Shapes` and an event network on `gl.data.MovingGlyphs`, evaluates both, runs the
event network event by event, checks that the live answers are those of training, and writes one self-contained page.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor, nn

import gridless as gl
from gridless.kernels.progress import track
from gridless.pictures import UP, figures
from gridless.pictures.colours import BLUE, ORANGE, RED, Legend, entry
from gridless.pictures.page import Page, cloud, image
from gridless.pictures.report import confusion_counts

# Recordings that run live, the microseconds of a packet, and recordings that the shipped weights see.
LIVE, PACKET, SEEN = 12, 1000, 20
# Epochs and examples of a quick demo: networks then answer several times as well as by chance.
QUICK = {"shapes": (4, 140), "glyphs": (3, 400)}


@dataclass
class Trained:
    """One network after training: its held-out answers, and how it got there."""

    model: Any
    data: Any
    answers: Tensor
    results: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return float((self.answers == self.data.labels).double().mean())

    def confusion(self) -> np.ndarray:
        return np.array(confusion_counts(self.data.labels, self.answers, len(self.data.class_names)))


@dataclass
class Shipped:
    """Answers of the shipped weights to inputs that they were not trained on."""

    chair: gl.Cloud
    parts: dict[str, int]
    shapes: list[tuple[str, Tensor]]
    class_names: list[str]
    recording: gl.Events
    background: Tensor


@dataclass
class Live:
    """One recording after another through the engine: when it answered what, how fast, and how exactly."""

    time: np.ndarray
    probability: np.ndarray
    truth: list[int]
    ends: np.ndarray
    error: float
    rate: float
    latency: np.ndarray
    events: float
    levels: np.ndarray


def demo(
    out: Annotated[Path, typer.Option(help="Where the report, the weights and the logs go.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A few epochs on a few examples: does it all run?")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train two small networks on generated data, run one live, and write OUT/report.html."""
    missing = [name for name in ("tensorboard", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ImportError(f"the demo needs {' and '.join(missing)}. Run: pip install {' '.join(missing)}")
    console = Console(stderr=True)
    began = time.perf_counter()
    _claim(out)
    console.rule("[bold]1 of 4[/]  a point network learns shapes")
    shapes = _train("shapes", out / "shapes", quick)
    console.rule("[bold]2 of 4[/]  an event network learns moving digits")
    glyphs = _train("glyphs", out / "glyphs", quick)
    console.rule("[bold]3 of 4[/]  the event network runs live, event by event")
    live = _run_live(glyphs)
    console.rule("[bold]4 of 4[/]  shipped weights, and the report")
    shipped = _shipped(out)
    seconds = time.perf_counter() - began
    path = _report(shapes, glyphs, live, shipped, seconds).save(out / "report.html")
    facts = {
        "shapes_accuracy": shapes.accuracy, "glyphs_accuracy": glyphs.accuracy, "live_error": live.error,
        "live_million_events_per_second": live.rate / 1e6, "seconds": seconds, "report": str(path),
    }  # fmt: skip
    if as_json:
        print(json.dumps(facts))
    else:
        print(
            f"shapes {shapes.accuracy:.1%}, moving digits {glyphs.accuracy:.1%}; live = trained to {live.error:.0e}, "
            f"{live.rate / 1e6:.2f} million events/s; {seconds:.0f} s; open {path}"
        )


def _claim(out: Path) -> None:
    """Make the folder, or take that of an earlier demo; no other, as the demo replaces what is in it."""
    sign = out / ".demo"
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out {out} is a file. Choose a folder.")
    if out.is_dir() and any(out.iterdir()) and not (sign.exists() or (out / "report.html").exists()):
        raise FileExistsError(f"--out {out} holds other files. Choose an empty or new folder.")
    out.mkdir(parents=True, exist_ok=True)
    sign.touch()


def _train(name: str, out: Path, quick: bool) -> Trained:
    from gridless.tasks import find
    from gridless.training.recipe import load_recipe
    from gridless.training.run import run

    recipe = load_recipe(name)
    if quick:
        epochs, size = QUICK[name]
        recipe = recipe.changed(epochs=epochs, data_options={**recipe.data_options, "size": size, "held_out": 56})
    shutil.rmtree(out, ignore_errors=True)
    task = find(recipe.task_name)
    learn, held = (task.load(recipe, None, split) for split in ("fit", "validation"))
    results = run(recipe, learn, held, out)
    assert results is not None
    model = gl.load(out / "weights")
    return Trained(model, held, task.probabilities(model, held, recipe).argmax(1), results)


def _run_live(trained: Trained) -> Live:
    """Held-out recordings one after the other, in packets of a millisecond, against the batch forward of each."""
    engine = gl.stream(trained.model)
    held = trained.data
    times, probability, latency, ends, fired = [], [], [], [], []
    error = total = busy = 0.0
    offset = 0
    for i in track(range(LIVE), "live"):
        events = held.events.examples[i]
        engine.reset()
        at = 0
        while at < len(events):
            end = int(torch.searchsorted(events.time, events.time[at] + PACKET))
            begin = time.perf_counter()
            engine(events[at:end])
            latency.append(time.perf_counter() - begin)
            times.append(offset + int(events.time[end - 1]))
            probability.append(engine.predict().softmax(0).numpy())
            at = end
        total += len(events)
        with torch.no_grad():
            geometry = trained.model.plan(events)
            batch = trained.model(geometry)[0]
        fired.append([len(value) for value in geometry.values() if isinstance(value, gl.Events)])
        error = max(error, float((engine.predict() - batch).abs().max() / batch.abs().max()))
        engine.reset()
        begin = time.perf_counter()
        engine(events)
        busy += time.perf_counter() - begin
        offset += int(events.time[-1]) + 1
        ends.append(offset)
    return Live(
        np.array(times) / 1000, np.stack(probability), held.labels[:LIVE].tolist(), np.array(ends) / 1000, error,
        total / busy, np.array(latency), total / LIVE, np.sum(fired, 0)[1:] / np.sum(fired, 0)[0],
    )  # fmt: skip


def _shipped(out: Path) -> Shipped:
    """Networks for ShapeNetPart and ModelNet40 on shapes that the package draws, one for N-Cars on moving digits."""
    from gridless.data.prepare import Preparation, prepare
    from gridless.data.readers.clouds import ply
    from gridless.tasks.labelled import write_parts
    from gridless.tasks.recordings import ClassifyRecordings
    from gridless.training.examples import TrainingSet
    from gridless.training.recipe import Recipe

    file = out / "shape.ply"
    ply.write(file, gl.Cloud.of(torch.as_tensor(gl.data.Shapes(2, points=2048, class_names=["chair"])[1][0])))
    path, parts = write_parts(gl.load("shapenetpart"), file, out / "parts", "chair", up="z")
    points: Any = gl.load("modelnet40-plus")
    names = [n for n in gl.data.Shapes.class_names if n in points.about["class_names"]]
    drawn = gl.data.Shapes(len(names), points=1024, class_names=names)
    shapes = []
    for xyz, label in (drawn[i] for i in range(len(names))):
        with torch.no_grad():
            answer = points(points.plan(prepare(gl.Cloud.of(xyz), names[label], how=Preparation(up="z"))))[0].softmax(0)
        shapes.append((names[label], answer))
    cars: Any = gl.load("n-cars")
    digits = gl.data.MovingGlyphs(SEEN, sensor=gl.data.NCars.sensor)
    events = gl.collate([digits[i][0] for i in range(SEEN)])
    data = TrainingSet.of(events, torch.zeros(SEEN, dtype=torch.int64))
    answers = ClassifyRecordings().probabilities(cars, data, Recipe.from_dict(cars.about["recipe"]), 1)
    background = answers[:, cars.about["class_names"].index("background")]
    return Shipped(gl.read_cloud(path), parts, shapes, points.about["class_names"], digits[3][0], background)


def _sampling() -> tuple[Any, int, int]:
    """The paper's picture of sampling, on a spiral whose points grow sparse: random against rejection."""
    g = np.random.default_rng(4)
    turn = 4 * np.pi * np.sqrt(g.random(900))
    points = np.stack([turn * np.cos(turn), turn * np.sin(turn)], 1) / 13 + g.normal(0, 0.018, (900, 2))
    flat = gl.Cloud.of(points.astype(np.float32))
    rejected = gl.rejection_sample(flat, radius=0.14)
    random = gl.random_sample(flat, len(rejected), generator=torch.Generator().manual_seed(0))
    samples = {"random": random.parent_index, "rejection": rejected.parent_index}
    chosen = {name: index.numpy() for name, index in samples.items() if index is not None}
    return figures.sampling(points, chosen, 0.14), len(rejected), len(flat)


def _report(shapes: Trained, glyphs: Trained, live: Live, shipped: Shipped, seconds: float) -> Page:
    page = Page("gridless", "Convolutions for data that does not live on a grid: what this machine has just done.")
    page.figures(
        [
            (f"{shapes.accuracy:.1%}", "of held-out shapes named correctly"),
            (f"{glyphs.accuracy:.1%}", "of held-out moving digits"),
            (f"{live.error:.0e}", "largest difference between live and trained"),
            (f"{live.rate / 1e6:.2f} M", "events per second, live, on one core of this machine"),
            (f"{seconds:.0f} s", "for everything on this page"),
        ]
    )
    _points(page, shapes)
    _events(page, glyphs)
    _live(page, glyphs, live)
    _weights(page, shipped)
    return page


def _points(page: Page, shapes: Trained) -> None:
    page.heading("A point network")
    page.text(
        f"{_count(shapes.model):,} parameters, trained for {shapes.results['seconds']:.0f} s on "
        f"{shapes.results['examples']:,} clouds of {shapes.data.points.shape[1]} points of "
        f"{len(shapes.data.class_names)} kinds of object, all of them generated. The network writes a plan of what "
        "coordinates alone decide; this is it:"
    )
    page.code(re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.4g}", str(shapes.model.plan)))
    example = shapes.data.points[6]
    geometry = shapes.model.plan(example)
    sample, near = geometry["X1"], geometry["N01"]
    colours, sizes = np.tile(BLUE, (len(example), 1)), np.full(len(example), 6, np.uint8)
    splits, source = near.splits.numpy(), near.source.numpy()
    for i in range(0, near.num_target, max(1, near.num_target // 5)):
        colours[source[splits[i] : splits[i + 1]]] = ORANGE
    colours[sample.parent_index.numpy()] = RED
    sizes[sample.parent_index.numpy()] = 11
    name = shapes.data.class_names[int(shapes.data.labels[6])]
    figure, few, total = _sampling()
    page.row(
        cloud(example[:, UP["y"]].numpy(), colours, sizes,
              f"A {name}, with a sample and the neighbourhoods of a few samples. Drag to turn.",
              Legend([entry("sample", RED), entry("a few neighbourhoods", ORANGE), entry("other points", BLUE)])),
        image(figure, f"{few} of {total} points, taken at random and by rejection: no two samples are neighbours, and "
              "no point is left without one.",
              Legend([entry("point", BLUE), entry("sample and its ball", RED), entry("in no ball", (0, 0, 0))])),
    )  # fmt: skip
    page.row(
        image(_curve(shapes), "Accuracy by epoch."),
        image(figures.confusion(shapes.confusion(), shapes.data.class_names), "Held-out clouds."),
    )


def _events(page: Page, glyphs: Trained) -> None:
    page.heading("An event network")
    events, label = glyphs.data.events.examples[8], glyphs.data.class_names[int(glyphs.data.labels[8])]
    span = np.stack([events.time.numpy() / 1500, events.pixel[:, 0].numpy(), -events.pixel[:, 1].numpy()], 1)
    colours = np.where(events.polarity.numpy()[:, None], RED, BLUE)
    page.text(
        f"{_count(glyphs.model):,} parameters, trained for {glyphs.results['seconds']:.0f} s on "
        f"{glyphs.results['examples']:,} recordings of a simulated event camera that watches drawn digits move, with "
        "uneven thresholds, pixels that rest after firing, and events that come from nothing."
    )
    legend = Legend([entry("ON, brighter", RED), entry("OFF, darker", BLUE)])
    caption = f"A moving {label} in space and time. Drag to turn."
    page.row(cloud(span, colours, 4, caption, legend, turn="0.9", tilt="0.25"))
    page.row(
        image(_curve(glyphs), "Accuracy by epoch."),
        image(figures.confusion(glyphs.confusion(), glyphs.data.class_names), "Held-out recordings."),
    )


def _live(page: Page, glyphs: Trained, live: Live) -> None:
    page.heading("The same network, live")
    p50, p99 = np.percentile(live.latency, [50, 99]) * 1e3
    page.text(
        f"{len(live.truth)} held-out recordings, a tenth of a second each, went through the compiled engine in packets "
        f"of a millisecond: {p50:.2f} ms of work per packet in the median, {p99:.2f} ms at the 99th percentile; in one "
        f"piece, {live.rate / 1e6:.2f} million events per second. At the end of each recording its answer differs from "
        f"that of the network as it was trained by at most {live.error:.1e} of the largest logit."
    )
    page.text(
        f"That rate is of this network on this machine, in one call for each recording of about {live.events:,.0f} "
        f"events; for every one that comes in, {_listed(live.levels)} events reach the levels behind it. The README's "
        "largest rate is that of the CIFAR10-DVS network, in packets of 10,000 events, on the machine named there; "
        "benchmarks/streaming.py measures it on any."
    )
    shown = live.time <= live.ends[min(5, len(live.ends) - 1)]
    figure = figures.live(live.time[shown], live.probability[shown], glyphs.data.class_names)
    axes = figure.axes[0]
    for begin, end, truth in zip([0, *live.ends[:5]], live.ends[:6], live.truth, strict=False):
        axes.axvline(end, color=figures.GREY, linewidth=0.8)
        axes.text((begin + end) / 2, 1.03, f"a {glyphs.data.class_names[truth]}", ha="center", fontsize=9)
    page.row(image(figure, "The probability of each digit after every millisecond, for six recordings in a row."))
    page.code(
        "engine = gl.stream(model)\nfor packet in camera:            # one event, or thousands\n"
        "    logits = engine(packet)      # a new prediction, or None"
    )


def _weights(page: Page, shipped: Shipped) -> None:
    page.heading("Weights that come with the package")
    right = sum(shipped.class_names[int(answer.argmax())] == name for name, answer in shipped.shapes)
    sure = int((shipped.background > 0.5).sum())
    page.text(
        "Three of them, on things that this package draws itself and that they have never seen. "
        "gl.load('shapenetpart') gives every point of a chair the part that it belongs to. gl.load('modelnet40-plus') "
        f"learned from CAD models, and names {right} of {len(shipped.shapes)} drawn kinds that ModelNet40 has, too. "
        "gl.load('n-cars') learned to tell cars from other things before a camera in traffic; of digits that move "
        "before a simulated camera of that size, none of which is a car, it takes "
        f"{sure} of {len(shipped.background)} for background."
    )
    names = [f"{name}: {count:,} points" for name, count in shipped.parts.items()]
    picture = gl.show(shipped.chair, colour="part", class_names=names)
    page.row(cloud(shipped.chair.coords.numpy(), picture.colours, 6, "A drawn chair and its parts.", picture.legend))
    page.table(
        ["drawn", "the network's answer"],
        [[name, _answers(answer, shipped.class_names)] for name, answer in shipped.shapes],
    )
    frame = gl.show(shipped.recording, view="frame").figure()
    caption = f"A digit before the N-Cars network: background, {shipped.background[3]:.0%}."
    bars = figures.bars((100 * shipped.background).tolist(), "recording", "background (%)")
    page.row(image(frame, caption), image(bars, "What it says of all the recordings."))
    page.code("model = gl.load('modelnet40-plus')\nprobability = model(model.plan(xyz)).softmax(1)")


def _listed(numbers: np.ndarray) -> str:
    *most, last = [f"{n:.2g}" for n in numbers]
    return f"{', '.join(most)} and {last}" if most else last


def _answers(answer: Tensor, names: list[str]) -> str:
    return ", ".join(f"{names[int(k)]} {float(answer[k]):.0%}" for k in answer.argsort(descending=True)[:2])


def _curve(trained: Trained) -> Any:
    history = trained.results["history"]
    lines = {"training": "train_accuracy", "held out": "valid_accuracy"}
    return figures.curves({k: [100 * e[v] for e in history if v in e] for k, v in lines.items()})


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
