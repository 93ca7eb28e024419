"""`gridless compile`: the CPU kernels for this machine, ahead of their first use."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from gridless.kernels.progress import track

# A recording of one event in EVT 2.0 and in EVT 3.0: time, (row,) event.
RAW = {2: struct.pack("<2I", 0x80000001, 0x10000801), 3: struct.pack("<4H", 0x8001, 0x6002, 0x0001, 0x2801)}


def compile_kernels(
    what: Annotated[list[str] | None, typer.Argument(help="points, events, live or files; default: all.")] = None,
    dimensions: Annotated[
        list[int] | None, typer.Option(help="Dimensions of points; may be repeated; default: 2 and 3.")
    ] = None,
    double: Annotated[
        bool, typer.Option("--double", help="Also networks in 64 bits, which takes as long again.")
    ] = False,
) -> None:
    """Compile the CPU kernels for this machine, once, and keep them on disk.

    Kernels that are not compiled here are compiled when they are first used. Another CPU, Numba or version of gridless
    compiles all of them again.
    """
    dtypes = (torch.float32, torch.float64) if double else (torch.float32,)
    clouds = [
        (f"points in {dim} dimensions, {dtype}", partial(points, dim, dtype))
        for dtype in dtypes
        for dim in dimensions or (3, 2)
    ]
    jobs: dict[str, list[tuple[str, Callable[[], object]]]] = {
        "points": [*clouds, ("point networks", networks), ("scenes", scenes), ("voxels", voxels)],
        "events": [("events", events)],
        "live": [("event networks live", live), ("export", exported)],
        "files": [("files", files)],
    }
    if not dimensions or 3 in dimensions:
        jobs["points"].insert(1, ("searches in 64 bits, as of LAS files", partial(searches, 3, torch.float64)))
    for name in what or ():
        if name not in jobs:
            raise ValueError(f"unknown kernels {name!r}. Choose from {', '.join(jobs)}.")
    began = time.perf_counter()
    for description, job in track([job for name in what or jobs for job in jobs[name]], "compile"):
        at = time.perf_counter()
        job()
        print(f"{description}: {time.perf_counter() - at:.1f} s", file=sys.stderr, flush=True)
    print(f"all kernels are on disk, after {time.perf_counter() - began:.0f} s")


def searches(dim: int, dtype: torch.dtype) -> Any:
    """Searches and samplings of clouds by themselves and in a plan; returns the plan and the names of its edges."""
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
    plan(gl.Cloud.of([one, one[:150]]))
    gl.collate([plan(one), plan(one[:150])])
    many = gl.Cloud.of(torch.rand(20_000, dim, generator=generator, dtype=dtype))
    gl.rejection_sample(many, radius=0.02)
    edges = gl.ball(many, many, 0.02)
    gl.farthest_sample(many, 8, near=edges, reject=True)
    gl.rejection_sample(many, edges, distance=True)
    return plan, (near, down, few)


def points(dim: int, dtype: torch.dtype) -> None:
    """Searches, samplings and convolutions of clouds, one and several, with gradients."""
    import gridless as gl

    plan, (near, down, few) = searches(dim, dtype)
    generator = torch.Generator().manual_seed(0)
    one = torch.rand(200, dim, generator=generator, dtype=dtype)
    layers = [gl.nn.FeaturelessConv(near, 8), gl.nn.PointConv(down, 8, 12), gl.nn.PointConv(few, 8, 8)]
    stem, wide, narrow = (layer.to(dtype) for layer in layers)
    back = gl.nn.PointConv(plan.transpose(down), 12, 8).to(dtype)
    for x in (one, gl.Cloud.of([one, one[:150]])):
        geometry = plan(x)
        features = narrow(stem(geometry), geometry)
        (back(wide(features, geometry), geometry) + features).sum().backward()
    moving = torch.rand(60, dim, generator=generator, dtype=dtype, requires_grad=True)
    for order in ("gather_first", "transform_first"):
        conv = gl.nn.PointConv(near, 4, 4, order=order).to(dtype)
        conv(torch.rand(60, 4, dtype=dtype), plan(gl.Cloud.of(moving))).sum().backward()


def scenes() -> None:
    """A plan on the tiles of a scene."""
    import gridless as gl

    plan = gl.Plan()
    cloud = plan.points(3)
    near = plan.ball(cloud, cloud, 0.1)
    plan.rejection_sample(near)
    for tile in gl.tiles(torch.rand(1000, 3, generator=torch.Generator().manual_seed(0)), 0.5, plan.reach()):
        tile.run(plan)


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


def voxels() -> None:
    """Kernels of taps on voxels, down and up again, with gradients."""
    import gridless as gl

    plan = gl.Plan()
    fine = plan.voxels(plan.points(3), 0.1)
    down = plan.taps(fine, plan.coarser_voxels(fine), 2, 2, 0)
    layers = [gl.nn.TapConv(plan.taps(fine, fine), 4, 8), gl.nn.TapConv(down, 8, 8)]
    layers.append(gl.nn.TapConv(plan.transpose(down), 8, 4))
    geometry = plan(torch.rand(500, 3, generator=torch.Generator().manual_seed(0)))
    features = torch.ones(len(geometry[fine]), 4, requires_grad=True)
    for layer in layers:
        features = layer(features, geometry)
    features.sum().backward()


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
        model = small_network(head)
        model.loss(model.plan(recording), torch.zeros(1, dtype=torch.int64))[0].backward()
        engine = gl.stream(model.eval())
        engine(recording[:400])
        engine.predict()


def exported() -> None:
    """The export to C, whose test runs the network in 64 bits."""
    import gridless as gl

    for head in ("stream", "voxel"):
        with TemporaryDirectory() as folder:
            gl.export(small_network(head).eval(), folder)


def files() -> None:
    """Readers of the formats in which gridless has samples or writes, and of packs."""
    import gridless as gl
    from gridless.data.samples import SAMPLES

    samples = [gl.data.sample(name) for name in SAMPLES]
    clouds = [sample for sample in samples if isinstance(sample, gl.Cloud)]
    recordings = [sample for sample in samples if isinstance(sample, gl.Events)]
    with TemporaryDirectory() as folder:
        for file in (Path(folder, "cloud.ply"), Path(folder, "cloud.npy")):
            gl.write_cloud(file, clouds[0])
            gl.read_cloud(file)
        for suffix in ("npz", "csv", "dat"):
            file = Path(folder, f"recording.{suffix}")
            gl.write_events(file, recordings[0])
            gl.read_events(file)
        for version, records in RAW.items():
            file = Path(folder, f"evt{version}.raw")
            file.write_bytes(f"% evt {version}.0\n% geometry 8x8\n".encode() + records)
            gl.read_events(file)
        gl.data.pack([(recordings[0], 0)], Path(folder, "pack"), progress=False)[0]


def small_network(head: str) -> Any:
    """An event network for moving glyphs with either head."""
    import gridless as gl

    settings = {"width": 8, "levels": 2, "pooled": 0, "threshold": 1.0, "head": head, "duration": 100_000}
    return gl.models.event_resnet(10, (34, 34), **settings)
