"""A live program answers as its network does, or it is refused; the network and the caller's random numbers stay."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from live import assert_close, busy
from test_program import Small
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

import gridless as gl
from gridless.data.numpy_files import _PARSING
from gridless.live import Session, stream
from gridless.live.program import Program
from gridless.live.reading import TRACING
from gridless.training.prefetch import ALONE


def network(after) -> Small:
    torch.manual_seed(1)
    return Small(after).eval()


def by_type(module, features, geometry, memory):
    return features if isinstance(features, Tensor) else -features


def by_is_tensor(module, features, geometry, memory):
    return features if torch.is_tensor(features) else features * 1.01


def by_geometry(module, features, geometry, memory):
    return features if isinstance(geometry, gl.Geometry) else features + 1


def with_random_numbers(module, features, geometry, memory):
    return features + 0.1 * torch.rand(6)


def with_dropout(module, features, geometry, memory):
    return features * functional.dropout(torch.ones(6), training=True)


def with_python_numbers(module, features, geometry, memory):
    return features * random.random()


def with_numpy_numbers(module, features, geometry, memory):
    return features * float(np.random.rand())


def in_autocast(module, features, geometry, memory):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.linear(features, W)


def counting_in_place(module, features, geometry, memory):
    module.calls += 1
    return features + module.calls


def counting_anew(module, features, geometry, memory):
    module.calls = module.calls + 1
    return features + module.calls


def swallowing(module, features, geometry, memory):
    try:
        return features[: len(features)]
    except Exception:
        return 2 * features


W = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (by_type, "isinstance"),
        (by_is_tensor, "is_tensor"),
        (by_geometry, "differs"),
        (with_random_numbers, "random.*rand"),
        (with_dropout, "random.*(bernoulli|native_dropout)"),
        (with_python_numbers, "random"),
        (with_numpy_numbers, "random"),
        (in_autocast, "autocast"),
        (counting_in_place, "'calls'"),
        (counting_anew, "'calls'"),
        (swallowing, "differs"),
    ],
)
def test_python_that_fx_does_not_see_is_refused_by_name(after, message, tmp_path):
    model = network(after)
    model.register_buffer("calls", torch.zeros(1))
    python, numpy, torch_state = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    with pytest.raises(TypeError, match=f"Small.*{message}"):
        stream(model)
    with pytest.raises(TypeError, match=f"Small.*{message}"):
        gl.export(model, tmp_path / "c")
    assert model.calls == 0
    assert random.getstate() == python
    assert (np.random.get_state()[1] == numpy).all()
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_a_hook_for_all_modules_is_refused_by_name_if_it_changes_values():
    model = network(lambda m, x, g, s: x)
    hook = register_module_forward_hook(lambda module, args, out: None)
    try:
        stream(model)
    finally:
        hook.remove()
    hook = register_module_forward_hook(lambda module, args, out: 2 * out if isinstance(module, nn.Linear) else None)
    try:
        with pytest.raises(TypeError, match=r"hooks"):
            stream(model)
    finally:
        hook.remove()
    stream(model)


def equal(model, tolerance=1e-5):
    events = busy("plain", (12, 9), 200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        live = stream(model)
    assert_close(live(events), Session(model)(events), tolerance)


@pytest.mark.parametrize(
    "after",
    [
        lambda m, x, g, s: x if torch.is_grad_enabled() else -x,
        lambda m, x, g, s: x if torch.is_autocast_enabled("cpu") else 2 * x,
        lambda m, x, g, s: x if isinstance(m, Small) else -x,
        lambda m, x, g, s: x if m.training else -x,
        lambda m, x, g, s: x if s is None else -x,
    ],
)
def test_python_that_is_the_same_live_takes_the_right_branch(after):
    equal(network(after))


def test_a_division_by_zero_is_the_one_of_torch():
    model, events = network(lambda m, x, g, s: (x - 1) / 0), busy("plain", (12, 9), 200)
    logits, expected = stream(model)(events), Session(model)(events)
    assert not torch.isfinite(expected).any()
    assert torch.equal(logits.isnan(), expected.isnan())
    equal(network(lambda m, x, g, s: x / -4))


def test_networks_that_amplify_rounding_run():
    def cancelling(module, features, geometry, memory):
        return 1e-6 * ((features + 3e3) - 3e3 + features * 1e-3)

    stream(network(cancelling))


def test_autocast_around_the_call_changes_nothing():
    model = network(lambda m, x, g, s: functional.linear(x, W))
    events = busy("plain", (12, 9), 200)
    expected = stream(model)(events)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = stream(model)(events)
    assert torch.equal(logits, expected)


def test_the_network_stays_as_it_was_and_so_do_its_hooks():
    model = network(lambda m, x, g, s: setattr(m, "seen", x) or x)
    model.register_buffer("scale", torch.rand(6))
    model.lock = threading.Lock()
    before, names = deepcopy(model.state_dict()), set(vars(model))
    versions = {name: value._version for name, value in model.state_dict().items()}
    stream(model)
    assert set(vars(model)) == names
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: value._version for name, value in model.state_dict().items()} == versions
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


def test_functions_that_hold_the_network_or_its_layers_are_read():
    model = network(None)
    logits = model.logits

    def doubled(x, layer=model.first):
        return 2 * x if isinstance(layer, gl.nn.PolarityConv) else x

    model.other = nn.Linear(6, 6)
    model.after = lambda m, x, g, s: doubled(model.other(x)) + model.other(x).tanh() * logits.weight.sum()
    equal(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_of_any_precision_are_compared_and_run(dtype):
    assert stream(network(lambda m, x, g, s: x.tanh()).to(dtype)).program.output == "logits"


@pytest.mark.parametrize("threshold", [0.9, 50.0])
def test_levels_that_seldom_fire_are_compared_too(threshold):
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            plan = self.plan = gl.Plan()
            streams = [plan.events((60, 40))]
            self.convs = nn.ModuleList()
            for _ in range(4):
                streams.append(plan.lif(streams[-1], decay_time=100.0, threshold=threshold, reset=-3.0))
                near = plan.causal(streams[-2], streams[-1], 3, 2)
                first = len(streams) == 2
                self.convs.append(gl.nn.PolarityConv(near, 4) if first else gl.nn.EventConv(near, 4, 4))

        def forward(self, geometry, memory=None):
            x = self.convs[0](geometry, memory)
            for conv in self.convs[1:]:
                x = conv(x, geometry, memory)
            return x if isinstance(x, Tensor) else -x

    with pytest.raises(TypeError, match="isinstance"):
        stream(Deep().eval())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_is_forked_while_a_network_is_read_does_not_wait_for_ever():
    model, stop = network(lambda m, x, g, s: x), threading.Event()

    def read():
        while not stop.is_set():
            Program.of(model)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(12):
            time.sleep(random.uniform(0, 0.02))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                signal.alarm(60)
                try:
                    # Without threads of its own, which a forked child of torch must not use.
                    with TRACING:
                        linear = nn.Linear(2, 2)
                    os._exit(0 if type(linear(torch.zeros(1, 2))) is Tensor else 1)
                except BaseException:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("lock", [ALONE, _PARSING])
@pytest.mark.parametrize("here", [False, True])
def test_a_child_finds_locks_free_that_other_threads_held_when_it_was_forked(lock, here):
    begun, stop = threading.Event(), threading.Event()

    def hold():
        with lock:
            begun.set()
            stop.wait(60)

    def child_takes_it() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(30)
            with lock:
                os._exit(0)
        return os.waitpid(child, 0)[1]

    if here:
        with lock:
            assert child_takes_it() == 0
        return
    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait(60)
    try:
        assert child_takes_it() == 0
    finally:
        stop.set()
        thread.join()
    with lock:
        pass
