"""Searches and samplers on the GPU, results first, then times: the parts `gpu` and `pack` of geometry.py.

    python benchmarks/geometry.py pack    on a machine with the data: inputs and the CPU's results
    python benchmarks/geometry.py gpu     on a machine with a GPU: the same results, to the bit, and how long they take

Inputs are 1024 real clouds of 1024 points, the same with random sizes, a scene of all of them side by side (1M points),
and 1M points at random. Results are compared by digest.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import DATA, RADIUS, commit, modelnet, seconds

import gridless as gl
from gridless.structures.edges import transpose

# The geometry of the paper's large network: 7 searches, 3 samplings.
PLAN = gl.models.point_resnet_large().plan
RANDOM_RADIUS = 0.0168
LATTICE_RADIUS = 0.5

# Results that travel with the inputs; the others are verified on the GPU, see `verify`.
PACKED = ("ugly", "chain", "chain, ragged")


def pack(folder: Path, clouds: int = 1024) -> None:
    """Write the inputs, as the whole numbers they are stored as, and digests of what the CPU makes of them."""
    name, points = modelnet(clouds)
    if name != "ModelNet40":
        raise FileNotFoundError(f"there is no ModelNet40 in {DATA} to pack")
    scale = float(np.load(DATA / "modelnet40_train.npz")["scale"])
    whole = np.rint((points.astype(np.float64) / scale + 1) / 2 * 4095).astype(np.uint16)
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
    return list(PLAN(cloud).values())[1:]


def works(inputs: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    full, ragged, scene, random, large = (inputs[n] for n in ("full", "ragged", "scene", "random", "large"))
    balls: dict[str, Any] = {}

    def near(name: str) -> gl.Edges:
        if name not in balls:
            balls[name] = gl.ball(inputs[name], inputs[name], RADIUS)
        return balls[name]

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


def check(folder: Path) -> None:
    """Refuse to time what is wrong."""
    expected = json.loads((folder / "expected.json").read_text())
    inputs = load(folder, "cuda")
    for name, work in works(inputs).items():
        start = time.perf_counter()
        if name not in expected:
            verify(name, inputs, work())
        elif (actual := digests(work())) != expected[name]:
            wrong = [(i, a, b) for i, (a, b) in enumerate(zip(actual, expected[name], strict=True)) if a != b]
            raise AssertionError(f"{name}: other results than the CPU's (place, ours, its): {wrong[:3]}")
        print(f"{name:34} {time.perf_counter() - start:7.2f} s  same", flush=True)


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
        is_sample = torch.zeros(len(scene), dtype=torch.bool, device=scene.device)
        is_sample[result.parent_index] = True
        near = gl.ball(scene, scene, RADIUS)
        blocking = is_sample[near.source.long()] & (near.source < near.target)
        blocked = torch.zeros_like(is_sample).index_put_(
            (near.target.long()[blocking],), torch.tensor(True, device="cuda")
        )
        assert torch.equal(is_sample, ~blocked), "not the samples in index order"
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


def measure(folder: Path) -> dict[str, Any]:
    """Milliseconds by name of the work, the median, host included: from call to finished result."""
    inputs, rows = load(folder, "cuda"), {}
    for name, work in works(inputs).items():

        def finished(work: Callable[[], Any] = work) -> None:
            work()
            torch.cuda.synchronize()

        rows[name] = 1e3 * seconds(finished, 5 if "100k" in name else 20)
        print(f"{name:34} {rows[name]:9.3f} ms", flush=True)
    from triton import __version__ as triton

    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton}"
    unit = "ms, median, host time included; checked against the CPU backend and the reference in the same call"
    date = datetime.now(UTC).date().isoformat()
    return {"machine": device, "commit": commit(), "date": date, "unit": unit, "results": rows}
