"""Following a laser spot event by event: errors with and without latency, beside CNNs on frames (gl.data.Spots).

    python benchmarks/track.py train --data DIR --out DIR [--seconds 150]     on a GPU: variants in parallel, then CNNs
    python benchmarks/track.py judge --data DIR --weights RUN/weights --cnn DIR    on the CPU: results/track.json

Errors are root mean square distances in pixels, the mean over the held-out streams. Without latency an answer counts at
the time of its last event or frame. With latency it counts once it is computed: at each true time the latest answer
counts that was finished by then; work queues up if events come faster than they are worked on. Computing times are
medians of single calls on one core.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import DATA, RESULTS, ROOT, keep, machine
from export import CALLS, records
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import gridless as gl
from gridless.data import Spots
from gridless.live.export.check import NATIVE, compilers
from gridless.live.lowering import lines
from gridless.ops.leaky_sum import leaky_sum
from gridless.tasks.track import last_event
from gridless.training import load_recipe

# Networks that are tried: changes of the recipe.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rounds": {"rounds": 2, "hidden": 32, "weights": 8},
    "wide": {"channels": 12, "kernel": 5, "width": 48, "hidden": 64},
}
# Windows of counts in microseconds: two channels each.
WINDOWS = {"cnn 10 ms": (10_000,), "cnn 10, 20, 40 ms": (10_000, 20_000, 40_000)}
FRAME = 10_000
DECAYS = (10_000.0, 20_000.0, 50_000.0, 100_000.0, 200_000.0)
SIDE = 50


class Cnn(nn.Module):
    """Five convolutions and two dense layers on counts (B, channels, 50, 50): positions (B, 2) in pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = [(channels, 32, 5, 2), (32, 64, 3, 1), (64, 64, 3, 2), (64, 64, 3, 1), (64, 64, 3, 2)]
        layers: list[nn.Module] = []
        for q, p, kernel, stride in sizes:
            layers += [nn.Conv2d(q, p, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(p), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, counts: Tensor) -> Tensor:
        return self.layers(counts.float().log1p()) * 8 + (SIDE - 1) / 2


def counts(events: gl.Events, ends: np.ndarray, windows: Sequence[int]) -> Tensor:
    """OFF and ON events of the windows before each time (N, 2 windows, 50, 50) uint8."""
    x, y = events.pixel.numpy().T.astype(np.int64)
    time, cell = events.time.numpy(), (events.polarity.numpy() * SIDE + y) * SIDE + x  # type: ignore[union-attr]
    frames = np.zeros((len(ends), len(windows), 2 * SIDE * SIDE), np.uint8)
    for k, window in enumerate(windows):
        first, last = (np.searchsorted(time, ends - back, side="right") for back in (window, 0))
        for n, (a, b) in enumerate(zip(first, last, strict=True)):
            frames[n, k] = np.bincount(cell[a:b], minlength=2 * SIDE * SIDE).clip(max=255)
    return torch.from_numpy(frames).view(len(ends), 2 * len(windows), SIDE, SIDE)


def turned(frames: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """A batch, mirrored and transposed at random as a whole."""
    for axis in (0, 1):
        if torch.rand(()) < 0.5:
            frames, truth = frames.flip(3 - axis), truth.clone()
            truth[:, axis] = SIDE - 1 - truth[:, axis]
    return (frames.transpose(2, 3), truth.flip(1)) if torch.rand(()) < 0.5 else (frames, truth)


def train_cnn(data: Spots, windows: Sequence[int], device: str, epochs: int) -> Cnn:
    """A CNN on counts up to the true times, as the recipe of the network: AdamW, cosine, averaged weights."""
    ends = [known[:, 0].numpy().astype(np.int64) for known in data.positions]
    frames = [counts(events, at, windows) for events, at in zip(data.recordings, ends, strict=True)]
    inputs, truth = torch.cat(frames).to(device), torch.cat(data.positions)[:, 1:].float().to(device)
    torch.manual_seed(0)
    model = Cnn(inputs.shape[1]).to(device)
    best = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    steps, size = epochs * (len(truth) // 128), 128
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1, step / 200) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        at = torch.randint(len(truth), (size,), device=device)
        answer, target = (lambda pair: (model(pair[0]), pair[1]))(turned(inputs[at], truth[at]))
        loss = functional.smooth_l1_loss(answer, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for mine, theirs in zip(best.state_dict().values(), model.state_dict().values(), strict=True):
            mine.lerp_(theirs, 0.005) if mine.is_floating_point() else mine.copy_(theirs)
    return best.cpu().eval()


def train(choice: argparse.Namespace) -> None:
    """Train the variants in parallel for about so many seconds, then the CNNs; print what each came to."""
    choice.out.mkdir(parents=True, exist_ok=True)

    def run(name: str, epochs: int, out: Path) -> subprocess.Popen:
        changes = [f"--set=model.{key}={value}" for key, value in VARIANTS[name].items()]
        command = [sys.executable, "-m", "gridless", "train", "spots", "--data", str(choice.data), "--out", str(out)]
        with out.with_suffix(".log").open("w") as log:
            return subprocess.Popen([*command, f"--epochs={epochs}", *changes], cwd=ROOT, stdout=log, stderr=log)

    # The first run of each compiles its kernels; the second one tells how long an epoch takes.
    took = {}
    for trial in range(2):
        begin = time.perf_counter()
        jobs = {name: run(name, 1, choice.out / f"{name}-trial{trial}") for name in choice.variants}
        took = {name: (job.wait(), time.perf_counter() - begin)[1] for name, job in jobs.items()}
    results = [json.loads((choice.out / f"{name}-trial1" / "results.json").read_text()) for name in choice.variants]
    slowest = max(result["seconds"] for result in results)
    epochs = max(3, int((choice.seconds - max(took.values()) + slowest) / slowest))
    print(f"a trial takes {max(took.values()):.0f} s, an epoch at most {slowest:.1f} s: {epochs} epochs", flush=True)
    jobs = {name: run(name, epochs, choice.out / name) for name in choice.variants}
    for name, job in jobs.items():
        assert job.wait() == 0, (choice.out / f"{name}.log").read_text()[-2000:]
        result = json.loads((choice.out / name / "results.json").read_text())
        print(name, {key: result[key] for key in ("valid_rms", "train_loss", "seconds")}, flush=True)
    for name, windows in WINDOWS.items():
        begin = time.perf_counter()
        model = train_cnn(Spots(choice.data, "fit"), windows, choice.device, choice.cnn_epochs)
        save_file(model.state_dict(), choice.out / f"{name}.safetensors")
        errors = [rms(*frame_answers(model, windows, *one), 0.0, one[1]) for one in Spots(choice.data, "validation")]
        print(name, f"{np.mean(errors):.3f} px, {time.perf_counter() - begin:.0f} s", flush=True)


def rms(times: np.ndarray, answers: np.ndarray, cost_us: float, known: Tensor) -> float:
    """The error of the latest answer that was finished by each true time; `cost_us` is the work of one answer."""
    # An answer is begun when its event is there and the one before it is finished.
    number = np.arange(len(times))
    finished = np.maximum.accumulate(times - cost_us * number) + cost_us * (number + 1)
    at = np.searchsorted(finished, known[:, 0].numpy(), side="right") - 1
    middle = np.full((1, 2), (SIDE - 1) / 2)
    predictions = np.concatenate([middle, answers])[at + 1]
    return float(np.sqrt(((predictions - known[:, 1:].numpy()) ** 2).sum(1).mean()))


@torch.no_grad()
def frame_answers(
    model: Cnn, windows: Sequence[int], events: gl.Events, known: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of frames, each at a true time, and the answers to them: without latency these are the best frames."""
    ends = known[:, 0].numpy().astype(np.int64)
    return ends.astype(np.float64), torch.cat(
        [model(part) for part in counts(events, ends, windows).split(256)]
    ).numpy()


@torch.no_grad()
def clocked_answers(
    model: Cnn, windows: Sequence[int], events: gl.Events, known: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """The same for frames of a clock of their own, which does not know when positions will be asked for."""
    ends = np.arange(FRAME, int(known[-1, 0]) + FRAME, FRAME)
    return ends.astype(np.float64), torch.cat(
        [model(part) for part in counts(events, ends, windows).split(256)]
    ).numpy()


def simple(fit: Spots, data: Spots) -> dict[str, dict[str, float]]:
    """Baselines without a network: constants, the decayed centroid, and the published filter; without latency."""
    mean = torch.cat(fit.positions)[:, 1:].mean(0)
    distance: Callable[[Tensor, Tensor], float] = lambda a, b: float((a - b).square().sum(1).mean().sqrt())  # noqa: E731

    def centroids(events: gl.Events, known: Tensor) -> list[float]:
        values = torch.cat([torch.ones(len(events), 1), events.pixel.float()], 1).double()
        sums = leaky_sum(values, torch.tensor([1000 / t for t in DECAYS]).double(), events)
        at = last_event(events.time, known[:, 0])
        return [distance(sums[at, k, 1:] / sums[at, k, :1], known[:, 1:]) for k in range(len(DECAYS))]

    best = int(np.argmin(np.mean([centroids(*one) for one in fit], 0)))
    errors_of = {
        "constant: the mean of the training part": [distance(mean[None], known[:, 1:]) for known in data.positions],
        "constant: the mean of each stream": [distance(k[:, 1:].mean(0)[None], k[:, 1:]) for k in data.positions],
        f"centroid, decay {DECAYS[best] / 1000:g} ms": [centroids(*one)[best] for one in data],
        "published first-order filter": [
            distance(a, known[:, 1:]) for a, known in zip(data.filtered, data.positions, strict=True)
        ],
    }
    return {name: {"rms": float(np.mean(each)), "by stream": each} for name, each in errors_of.items()}


def compiled_calls(model: nn.Module, events: gl.Events, bits: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Microseconds of calls of exported C with one event each, the positions, and facts about the code."""
    with tempfile.TemporaryDirectory() as folder:
        path = gl.export(model, folder, bits=bits, chunk=16)
        (path / "calls.c").write_text(CALLS)
        command = [*compilers()[0], *NATIVE, "-fPIC", "-shared", "network.c", "calls.c", "-o", "calls.so"]
        subprocess.run(command, cwd=path, check=True)
        library = ctypes.CDLL(str(path / "calls.so"))
        library.net_bytes.restype = ctypes.c_size_t
        library.calls.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_void_p]
        state, raw = lines(library.net_bytes()), records(events)
        library.net_reset(ctypes.c_void_p(state.ctypes.data))
        took = np.zeros(len(raw), np.int64)
        library.calls(state.ctypes.data, raw.ctypes.data, len(raw), took.ctypes.data)
        answers = torch.stack([p.logits for p in gl.stream(model, compiled=path).push(events)]).numpy()
        weights = sum(p.numel() for p in model.parameters()) * bits // 8
        facts = {"state bytes": int(library.net_bytes()), "weight bytes": weights, "compiler": " ".join(command[:4])}
    return took / 1000, answers, facts


def engine_calls(model: nn.Module, events: gl.Events, count: int = 20_000) -> np.ndarray:
    """Microseconds of calls of `gl.stream` with one event each."""
    engine, took = gl.stream(model), []
    for one in [events[k : k + 1] for k in range(min(count, len(events)))]:
        begin = time.perf_counter_ns()
        engine(one)
        took.append(time.perf_counter_ns() - begin)
    return np.array(took) / 1000


def judge(choice: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    fit, data = (Spots(choice.data, split) for split in ("fit", "validation"))
    results: dict[str, Any] = simple(fit, data)
    model = gl.load(choice.weights).eval()
    times = [events.time.numpy().astype(np.float64) for events in data.recordings]
    live = []
    for events in data.recordings:
        live.append(torch.stack([p.logits for p in gl.stream(model).push(events)]).numpy())
        with torch.no_grad():
            batch = model.answers(model.plan(events)).numpy()
        assert np.abs(batch - live[-1]).max() < 1e-5 * np.abs(batch).max(), "live differs from the batch"

    def errors(answers: Sequence[np.ndarray], cost: float) -> list[float]:
        return [rms(t, a, cost, known) for t, a, known in zip(times, answers, data.positions, strict=True)]

    calls = engine_calls(model, data.recordings[0])
    rows = {"gl.stream": (live, calls, {})}
    for bits in (32, 16):
        parts = [compiled_calls(model, events, bits) for events in data.recordings]
        took = np.concatenate([part[0] for part in parts])
        rows[f"C, {bits} bits"] = ([part[1] for part in parts], took, parts[0][2])
    for name, (answers, took, facts) in rows.items():
        cost = float(np.median(took))
        results[name] = summary(errors(answers, 0.0), errors(answers, cost)) | {"us per answer": cost} | facts
        results[name]["us per answer, 99 %"] = float(np.percentile(took, 99))
    for name, windows in WINDOWS.items():
        cnn = Cnn(2 * len(windows)).eval()
        cnn.load_state_dict(load_file(choice.cnn / f"{name}.safetensors"))
        frame = counts(data.recordings[0], np.array([5_000_000]), windows)
        took = []
        with torch.no_grad():
            for _ in range(200):
                begin = time.perf_counter()
                cnn(frame)
                took.append(1e6 * (time.perf_counter() - begin))
        cost = float(np.median(took))
        plain = [rms(*frame_answers(cnn, windows, *one), 0.0, one[1]) for one in data]
        late = [rms(*clocked_answers(cnn, windows, *one), cost, one[1]) for one in data]
        results[name] = summary(plain, late) | {"us per answer": cost}
        results[name]["weight bytes"] = 4 * sum(p.numel() for p in cnn.parameters())
    for name, row in results.items():
        print(
            f"{name:42}", {key: round(v, 3) if isinstance(v, float) else v for key, v in row.items() if key[:2] != "by"}
        )
    config = {"recipe": load_recipe("spots").to_dict(), "model": model.config, "streams": data.names}
    keep(RESULTS / "track.json", {"machine": machine("cpu"), **config, "rms in pixels": results})


def summary(plain: Sequence[float], late: Sequence[float]) -> dict[str, Any]:
    means = {"rms": float(np.mean(plain)), "rms with latency": float(np.mean(late))}
    return means | {"by stream": list(plain), "by stream with latency": list(late)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "judge"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("runs/track"))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--seconds", type=float, default=150.0, help="of the training of the variants")
    parser.add_argument("--cnn-epochs", type=int, default=30)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--cnn", type=Path, help="the folder of the CNNs' weights")
    choice = parser.parse_args()
    {"train": train, "judge": judge}[choice.what](choice)


if __name__ == "__main__":
    main()
