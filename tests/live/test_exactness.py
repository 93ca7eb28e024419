"""Every network of the paper where all events are at one pixel, so that sums are long."""

from __future__ import annotations

import pytest
import torch
from live import CONFIGURATIONS, assert_close, assert_session_is_batch, batch, blocks, busy, network

from gridless.live import stream


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_engine_equals_the_batch_where_all_events_are_at_one_pixel(name):
    """Sums of float32 drift with the number of events that a pixel remembers, in the engine and in the batch."""
    model = network(name, head="stream")
    events = busy("one pixel", tuple(model.config["sensor"]), 700)
    geometry, levels, logits = batch(model, events)
    engine = stream(model, blocks(model))
    predictions = list(engine.push(events))
    assert len(levels[1]) > 30
    for k, features in enumerate(levels):
        fired, mine = engine.features(f"blocks.{k}")
        assert torch.equal(fired.time, geometry[model.streams[k]].time)
        assert_close(mine, features, 1e-5)
    if predictions:
        with torch.no_grad():
            assert_close(torch.stack([p.logits for p in predictions]), model.predictions(geometry), 1e-5)
    assert_close(engine.predict(), logits, 1e-5)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_session_in_float64_equals_the_batch_where_all_events_are_at_one_pixel(name):
    """The difference in float32 is rounding."""
    model = network(name, head="stream").double()
    events = busy("one pixel", tuple(model.config["sensor"]), 300)
    levels = assert_session_is_batch(model, events, 90)
    assert len(levels[1]) > 10
