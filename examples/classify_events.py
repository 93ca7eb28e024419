"""Train an event network on simulated recordings of moving digits, then run it live on one.

The network has the stream head: it predicts after every event of its last stream, in constant memory.

python examples/classify_events.py            a minute or two on two cores
python examples/classify_events.py --quick    a smoke test of a few seconds
"""

import argparse

import torch
from torch.utils.data import DataLoader, Subset

import gridless as gl

KINDS = 3  # the digits 0, 1 and 2


def loader(size: int, seed: int, plan: gl.Plan) -> DataLoader:
    data = gl.data.MovingGlyphs(size * 10 // KINDS, seed=seed, background=0.1, transform=[plan])
    few = Subset(data, [i for i, label in enumerate(data.labels.tolist()) if label < KINDS])
    return DataLoader(few, 16, shuffle=True, collate_fn=gl.collate)


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: DataLoader) -> float:
    model.eval()
    right = sum(int((model(geometry).argmax(1) == label).sum()) for geometry, label in batches)
    return right / len(batches.dataset)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)

    settings = {"width": 8, "levels": 3, "pooled": 1, "decay_time": 5000.0, "threshold": 1.0, "reset": -1.0}
    model = gl.models.event_resnet(KINDS, (34, 34), head="stream", dropout=0.0, **settings)
    for layer in model.modules():
        if isinstance(layer, gl.nn.BatchNorm):
            layer.momentum = 0.1  # short training: running statistics must follow quickly
    print(model.plan, end="\n\n")  # events of each level fire those of the next, coarser one

    train, test = loader(48 if quick else 300, 0, model.plan), loader(12 if quick else 90, 1, model.plan)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1 if quick else 8):
        model.train()
        for geometry, label in train:
            loss, _ = model.loss(geometry, label)  # mean over all predictions, early ones too
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy on new recordings {accuracy(model, test):.1%}")

    events, label = gl.data.MovingGlyphs(3, seed=2, background=0.1)[2]
    engine = gl.stream(model.eval())
    print(f"\na {label}, live:")
    for first in range(0, len(events), len(events) // 6):
        logits = engine(events[first : first + len(events) // 6])
        if logits is not None:
            print(f"  {engine.time / 1000:5.1f} ms: {int(logits.argmax())} ({logits.softmax(0).max():.0%})")
    whole = model(model.plan(events))[0]
    return float((engine.predict() - whole).detach().abs().max())


if __name__ == "__main__":
    main()
