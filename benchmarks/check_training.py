"""Is training on this GPU right, and where does its time go? A minute, before anything longer is started.

    python benchmarks/check_training.py --data DIR [--device cuda]

1. Logits and gradients of the large network on the device are those of the reference on the CPU.
2. Captured, padded steps reach the weights that plain steps reach.
3. Milliseconds of a step, of preparing a batch, and of an epoch, at batch 128 and 1024.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from direct import Run

import gridless as gl
from gridless.training import load_recipe
from gridless.training.examples import load_clouds
from gridless.training.step import begin_step


def same_gradients(points: torch.Tensor, device: str) -> None:
    for name in ("point_resnet_large", "point_resnet_small", "point_resnet_plus"):
        torch.manual_seed(0)
        model = getattr(gl.models, name)(dropout=0.0)
        labels = torch.arange(len(points)) % 40
        results = []
        for place in ("reference", "device"):
            with gl.use_backend("reference" if place == "reference" else None):
                where = "cpu" if place == "reference" else device
                model = model.to(where).train()
                cloud = gl.Cloud.of([x.contiguous() for x in points.to(where)])
                logits = model(model.plan(cloud))
                torch.nn.functional.cross_entropy(logits, labels.to(where)).backward()
                # Biases before a norm have no gradient but rounding.
                grads = {k: p.grad.cpu().clone() for k, p in model.named_parameters() if p.ndim > 1}
                results.append((logits.detach().cpu(), grads))
                model.zero_grad()
        (a, ga), (b, gb) = results
        worst = max(ga, key=lambda k: float((ga[k] - gb[k]).norm() / (ga[k].norm() + 1e-3)))
        apart = float((ga[worst] - gb[worst]).norm() / (ga[worst].norm() + 1e-3))
        print(f"{name}: logits apart by {float((a - b).abs().max()):.1e} of {float(a.abs().max()):.1f}, "
              f"gradients by {apart:.1e} at worst ({worst})", flush=True)  # fmt: skip


def same_capture(clouds, device: str) -> None:
    recipe = load_recipe("modelnet40-large").changed(batch_size=64, model__dropout=0.0, epsilon=1e-3)
    weights = []
    for capture in (False, True):
        run = Run(recipe.changed(capture=capture), clouds.take(torch.arange(1000)))
        for epoch in range(2):
            run.epoch(epoch)
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
        loss, correct = run.step.read()
        graphs = run.step.captured.graphs if capture else 0
        print(f"capture={capture}: loss {loss:.4f}, accuracy {correct:.4f}, {graphs} graphs", flush=True)
    print(f"weights apart by {float((weights[0] - weights[1]).norm() / weights[0].norm()):.1e}", flush=True)


def times(clouds, device: str, batch: int, capture: bool, name: str = "modelnet40-large", **changes) -> None:
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    recipe = load_recipe(name).changed(batch_size=batch, capture=capture, **changes)
    run = Run(recipe, clouds)
    run.epoch(0)
    sync()
    began = time.perf_counter()
    for epoch in (1, 2):
        run.epoch(epoch)
    sync()
    epoch_ms = (time.perf_counter() - began) / 2 * 1e3
    steps = len(run.loader)
    jobs = run.loader.jobs(3, 0)[: min(steps - 1, max(run.loader.group, 8))]
    sync()
    began = time.perf_counter()
    batches = []
    for at in range(0, len(jobs), run.loader.group):
        batches += run.loader.prepare(3, jobs[at : at + run.loader.group])
    sync()
    prepare_ms = (time.perf_counter() - began) / len(jobs) * 1e3
    began = time.perf_counter()
    for number, b in enumerate(batches):
        begin_step(recipe, run.schedule, run.optimiser, 3, number, steps)
        run.step(b)
    sync()
    step_ms = (time.perf_counter() - began) / len(batches) * 1e3
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0
    words = " ".join(f"{k}={v}" for k, v in changes.items())
    print(f"{name} {words} batch {batch}, capture={capture}: epoch {epoch_ms:.0f} ms ({epoch_ms / steps:.2f} a step); "
          f"alone: preparing {prepare_ms:.2f} ms, step {step_ms:.2f} ms; peak {peak:.0f} MiB", flush=True)  # fmt: skip
    del run, batches
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = arguments.device
    clouds = load_clouds("modelnet40", arguments.data, "train").to(device)
    same_gradients(clouds.points[:: len(clouds) // 8][:8].cpu(), device)
    if device != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    same_capture(clouds, device)
    for batch in (128, 1024):
        for capture in (False, True):
            for drop in (0.0, 0.875):
                times(clouds, device, batch, capture, augment__drop=drop)
    times(clouds, device, 128, True, augment__drop=0.0, precision="bf16")
    times(clouds, device, 64, True, "modelnet40-plus")


if __name__ == "__main__":
    main()
