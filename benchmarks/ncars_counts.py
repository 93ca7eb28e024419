"""What the network of `n-cars-live` might be shown of a recording: many short runs, judged on drives held out.

    python benchmarks/ncars_counts.py --data DIR --out OUT [--jobs 10] [--seeds 2] [--minutes 8] [NAME ...]

The recipe's network, transforms and steps, by a quicker code: events stay on the GPU, a whole batch of them is moved,
thinned and counted there at once, layers run in bfloat16, and --jobs processes share the GPU. Each run learns from four
folds of the drives and is judged on the fifth, after its last step: nothing is chosen on the way. A network that is
taught learns what others, trained on the same folds, say of the same view: they have to be in OUT, so ask for them
first. No run is begun after --minutes; finished ones are kept in OUT/runs.jsonl and not made again. Prints a table, the
best first, with the accuracy of the mean of what the seeds say.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import mps  # noqa: E402
from ncars_variants import PACKED, table, unpack  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import gridless as gl  # noqa: E402
from gridless.nn.events import LEFT  # noqa: E402
from gridless.training.schedule import Cosine  # noqa: E402

WIDTH, HEIGHT = SENSOR = gl.data.NCars.sensor
DECAY_TIME = 100_000.0
BATCH = 128


class Kind(NamedTuple):
    """What a network is shown, and how it learns: counts magnified to the whole grid; at half the resolution; in
    training magnified by other factors (logarithm), moved (share of the sides), stretched (logarithm)."""

    fit: bool = False
    half: bool = False
    zoom: tuple[float, float] = (0.0, 0.0)
    move: float = 0.0
    stretch: float = 0.0
    epochs: int = 15
    taught_by: tuple[str, ...] = ()


MOVED: Any = {"zoom": (-0.2, 0.1), "move": 0.08}
KINDS = {
    "plain": Kind(),
    "fit": Kind(fit=True),
    "fit-moved": Kind(fit=True, **MOVED),
    "fit-stretched": Kind(fit=True, **MOVED, stretch=0.15),
    "fit-long": Kind(fit=True, epochs=25),
    "half": Kind(half=True),
    "fit-half": Kind(fit=True, half=True),
    "fit-half-moved": Kind(fit=True, half=True, **MOVED),
    "taught": Kind(taught_by=("plain", "fit")),
}


class Recordings:
    """All events on the device."""

    def __init__(self, path: Path, device: torch.device) -> None:
        with np.load(path) as arrays:
            given = {name: torch.from_numpy(arrays[name]).to(device) for name in (*PACKED, "folds")}
        self.x, self.y, self.p, self.offsets = (given[name] for name in ("x", "y", "p", "offsets"))
        self.time, self.labels, self.folds, self.device = given["t"], given["label"], given["folds"], device

    def counts(self, rows: Tensor, train: bool) -> Tensor:
        """(B, H, W, 2): decayed counts of OFF and ON events, with the transforms of the recipe in training."""
        first, size = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        example = torch.repeat_interleave(size)
        at = torch.arange(len(example), device=self.device) + (first - size.cumsum(0) + size)[example]
        x, y = self.x[at].float(), self.y[at].float()
        age = (self.time[self.offsets[rows + 1] - 1][example] - self.time[at]).float()
        stays = torch.ones_like(x, dtype=torch.bool)

        def draw(low: float = 0.0, high: float = 1.0) -> Tensor:
            return low + (high - low) * torch.rand(len(rows), device=self.device)

        if train:
            x = torch.where((draw() < 0.5)[example], WIDTH - 1 - x, x)
            factor = draw(math.log(0.85), math.log(1.2)).exp()[example]
            x, y = ((v - side / 2) * factor + side / 2 for v, side in ((x, WIDTH), (y, HEIGHT)))
            x, y = (v.round() + draw(-8.5, 8.5).round().clamp(-8, 8)[example] for v in (x, y))
            age = age * draw(math.log(0.8), math.log(1.25)).exp()[example]
            stays = torch.rand_like(x) >= draw(0, 0.3)[example]
            stays &= (x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)
            inside, often = stays.clone(), draw() < 0.7
            for v in (x, y):
                low = torch.full_like(often, 1e9, dtype=torch.float32).scatter_reduce(
                    0, example, torch.where(stays, v, 1e9), "amin"
                )
                high = torch.zeros_like(low).scatter_reduce(0, example, torch.where(stays, v, -1.0), "amax")
                low = torch.minimum(low, high)
                side, middle = draw(0.1, 0.6) * (high - low + 1) * often, low + draw() * (high - low)
                inside &= (v - middle[example]).abs() < side[example] / 2
            stays &= ~inside
        cell = (example * HEIGHT + y.long().clamp(0, HEIGHT - 1)) * WIDTH + x.long().clamp(0, WIDTH - 1)
        total = torch.zeros(len(rows) * HEIGHT * WIDTH * 2, device=self.device)
        total.index_add_(0, 2 * cell + self.p[at], torch.exp(-age / DECAY_TIME) * stays)
        return total.view(-1, HEIGHT, WIDTH, 2)


def shown(kind: Kind, counts: Tensor, train: bool) -> Tensor:
    """The grid that a network of this kind is given."""
    counts = counts.permute(0, 3, 1, 2)
    size = (HEIGHT // 2, WIDTH // 2) if kind.half else (HEIGHT, WIDTH)
    if kind.half and not kind.fit:
        counts = 4 * functional.avg_pool2d(counts, 2)
    if kind.fit:

        def draw(low: float, high: float) -> Tensor:
            return (low + (high - low) * torch.rand(len(counts), device=counts.device)) * train

        held = (counts >= LEFT).any(1)
        sides = []
        for side in (held.any(1), held.any(2)):
            at = torch.arange(side.shape[1], device=side.device)
            low, high = torch.where(side, at, len(at)).amin(1), torch.where(side, at, -1).amax(1)
            none = high < 0
            low, high = torch.where(none, 0, low), torch.where(none, len(at) - 1, high)
            sides.append(((high - low + 1) / len(at), (low + high + 1) / len(at) - 1))
        share = torch.maximum(sides[0][0], sides[1][0]) / draw(*kind.zoom).exp()
        stretch = draw(-kind.stretch, kind.stretch).exp()
        affine = counts.new_zeros(len(counts), 2, 3)
        affine[:, 0, 0], affine[:, 1, 1] = share * stretch, share / stretch
        for k, (part, middle) in enumerate(sides):
            affine[:, k, 2] = middle + draw(-2 * kind.move, 2 * kind.move) * part
        where = functional.affine_grid(affine, [len(counts), 2, *size], align_corners=False)
        counts = functional.grid_sample(counts, where, align_corners=False)
    return counts.permute(0, 2, 3, 1)[:, None].log1p()


class Network(nn.Module):
    """`EventCounts` on grids that are there already."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        sizes: Any = {"width": 32, "levels": 3, "size": 2} if kind.half else {}
        self.kind, self.model = kind, gl.models.EventCounts(2, SENSOR, **sizes)
        for layer in self.modules():
            if isinstance(layer, gl.nn.BatchNorm):
                layer.momentum = 0.1

    def forward(self, counts: Tensor) -> Tensor:
        half = torch.autocast("cuda", torch.bfloat16) if counts.is_cuda else nullcontext()
        with half:
            grid = self.model.layers(shown(self.kind, counts, self.training))
            last = torch.cat([grid.mean((1, 2, 3)), grid.amax((1, 2, 3))], 1)
        return self.model.logits(self.model.dropout(last.float()))


