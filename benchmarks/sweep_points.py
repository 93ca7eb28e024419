"""Several recipes for ModelNet40 at once on one GPU, each in a process of its own, by the direct loop.

    python benchmarks/sweep_points.py --data DIR --jobs 4 --out sweep.json [--epochs N] [NAME ...]

Trains on three quarters of the training clouds and prints the accuracy on every fourth cloud of each class; nothing is
chosen on test clouds. The official test part has another mix of classes (100 of the frequent ones and 20 of the rare,
where training has 889 to 64): `as test` weighs classes as it does. Predictions for each held-out cloud are stored
beside the log. `VARIANTS` are the recipes, each a base and its changes; NAME@2 is one with the seed 2. On a GPU,
processes share it through MPS where that daemon can be started; without it they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import mps  # noqa: E402

# Shapes of each class in the official test part, where they are not 100.
TEST_MIX = {
    **dict.fromkeys(("bench", "bowl", "cone", "cup", "curtain", "door", "flower_pot", "keyboard", "lamp"), 20),
    **dict.fromkeys(("laptop", "person", "radio", "sink", "stairs", "stool", "tent", "wardrobe", "xbox"), 20),
    **dict.fromkeys(("desk", "dresser", "night_stand"), 86),
    "bathtub": 50,
}

# Settings of modelnet40-small and modelnet40-plus.
ADAMW = {"optimiser": "adamw", "learning_rate": 0.002, "epsilon": 1e-8, "l2": 0.0, "weight_decay": 0.05, "clip": 1.0,
    "smoothing": 0.1}  # fmt: skip
PLUS = {"shuffle": True, "drop": 0.25, "jitter": 0.005, "jitter_clip": 0.02, "scale": [0.67, 1.5], "stretch": True,
    "mirror": True, "shift": 0.2}  # fmt: skip

# name -> (recipe, changes)
VARIANTS: dict[str, tuple[str, dict]] = {
    "small": ("modelnet40-small", {}),
    "large": ("modelnet40-large", {}),
    "max": ("modelnet40-max", {}),
    "plus": ("modelnet40-plus", {}),
    "plus-wide": ("modelnet40-plus", {"model__width": 64}),
    "plus-deep": ("modelnet40-plus", {"model__depth": 2}),
    "plus-fine": ("modelnet40-plus", {"model__spacing": 0.06}),
    "plus-coarse": ("modelnet40-plus", {"model__spacing": 0.1125, "model__reach": 2.0}),
    "plus-reach3": ("modelnet40-plus", {"model__reach": 3.0}),
    "plus-mirror": ("modelnet40-plus", {"augment__mirror": True}),
    "plus-narrow-scale": ("modelnet40-plus", {"augment__scale": [0.8, 1.25]}),
    "plus-nodrop": ("modelnet40-plus", {"augment__drop": 0.0}),
    "plus-drop": ("modelnet40-plus", {"augment__drop": 0.5}),
    "plus-b32": ("modelnet40-plus", {"batch_size": 32, "learning_rate": 1e-3}),
    "plus-b128": ("modelnet40-plus", {"batch_size": 128, "learning_rate": 3e-3}),
    "plus-wd2": ("modelnet40-plus", {"weight_decay": 0.2}),
    "plus-smooth1": ("modelnet40-plus", {"smoothing": 0.1}),
    "plus-smooth3": ("modelnet40-plus", {"smoothing": 0.3}),
    "plus-bf16": ("modelnet40-plus", {"precision": "bf16"}),
    "plus-path": ("modelnet40-plus", {"model__drop_path": 0.15}),
    # Inverted bottlenecks with a depthwise convolution.
    "plus-depthwise": ("modelnet40-plus", {"model__depthwise": 2.0}),
    "plus-depthwise-path": ("modelnet40-plus", {"model__depthwise": 2.0, "model__drop_path": 0.15}),
    "plus-depthwise-deep": ("modelnet40-plus", {"model__depthwise": 2.0, "model__depth": 2, "model__drop_path": 0.15}),
    "plus-depthwise-4": ("modelnet40-plus", {"model__depthwise": 4.0, "model__drop_path": 0.15}),
    "plus-fine-path": ("modelnet40-plus", {"model__spacing": 0.06, "model__drop_path": 0.15, "epochs": 250}),
    "plus-long": ("modelnet40-plus", {"epochs": 300}),
    "large-adamw": ("modelnet40-large", ADAMW),
    "large-adamw-augment": ("modelnet40-large", {**ADAMW, "augment": PLUS, "epochs": 250}),
    "large-augment": ("modelnet40-large", {"augment": PLUS}),
    "large-mirror": ("modelnet40-large", {"augment__mirror": True}),
    "large-smooth": ("modelnet40-large", {"augment__mirror": True, "smoothing": 0.1}),
    "large-long": ("modelnet40-large", {"epochs": 720}),
    "small-authors": ("modelnet40-large", {"model__model": "point_resnet_small"}),
    "small-full": ("modelnet40-small", {"augment__drop": 0.25}),
    "small-augment": ("modelnet40-small", {"augment": PLUS}),
    "small-steep": ("modelnet40-small", {"learning_rate": 0.004}),
}


def one(name: str, folder: Path, source: str, epochs: int | None, device: str, limit: int | None) -> None:
    """Train one variant; every report is a line of JSON."""
    import numpy as np
    import torch
    from direct import fit

    from gridless.tasks.loading import load_data
    from gridless.training import load_recipe
    from gridless.training.evaluate import probabilities

    variant, _, seed = name.partition("@")
    base, changes = VARIANTS[variant]
    recipe = load_recipe(base).changed(**{**changes, **({"epochs": epochs} if epochs else {}), "seed": int(seed or 0)})
    if device == "cpu":
        torch.set_num_threads(1)
    data = load_data(recipe, source, "train")
    held_out = torch.zeros(len(data), dtype=torch.bool)
    for label in range(len(data.class_names)):
        held_out[(data.labels == label).nonzero()[::4, 0]] = True
    learn, valid = (data.take(part.nonzero()[:, 0]).to(device) for part in (~held_out, held_out))
    if limit:
        learn = learn.take(torch.linspace(0, len(learn) - 1, limit).long())
        valid = valid.take(torch.linspace(0, len(valid) - 1, limit).long())

    def say(entry: dict) -> None:
        print(json.dumps({"name": name, **entry}), flush=True)

    if device != "cpu":
        torch.set_float32_matmul_precision("high")
    model, _ = fit(recipe, learn, valid, say)
    chances = probabilities(model, valid).cpu()
    labels = valid.labels.cpu()
    np.savez(folder / f"sweep-{name}.npz", chances=chances.half().numpy(), labels=labels.numpy())
    right = (chances.argmax(1) == labels).double()
    by_class = torch.stack([right[labels == label].mean() for label in labels.unique()])
    mix = torch.tensor([TEST_MIX.get(data.class_names[label], 100) for label in labels.unique().tolist()]).double()
    say(
        {
            "final": True,
            "as_test": ((by_class * mix).sum() / mix.sum()).item(),
            "mean_class": by_class.mean().item(),
            "valid_loss": -chances.gather(1, labels[:, None]).clamp(min=1e-9).log().mean().item(),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(VARIANTS)}; all unless given")
    parser.add_argument("--data", required=True)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int, help="so many clouds only, for a trial")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("sweep.json"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.names or list(VARIANTS)
    for name in names:
        if name.partition("@")[0] not in VARIANTS:
            sys.exit(f"no variant {name!r}: there are {', '.join(VARIANTS)}")
    if arguments.one:
        one(names[0], arguments.out.parent, arguments.data, arguments.epochs, arguments.device, arguments.limit)
        return
    if arguments.device == "cuda" and arguments.jobs > 1:
        print("MPS:", mps(), flush=True)
    waiting, running, lines, began = list(names), {}, [], time.perf_counter()
    folder = arguments.out.parent
    folder.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            name = waiting.pop(0)
            command = [sys.executable, __file__, name, "--one", "--data", arguments.data, "--device", arguments.device]
            command += ["--out", str(arguments.out)]
            command += ["--epochs", str(arguments.epochs)] if arguments.epochs else []
            command += ["--limit", str(arguments.limit)] if arguments.limit else []
            log = open(folder / f"sweep-{name}.log", "w")  # noqa: SIM115
            environment = {**os.environ, "OMP_NUM_THREADS": "2"}
            running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        time.sleep(1)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                text = (folder / f"sweep-{name}.log").read_text().splitlines()
                entries = [json.loads(line) for line in text if line.startswith("{")]
                lines += entries
                arguments.out.write_text(json.dumps(lines, indent=1))
                at = f"{time.perf_counter() - began:.0f} s"
                if process.returncode:
                    print(f"{at}: {name} failed:", *text[-8:], sep="\n  ", flush=True)
                else:
                    best = max(e["valid"] for e in entries if "valid" in e)
                    last = [e for e in entries if "valid" in e][-1]
                    end = entries[-1]
                    print(
                        f"{at}: {name}: valid {last['valid']:.4f} (best {best:.4f}), as test "
                        f"{end['as_test']:.4f}, mean class {end['mean_class']:.4f}, loss {end['valid_loss']:.4f}, "
                        f"train {last['accuracy']:.4f}, {last['seconds']:.1f} s for {last['epoch']} epochs, "
                        f"{end['parameters']:,} parameters",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
