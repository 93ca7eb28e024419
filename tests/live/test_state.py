"""Saved state: continues bit for bit, fits any CPU, and is checked before anything is taken from it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from live import busy, network

from gridless.kernels import products
from gridless.live import Engine, Session, stream


def test_a_saved_state_continues_bit_for_bit():
    model = network("n_mnist", head="stream", width=8)
    events = busy("plain", (34, 34), 900)
    one = stream(model)
    one(events[:400])
    state = {k: v.clone() for k, v in one.state_dict().items()}
    other = stream(network("n_mnist", head="stream", width=8))
    other.load_state_dict(state)
    a, b = list(one.push(events[400:])), list(other.push(events[400:]))
    assert len(a) == len(b) > 0
    assert all(torch.equal(p.logits, q.logits) for p, q in zip(a, b, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    with pytest.raises(ValueError, match="another network"):
        stream(network("n_mnist", head="stream", width=16)).load_state_dict(state)


def test_a_state_of_other_weights_is_refused():
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1)
    one = stream(model)
    one(busy("plain", (34, 34), 300))
    model.head.logits.bias.data += 1e-8
    stream(model).load_state_dict(one.state_dict())
    model.head.logits.bias.data[0] += 1
    other = stream(model)
    with pytest.raises(ValueError, match="weights"):
        other.load_state_dict(one.state_dict())
    assert other.events_seen == 0


@pytest.mark.parametrize("head", ["voxel", "stream"])
def test_a_state_fits_cpus_of_any_vector_width(head, monkeypatch):
    model = network("n_mnist", head=head, width=16, levels=2, pooled=1, duration=10**6)
    shapes, engine = [], stream(model)
    for lane in (4, 8, 16):
        monkeypatch.setattr(products, "lanes", lambda dtype, lane=lane: lane)
        state = copy.deepcopy(engine).state_dict()
        shapes.append({name: (value.shape, value.dtype) for name, value in state.items()})
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("make", [Engine, Session])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.tensor([1, 2]), "'numbers' is"),
        (torch.tensor([1.0, 2.0, 3.0]), "'numbers' is"),
        (None, "'numbers' is"),
        (torch.tensor([300, 19_999, 10**11]), "damaged.* 19999 us.* 100000000000 us"),
        (torch.tensor([300, 19_999, -1]), "damaged"),
        (torch.tensor([-1, 19_999, 5]), "damaged.* -1 events"),
    ],
)
def test_a_state_with_wrong_numbers_leaves_the_stream_as_it_was(make, wrong, message):
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1)
    events = busy("plain", (34, 34), 300)
    one, other = make(model), make(model)
    one(events)
    other(events[:100])
    state, before = one.state_dict(), other.state_dict()
    state.pop("numbers")
    if wrong is not None:
        state["numbers"] = wrong
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    after = other.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def pickled(live):
    return pickle.loads(pickle.dumps(live))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("make", [Engine, Session])
def test_a_copy_is_a_stream_of_its_own(make, copied):
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1)
    events = busy("plain", (34, 34), 300)
    one = make(model)
    one(events[:200])
    other = copied(one)
    before = one.predict()
    assert torch.equal(other.predict(), before)
    other(events[200:])
    assert (other.events_seen, other.sensor, repr(other)[:20]) == (300, one.sensor, repr(one)[:20])
    assert torch.equal(one.predict(), before)
    one(events[200:])
    assert torch.equal(one.predict(), other.predict())


@pytest.mark.slow
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_an_engine_has_its_weights_whatever_becomes_of_the_network(copied):
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1)
    events = busy("plain", (34, 34), 300)
    one = stream(model, ["blocks.1"])
    one(events[:200])
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    other = copied(one)
    assert not torch.equal(stream(model.eval()).predict(), one.predict())
    assert str(other) == str(one)
    assert torch.equal(other(events[200:]), one(events[200:]))
    assert torch.equal(other.features("blocks.1")[1], one.features("blocks.1")[1])
    one.reset()
    other.reset()
    assert torch.equal(other(events), one(events))
