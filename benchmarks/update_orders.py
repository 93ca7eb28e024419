"""Multiply-adds and state of the two streaming orders of an event convolution: which one the live engine should use.

    python benchmarks/update_orders.py --data DIR [--out FILE.json]     (about a minute on one core)

*At the target* is the paper's equation: a source event updates traces of Q channels, a target event decays what it
reads and multiplies by Theta. *While updating* is its alternative: a source event is multiplied by Theta first, and
traces have P channels. Both give the same numbers (tests/ops/test_event_conv.py). Counted per input event over real
N-MNIST recordings, with the events that each level really has, at the taps that exist.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, keep, machine

from gridless.nn import EventConv
from gridless.tasks.loading import load_data
from gridless.tasks.recordings import chain
from gridless.training import load_recipe


def counts(model: Any, geometry: Any) -> dict[str, dict[str, float]]:
    """Multiply-adds of one recording and numbers of state, by order."""
    totals = {order: {"multiply_adds": 0.0, "state": 0.0} for order in ("at the target", "while updating")}
    for layer in model.modules():
        if not isinstance(layer, EventConv):
            continue
        taps, temporal, q, p = layer.weight.shape
        width, height = layer.near.source.sensor
        sources, targets = len(geometry[layer.near.source]), len(geometry[layer.near.target])
        # At a stride of 2 each pixel is seen at a quarter of the taps on average, and only those are updated.
        used = taps / layer.near.stride**2
        for order, channels, at_source, at_target in (
            ("at the target", q, used * temporal * q, taps * temporal * q * (1 + p)),
            ("while updating", p, used * temporal * p * (1 + q), taps * temporal * p),
        ):
            totals[order]["multiply_adds"] += sources * at_source + targets * at_target
            totals[order]["state"] += width * height * used * temporal * channels
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--recordings", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "update_orders.json")
    arguments = parser.parse_args()
    recipe = load_recipe("n-mnist")
    model: Any = recipe.make_model()
    data: Any = load_data(recipe, arguments.data, "train")
    index = torch.linspace(0, len(data) - 1, min(arguments.recordings, len(data))).long()
    totals: dict[str, dict[str, float]] = {}
    events = 0
    for one in index.split(1):
        geometry = model.plan(data.draw(chain(recipe, train=False), 0, 0, one))
        events += len(geometry["X0"])
        for order, count in counts(model, geometry).items():
            known = totals.setdefault(order, {"multiply_adds": 0.0, "state": count["state"]})
            known["multiply_adds"] += count["multiply_adds"]
    rows = {
        order: {"multiply_adds_per_event": count["multiply_adds"] / events, "state_mb": count["state"] * 4 / 1e6}
        for order, count in totals.items()
    }
    content = {"machine": machine(), "recordings": len(index), "events": events, "network": "n-mnist", "rows": rows}
    keep(arguments.out, content)
    for order, row in rows.items():
        print(f"{order}: {row['multiply_adds_per_event']:,.0f} multiply-adds an event, {row['state_mb']:.2f} MB")


if __name__ == "__main__":
    main()
