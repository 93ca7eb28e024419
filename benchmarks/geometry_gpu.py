"""Searches and samplers on the GPU: results first, then times.

    python benchmarks/geometry_gpu.py --pack carry        on a machine with the data: inputs and the CPU's results
    python benchmarks/geometry_gpu.py --check carry       on a machine with a GPU: the same results, to the bit
    python benchmarks/geometry_gpu.py --time carry        and how long they take

Inputs are 1024 real clouds of 1024 points, the same with random sizes, a scene of all of them side by side (1M points),
and 1M points at random. Results are compared by digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gridless as gl
from gridless.geometry.transpose import transpose

RADIUS = 0.1125
RANDOM_RADIUS = 0.0168
LATTICE_RADIUS = 0.5

# Results that travel with the inputs; the others are verified on the GPU, see `verify`.
PACKED = ("ugly", "chain", "chain, ragged")


def pack(folder: Path, clouds: int) -> None:
    data = Path(__file__).resolve().parents[2] / "shared" / "data"
    sys.path.insert(0, str(data))
    import read  # type: ignore[import-not-found]

    coords, _, _ = read.points(data / "modelnet40_train.npz")
    chosen = np.random.default_rng(0).permutation(len(coords))[:clouds]
    scale = float(np.load(data / "modelnet40_train.npz")["scale"])
    whole = np.rint((coords[chosen].astype(np.float64) / scale + 1) / 2 * 4095).astype(np.uint16)
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / "clouds.npz", whole=whole, scale=scale)
    inputs = load(folder, "cpu")
    results = {}
    for name in PACKED:
        start = time.perf_counter()
        results[name] = digests(works(inputs)[name]())
        print(f"{name:34} {time.perf_counter() - start:7.2f} s", flush=True)
        (folder / "expected.json").write_text(json.dumps(results, indent=1))


def load(folder: Path, device: str) -> dict[str, Any]:
    pack = np.load(folder / "clouds.npz")
    points = (pack["whole"].astype(np.float32) / 4095 * 2 - 1) * np.float32(pack["scale"])
    rng = np.random.default_rng(1)
    sizes = rng.integers(128, 1025, len(points))
    width = int(np.ceil(np.sqrt(len(points))))
    place = np.stack([np.arange(len(points)) % width, 0 * np.arange(len(points)), np.arange(len(points)) // width], 1)
    scene = (points + (2.2 * place[:, None]).astype(np.float32)).reshape(-1, 3)
    return {
        "full": gl.Cloud.of(list(points)).to(device),
        "ragged": gl.Cloud.of([p[:n] for p, n in zip(points, sizes, strict=True)]).to(device),
        "scene": gl.Cloud.of(scene[rng.permutation(len(scene))]).to(device),
        "random": gl.Cloud.of(rng.random((1_000_000, 3), np.float32)).to(device),
        "large": gl.Cloud.of(rng.random((100_000, 3), np.float32)).to(device),
        "ugly": ugly(rng, device),
    }


def ugly(rng: np.random.Generator, device: str) -> list[gl.Cloud]:
    """Batches with empty, single, equal, far and lattice examples, in several dimensions and both dtypes."""

    def cloud(dim: int, dtype: Any) -> gl.Cloud:
        parts = [
            rng.random((300, dim)),
            np.zeros((0, dim)),
            np.ones((1, dim)),
            rng.integers(0, 5, (200, dim)) / 4,
            np.full((40, dim), 0.25),
            rng.random((60, dim)) + 1000,
            np.array([[-1e6], [1e6]]).repeat(dim, 1),
            rng.random((33, dim)) * 1e-3,
        ]
        return gl.Cloud.of([torch.from_numpy(p.astype(dtype)) for p in parts]).to(device)

    return [
        cloud(d, t) for d, t in ((3, np.float32), (3, np.float64), (1, np.float32), (2, np.float32), (8, np.float32))
    ]


def chain(cloud: gl.Cloud) -> list[Any]:
    """The paper's preprocessing: 7 ball searches and 3 rejection samplings."""
    radius = RADIUS
    results: list[Any] = [gl.ball(cloud, cloud, radius)]
    for _ in range(3):
        coarse = gl.rejection_sample(cloud, results[-1])
        results += [coarse, gl.ball(cloud, coarse, radius * 2**0.5)]
        radius *= 2
        results.append(gl.ball(coarse, coarse, radius))
        cloud = coarse
    return results


