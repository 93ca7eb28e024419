"""NaN and infinities in every argument of every op: what the specification loses to them, every backend loses."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from streams import stream

import gridless as gl
from gridless.geometry import ball
from gridless.nn import GaussianBumps, Monomials
from gridless.ops.batch_norm import batch_norm
from gridless.ops.edge_max import edge_max
from gridless.ops.event_conv import event_conv, event_gather
from gridless.ops.point_conv import featureless_conv, point_conv
from gridless.ops.segment_pool import segment_max, segment_mean, segment_spread
from gridless.ops.voxel_mean import voxel_mean

BAD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def cloud() -> gl.Cloud:
    return gl.Cloud.of([draw(9, 3), draw(7, 3, seed=1)])


@cache
def near(device: torch.device) -> gl.Edges:
    with gl.use_backend("reference"):
        return ball(cloud(), cloud(), 0.6).to(device)


def points(basis, weight: tuple[int, ...], **settings):
    """A point convolution: the op, and its floating-point arguments."""
    arguments = {"features": draw(16, 4), "weight": draw(basis.size, *weight), "bias": draw(weight[-1])}
    arguments |= {"source_coords": cloud().coords.double(), "target_coords": cloud().coords.double()}

    def op(features, weight, bias, source_coords, target_coords):
        edges = near(features.device)
        return point_conv(features, weight, bias, edges, source_coords, target_coords, 0.6, basis, **settings)

    return op, arguments


def featureless():
    arguments = {"weight": draw(4, 5), "bias": draw(5)}
    arguments |= {"source_coords": cloud().coords.double(), "target_coords": cloud().coords.double()}

    def op(weight, bias, source_coords, target_coords):
        return featureless_conv(weight, bias, near(weight.device), source_coords, target_coords, 0.6, Monomials(3, 1))

    return op, arguments


def events():
    source = stream((8, 0, 6), (3, 3), span=90)
    arguments = {"features": draw(14, 3), "weight": draw(9, 2, 3, 4), "rate": draw(9, 2), "bias": draw(4)}

    def op(features, weight, rate, bias):
        moved = source if features.device == source.device else source.to(features.device)
        return event_conv(features, weight, rate, bias, moved, moved, 3, 1, 50.0)

    return op, arguments


def gathered_events():
    source = stream((8, 0, 6), (3, 3), span=90)

    def op(features, rate):
        return event_gather(features, rate, source.to(features.device), 50.0)

    return op, {"features": draw(14, 3), "rate": draw(1, 2)}


def splits(device: torch.device) -> torch.Tensor:
    return torch.tensor([0, 5, 5, 12, 14], device=device)


def norm(**settings):
    def op(x, weight, bias):
        return batch_norm(x, torch.tensor(11, device=x.device), weight, bias, **settings)

    return op, {"x": draw(12, 4) - 0.6, "weight": draw(4), "bias": draw(4) - 0.6}


CASES = {
    "point_conv, gather first": lambda: points(Monomials(3, 1), (4, 5), order="gather_first"),
    "point_conv, transform first": lambda: points(Monomials(3, 1), (4, 5), order="transform_first"),
    "point_conv, depthwise": lambda: points(Monomials(3, 1), (4,)),
    "point_conv, Gaussians": lambda: points(GaussianBumps(((0.0, 0.0, 0.0), (0.5, 0.0, 0.0)), 0.4), (4, 5)),
    "point_conv, constant": lambda: points(Monomials(3, 0), (4, 5)),
    "point_conv, flat": lambda: points(Monomials(3, 1), (4, 5), falloff=None, normalise=False),
    "featureless_conv": featureless,
    "event_conv": events,
    "event_gather": gathered_events,
    "edge_max": lambda: (lambda features: edge_max(features, near(features.device)), {"features": draw(16, 3)}),
    "segment_max": lambda: (lambda features: segment_max(features, splits(features.device)), {"features": draw(14, 3)}),
    "segment_mean": lambda: (
        lambda features: segment_mean(features, splits(features.device)), {"features": draw(14, 3)}),
    "segment_spread": lambda: (
        lambda values: segment_spread(values, splits(values.device), 15), {"values": draw(4, 3)}),
    "voxel_mean": lambda: (
        lambda features: voxel_mean(features, (torch.arange(14, device=features.device) % 6) - 1, 6),
        {"features": draw(14, 3)},
    ),
    "batch_norm": norm,
    "batch_norm, ReLU before": lambda: norm(before=True),
    "batch_norm, ReLU after": lambda: norm(after=True),
}  # fmt: skip
ARGUMENTS = [(name, argument) for name, case in CASES.items() for argument in (*case()[1], "the gradient")]


def results(op, arguments: dict[str, torch.Tensor], spoilt: str, bad: float) -> dict[str, torch.Tensor]:
    """The result and the gradient of each argument, with one number of one argument, or of the gradient, spoilt."""
    values = {name: value.clone() for name, value in arguments.items()}
    if spoilt in values:
        values[spoilt].view(-1)[values[spoilt].numel() // 2] = bad
    values = {name: value.requires_grad_() for name, value in values.items()}
    out = op(**values)
    grad = draw(*out.shape, seed=5).to(out)
    if spoilt == "the gradient":
        grad.view(-1)[grad.numel() // 2] = bad
    gradients = torch.autograd.grad(out, list(values.values()), grad)
    return {"the result": out.detach().cpu()} | {k: g.cpu() for k, g in zip(values, gradients)}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("case", "spoilt"), ARGUMENTS, ids=lambda x: x)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_what_is_not_finite_in_the_reference_is_finite_in_no_backend(backend, device, case, spoilt, bad, dtype):
    if backend == "reference":
        pytest.skip("the others are compared with it")
    if backend == "gpu" and device.type == "cpu" and dtype == torch.float64 and bad != "nan":
        pytest.skip("interpreted, NaN stands for infinities in float64: the kernels differ from float32 in types only")
    op, arguments = CASES[case]()
    arguments = {name: value.to(dtype) for name, value in arguments.items()}
    with gl.use_backend("reference"):
        expected = results(op, arguments, spoilt, BAD[bad])
    actual = results(op, {k: v.to(device) for k, v in arguments.items()}, spoilt, BAD[bad])
    for name, value in expected.items():
        assert not (actual[name].isfinite() & ~value.isfinite()).any(), name