def learn(
    kind: Kind, seed: int, data: Recordings, rows: Tensor, teachers: list[Network], epochs: int
) -> tuple[Network, float]:
    """A trained network, and its accuracy in the last epoch."""
    torch.manual_seed(seed)
    network = Network(kind).to(data.device)
    decays, others = ([p for p in network.parameters() if (p.ndim > 1) == many] for many in (True, False))
    optimiser = torch.optim.AdamW([{"params": decays, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}])
    rate, steps = Cosine(0.003, epochs, warm_up=2, floor=0.01), max(len(rows) // BATCH, 1)
    right = torch.zeros((), device=data.device)
    for epoch in range(epochs):
        right.zero_()
        for step, some in enumerate(rows[torch.randperm(len(rows), device=data.device)].split(BATCH)[:steps]):
            for group in optimiser.param_groups:
                group["lr"] = rate(epoch + step / steps)
            counts, target = data.counts(some, train=True), data.labels[some]
            if teachers:
                with torch.no_grad():
                    target = torch.stack([teacher(counts).softmax(1) for teacher in teachers]).mean(0)
            logits = network(counts)
            right += (logits.argmax(1) == data.labels[some]).sum()
            loss = functional.cross_entropy(logits, target, label_smoothing=0.0 if teachers else 0.05)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
    return network.eval(), float(right) / min(steps * BATCH, len(rows))


@torch.no_grad()
def accuracy(said: Tensor, labels: Tensor) -> float:
    return float((said.argmax(1) == labels).double().mean())


# What a process has of its own.
_here: dict[str, Any] = {}


def begin(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    _here.update(options=options, data=Recordings(options.out / "unpacked.npz", torch.device(options.device)))


def run(job: tuple[str, int, int]) -> dict[str, Any] | None:
    (name, seed, fold), options, data = job, _here["options"], _here["data"]
    if time.time() > options.until:
        return None
    begun, kind = time.perf_counter(), KINDS[name]
    teachers = []
    for path in (path for other in kind.taught_by for path in sorted(options.out.glob(f"{other}-*-{fold}.pt"))):
        teachers.append(Network(KINDS[path.stem.rsplit("-", 2)[0]]).to(data.device).eval())
        teachers[-1].load_state_dict(torch.load(path))
    if kind.taught_by and not teachers:
        raise FileNotFoundError(f"{options.out}: no networks to teach {name} on fold {fold}: run {kind.taught_by}")
    some, held = ((data.folds != fold).nonzero()[:, 0], (data.folds == fold).nonzero()[:, 0])
    if options.limit:
        some, held = (rows[:: max(len(rows) // options.limit, 1)] for rows in (some, held))
    network, learned = learn(kind, seed, data, some, teachers, options.epochs or kind.epochs)
    with torch.no_grad():
        said = torch.cat([network(data.counts(rows, train=False)).softmax(1) for rows in held.split(512)])
    torch.save(network.state_dict(), options.out / f"{name}-{seed}-{fold}.pt")
    torch.save(said.cpu(), options.out / f"{name}-{seed}-{fold}.said")
    found = {"name": name, "seed": seed, "fold": fold, "accuracy": accuracy(said, data.labels[held])}
    return {**found, "train_accuracy": learned, "seconds": time.perf_counter() - begun}


@torch.no_grad()
def check(data: Recordings) -> None:
    """On grids made here the network says what it says of the events."""
    torch.manual_seed(0)
    rows = torch.linspace(0, len(data.labels) - 1, 8, device=data.device).long()
    ends = [(int(data.offsets[row]), int(data.offsets[row + 1])) for row in rows]
    events = []
    for a, b in ends:
        columns = {"x": data.x[a:b], "y": data.y[a:b], "t": data.time[a:b], "p": data.p[a:b]}
        events.append(gl.Events.of({name: v.cpu().numpy() for name, v in columns.items()}, sensor=SENSOR))
    for kind in (KINDS["plain"], KINDS["fit"], KINDS["half"]):
        network = Network(kind).to(data.device).eval()
        whole: Any = gl.models.build({**network.model.config, "fit": kind.fit}).to(data.device).eval()
        whole.load_state_dict(network.model.state_dict())
        wanted = whole(whole.plan(gl.collate(events).to(data.device)))
        torch.testing.assert_close(network(data.counts(rows, train=False)), wanted, rtol=1e-3, atol=1e-4)


def together(out: Path, name: str, labels: dict[int, Tensor]) -> float:
    """The accuracy of the mean of what all seeds say, over folds."""
    found = []
    for fold, wanted in labels.items():
        said = [torch.load(path) for path in out.glob(f"{name}-*-{fold}.said")]
        found += [accuracy(torch.stack(said).mean(0), wanted)] if said else []
    return sum(found) / max(len(found), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["plain", "fit"], help=f"of {', '.join(KINDS)}")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the packs of N-Cars")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 4, 1, 2, 3])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, help="in place of those of each kind, for a trial")
    parser.add_argument("--limit", type=int, help="so many recordings only, for a trial")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in KINDS]:
        sys.exit(f"no kind {unknown[0]!r}: there are {', '.join(KINDS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    unpack(options)
    log = options.out / "runs.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    known = {(e["name"], e["seed"], e["fold"]) for e in entries}
    options.until = time.time() + 60 * options.minutes
    if options.device != "cpu" and options.jobs > 1:
        print("MPS:", mps(), flush=True)
    begin(argparse.Namespace(**{**vars(options), "device": "cpu"}))
    check(_here["data"])
    context = multiprocessing.get_context("spawn")
    # Those that are taught wait for the others.
    for taught in (False, True):
        names = [name for name in options.names if bool(KINDS[name].taught_by) == taught]
        jobs = [(name, seed, fold) for seed in range(options.seeds) for name in names for fold in options.folds]
        jobs = [job for job in jobs if job not in known]
        if not jobs:
            continue
        with context.Pool(min(options.jobs, len(jobs)), begin, (options,)) as pool, log.open("a") as file:
            for entry in filter(None, pool.imap_unordered(run, jobs)):
                entries.append(entry)
                print(json.dumps(entry), flush=True)
                file.write(json.dumps(entry) + "\n")
    folds, labels, limit = _here["data"].folds, _here["data"].labels, options.limit
    wanted = {fold: labels[folds == fold] for fold in options.folds}
    wanted = {fold: y[:: max(len(y) // limit, 1)] if limit else y for fold, y in wanted.items()}
    for row in table(entries):
        each = "  ".join(f"{100 * row[f'fold {f}']:.1f}" for f in range(5) if f"fold {f}" in row)
        mean = together(options.out, row["name"], wanted)
        print(f"{row['name']:16} mean {100 * row['mean']:.2f}   folds {each}   seeds together {100 * mean:.2f}")


if __name__ == "__main__":
    main()
