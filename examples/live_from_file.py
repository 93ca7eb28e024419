"""Run an event network live on a recording, packet by packet, and compare it with the network on the whole recording.

The predictions do not depend on the size of packets. The weights are random here; use `gl.load(...)` for trained ones.

python examples/live_from_file.py [RECORDING]
"""

import argparse
import tempfile
from pathlib import Path

import torch

import gridless as gl
from gridless.live.sources import recording


def main(argv: list[str] | None = None) -> tuple[float, bool]:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", type=Path, help="any format that gl.read_events knows")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        file = options.file
        if file is None:
            file = Path(folder) / "glyph.npz"
            events, _ = gl.data.MovingGlyphs(1, duration=100_000 if options.quick else 1_000_000)[0]
            gl.write_events(file, events)
        return run(file)


def run(file: Path) -> tuple[float, bool]:
    events = gl.read_events(file)
    model = gl.models.event_resnet(10, events.sensor, width=8, levels=3, pooled=0, threshold=1.0, head="stream").eval()
    engine = gl.stream(model)

    prediction = None
    for packet in recording(file, events.sensor, packet=1000):  # 1,000 us each, as from a camera
        for answer in engine.push(packet):
            prediction = answer
    if prediction is None:
        raise SystemExit(f"{file}: none of {engine.events_seen} events reached the last level: take a longer recording")
    print(f"{engine.events_seen} events in, last answer at {prediction.time / 1000:.1f} ms:")
    print("  " + " ".join(f"{p:.2f}" for p in prediction.logits.softmax(0)))

    # The whole recording at once, through forward.
    with torch.no_grad():
        geometry = model.plan(events)
        every = model.predictions(geometry)
    error = float((prediction.logits - every[-1]).abs().max() / every.abs().max())
    print(f"relative difference from the network on the whole recording: {error:.1e}")

    # The state is a dict of tensors: save it, and continue in another engine.
    half = len(events) // 2
    engine.reset()
    engine(events[:half])
    state = {name: value.clone() for name, value in engine.state_dict().items()}
    other = gl.stream(model)
    other.load_state_dict(state)
    resumed = list(other.push(events[half:]))[-1]
    same = resumed.logits.equal(prediction.logits)
    print(f"stopped in the middle and resumed: {'the same bits' if same else 'other bits'}")
    return error, same


if __name__ == "__main__":
    main()
