"""Event streams to test with: random ones, with many ties, and awkward ones."""

from __future__ import annotations

import torch

import gridless as gl


def stream(sizes=(60, 0, 140), sensor=(7, 6), span=300, seed=0, start=0) -> gl.Events:
    """Random recordings of the given sizes, in which many events share a time stamp and a pixel."""
    random = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    x = torch.randint(0, sensor[0], (total,), generator=random)
    y = torch.randint(0, sensor[1], (total,), generator=random)
    times = [torch.randint(0, span, (n,), generator=random).sort()[0] + start for n in sizes]
    splits = torch.tensor([0, *sizes]).cumsum(0)
    polarity = torch.rand(total, generator=random) > 0.5
    return gl.Events(torch.stack([x, y], 1).int(), torch.cat(times).long(), polarity, splits, sensor)


def of(pixels, times, sensor=(8, 8)) -> gl.Events:
    """One recording from (x, y) pairs and times."""
    pixel = torch.tensor(pixels, dtype=torch.int32).reshape(-1, 2)
    time = torch.tensor(times, dtype=torch.int64)
    return gl.Events(pixel, time, torch.ones(len(time), dtype=torch.bool), torch.tensor([0, len(time)]), sensor)


def ugly() -> dict[str, gl.Events]:
    """Streams that go wrong easily."""
    corners = [(0, 0), (7, 0), (0, 7), (7, 7)]
    return {
        "empty": of([], []),
        "single": of([(3, 4)], [5]),
        "one time": of([(i % 8, i // 8) for i in range(64)] * 2, [7] * 128),
        "one pixel": of([(5, 5)] * 90, list(range(0, 900, 10))),
        "borders": of(corners * 20, list(range(80))),
        "silence": of(corners * 8, [i + (2**41 if i >= 16 else 0) for i in range(32)]),
        "late": of([(i * 5 % 8, i * 3 % 8) for i in range(100)], [2**52 + i * 9 for i in range(100)]),
    }


def cut(events: gl.Events, sizes) -> list[gl.Events]:
    """One recording in packets: of the sizes given, again and again until it ends."""
    packets, at, turn = [], 0, 0
    while at < len(events):
        packets.append(events[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return packets
