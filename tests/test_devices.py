"""Public calls with random, awkward input: what the CPU and the GPU give is what the reference gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from streams import stream
from torch import Tensor

import gridless as gl
from gridless.augment.stateless import Keyed, keys

SEEDS = 40
Draw = random.Random
Case = tuple[Callable[..., Any], list[Any]]


def points(draw: Draw, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Scattered, on a lattice, on a line, all the same, far away, or few that are repeated."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    x = torch.rand(count, dim, generator=generator, dtype=dtype)
    lattice = torch.randint(0, 20, (count, dim), generator=generator).to(dtype) / draw.choice([4, 10, 20])
    line = torch.cat([x[:, :1], torch.zeros(count, dim - 1, dtype=dtype)], 1)
    repeated = x[torch.randint(max(count // 3, 1), (count,), generator=generator)] if count else x
    return draw.choice([x, lattice, line, x[:1].expand(count, dim), x + draw.choice([1e3, 4e5]), repeated]).contiguous()


def cloud(draw: Draw, dim: int | None = None) -> gl.Cloud:
    dim, dtype = dim or draw.choice([1, 2, 3]), draw.choice([torch.float32, torch.float64])
    return _cloud(draw, dim, dtype, draw.choice([1, 2, 5]))


def pair(draw: Draw) -> list[gl.Cloud]:
    """Two clouds that can be searched."""
    first = cloud(draw)
    return [first, _cloud(draw, first.dim, first.coords.dtype, first.num_examples)]


def _cloud(draw: Draw, dim: int, dtype: torch.dtype, examples: int) -> gl.Cloud:
    sizes = [draw.choice([0, 1, 2, 33, draw.randrange(300)]) for _ in range(examples)]
    rows = {"colour": [torch.rand(size, 3) for size in sizes], "label": [torch.arange(size) % 4 for size in sizes]}
    return gl.Cloud.of([points(draw, size, dim, dtype) for size in sizes], **rows)


def events(draw: Draw) -> gl.Events:
    sizes = [draw.choice([0, 1, 2, draw.randrange(300)]) for _ in range(3)]
    return stream(sizes, (34, 20), draw.choice([1, 100, 10**5]), draw.randrange(2**31))


def ball(draw: Draw) -> Case:
    radius, limit = draw.choice([0.05, 0.25, 0.3]), draw.choice([None, 1, 4, 16])

    def call(source: gl.Cloud, target: gl.Cloud) -> list[gl.Edges]:
        edges = gl.ball(source, target, radius, limit)
        return [edges, edges.transpose()]

    return call, pair(draw)


def nearest(draw: Draw) -> Case:
    k = draw.choice([1, 3, 20])
    return lambda source, target: [gl.nearest(source, target, k)], pair(draw)


def farthest_sample(draw: Draw) -> Case:
    size = draw.choice([1, 5, 64, 0.1, 0.5])
    return lambda x: [gl.farthest_sample(x, size)], [cloud(draw)]


def rejection_sample(draw: Draw) -> Case:
    radius = draw.choice([0.02, 0.1, 0.25])
    return lambda x: [gl.rejection_sample(x, radius=radius, distance=True)], [cloud(draw)]


def grid_sample(draw: Draw) -> Case:
    cell, keep = draw.choice([0.05, 0.1, 0.15, 0.3]), draw.choice(["first", "nearest", "mean"])
    rows = draw.choice([None, {"label": "most"}, {"label": "mean", "colour": "mean"}])
    return lambda x: [gl.grid_sample(x, cell, keep, rows)], [cloud(draw)]


def lif(draw: Draw) -> Case:
    kernel, stride, threshold = draw.choice([1, 3, 5]), draw.choice([1, 2, 3]), draw.choice([0.2, 0.9, 1.5])

    def call(source: gl.Events) -> list[Any]:
        target = gl.lif(source, kernel, stride, 1000.0, threshold, -1.0)
        seen = gl.causal(source, target, kernel, stride, 500.0)
        return [target, seen, seen.transpose()]

    return call, [events(draw)]


def images(draw: Draw) -> Case:
    count = draw.choice([1, 3, 8])
    return lambda x: [gl.voxel_grid(x, count), gl.frames(x, count), gl.time_surface(x, 1e3 * count)], [events(draw)]


def point_augmentation(draw: Draw) -> Case:
    a, given = gl.augment, cloud(draw, dim=3)
    ways = [a.Drop(), a.First(50), a.Jitter(), a.Mirror(0), a.Normalise(), a.RotateAboutUp(), a.Scale(), a.Shuffle()]
    return _augmented(draw.choice([*ways, a.Shift(), a.Tilt()]), draw, given)


def event_augmentation(draw: Draw) -> Case:
    a, given = gl.augment, events(draw)
    ways = [a.Erase(0.1, 0.4), a.FirstMicroseconds(1000), a.Flip(0), a.PoolPixels(2), a.Recentre(), a.ReverseTime()]
    more = [a.Rotate(0.3), a.StretchTime(0.5, 2), a.SwapPolarity(), a.Thin(0.5), a.ThinTo(50), a.Translate(5, 3)]
    return _augmented(draw.choice([*ways, *more, a.Zoom(0.7, 1.4)]), draw, given)


def _augmented(way: Any, draw: Draw, given: Any) -> Case:
    key = keys(draw.randrange(99), draw.randrange(9), torch.arange(given.num_examples))
    return lambda x: [way(x, Keyed(key.to(x.device)))], [given]


def tensors(values: Iterable[Any]) -> list[Tensor]:
    groups = [[v] if isinstance(v, Tensor) else [tensor for _, tensor in v.parts()] for v in values]
    return [tensor.cpu() for part in groups for tensor in part]


SEARCHES = [ball, nearest, farthest_sample, rejection_sample, grid_sample, lif]
# Written in torch alone, and rounded as each device does it.
OTHERS = [images, point_augmentation, event_augmentation]


def check(case: Callable[[Draw], Case], device: torch.device, near: float) -> None:
    """Whole numbers are the same; others differ by `near` of the largest at most."""
    for seed in range(SEEDS):
        call, given = case(random.Random(seed))
        with gl.use_backend("reference"):
            wanted = tensors(call(*given))
        for actual, want in zip(tensors(call(*(x.to(device) for x in given))), wanted, strict=True):
            apart = near * float(want.abs().max()) if want.is_floating_point() and want.numel() else 0
            torch.testing.assert_close(actual, want, rtol=0, atol=apart, msg=lambda m, seed=seed: f"seed {seed}: {m}")


@pytest.mark.parametrize("case", SEARCHES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("backend", ["cpu", "gpu"], indirect=True)
def test_searches_and_samples_are_those_of_the_reference(case, backend, device):
    check(case, device, near=5e-7)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.__name__)
@pytest.mark.parametrize("backend", ["gpu"], indirect=True)
def test_what_torch_does_on_a_gpu_it_does_on_the_cpu(case, backend, device):
    check(case, device, near=3e-6)
