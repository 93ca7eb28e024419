"""Following a laser spot: errors with and without latency, beside CNNs on frames (gl.data.Spots). On the CPU.

    gridless train spots --data DIR --out RUN                                         the network
    python benchmarks/track.py train --data DIR --cnn FOLDER                          the CNNs
    python benchmarks/track.py judge --data DIR --cnn FOLDER --weights RUN/weights    results/track.json
    python benchmarks/track.py pictures --data DIR --weights RUN/weights              docs/images/track.png, track.gif

Errors are root mean square distances in pixels, the mean over the held-out streams. Without latency every network
answers at the true times themselves. With latency events come in packets on a clock of their own, and every packet is
answered. At each true time the latest answer counts that was finished by then: it begins when its packet is complete,
and takes the median time of an answer on one core. Packets are as short as such answers allow, from 0.5 ms on.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import math
import subprocess
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
from gridless.live.export.check import FUSED, NATIVE, compilers
from gridless.live.lowering import lines
from gridless.ops.leaky_sum import leaky_sum
from gridless.tasks.track import last_event
from gridless.training import load_recipe

# Windows of counts in microseconds: two channels each.
WINDOWS = {"CNN, 10, 20, 40 ms": (10_000, 20_000, 40_000), "CNN, 10 ms": (10_000,)}
# Microseconds from one frame to the next; shorter ones are a whole number of milliseconds that answers allow.
FRAME, SHORTEST = 10_000, 2_000
# Microseconds of events in a packet: the shortest, and multiples of it.
PACKET, MULTIPLES = 500, (1, 2, 4, 10, 20)
# Number of packets on which times are measured.
PACKETS_TIMED = 4000
DECAYS = (10_000.0, 20_000.0, 50_000.0, 100_000.0, 200_000.0)
SIDE = 50

PACKETS = """
/* Packets end before the events `ends`; an answer after each. Nanoseconds of taking in, and of answering. */
void packets(void *state, const net_event *events, const int64_t *ends, size_t n, float *answers, int64_t *took) {
    struct timespec a, b, c;
    int64_t first = 0;
    for (size_t i = 0; i < n; i++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (ends[i] > first) net_push(state, events + first, (size_t)(ends[i] - first), 0, 0);
        clock_gettime(CLOCK_MONOTONIC, &b);
        net_predict(state, answers + 2 * i);
        clock_gettime(CLOCK_MONOTONIC, &c);
        took[2 * i] = (b.tv_sec - a.tv_sec) * 1000000000ll + (b.tv_nsec - a.tv_nsec);
        took[2 * i + 1] = (c.tv_sec - b.tv_sec) * 1000000000ll + (c.tv_nsec - b.tv_nsec);
        first = ends[i];
    }
}
"""


class Cnn(nn.Module):
    """Five convolutions and two dense layers on counts (B, channels, 50, 50): positions (B, 2) in pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = [(channels, 32, 5, 2), (32, 64, 3, 1), (64, 64, 3, 2), (64, 64, 3, 1), (64, 64, 3, 2)]
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
    """A batch, each half of it mirrored and transposed at random."""
    parts = []
    for x, y in zip(frames.chunk(2), truth.clone().chunk(2), strict=True):
        for axis in (0, 1):
            if torch.rand(()) < 0.5:
                x = x.flip(3 - axis)
                y[:, axis] = SIDE - 1 - y[:, axis]
        parts.append((x.transpose(2, 3), y.flip(1)) if torch.rand(()) < 0.5 else (x, y))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def train_cnn(data: Spots, windows: Sequence[int], epochs: int, size: int = 128, rate: float = 2e-3) -> Cnn:
    """A CNN on counts up to the true times, as the recipe of the network: AdamW, cosine, averaged weights."""
    ends = [known[:, 0].numpy().astype(np.int64) for known in data.positions]
    inputs = torch.cat([counts(events, at, windows) for events, at in zip(data.recordings, ends, strict=True)])
    truth = torch.cat(data.positions)[:, 1:].float()
    torch.manual_seed(0)
    model = Cnn(inputs.shape[1]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    best = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    steps = epochs * (len(truth) // size)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, step / 200) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        at = torch.randint(len(truth), (size,))
        frames, target = turned(inputs[at], truth[at])
        loss = functional.smooth_l1_loss(model(frames), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for average, newest in zip(best.state_dict().values(), model.state_dict().values(), strict=True):
            average.lerp_(newest, 0.005) if average.is_floating_point() else average.copy_(newest)
        if step % 500 == 0:
            print(f"step {step} of {steps}: loss {float(loss):.4f}", flush=True)
    return best.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]


def train(choice: argparse.Namespace) -> None:
    """Train the CNNs; print the errors on the held-out streams without latency."""
    torch.set_num_threads(1)
    choice.cnn.mkdir(parents=True, exist_ok=True)
    for name, windows in WINDOWS.items():
        begin = time.perf_counter()
        model = train_cnn(Spots(choice.data, "fit"), windows, choice.epochs)
        save_file(model.state_dict(), choice.cnn / f"{name}.safetensors")
        errors = plain_errors(model, windows, Spots(choice.data, "validation"))
        print(name, f"{np.mean(errors):.3f} px, {time.perf_counter() - begin:.0f} s", flush=True)


def plain_errors(model: Cnn, windows: Sequence[int], data: Spots) -> list[float]:
    """Errors on each stream if a frame ends at every true time, without latency."""
    streams = zip(data.recordings, data.positions, strict=True)
    return [rms(frame_answers(model, windows, events, asked(known)), known) for events, known in streams]


def rms(answers: np.ndarray, known: Tensor) -> float:
    """The error of the answers to the known positions."""
    return float(np.sqrt(((answers - known[:, 1:].numpy()) ** 2).sum(1).mean()))


def asked(known: Tensor) -> np.ndarray:
    """The true times."""
    return known[:, 0].numpy().astype(np.int64)


def finished(known: Tensor, step: int, cost_us: float) -> np.ndarray:
    """When the packet ended whose answer is the latest one finished at each true time: packets end every `step` us."""
    if cost_us > step:
        raise ValueError(f"an answer takes {cost_us:.0f} us, packets end every {step}: answers would never catch up")
    return ((asked(known) - cost_us) // step * step).clip(0).astype(np.int64)


@torch.no_grad()
def frame_answers(model: Cnn, windows: Sequence[int], events: gl.Events, ends: np.ndarray) -> np.ndarray:
    """The answers to frames that end at `ends`."""
    parts = [counts(events, part, windows) for part in np.array_split(ends, -(-len(ends) // 2000))]
    return torch.cat([model(part) for frames in parts for part in frames.split(256)]).numpy()


def simple(fit: Spots, data: Spots) -> dict[str, dict[str, Any]]:
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


class Board:
    """Exported C on this machine's compiler."""

    def __init__(self, model: nn.Module, folder: Path, bits: int) -> None:
        path = gl.export(model, folder / str(bits), bits=bits, chunk=16)
        (path / "calls.c").write_text(CALLS + PACKETS)
        self.command = [*compilers()[0], *NATIVE, FUSED, "-fPIC", "-shared", "network.c", "calls.c", "-o", "calls.so"]
        subprocess.run(self.command, cwd=path, check=True)
        self.library = ctypes.CDLL(str(path / "calls.so"))
        self.library.net_bytes.restype = ctypes.c_size_t
        self.library.calls.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_void_p]
        self.library.packets.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t] + [ctypes.c_void_p] * 2
        self.state = lines(self.library.net_bytes())
        self.weights = sum(p.numel() for p in model.parameters()) * bits // 8

    def reset(self) -> None:
        self.library.net_reset(ctypes.c_void_p(self.state.ctypes.data))

    def event_us(self, events: gl.Events) -> np.ndarray:
        """Microseconds to take in each event, one per call."""
        raw, took = records(events), np.zeros(len(events), np.int64)
        self.reset()
        self.library.calls(self.state.ctypes.data, raw.ctypes.data, len(raw), took.ctypes.data)
        return took / 1000

    def answers(self, events: gl.Events, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The answers after packets that end at the times `ends`, and microseconds (taking in, answering) of each."""
        raw, many = records(events), np.searchsorted(events.time.numpy(), ends, side="right")
        answers, took = np.zeros((len(ends), 2), np.float32), np.zeros((len(ends), 2), np.int64)
        self.reset()
        places = [array.ctypes.data for array in (self.state, raw, many)]
        self.library.packets(*places, len(ends), answers.ctypes.data, took.ctypes.data)
        return answers, took / 1000


def engine_us(model: nn.Module, events: gl.Events, ends: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Microseconds of calls of `gl.stream` with a packet each. Its answers must be the expected ones."""
    engine, took, first = gl.stream(model), [], 0
    many = np.searchsorted(events.time.numpy(), ends, side="right").tolist()
    for k, end in enumerate(many):
        if end == first:
            continue
        packet, first = events[first:end], end
        begin = time.perf_counter_ns()
        answer = engine(packet)
        took.append(time.perf_counter_ns() - begin)
        assert np.abs(answer.numpy() - expected[k]).max() < 1e-5 * np.abs(expected).max()  # type: ignore[union-attr]
    return np.array(took) / 1000


def judge(choice: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    fit, data = (Spots(choice.data, split) for split in ("fit", "validation"))
    rows: dict[str, Any] = simple(fit, data)
    model = gl.load(choice.weights).eval()
    streams, by_packet = list(zip(data.recordings, data.positions, strict=True)), {}
    # Packets on which times are measured.
    ends = np.arange(PACKET, PACKET * PACKETS_TIMED + 1, PACKET) + int(data.recordings[0].time[0])
    with tempfile.TemporaryDirectory() as folder:
        for bits in (32, 16):
            board = Board(model, Path(folder), bits)
            at_truth = [board.answers(events, asked(known))[0] for events, known in streams]
            if bits == 32:
                for (events, known), live in zip(streams, at_truth, strict=True):
                    with torch.no_grad():
                        at = last_event(events.time, known[:, 0]).clamp(min=0)
                        batch = model.positions(model.plan(events), at[None])[0].numpy()
                    assert np.abs(batch - live).max() < 1e-5 * np.abs(batch).max(), "C differs from the batch"
            answers, took = board.answers(data.recordings[0], ends)
            event = board.event_us(data.recordings[0])
            times = {f"C, {bits} bits": took.sum(1)}
            if bits == 32:
                times["gl.stream"] = engine_us(model, data.recordings[0], ends, answers)
            for name, each in times.items():
                cost = float(np.median(each))
                late = {
                    k * PACKET: [
                        rms(board.answers(events, finished(known, k * PACKET, cost))[0], known)
                        for events, known in streams
                    ]
                    for k in MULTIPLES
                    if cost <= k * PACKET
                }
                by_packet[name] = {f"{step / 1000:g} ms": float(np.mean(errors)) for step, errors in late.items()}
                plain = [rms(a, known) for a, known in zip(at_truth, data.positions, strict=True)]
                rows[name] = summary(plain, next(iter(late.values())))
                rows[name] |= {"packet us": min(late), "us per answer": cost}
                rows[name]["us per answer, 99 %"] = float(np.percentile(each, 99))
            rows[f"C, {bits} bits"] |= {
                "us per event": float(np.median(event)), "us per event, 99 %": float(np.percentile(event, 99)),
                "state bytes": int(board.library.net_bytes()), "weight bytes": board.weights,
                "compiler": " ".join(board.command[:5]),
            }  # fmt: skip
    for name, windows in WINDOWS.items():
        cnn = Cnn(2 * len(windows)).eval()
        path = choice.cnn / f"{name}.safetensors"
        if not path.is_file():
            print(f"there is no {path}: {name} is left out")
            continue
        cnn.load_state_dict(load_file(path))
        cost, plain = frame_us(cnn, windows, data.recordings[0]), plain_errors(cnn, windows, data)
        weights = 4 * sum(p.numel() for p in cnn.parameters())
        for step in (FRAME, max(SHORTEST, math.ceil(cost / 1000) * 1000)):
            late = [
                rms(frame_answers(cnn, windows, events, finished(known, step, cost)), known)
                for events, known in streams
            ]
            facts = {"packet us": step, "us per answer": cost, "weight bytes": weights}
            rows[f"{name}, a frame every {step // 1000} ms"] = summary(plain, late) | facts
    for name, row in rows.items():
        shown = {key: round(v, 3) if isinstance(v, float) else v for key, v in row.items() if key[:2] != "by"}
        print(f"{name:42}", shown)
    print(by_packet)
    config = {"recipe": load_recipe("spots").to_dict(), "model": model.config, "streams": data.names}
    config |= {"machine": machine(), "load": "other work ran on the machine"}
    config["training"] = json.loads((choice.weights.parent / "results.json").read_text())["history"]
    keep(RESULTS / "track.json", {**config, "rms in pixels": rows, "rms with latency by packet": by_packet})


@torch.no_grad()
def frame_us(cnn: Cnn, windows: Sequence[int], events: gl.Events) -> float:
    """Median microseconds of one answer of a CNN in torch, without the making of its frame."""
    frame, took = counts(events, np.array([5_000_000]), windows), []
    for _ in range(200):
        begin = time.perf_counter()
        cnn(frame)
        took.append(1e6 * (time.perf_counter() - begin))
    return float(np.median(took))


def summary(plain: Sequence[float], late: Sequence[float]) -> dict[str, Any]:
    means = {"rms": float(np.mean(plain)), "rms with latency": float(np.mean(late))}
    return means | {"by stream": list(plain), "by stream with latency": list(late)}


def pictures(choice: argparse.Namespace) -> None:
    """Events, the truth and the answers over time: a picture of one second, and a video of 1.5 s, slowed down."""
    import matplotlib.pyplot as plt
    from PIL import Image, ImageDraw

    data = Spots(choice.data, "validation")
    events, known = data[0]
    model, begin = gl.load(choice.weights).eval(), int(known[500, 0])
    ends = np.arange(begin, begin + 1_500_000, 5_000)
    many = torch.searchsorted(events.time, torch.from_numpy(ends), right=True)
    with torch.no_grad():
        answers = model.positions(model.plan(events), many[None] - 1)[0].numpy()
    figure, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
    first, last = np.searchsorted(events.time.numpy(), [begin, begin + 1_000_000])
    shown, seconds = slice(int(first), int(last)), lambda time: (np.asarray(time) - begin) / 1e6
    for axis, (ax, name) in enumerate(zip(axes, "xy", strict=True)):
        colours = np.where(
            events.polarity[shown].numpy(),  # type: ignore[index]
            "#d9480f",
            "#1971c2",
        )
        ax.scatter(seconds(events.time[shown]), events.pixel[shown, axis], 1.5, colours, alpha=0.4, linewidths=0)
        ax.plot(seconds(ends), answers[:, axis], color="black", lw=1, label="network")
        ax.plot(seconds(known[:, 0]), known[:, 1 + axis], ".", color="#2f9e44", ms=4, label="truth")
        ax.set(xlim=(0, 1), ylim=(10, 40), ylabel=f"{name}, pixels")
    axes[0].legend(loc="upper right")
    axes[1].set_xlabel("seconds")
    figure.savefig(ROOT / "docs/images/track.png", dpi=90)
    scale, frames = 6, []
    for k, end in enumerate(ends):
        a = int(torch.searchsorted(events.time, int(end) - 10_000))
        canvas = np.full((SIDE, SIDE, 3), 255, np.uint8)
        x, y = events.pixel[a : int(many[k])].numpy().T
        on = events.polarity[a : int(many[k])].numpy()[:, None]  # type: ignore[index]
        canvas[y, x] = np.where(on, (255, 146, 43), (77, 171, 247))
        frame = Image.fromarray(canvas).resize((SIDE * scale, SIDE * scale), Image.Resampling.NEAREST)
        draw = ImageDraw.Draw(frame)
        trail = [tuple((place + 0.5) * scale) for place in answers[max(k - 10, 0) : k + 1]]
        if len(trail) > 1:
            draw.line(trail, fill=(160, 160, 160), width=2)
        x, y = trail[-1]
        draw.line([x - 9, y, x + 9, y], fill=(0, 0, 0), width=3)
        draw.line([x, y - 9, x, y + 9], fill=(0, 0, 0), width=3)
        latest = int(np.searchsorted(known[:, 0].numpy(), end, side="right")) - 1
        x, y = ((known[latest, 1:] + 0.5) * scale).tolist()
        draw.ellipse([x - 10, y - 10, x + 10, y + 10], outline=(47, 158, 68), width=3)
        frames.append(frame.quantize(16, dither=Image.Dither.NONE))
    path = ROOT / "docs/images/track.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=40, loop=0, optimize=True)
    print(path, path.stat().st_size // 1000, "kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "judge", "pictures"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--epochs", type=int, default=12, help="of the CNNs")
    parser.add_argument("--cnn", type=Path, default=Path("runs/track-cnn"), help="the folder of the CNNs' weights")
    parser.add_argument("--weights", type=Path, help="the weights of the network")
    choice = parser.parse_args()
    {"train": train, "judge": judge, "pictures": pictures}[choice.what](choice)


if __name__ == "__main__":
    main()
