"""A network that follows one object event by event: a position after every event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gridless.nn.blocks import Dense
from gridless.nn.events import Last, LeakySum, Memory, PolarityConv, polarity_features
from gridless.plan import Plan
from gridless.structures import Geometry

# Pixels that are 1 inside the network.
SCALE = 8.0
# Added to denominators, which are 0 before the first event.
LEAST = 1e-3
# Event rate (per millisecond) at which the activity is 1/2.
HALF = 4.0


class Moments(nn.Module):
    """Activity and mean position of recent events: K leaky sums for each event weight w_c >= 0.

        activity_ck = sum w_c / (sum w_c + HALF / rate_k),  position_ck = (sum w_c x, sum w_c y) / sum w_c

    The activity is a quotient because exported C computes it many times as fast as a logarithm.
    """

    def __init__(self, stream: Any, weights: int, decay_times: Sequence[float]) -> None:
        super().__init__()
        self.weights, self.size = weights, weights * len(decay_times)
        self.sums = LeakySum(stream, decay_times)

    def forward(self, weights: Tensor, x: Tensor, y: Tensor, geometry: Geometry, memory: Memory | None) -> Any:
        """weights (S, C), x and y (S, 1) to the activity and the mean x and y, (S, C K) each."""
        sums = self.sums(torch.cat([weights, weights * x, weights * y], 1), geometry, memory)
        total = sums[:, : self.size]
        least = total + LEAST
        half = (HALF * (-self.sums.log_rate).exp()).repeat(self.weights)
        return total / (total + half), sums[:, self.size : 2 * self.size] / least, sums[:, 2 * self.size :] / least


class Refinement(nn.Module):
    """One refinement of a position: weighs each event, then moves the guess by the weighted mean positions.

    Arguments are those of `EventTracker`.
    """

    def __init__(
        self, stream: Any, width: int, weights: int, channels: int, hidden: int, decay_times: Sequence[float]
    ) -> None:
        super().__init__()
        self.weigh = nn.Sequential(Dense(4 + channels, width), nn.ReLU(), Dense(width, weights))
        self.moments = Moments(stream, weights, decay_times)
        inputs = 3 * weights * len(decay_times)
        self.move = nn.Sequential(Dense(inputs, hidden), nn.ReLU(), Dense(hidden, 32), nn.ReLU(), still(32))

    def forward(
        self, guess: Tensor, place: Tensor, polarity: Tensor, around: Tensor, geometry: Geometry, memory: Memory | None
    ) -> Tensor:
        """guess, place and polarity (S, 2) and around (S, channels) of each event to a position (S, 2)."""
        weights = self.weigh(torch.cat([place - guess, polarity, around], 1))
        # Softsign scaled to (0, 1): the shape of a sigmoid, without an exponential.
        weights = 0.5 * weights / (weights.abs() + 1) + 0.5
        total, mean_x, mean_y = self.moments(weights, place[:, :1], place[:, 1:], geometry, memory)
        return guess + self.move(torch.cat([total, mean_x - guess[:, :1], mean_y - guess[:, 1:]], 1))


def still(channels: int) -> nn.Module:
    """The last layer of a perceptron that moves the guess. It is initialised to 0: at first nothing moves."""
    layer = Dense(channels, 2)
    nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
    return layer


class EventTracker(nn.Module):
    """The position (x, y) of one object, in pixels, after every event.

    1. A first guess, from the mean positions of OFF and of ON events at several decays.
    2. Each event gets `weights` between 0 and 1, from where it lies relative to the guess at that time, its polarity,
       and what happened at the pixels around it (an event convolution of `channels`).
    3. The guess is moved by a perceptron of the mean positions with these weights, relative to the guess.

    Steps 2 and 3 are repeated `rounds` times.

    `model(geometry)` is the position (B, 2) after the last event of each recording, `answers(geometry)` that after each
    event (S, 2). Memory is constant: sums, and the traces of the convolution, one set for each pixel.

    Args:
        sensor: (width, height) of the camera.
        width: hidden units of the perceptron that weighs an event.
        weights: number of weights per event.
        channels: output channels of the event convolution.
        kernel: side of its window, in pixels.
        hidden: hidden units of the perceptron that moves the guess.
        rounds: number of refinements.
        decay_times: initial decay times of the sums, in microseconds; the decays are learned.
        trace_time: the decay time of the convolution, in microseconds.
    """

    task = "track"
    middle: Tensor
    place: Tensor
    average: Tensor

    def __init__(
        self,
        sensor: tuple[int, int],
        width: int = 32,
        weights: int = 12,
        channels: int = 8,
        kernel: int = 3,
        hidden: int = 48,
        rounds: int = 1,
        decay_times: Sequence[float] = (3_000.0, 12_000.0, 50_000.0, 200_000.0),
        trace_time: float = 10_000.0,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        lists = {"sensor": list(map(int, sensor)), "decay_times": list(map(float, decay_times))}
        self.config: dict[str, Any] = {"model": "EventTracker", **arguments, **lists}
        plan, decays = Plan(), len(decay_times)
        self.plan, self.columns = plan, int(sensor[0])
        self.camera = camera = plan.events(sensor)
        self.conv = PolarityConv(plan.causal(camera, camera, kernel, 1), channels, 3, trace_time, rates="shared")
        self.guess = Moments(camera, 2, decay_times)
        self.move = nn.Sequential(Dense(6 * decays, 32), nn.ReLU(), still(32))
        sizes = (width, weights, channels, hidden, decay_times)
        self.rounds = nn.ModuleList(Refinement(camera, *sizes) for _ in range(rounds))
        self.last = Last(camera)
        y, x = torch.meshgrid(*(torch.arange(float(side)) for side in reversed(sensor)), indexing="ij")
        middle = (torch.tensor([float(side) for side in sensor]) - 1) / 2
        self.register_buffer("middle", middle, persistent=False)
        self.register_buffer("place", (torch.stack([x, y], 2).flatten(0, 1) - middle) / SCALE, persistent=False)
        # The first guess averages the OFF and ON means of the middle decay.
        average = torch.zeros(2 * decays)
        average[[decays // 2, decays + decays // 2]] = 0.5
        self.register_buffer("average", average[:, None], persistent=False)

    def answers(self, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        """The position (S, 2) after each event, in pixels."""
        events = geometry[self.camera]
        polarity = polarity_features(events, self.place.dtype)
        number = events.pixel[:, 1].long() * self.columns + events.pixel[:, 0].long()
        place = functional.embedding(number, self.place)
        x, y = place[:, :1], place[:, 1:]
        total, mean_x, mean_y = self.guess(polarity, x, y, geometry, memory)
        start_x, start_y = mean_x @ self.average, mean_y @ self.average
        seen = torch.cat([total, mean_x - start_x, mean_y - start_y], 1)
        guess = torch.cat([start_x, start_y], 1) + self.move(seen)
        around = self.conv(geometry, memory).relu()
        for refine in self.rounds:
            guess = refine(guess, place, polarity, around, geometry, memory)
        return guess * SCALE + self.middle

    def forward(self, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        return self.last(self.answers(geometry, memory), geometry, memory, self.middle)