def works(inputs: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    full, ragged, scene, random, large = (inputs[n] for n in ("full", "ragged", "scene", "random", "large"))
    kept: dict[str, Any] = {}

    def near(name: str) -> gl.Edges:
        if name not in kept:
            kept[name] = gl.ball(inputs[name], inputs[name], RADIUS)
        return kept[name]

    def odd() -> list[Any]:
        results = []
        for cloud in inputs["ugly"]:
            radius = LATTICE_RADIUS * (1 if cloud.dim < 4 else 2)
            few = gl.farthest_sample(cloud, 0.3)
            edges = gl.ball(cloud, cloud, radius)
            results += [edges, few, gl.ball(cloud, few, radius), gl.ball(few, cloud, radius, limit=5)]
            results += [gl.nearest(cloud, few, 7), gl.rejection_sample(cloud, edges, distance=True)]
            results += [gl.farthest_sample(cloud, 0.5, near=edges), transpose(results[-4])]
            results += [gl.farthest_sample(cloud, 0.5, near=edges, reject=True)]
        return results

    first = gl.Cloud(full.coords[:65536], full.splits[:65])
    return {
        "ugly": odd,
        "chain": lambda: chain(full),
        "chain, ragged": lambda: chain(ragged),
        "ball, 1M random": lambda: gl.ball(random, random, RANDOM_RADIUS),
        "ball, 1M scene": lambda: gl.ball(scene, scene, RADIUS),
        "ball, 1M scene, cross": lambda: gl.ball(scene, large, RADIUS / 2),
        "ball, limit 16": lambda: gl.ball(full, full, RADIUS, limit=16),
        "nearest 16": lambda: gl.nearest(first, first, 16),
        "nearest 16, 100k": lambda: gl.nearest(large, large, 16),
        "farthest 256": lambda: gl.farthest_sample(full, 256),
        "farthest 256, approximate": lambda: gl.farthest_sample(full, 256, near=near("full")),
        "farthest 256, after rejection": lambda: gl.farthest_sample(full, 256, near=near("full"), reject=True),
        "farthest 100k to 10k": lambda: gl.farthest_sample(large, 10_000),
        "rejection, 1M scene": lambda: gl.rejection_sample(scene, near("scene")),
        "transpose": lambda: transpose(near("full")),
    }


def digests(result: Any) -> list[str]:
    def digest(value: Any) -> str:
        tensors = [value.splits, value.source] if isinstance(value, gl.Edges) else [value.splits, value.parent_index]
        # Distances are compared in the tests: the CPU's square root may be off in the last bit.
        text = b"".join(np.ascontiguousarray(t.cpu().numpy()).tobytes() for t in tensors)
        return f"{len(value)} {hashlib.sha256(text).hexdigest()[:16]}"

    return [digest(r) for r in (result if isinstance(result, list) else [result])]


def check(folder: Path, only: str) -> bool:
    expected = json.loads((folder / "expected.json").read_text())
    good = True
    inputs = load(folder, "cuda")
    for name, work in works(inputs).items():
        if only not in name:
            continue
        start = time.perf_counter()
        try:
            if name not in expected:
                verify(name, inputs, work())
                print(f"{name:34} {time.perf_counter() - start:7.2f} s  same", flush=True)
                continue
            found = digests(work())
            wrong = [i for i, (a, b) in enumerate(zip(found, expected[name], strict=True)) if a != b]
            state = (
                "same" if not wrong else f"DIFFERENT at {wrong}: {[(found[i], expected[name][i]) for i in wrong[:3]]}"
            )
        except Exception as error:
            state = f"FAILED: {type(error).__name__}: {str(error)[-300:]}"
        good &= state == "same"
        print(f"{name:34} {time.perf_counter() - start:7.2f} s  {state}", flush=True)
    return good


def verify(name: str, inputs: dict[str, Any], result: Any) -> None:
    """Compare with the reference, of all rows or of some; a rejection sample with its definition."""
    full, scene, random, large = (inputs[n] for n in ("full", "scene", "random", "large"))
    if name.startswith("ball, 1M"):
        source = random if "random" in name else scene
        target = large if "cross" in name else source
        some_rows(result, source, target, lambda s, t: gl.ball(s, t, radius_of(name)))
    elif name.startswith("ball, limit"):
        some_rows(result, full[0], full[0], lambda s, t: gl.ball(s, t, RADIUS, limit=16))
    elif name == "nearest 16":
        some_rows(result, full[0], full[0], lambda s, t: gl.nearest(s, t, 16))
    elif name.startswith("nearest"):
        some_rows(result, large, large, lambda s, t: gl.nearest(s, t, 16))
    elif name.startswith("farthest"):
        cloud = large if "100k" in name else full[0]
        size = 10_000 if "100k" in name else 256
        with gl.use_backend("reference"):
            near = gl.ball(cloud, cloud, RADIUS) if "," in name else None
            want = gl.farthest_sample(cloud, size, near=near, reject="after" in name)
        assert torch.equal(result.parent_index[:size], want.parent_index), "other samples"
    elif name.startswith("rejection"):
        kept = torch.zeros(len(scene), dtype=torch.bool, device=scene.device)
        kept[result.parent_index] = True
        near = gl.ball(scene, scene, RADIUS)
        blocking = kept[near.source.long()] & (near.source < near.target)
        blocked = torch.zeros_like(kept).index_put_((near.target.long()[blocking],), torch.tensor(True, device="cuda"))
        assert torch.equal(kept, ~blocked), "not the samples in index order"
    else:
        near = gl.ball(full, full, RADIUS)
        assert torch.equal(result.splits, near.splits), "other splits"
        assert torch.equal(result.source, near.source), "a ball of a cloud with itself is its own transpose"


def radius_of(name: str) -> float:
    return RANDOM_RADIUS if "random" in name else RADIUS / 2 if "cross" in name else RADIUS


def some_rows(result: gl.Edges, source: gl.Cloud, target: gl.Cloud, search: Callable[..., gl.Edges]) -> None:
    rows = torch.linspace(0, len(target) - 1, 500, device=target.device).long()
    with gl.use_backend("reference"):
        want = search(source, gl.Cloud.of(target.coords[rows]))
    assert torch.equal(result.counts[rows], want.counts), "other counts"
    for at, row in enumerate(rows.tolist()):
        a, b = result.splits[row : row + 2].tolist()
        c, d = want.splits[at : at + 2].tolist()
        assert torch.equal(result.source[a:b], want.source[c:d]), f"other sources in row {row}"


def milliseconds(work: Callable[[], Any], repeat: int = 20) -> float:
    """The median, host included: from call to finished result."""
    times = []
    for _ in range(repeat + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[3:])


def measure(folder: Path) -> None:
    inputs = load(folder, "cuda")
    rows = {}
    for name, work in works(inputs).items():
        try:
            work()
            rows[name] = milliseconds(work, 5 if "100k" in name else 20)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[-300:]}")
    kernels("chain", lambda: chain(inputs["full"]))
    kernels("ball, 1M scene", lambda: gl.ball(inputs["scene"], inputs["scene"], RADIUS))
    print(torch.cuda.get_device_name(), torch.__version__)
    for name, value in rows.items():
        print(f"{name:34} {value:9.3f} ms")
    edges = chain(inputs["full"])
    print("rows:", [len(e) for e in edges])


def kernels(what: str, work: Callable[[], Any]) -> None:
    """What each kernel costs, from the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    print(f"-- {what}: microseconds on the GPU, launches")
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)[:16]:
        print(f"{event.key[:70]:70} {event.self_device_time_total:9.1f} {event.count:4}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    for action in ("pack", "check", "time"):
        arguments.add_argument(f"--{action}", type=Path, metavar="FOLDER")
    arguments.add_argument("--only", default="", help="checks whose name contains this")
    arguments.add_argument("--clouds", type=int, default=1024)
    given = arguments.parse_args()
    if given.pack:
        pack(given.pack, given.clouds)
    if given.check and not check(given.check, given.only):
        sys.exit(1)
    if given.time:
        measure(given.time)


if __name__ == "__main__":
    main()
