"""Other projects' networks with gridless in place of spconv: the same values and gradients, and the time.

    python benchmarks/backbones.py --sources DIR [--device cuda] [--voxels N] [--networks ptv3 spunet] [--out FILE]

DIR holds clones (or the named files) of

    PointTransformerV3  github.com/Pointcept/PointTransformerV3: model.py, serialization
    Pointcept           github.com/Pointcept/Pointcept: pointcept/models (SpUNet, LitePT)
    sonata              github.com/facebookresearch/sonata: sonata
    concerto, utonia    github.com/Pointcept/Concerto and Utonia: concerto, utonia
    OpenPCDet           github.com/open-mmlab/OpenPCDet: pcdet (CenterPoint)
    mmdetection3d       github.com/open-mmlab/mmdetection3d: mmdet3d (SECOND)

They need timm and addict, SpUNet also torch-geometric. Each network is built once with spconv, if that is installed,
and once with `gl.compat.enable`, each in a process of its own, with the same weights, voxels and random numbers.
torch_scatter and flash_attn are ours in both processes, so that only spconv differs.

Values are those of evaluation, gradients those of a training step (batch statistics, drop path, shuffled orders), of
a fixed linear function of the output. Differences are the largest absolute one over the largest absolute value; of
gradients over all parameters together, and as norms. `again` is the difference of two runs of one library, `from
float64` that of each side from gridless in float64. A row is written as soon as it is measured. Times are eager:
medians of --repeat calls, with new indices in each. `both MiB` is the peak of a training step above the weights, voxels
and features.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from backbone_networks import NETWORKS, load, stubs
from common import DATA, RESULTS, cpu, keep, machine, seconds

import gridless as gl

PRECISIONS = {"float64": torch.float64, "IEEE float32": torch.float32, "float16": torch.float16}
Results = dict[str, torch.Tensor]  # "output", and the gradient of each parameter


def start(library: str) -> None:
    """Prepares a process in which `spconv` is that of `library`."""
    names = ("torch_scatter", "flash_attn", *(("spconv", "cumm") if library == "gridless" else ()))
    gl.compat.enable(*names, force=names)
    stubs()


def trains(model: torch.nn.Module, device: str) -> None:
    """Keeps the layers of spconv in training mode: in evaluation, 5 x 5 x 5 kernels find no algorithm on an H200.

    On a CPU only its own algorithm works.
    """
    from spconv.core import ConvAlgo  # pyright: ignore[reportMissingImports]

    for module in model.modules():
        if hasattr(module, "algo"):
            if device == "cpu":
                module.algo = ConvAlgo.Native
            module.train = lambda mode=True, module=module: module  # type: ignore[method-assign]


def difference(a: Results, b: Results) -> dict[str, float]:
    """How far `a` is from `b`, relative to the largest value of `b`, and of gradients as norms."""
    pairs = {name: (a[name].double() - b[name].double(), b[name].double()) for name in b}
    apart, size = pairs.pop("output")
    largest = [max(float(pair[i].abs().max()) for pair in pairs.values()) for i in (0, 1)]
    norms = [sum(float(pair[i].square().sum()) for pair in pairs.values()) ** 0.5 for i in (0, 1)]
    return {
        "output": float(apart.abs().max() / size.abs().max()),
        "gradients": largest[0] / largest[1],
        "gradients, norm": norms[0] / norms[1],
    }


class Side:
    """One network in this process."""

    def __init__(self, name: str, library: str, options: argparse.Namespace, folder: Path) -> None:
        from scenes import load_scans  # imports spconv, and so after `enable`

        self.network, self.device = NETWORKS[name], options.device
        torch.manual_seed(0)
        model = load(self.network, options.sources)(**self.network.options)
        weights = folder / f"{name}.pt"
        if weights.is_file():
            model.load_state_dict(torch.load(weights))
        else:
            torch.save(model.state_dict(), weights)
        if library == "spconv":
            trains(model, self.device)
        self.model = model.to(self.device)
        self.state = deepcopy(self.model.state_dict())
        voxels = self.network.voxels(load_scans(options.scans)[0], options.voxels)
        self.cells, self.features = (x.to(self.device) for x in voxels)

    def can(self, dtype: torch.dtype, library: str) -> bool:
        """Whether the library and the network have this precision: autocast on a GPU, spconv's float64 on a CPU."""
        if dtype == torch.float16:
            return self.device == "cuda" and not self.network.is_float32
        return dtype == torch.float32 or self.device == "cpu" or library == "gridless"

    def call(self, dtype: torch.dtype) -> torch.Tensor:
        torch.manual_seed(1)
        features = self.features.double() if dtype == torch.float64 else self.features
        with torch.autocast(self.device, torch.float16, enabled=dtype == torch.float16):
            return self.network.call(self.model, self.cells, features)

    def forward(self, dtype: torch.dtype) -> torch.Tensor:
        with torch.no_grad():
            return self.call(dtype).detach()

    def both(self, dtype: torch.dtype) -> None:
        self.model.zero_grad()
        out = self.call(dtype)
        weights = torch.randn(out.shape, generator=torch.Generator(out.device).manual_seed(3), device=out.device)
        (out * (weights / len(self.cells) ** 0.5)).sum().backward()

    def results(self, dtype: torch.dtype) -> Results:
        self.model.to(torch.float64 if dtype == torch.float64 else torch.float32)
        self.model.load_state_dict(self.state)
        self.model.eval()
        output = self.forward(dtype)
        self.model.train()
        self.both(dtype)
        gradients = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        return {"output": output, **gradients}

    def cost(self, dtype: torch.dtype, repeat: int) -> dict[str, float]:
        def timed(work: Callable[[torch.dtype], Any]) -> float:
            def finished() -> None:
                work(dtype)
                if self.device == "cuda":
                    torch.cuda.synchronize()

            return 1e3 * seconds(finished, repeat)

        figures = {"both ms": timed(self.both)}
        if self.device == "cuda":
            self.model.zero_grad()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self.both(dtype)
            figures["both MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        self.model.eval()
        return {"forward ms": timed(self.forward), **figures}


Rows = dict[str, dict[str, Any]]  # by precision


def measured(name: str, library: str, options: argparse.Namespace, folder: Path) -> tuple[dict[str, int], Rows]:
    """The size of a network, and for each precision: differences, whether two runs give the same bits, and times."""
    side, rows, exact = Side(name, library, options, folder), {}, None
    for precision in options.precisions:
        dtype = PRECISIONS[precision]
        if not side.can(dtype, library):
            continue
        first, second = side.results(dtype), side.results(dtype)
        row: dict[str, Any] = {"again": difference(second, first)}
        row["same bits"] = {"output": first["output"].equal(second["output"])}
        row["same bits"]["gradients"] = all(first[n].equal(second[n]) for n in first if n != "output")
        saved, spconv = folder / f"{name} {precision}.pt", None
        if library == "spconv":
            torch.save(first, saved)
        elif saved.is_file():
            spconv = torch.load(saved, map_location=options.device)
            row["from spconv"] = difference(first, spconv)
        if library == "gridless" and dtype == torch.float64:
            exact = first
        elif exact is not None:
            row["from float64"] = difference(first, exact)
            if spconv is not None:
                row["spconv from float64"] = difference(spconv, exact)
        rows[precision] = row | (side.cost(dtype, options.repeat) if dtype != torch.float64 else {})
    return {"parameters": sum(p.numel() for p in side.model.parameters()), "voxels": len(side.cells)}, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--scans", default=str(DATA / "semantickitti_22_scans.npz"))
    parser.add_argument("--out", type=Path, default=RESULTS / "backbones.json")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--voxels", type=int, help="at most so many, those nearest to the sensor")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if options.device == "cuda" else cpu()
    results = json.loads(options.out.read_text()) if options.out.is_file() else {"rows": []}
    results["machine"], results["when"] = machine(), time.strftime("%Y-%m-%d")
    libraries = [*(["spconv"] if find_spec("spconv") else []), "gridless"]
    spawn = multiprocessing.get_context("spawn")
    pools = {library: ProcessPoolExecutor(1, spawn, initializer=start, initargs=(library,)) for library in libraries}
    failures = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                sides = {x: pool.submit(measured, name, x, options, Path(folder)).result() for x, pool in pools.items()}
            except Exception as error:  # the other networks are still measured
                failures.append(f"{name}: {type(error).__name__}: {error}")
                print(failures[-1], flush=True)
                continue
        size, ours = sides["gridless"]
        for precision in ours:
            row = {"network": NETWORKS[name].title, "device": device, "precision": precision, **size}
            row |= {library: rows[precision] for library, (_, rows) in sides.items() if precision in rows}
            same = ("network", "device", "precision")
            results["rows"] = [r for r in results["rows"] if any(r[key] != row[key] for key in same)] + [row]
            keep(options.out, results)
            print(json.dumps(row), flush=True)
    for pool in pools.values():
        pool.shutdown()
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()
