"""Compiles every GPU kernel of the package, in the variants that networks use, for several generations of devices.

    python tests/compile_kernels.py                      all kernels, for compute capabilities 8.0, 8.9, 9.0 and 10.0
    PYTHONPATH=other/triton python tests/compile_kernels.py --targets 90 --only geometry

It needs no GPU: operations are called on the CPU with the GPU backend, their launches are noted in place of being run,
and each is compiled by the Triton that is installed. It fails where a kernel does not compile or warns, or needs more
shared memory than there is, and where there is a kernel that nothing here launches.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import multiprocessing
import os
import pkgutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import gridless as gl
from gridless.augment.stateless import Keyed
from gridless.geometry.rejection import ball_of_samples
from gridless.kernels.launch import EXACT
from gridless.nn import GaussianBumps, Monomials
from gridless.ops.batch_norm import batch_norm
from gridless.ops.edge_max import edge_max
from gridless.ops.event_conv import event_conv_step
from gridless.ops.segment_pool import segment_max, segment_mean
from gridless.ops.voxel_mean import voxel_mean
from gridless.structures import pad

TARGETS = (80, 89, 90, 100)
# Bytes of shared memory that a program may have there; launches are those of a device that has the least.
SHARED = {75: 64 << 10, 80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
LEAST = 99 << 10
# Gluon kernels are written for one generation.
GLUON = 90


class Launch(NamedTuple):
    kernel: Any
    arguments: tuple
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kernel.module.removeprefix('gridless.')}.{self.kernel.__name__}"


class Result(NamedTuple):
    name: str
    target: int
    seconds: float
    error: str | None


class _Device:
    """The part of a driver that Triton asks before a launch: a device of each capability, by that number."""

    capability = GLUON

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


class _AtOnce(Executor):
    """Runs what is submitted before `submit` returns."""

    def __init__(self, *_: Any) -> None:
        """Takes the arguments of other executors."""

    def submit(self, work: Callable, /, *arguments: Any, **options: Any) -> Future:
        future: Future = Future()
        future.set_result(work(*arguments, **options))
        return future


# Values that the host reads back from a kernel before it launches the next.


def _facts(partial: Tensor, splits: Tensor, result: Tensor, *_: Any) -> None:
    sizes = splits.diff()
    result[:] = torch.tensor([0, int(sizes.min()), int(sizes.max()), 0, 0, 0, 1, 1, 1])


def _counts(*given: Any) -> Callable[..., None]:
    index, value = given

    def fill(*arguments: Any) -> None:
        arguments[index][1:] = value

    return fill


def _kept(splits: Tensor, source: Tensor, cloud_splits: Tensor, codes: Tensor, *_: Any) -> None:
    codes[:] = 1 + (splits.diff() << 32)


def _samples(cloud_splits: Tensor, at: Tensor, splits: Tensor, result: Tensor, *_: Any) -> None:
    splits[:] = cloud_splits
    result[:] = torch.tensor([int(at[-1]), int(splits.diff().min()), int(splits.diff().max())])


def _found(*arguments: Any) -> None:
    """70 neighbours of each target."""
    work, numbers, rows, fill = arguments[5], arguments[8], arguments[11], arguments[-1]
    work[-2 * rows :] = 70
    numbers[:] = 70 * torch.arange(len(numbers)) if fill else torch.tensor([70 * rows, 70 * rows, 70, 0])


def _tap_counts(ordered: Tensor, counts: Tensor, *_: Any) -> None:
    counts[:] = 1


READ_BACK: dict[str, Callable[..., None]] = {
    "ops.tap_conv.gpu._count": _tap_counts,
    "geometry.gpu_common._facts": _facts,
    "geometry.ball.gpu._test": _counts(4, 20),
    "geometry.ball.grid_gpu._search_kernel": _found,
    "geometry.causal.gpu._search": _counts(9, 1),
    "geometry.rejection.gpu._decide": _kept,
    "geometry.rejection.gpu._sample_splits": _samples,
}


@contextmanager
def noted(ahead: dict[tuple, Launch] | None = None) -> Iterator[dict[tuple, Launch]]:
    """Launches inside the block are noted, one of each kind, and read-backs find plausible numbers.

    With `ahead` kernels also compile ahead, at once, which is noted there.
    """
    launches: dict[tuple, Launch] = {}

    def note(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launch = Launch(self, tuple(map(_small, arguments)), {k: _small(v) for k, v in options.items()})
        binder = self.device_caches[GLUON][-1]
        _, specialization, rest = binder(*arguments, **options)
        begun = ahead if warmup and ahead is not None else launches
        begun.setdefault((launch.name, str(specialization), str(rest)), launch)
        if launch.name in READ_BACK and not warmup:
            READ_BACK[launch.name](*arguments)

    def product(*factors: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
        a, b = factors[-2:]
        return a.new_zeros(a.shape[0], b.shape[1], dtype=out_dtype) if out is None else out

    from gridless import backends
    from gridless.kernels import launch as launching
    from gridless.ops.point_conv.gpu import gluon, tiles

    driver.set_active(_Device())  # type: ignore[arg-type]
    with ExitStack() as patches:
        for owner, name, value in (
            (JITFunction, "run", note),
            (launching, "TOGETHER", ahead is not None),
            (launching, "ThreadPoolExecutor", _AtOnce),
            (backends, "interpreting", lambda: True),  # CPU tensors are taken
            (torch.version, "cuda", "12.8"),
            (torch, "mm", product),
            (torch, "addmm", product),
            (torch, "empty", torch.zeros),
            (torch, "empty_like", torch.zeros_like),
            (Tensor, "new_empty", Tensor.new_zeros),
            (gluon, "_runs_on", lambda device: True),
            (tiles, "shared_memory", lambda device: LEAST),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        patches.enter_context(gl.use_backend("gpu"))
        yield launches


def _small(value: Any) -> Any:
    """A tensor of the same type that begins as far from a multiple of 16 bytes."""
    if not isinstance(value, Tensor):
        return value
    shift = value.data_ptr() % 16 // value.element_size()
    return torch.zeros(shift + 1, dtype=value.dtype)[shift:]


# Launches of networks.


def _edges(rows: int, degree: int = 4) -> gl.Edges:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(0, rows, (rows, degree), generator=generator).sort(1).values
    return gl.Edges(torch.arange(rows + 1) * degree, source.flatten().int(), rows).trusted()


def _conv(
    dtype: torch.dtype, rows: int, q: int, p: int | None, basis: Any = None, normalise: bool = True, bias: bool = True,
    order: str | None = "gather_first", coords: bool = False, fixed: bool = False,
) -> None:  # fmt: skip
    """A convolution to p channels, or depthwise; of features that are `fixed`, or have a gradient."""
    basis = basis or Monomials(3, 2)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.rand(rows, basis.dim, dtype=wide, requires_grad=coords)
    if p is None:
        weight, order = torch.zeros(basis.size, q, dtype=dtype, requires_grad=True), None
    else:
        weight = torch.zeros(basis.size, q, p, dtype=dtype, requires_grad=True)
    features = torch.zeros(rows, q, dtype=dtype, requires_grad=not fixed)
    more = torch.zeros(weight.shape[-1], dtype=dtype, requires_grad=True) if bias else None
    gl.point_conv(
        features, weight, more, _edges(rows), x, x, 0.5, basis, normalise=normalise, order=order
    ).sum().backward()


def _precision(name: str) -> Any:
    from gridless.kernels import tf32

    return mock.patch.object(tf32, "float32_precision", return_value=name)


def convolutions() -> None:
    from gridless.ops.point_conv.gpu import gluon

    # Few rows, many, and more than fit the cache, for each of which kernels are cut differently.
    with _precision("tf32"), mock.patch.object(gluon, "GLUON", False):
        for dtype in (torch.float32, torch.bfloat16):
            for rows in (48, 1000, 40_000):
                for width in (16, 32, 64, 128):
                    _conv(dtype, rows, width, width)
        _conv(torch.float16, 1000, 64, 64)
        for q, p in ((32, 64), (64, 32), (64, 64), (64, 128)):
            _conv(torch.float32, 1000, q, p, Monomials(3, 1))
        _conv(torch.float32, 1000, 32, 32, normalise=False, bias=False)
        _conv(torch.float32, 1000, 32, 32, GaussianBumps(((0.1, 0.2, 0.3), (0.0, 0.0, 0.0)), 0.6))
        _conv(torch.float32, 1000, 16, 32, Monomials(2, 2), coords=True)
        _conv(torch.float32, 40_000, 64, 64, GaussianBumps(tuple((0.1 * i, 0.2, 0.3) for i in range(16)), 0.6))
        for width in (32, 64):
            with _precision("tf32x3"):
                _conv(torch.float32, 1000, width, width)
                _conv(torch.float32, 1000, width, width, Monomials(3, 1))
        with _precision("tf32x3"):
            _conv(torch.float32, 40_000, 64, 64)
            _conv(torch.float32, 40_000, 128, 128)
    for normalise in (True, False):
        _conv(torch.float64, 48, 32, 32, normalise=normalise, coords=True)
    _conv(torch.float32, 1000, 64, 16, order="transform_first")
    _conv(torch.bfloat16, 1000, 64, 16, order="transform_first")
    for dtype in (torch.float32, torch.bfloat16):
        for width in (64, 96, 512):
            _conv(dtype, 1000, width, None, bias=False)
    _conv(torch.float16, 1000, 128, None, normalise=False)
    _conv(torch.float64, 48, 32, None, Monomials(3, 3), coords=True)
    for dtype in (torch.float32, torch.float64):
        x = torch.rand(500, 3, dtype=dtype, requires_grad=True)
        weight = torch.zeros(10, 32, dtype=dtype, requires_grad=True)
        gl.featureless_conv(weight, None, _edges(500), x, x, 0.5, Monomials(3, 2)).sum().backward()


def gluon_kernels() -> None:
    """The point convolution for one generation; whatever the rows, and normalised or not."""
    from gridless.ops.point_conv.gpu import tiles

    few, busy = (mock.patch.object(tiles, name, lambda *g, v=v: v) for name, v in (("few_rows", False), ("busy", 1)))
    with _precision("tf32"), few, busy:
        for q, p, order in ((32, 32, 2), (32, 64, 1), (64, 64, 1), (64, 16, 1)):
            _conv(torch.float32, 1000, q, p, Monomials(3, order))
        _conv(torch.float32, 1000, 32, 32, normalise=False, bias=False)
        for dtype in (torch.float32, torch.float16):
            _conv(dtype, 40_000, 64, 64)
            _conv(dtype, 40_000, 128, 128)
        _conv(torch.bfloat16, 1000, 32, 32)
        _conv(torch.bfloat16, 40_000, 128, 64, normalise=False, fixed=True)


def rows_and_cells() -> None:
    """Normalisation, pooling, voxels, and the maximum over edges."""
    rows = 1000
    count, splits, cell = torch.tensor(rows), torch.tensor([0, 300, rows]), torch.arange(rows) % 64
    kinds = (torch.float32, 32), (torch.float32, 128), (torch.bfloat16, 64), (torch.float16, 64), (torch.float64, 32)
    for dtype, width in kinds:
        x = torch.zeros(rows, width, dtype=dtype, requires_grad=True)
        wide = torch.promote_types(dtype, torch.float32)
        weight, bias = (torch.ones(width, dtype=wide, requires_grad=True) for _ in range(2))
        running = torch.zeros(width), torch.ones(width), torch.tensor(0), 0.1
        for number in (count, None):
            y = batch_norm(x, number, weight, bias, 1e-3, width == 32, width == 64, running)
            y.sum().backward()
        for out in (
            segment_max(x, splits),
            segment_mean(x, splits),
            voxel_mean(x, cell, 64),
            edge_max(x, _edges(rows)),
        ):
            out.sum().backward()


def _events(count: int, sensor: tuple[int, int] = (32, 24)) -> gl.Events:
    at = torch.arange(count)
    pixel = torch.stack([at % sensor[0], at % sensor[1]], 1).int()
    return gl.Events(pixel, at * 10, at % 2 == 0, torch.tensor([0, count // 2, count]), sensor)


def events() -> None:
    source = _events(600)
    with gl.use_backend("cpu"):
        coarse = gl.lif(source, stride=2, threshold=0.1, decay_time=1000.0, reset=-0.1)
    gl.lif(source, stride=2, threshold=0.1, decay_time=1000.0, reset=-0.1)
    edges = gl.causal(source, source, 3, window=500.0)
    layers = ((2, 16, source, 1), (32, 32, source, 1), (32, 64, coarse, 2))
    for dtype, some in ((torch.float32, layers), (torch.float64, layers[:1])):
        for q, p, target, stride in some:
            features = torch.zeros(len(source), q, dtype=dtype, requires_grad=True)
            weight = torch.zeros(9, 4, q, p, dtype=dtype, requires_grad=True)
            rate = torch.ones(9, 4, dtype=dtype, requires_grad=True)
            values = features, weight, rate, None, source, target, 3, stride, 1000.0
            for along in (None, edges) if target is source else (None,):
                gl.event_conv(*values, along).sum().backward()
            event_conv_step(*values)
    padded = pad(source, [1024])
    gl.event_conv(torch.zeros(1024, 8), torch.zeros(9, 4, 8, 8), torch.ones(9, 4), None, padded, padded)


def geometry() -> None:
    from gridless.geometry.ball import grid_gpu
    from gridless.geometry.farthest import gpu as farthest
    from gridless.training import fill

    for dtype, dim, points in ((torch.float32, 3, 1024), (torch.float32, 3, 10_000), (torch.float64, 2, 1024)):
        cloud = gl.Cloud.of([torch.rand(points, dim, dtype=dtype) for _ in range(2)])
        near = gl.ball(cloud, cloud, 0.1)
        gl.ball(cloud, cloud, 0.1, limit=8).transpose()
        gl.nearest(cloud, cloud, 16)
        ball_of_samples(near, gl.rejection_sample(cloud, near, distance=True)).transpose()
        gl.farthest_sample(cloud, 0.25)
        gl.farthest_sample(cloud, 0.25, near=near, reject=True)
    cloud = gl.Cloud.of(torch.rand(20_000, 3))
    with mock.patch.object(grid_gpu, "_LARGE", 0):
        gl.ball(cloud, cloud, 0.1)
    for share in farthest._SHARES:
        with mock.patch.object(farthest, "_share", lambda *given, share=share: share):
            gl.farthest_sample(cloud, 0.25)
    with mock.patch.object(farthest, "_programs", lambda cloud: 132 // cloud.num_examples):
        for points in (20_000, 120_000, 1_000_000):
            gl.farthest_sample(gl.Cloud.of(torch.rand(points, 3)), 0.1)
    for dtype in (torch.float32, torch.float64):
        Keyed(torch.zeros(1, dtype=torch.int32)).uniform(cloud, 3, each="row", dtype=dtype)
    table = torch.zeros(8, 4, dtype=torch.int64)
    fill._fill[(1,)](table, table, table, 0, fill.BLOCK, **EXACT)  # type: ignore[arg-type]


def voxels() -> None:
    """Searches of voxels, and convolutions over taps in every precision."""
    from gridless.geometry.voxels import strided_taps, submanifold_taps

    sites = torch.cartesian_prod(torch.zeros(1, dtype=torch.int64), *(torch.arange(9),) * 3)
    edges = submanifold_taps(sites), strided_taps(sites, 2, 2)[1], submanifold_taps(sites, 5)
    kinds: tuple[tuple[torch.dtype, str], ...] = ((torch.float32, "tf32"), (torch.float32, "tf32x3"))
    kinds += ((torch.float16, "tf32"), (torch.bfloat16, "tf32"), (torch.float64, "tf32"))
    for dtype, precision in kinds:
        with _precision(precision):
            for near, q, p in ((edges[0], 32, 32), (edges[0], 128, 256), (edges[1], 32, 64), (edges[2], 6, 48)):
                features = torch.zeros(near.num_source, q, dtype=dtype, requires_grad=True)
                weight = torch.zeros(near.num_taps, q, p, dtype=dtype, requires_grad=True)
                gl.tap_conv(features, weight, weight.new_zeros(p), near).sum().backward()


CASES = {
    "convolutions": convolutions,
    "gluon": gluon_kernels,
    "rows": rows_and_cells,
    "events": events,
    "geometry": geometry,
    "voxels": voxels,
}


def launched(cases: list[str]) -> list[Launch]:
    """The launches of all cases, each kind once."""
    with noted() as launches:
        for case in cases:
            CASES[case]()
    return list(launches.values())


def forgotten(launches: list[Launch]) -> list[str]:
    """Kernels of the package that are none of these, and no helper of another kernel."""
    kernels: dict[str, Any] = {}
    for module in pkgutil.walk_packages(gl.__path__, "gridless."):
        file = importlib.util.find_spec(module.name).origin  # type: ignore[union-attr]
        if ".jit" in Path(file or os.devnull).read_text():
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, JITFunction):
                    kernels[f"{value.module.removeprefix('gridless.')}.{value.__name__}"] = value
    helpers = set()
    for kernel in kernels.values():
        for node in ast.walk(kernel.parse()):
            if isinstance(node, ast.Name) and (helper := kernel.__globals__.get(node.id)) is not kernel:
                helpers.add(id(helper))
    names = {launch.name for launch in launches}
    return sorted(name for name, kernel in kernels.items() if name not in names and id(kernel) not in helpers)


def compile_launch(job: tuple[Launch, int]) -> Result:
    launch, target = job
    driver.set_active(_Device())  # type: ignore[arg-type]
    driver.active.capability = target  # type: ignore[attr-defined]
    start, error = time.perf_counter(), None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            kernel = launch.kernel.run(*launch.arguments, grid=(1,), warmup=True, **launch.options)
            if (shared := kernel.metadata.shared) > SHARED.get(target, LEAST):
                error = f"needs {shared} bytes of shared memory"
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
    if error is None and "enable_fp_fusion" not in launch.options:
        error = "leaves fused multiply-adds to the version of Triton: say enable_fp_fusion"
    if error is None and said:
        error = f"warns: {said[0].message}"
    return Result(launch.name, target, time.perf_counter() - start, error)


def compiled(launches: list[Launch], targets: list[int], processes: int) -> Iterator[Result]:
    """Each launch for each target that its language serves, in so many processes."""
    global _jobs
    _jobs = [(one, t) for one in launches for t in targets if t == GLUON or not _is_gluon(one.kernel)]
    if processes == 1:
        yield from map(compile_launch, _jobs)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(_compile_job, range(len(_jobs)))


_jobs: list[tuple[Launch, int]] = []


def _compile_job(i: int) -> Result:
    return compile_launch(_jobs[i])


def _is_gluon(kernel: Any) -> bool:
    return getattr(kernel, "is_gluon", lambda: False)()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", default=list(TARGETS), help="compute capabilities, as 90")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--first", action="store_true", help="each kernel in one variant only")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    torch.set_num_threads(1)
    launches = launched(given.only)
    missing = forgotten(launches) if given.only == list(CASES) else []
    if given.first:
        launches = list({launch.name: launch for launch in reversed(launches)}.values())
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder):
        results = list(compiled(launches, given.targets, given.processes))
    print(f"Triton {triton.__version__}, {', '.join(f'sm_{t}' for t in given.targets)}: {len(results)} compilations\n")
    print(f"{'kernel':<56} {'variants':>8} {'compiled':>8} {'failed':>6} {'seconds':>8}")
    for name in sorted({launch.name for launch in launches}):
        mine = [r for r in results if r.name == name]
        variants, failed = sum(one.name == name for one in launches), sum(r.error is not None for r in mine)
        print(f"{name:<56} {variants:>8} {len(mine):>8} {failed:>6} {sum(r.seconds for r in mine):>8.1f}")
    for name, error in sorted({(f"{r.name} for sm_{r.target}", r.error) for r in results if r.error is not None}):
        print(f"\n{name}: {error}")
    for name in missing:
        print(f"\n{name}: nothing here launches this kernel")
    return int(bool(missing) or any(r.error is not None for r in results))


if __name__ == "__main__":
    sys.exit(main())
