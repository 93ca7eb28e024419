"""`gridless compile`: every CPU kernel for this machine, ahead of its first use."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer

from gridless.kernels.progress import track


def compile_kernels(
    what: Annotated[list[str] | None, typer.Argument(help="points, events or live; all by default.")] = None,
    dimensions: Annotated[list[int] | None, typer.Option(help="Of points; may be repeated. Else 2 and 3.")] = None,
    double: Annotated[
        bool, typer.Option("--double", help="Also for coordinates and features of 64 bits: as long again.")
    ] = False,
) -> None:
    """Compile the CPU kernels for this machine, once, and keep them on disk.

    Otherwise each is compiled when it is first used. Another CPU, Numba or version of gridless compiles them again.
    Readers of files are left out: theirs take under a second each.
    """
    dtypes = (torch.float32, torch.float64) if double else (torch.float32,)
    clouds = [
        (f"points in {dim} dimensions, {dtype}", lambda dim=dim, dtype=dtype: points(dim, dtype))
        for dtype in dtypes
        for dim in dimensions or (3, 2)
    ]
    known: dict[str, list[tuple[str, Callable[[], object]]]] = {
        "points": [*clouds, ("point networks", networks)],
        "events": [("events", events)],
        "live": [("event networks live", live)],
    }
    for word in what or ():
        if word not in known:
            raise ValueError(f"no kernels {word!r}: there are {', '.join(known)}")
    began = time.perf_counter()
    for name, job in track([job for word in what or known for job in known[word]], "compile"):
        at = time.perf_counter()
        job()
        print(f"{name}: {time.perf_counter() - at:.1f} s", file=sys.stderr, flush=True)
    print(f"compiled, or found compiled, in {time.perf_counter() - began:.0f} s")


def points(dim: int, dtype: torch.dtype = torch.float32) -> None:
    """Searches, samplings and convolutions of clouds, one and several, with gradients."""
    import gridless as gl

    generator = torch.Generator().manual_seed(0)
    one = torch.rand(200, dim, generator=generator, dtype=dtype)
    plan = gl.Plan()
    cloud = plan.points(dim)
    near = plan.ball(cloud, cloud, 0.3)
    coarse = plan.rejection_sample(near)
    down = plan.ball(cloud, coarse, 0.5)
    few = plan.ball(cloud, cloud, 0.3, limit=4)
    plan.nearest(cloud, coarse, 4)
    plan.farthest_sample(coarse, 8)
    plan.grid_sample(cloud, 0.2)
    layers = [gl.nn.FeaturelessConv(near, 8), gl.nn.PointConv(down, 8, 12), gl.nn.PointConv(few, 8, 8)]
    stem, wide, narrow = (layer.to(dtype) for layer in layers)
    back = gl.nn.PointConv(plan.transpose(down), 12, 8).to(dtype)
    for x in (one, gl.Cloud.of([one, one[:150]])):
        geometry = plan(x)
        features = narrow(stem(geometry), geometry)
        (back(wide(features, geometry), geometry) + features).sum().backward()
    many = gl.Cloud.of(torch.rand(20_000, dim, generator=generator, dtype=dtype))
    gl.rejection_sample(many, radius=0.02)
    crowd = gl.ball(many, many, 0.02)
    gl.farthest_sample(many, 8, near=crowd, reject=True)
    gl.rejection_sample(many, crowd, distance=True)
    moving = torch.rand(60, dim, generator=generator, dtype=dtype, requires_grad=True)
    for order in ("gather_first", "transform_first"):
        conv = gl.nn.PointConv(near, 4, 4, order=order).to(dtype)
        conv(torch.rand(60, 4, dtype=dtype), plan(gl.Cloud.of(moving))).sum().backward()


def networks() -> None:
    """A training step of point networks."""
    import gridless as gl

    cloud = gl.Cloud.of(list(gl.data.Shapes(4, points=200).coords), features=[torch.rand(200, 3)] * 4)
    cloud = gl.augment.Jitter(0.01)(gl.augment.Shuffle()(cloud))
    models = [
        gl.models.point_resnet_plus(4, width=8, lift=16, in_channels=3),
        gl.models.point_max_net(4, width=8, depths=(1, 1), neighbours=4, lift=16),
        gl.models.point_unet_plus([3], width=8, levels=2),
    ]
    for model in models:
        model(model.plan(cloud)).exp().sum().backward()


def events() -> None:
    """Firing, neighbourhoods and convolutions of events, and recordings that are made."""
    import gridless as gl

    recording = gl.collate([example for example, _ in (gl.data.MovingGlyphs(4)[i] for i in range(4))])
    for form in ("scan", "edges"):
        model = gl.models.event_resnet(10, (34, 34), width=8, levels=2, pooled=0, threshold=1.0, form=form)
        model.loss(model.plan(recording), torch.arange(4))[0].backward()


def live() -> None:
    """Networks of both heads, in training and live."""
    import gridless as gl

    recording, _ = gl.data.MovingGlyphs(1)[0]
    for head in ("stream", "voxel"):
        settings = {"width": 8, "levels": 2, "pooled": 0, "threshold": 1.0, "head": head, "duration": 100_000}
        model = gl.models.event_resnet(10, (34, 34), **settings)
        model.loss(model.plan(recording), torch.zeros(1, dtype=torch.int64))[0].backward()
        engine = gl.stream(model.eval())
        engine(recording[:400])
        engine.predict()
