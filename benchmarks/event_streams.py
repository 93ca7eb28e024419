"""Event streams to measure with.

The simulation imitates CIFAR10-DVS: a random picture with a 1/f spectrum moves along a closed path in front of 128 x
128 pixels for 1.3 seconds; every millisecond a pixel whose logarithmic brightness has changed by more than a threshold
since its last event fires, at a random time within that millisecond. Streams are cut to their first events. They fire
0.22, 0.05, 0.01 and 0.002 events per input event on the first levels of the CIFAR10-DVS network.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

import gridless as gl


def simulated(streams: int, events: int, device: str) -> gl.Events:
    """Recordings that resemble CIFAR10-DVS, in simulation; see the top of the file."""
    random = torch.Generator().manual_seed(0)
    side, steps = 128, 1300
    scale = torch.fft.fftfreq(side)[:, None] ** 2 + torch.fft.rfftfreq(side)[None] ** 2
    noise = torch.randn(streams, side, side, generator=random)
    spectrum = torch.fft.rfft2(noise) / scale.clamp(min=1 / side**2).sqrt()
    spectrum = spectrum / torch.fft.irfft2(spectrum).std((1, 2))[:, None, None]
    spectrum = spectrum.to(device)
    fx, fy = torch.fft.rfftfreq(side, device=device)[None], torch.fft.fftfreq(side, device=device)[:, None]
    packets: list[Tensor] = []
    reference, threshold, count = None, 0.16, 0
    for step in range(steps):
        angle = 2 * np.pi * step / 433
        moved = torch.exp(2j * np.pi * (fx * 9 * np.sin(angle) + fy * 9 * np.sin(2 * angle)))
        picture = torch.fft.irfft2(spectrum * moved)
        if reference is None:
            reference = picture.clone()
        change = picture - reference
        fires = change.abs() > threshold
        reference = torch.where(fires, reference + change.sign() * threshold, reference)
        b, y, x = fires.nonzero().unbind(1)
        at = step * 1000 + torch.randint(0, 1000, (len(b),), generator=random).to(device)
        packets.append(torch.stack([b, at, x, y, (change[b, y, x] > 0).long()], 1))
        count += len(b)
    every = torch.cat(packets)
    every = every[(every[:, 0] * 2_000_000 + every[:, 1]).argsort(stable=True)]
    parts = [every[every[:, 0] == b][:events].cpu() for b in range(streams)]
    short = min(map(len, parts))
    if short < events:
        print(f"note: the shortest stream has {short} events", file=sys.stderr)
    return gl.Events.of(
        [{"t": p[:, 1].numpy(), "x": p[:, 2].numpy(), "y": p[:, 3].numpy(), "p": p[:, 4].numpy()} for p in parts],
        sensor=(128, 128),
    ).to(device)
