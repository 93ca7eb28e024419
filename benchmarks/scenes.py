"""Real LiDAR scans: one convolution, the search before it and a whole network, beside spconv where that is installed.

    python benchmarks/scenes.py --scans semantickitti_22_scans.npz [--all] [--network] [--out results/scenes.json]

As a user gets it: eager, one call after the other, median of 30 from call to finished result. A scan becomes voxel
centres of 5 or 10 cm; our ball holds the 3 x 3 x 3 neighbourhood, with 10 monomials; spconv's is SubMConv3d of 27
weights. `kept`: edges (indices) from an earlier call; `anew`: the search is part of the call. MiB are the peak of the
call above its inputs. With --all every scan is taken, and figures are medians over scans; without, the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from common import machine

import gridless as gl

try:
    import spconv.pytorch as spconv
except ImportError:
    spconv = None

REPEAT = 30
WIDTHS = (32, 64, 128)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_scans(path: str) -> list[np.ndarray]:
    """Coordinates (n, 3) float32 of each scan: a pack of whole scans, or a file with one under `coords`."""
    pack = np.load(path)
    if "coords" in pack:
        return [pack["coords"].astype(np.float32)]
    sys.path.insert(0, str(Path(path).parent))
    from read import scans  # the reader that lies beside the pack

    return [scan[0] for scan in scans(path)]


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds from call to finished result, and MiB above what was there before."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = []
    for _ in range(REPEAT):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times), peak


def both(forward: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    grad = torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), inputs, grad)


class Ours:
    def __init__(self, voxels: torch.Tensor, size: float) -> None:
        plan = gl.Plan()
        cloud = plan.points(dim=3)
        self.near = plan.ball(cloud, cloud, size * 3**0.5 * 1.001)
        self.plan, self.cloud = plan, gl.Cloud.of(((voxels.float() + 0.5) * size).contiguous())
        self.geometry = plan(self.cloud)

    def works(self, width: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
        conv = gl.nn.PointConv(self.near, width, width).cuda().to(dtype)
        features = torch.randn(len(self.cloud), width, device="cuda", dtype=dtype, requires_grad=True)

        def anew() -> Any:
            with torch.no_grad():
                return conv(features, self.plan(self.cloud))

        kept = lambda: conv(features, self.geometry)  # noqa: E731
        return {"kept": kept, "both": both(kept, [features, *conv.parameters()]), "anew": anew}


class Theirs:
    def __init__(self, voxels: torch.Tensor) -> None:
        self.low = voxels.min(0).values
        at = (voxels - self.low).int()
        self.indices = torch.cat([torch.zeros_like(at[:, :1]), at], 1).contiguous()
        self.shape = [int(v) + 1 for v in at.max(0).values]

    def works(self, width: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
        conv = spconv.SubMConv3d(width, width, 3, bias=True, indice_key="near").cuda().to(dtype)
        features = torch.randn(len(self.indices), width, device="cuda", dtype=dtype, requires_grad=True)
        # A result knows the indices that were found for it; what went in does not.
        known = conv(spconv.SparseConvTensor(features, self.indices, self.shape, 1))
        assert known.find_indice_pair("near") is not None

        def kept() -> torch.Tensor:
            return conv(known.replace_feature(features)).features

        def anew() -> Any:
            with torch.no_grad():
                return conv(spconv.SparseConvTensor(features, self.indices, self.shape, 1)).features

        return {"kept": kept, "both": both(kept, [features, *conv.parameters()]), "anew": anew}


def convolutions(scans: list[np.ndarray]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for size in (0.05, 0.1):
        found: dict[str, list[dict]] = {}
        for scan in scans:
            voxels = torch.unique((torch.from_numpy(scan).cuda() / size).floor().int(), dim=0)
            libraries: dict[str, Any] = {"ours": Ours(voxels, size)}
            if spconv is not None:
                libraries["spconv"] = Theirs(voxels)
            for width in WIDTHS:
                for dtype in DTYPES:
                    name = f"{100 * size:.0f} cm, {width} channels, {str(dtype).removeprefix('torch.')}"
                    for library, it in libraries.items():
                        if library == "spconv" and dtype == torch.bfloat16:
                            continue  # not one of its types
                        got = {what: measured(work) for what, work in it.works(width, dtype).items()}
                        found.setdefault(f"{name}|{library}", []).append(got)
        for key, values in found.items():
            name, library = key.split("|")
            row = rows.setdefault(name, {})
            for what in ("kept", "both", "anew"):
                row[f"{library} {what} ms"] = statistics.median(v[what][0] for v in values)
                row[f"{library} {what} MiB"] = statistics.median(v[what][1] for v in values)
        for name, row in rows.items():
            if not name.startswith(f"{100 * size:.0f} cm"):
                continue
            line = f"{name:32}"
            for library in ("ours", "spconv"):
                if f"{library} kept ms" in row:
                    kept, pair, anew = (row[f"{library} {w} ms"] for w in ("kept", "both", "anew"))
                    mib = row[f"{library} both MiB"]
                    line += f"  {library} {kept:.3f} / {pair:.3f} ms, anew {anew:.3f}, {mib:.0f} MiB"
            if "spconv kept ms" in row:
                for what in ("kept", "both", "anew"):
                    row[f"{what} ratio"] = row[f"spconv {what} ms"] / row[f"ours {what} ms"]
                line += "  ratio " + " / ".join(f"{row[f'{w} ratio']:.1f}" for w in ("kept", "both", "anew"))
            print(line, flush=True)
    return rows


def searches(scan: np.ndarray) -> dict[str, float]:
    """The raw scan: ball searches, sampling, in milliseconds."""
    cloud = gl.Cloud.of(torch.from_numpy(scan).cuda())
    near = gl.ball(cloud, cloud, 0.2)
    works = {
        "ball, 0.2 m": lambda: gl.ball(cloud, cloud, 0.2),
        "ball, 0.4 m": lambda: gl.ball(cloud, cloud, 0.4),
        "rejection sampling": lambda: gl.rejection_sample(cloud, near),
        "farthest points, 10,000": lambda: gl.farthest_sample(cloud, 10000),
    }
    rows = {}
    for name, work in works.items():
        rows[name] = measured(work)[0]
        print(f"raw scan of {len(scan):,} points: {name:28} {rows[name]:8.3f} ms", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scans", required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    scans = load_scans(options.scans)
    rows = {"convolutions": convolutions(scans if options.all else scans[:1])}
    try:
        rows["raw scan"] = searches(scans[0])
    except TypeError as error:
        print(error)
    if options.out:
        Path(options.out).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
