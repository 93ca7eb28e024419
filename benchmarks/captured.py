"""A user's own training step: eager, by torch.compile, captured by `gl.capture`, and as `gridless train` makes it.

    python benchmarks/captured.py [--batch 128] [--compile] [--out results/captured.json]

`point_resnet_large`, batches of clouds of 1,024 points (ModelNet40 where it lies beside the project, else points on
ellipsoids), forward, loss, backward and AdamW. Before anything is timed, the captured step is compared with the eager
one. `kept` is a step on geometry that was made before, `anew` one whose geometry is made for each batch (by the loop
itself, or by a loader that prepares the next batches meanwhile), in milliseconds, and in seconds for an epoch of 9,843
clouds. Then event networks on simulated recordings of moving digits, 32 at a time, `anew` by a loader.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, modelnet, report
from direct import Run
from torch.nn.functional import cross_entropy

import gridless as gl
from gridless.training import Batch, Clouds, Loader, Recordings, load_recipe
from gridless.training.batch import Group, transposed
from gridless.training.step import begin_step

STEPS, EPOCH, RECORDINGS = 40, 9843, 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def sync() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Own:
    """A user's network, optimiser and step; the loss is the network's own, where it has one."""

    def __init__(self, make: Callable[[], Any] = gl.models.point_resnet_large, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.model = make().to(DEVICE).train()
        self.forward = torch.compile(self.model, mode="reduce-overhead") if compiled else self.model
        self.optimiser = torch.optim.AdamW(self.model.parameters(), 1e-3, fused=True)

    def step(self, geometry: Any, labels: torch.Tensor) -> torch.Tensor:
        own = getattr(self.model, "loss", None)
        loss = cross_entropy(self.forward(geometry), labels) if own is None else own(geometry, labels)[0]
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.detach()


EVENTS: dict[str, Callable[[], Any]] = {
    "the N-MNIST network": gl.models.n_mnist,
    "the same, stream head": lambda: gl.models.n_mnist(head="stream"),
    "the N-Cars network, stream head": lambda: gl.models.n_cars(head="stream"),
}


def over_events(name: str) -> Iterator[tuple[str, float, float]]:
    """Eager, and captured: a step on kept geometry, and one on that of a loader."""
    make = EVENTS[name]
    glyphs = gl.data.MovingGlyphs(10 * RECORDINGS, make().config["sensor"])
    events = gl.Events(glyphs.pixel, glyphs.time, glyphs.polarity, glyphs.splits, glyphs.sensor)
    # N-Cars has two classes.
    data = Recordings.of(events, glyphs.labels % 2, glyphs.class_names).to(DEVICE)
    each = f"{name}, {RECORDINGS} recordings of {len(events) / len(data):,.0f} events"
    for who, wrap in ((f"{each}, eager", lambda step: step), (f"{each}, captured", gl.capture)):
        own = Own(make)
        step = wrap(lambda batch, own=own: own.step(batch.geometry, batch.labels))
        reused = [(batch,) for batch in Loader(data, own.model.plan, RECORDINGS, prefetch=0)]
        still = milliseconds(step, chain.from_iterable(repeat(reused)))
        loader = Loader(data, own.model.plan, RECORDINGS, epochs=100)
        yield who, still, milliseconds(step, ((batch,) for _ in range(100) for batch in loader))


def milliseconds(step: Callable[..., Any], batches: Iterable[tuple]) -> float:
    """The mean over some steps, after as many as it takes to compile and capture."""
    turn = iter(batches)
    for given in islice(turn, 14):
        step(*given)
    sync()
    began = time.perf_counter()
    count = 0
    for given in islice(turn, STEPS if DEVICE == "cuda" else 2):
        step(*given)
        count += 1
    sync()
    return 1e3 * (time.perf_counter() - began) / count


def compare(plan: Any, batches: list[tuple]) -> float:
    """The largest difference between the losses of captured and eager steps on the same batches."""
    losses = []
    for wrap in (lambda step, plan: step, gl.capture):
        own = Own(lambda: gl.models.point_resnet_large(dropout=0.0))
        step = wrap(own.step, plan)
        losses.append(torch.stack([step(plan(clouds), labels) for clouds, labels in batches]))
    return float((losses[0] - losses[1]).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--compile", action="store_true", help="torch.compile too: a minute or two")
    parser.add_argument("--out", type=Path, default=RESULTS / "captured.json")
    given = parser.parse_args()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    batch = given.batch
    what, points = modelnet(10 * batch)
    labels = torch.randint(0, 40, (len(points),), generator=torch.Generator().manual_seed(0))
    data = Clouds(torch.from_numpy(points), labels).to(DEVICE)
    batches = [(gl.Cloud.of(list(x)), y) for x, y in zip(data.points.split(batch), data.labels.split(batch))]
    plan = Own().model.plan
    reused = [(plan(clouds), labels) for clouds, labels in batches]
    apart = compare(plan, batches)
    print(f"{what}: losses of {len(batches)} captured steps differ by {apart:.1e} at most", flush=True)
    rows: list[dict[str, Any]] = []

    def row(who: str, kept_ms: float | None, anew_ms: float | None) -> None:
        rows.append({"who": who})
        for name, value in (("kept", kept_ms), ("anew", anew_ms)):
            if value is not None:
                rows[-1] |= {f"{name}, ms": value, f"{name}, s/epoch": value * EPOCH / batch / 1e3}
        print(rows[-1], flush=True)

    def over(own: Own, step: Callable[..., Any]) -> tuple[float, float]:
        """A step on kept geometry, and one after the plan."""
        turn = chain.from_iterable(repeat(reused))
        still = milliseconds(step, turn)
        return still, milliseconds(lambda c, y: step(own.model.plan(c), y), chain.from_iterable(repeat(batches)))

    own = Own()
    row("eager", *over(own, own.step))
    with torch.autograd.set_multithreading_enabled(False):
        own = Own()
        row("eager, backward in one thread", *over(own, own.step))
    own = Own()
    step = gl.capture(own.step, plan)
    row("gl.capture", *over(own, step))
    own = Own()
    step = gl.capture(lambda b: own.step(b.geometry, b.labels))
    loader = Loader(data, plan, batch, epochs=100)
    row("gl.capture, gl.training.Loader", None, milliseconds(step, ((b,) for _ in range(100) for b in loader)))
    run = Run(load_recipe("modelnet40-large").changed(augment={}, batch_size=batch), data)

    def train(number: int, some: Any) -> None:
        begin_step(run.recipe, run.schedule, run.optimiser, 0, number, 77)
        run.step(some)

    anew = ((i, b) for _ in range(100) for i, b in enumerate(run.loader))
    prepared = [(i, Batch(Group(plan, transposed(g), y))) for i, (g, y) in enumerate(reused)]
    row("gridless train", milliseconds(train, chain.from_iterable(repeat(prepared))), milliseconds(train, anew))
    for name in EVENTS:
        for who, still, anew_ms in over_events(name):
            rows.append({"who": who, "kept, ms": still, "anew, ms": anew_ms})
            print(rows[-1], flush=True)
    facts = {"data": what, "batch": batch, "largest_difference": apart}
    report(given.out, rows, **facts)
    if given.compile:
        padded = [transposed(gl.collate([g], bucket="power_of_two")) for g, _ in reused[:2]]
        compiled = Own(compiled=True)
        began = time.perf_counter()
        turn = chain.from_iterable(repeat([(g, y) for g, (_, y) in zip(padded, reused)]))
        value = milliseconds(compiled.step, turn)
        row("torch.compile, reduce-overhead, two batches padded to powers of two", value, None)
        print(f"with compilation {time.perf_counter() - began:.0f} s", flush=True)
        report(given.out, rows, **facts)


if __name__ == "__main__":
    main()
