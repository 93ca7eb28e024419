"""No network writes outside its buffers, whatever its sizes and its CPU, and no cut of the stream changes a bit."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from guards import Guards
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from live import assert_close, batch, blocks, compile_only, packed, trained

from gridless.live import Session, stream
from gridless.live.program import Program
from gridless.models.events import EventResNet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@st.composite
def sizes(draw) -> dict:
    levels = draw(st.integers(1, 4))
    return {
        "classes": draw(st.integers(1, 37)), "sensor": (draw(st.integers(1, 50)), draw(st.integers(1, 50))),
        # Doubled at every level.
        "width": draw(st.integers(1, 40 >> (levels // 2))), "levels": levels,
        "pooled": draw(st.integers(0, levels - 1)), "decay_time": draw(st.sampled_from([300.0, 4000.0])),
        "threshold": draw(st.sampled_from([0.3, 1.0])), "reset": draw(st.sampled_from([-0.5, -3.0])),
        "head": draw(st.sampled_from(["voxel", "stream"])), "duration": draw(st.sampled_from([3_000, 10**9])),
    }  # fmt: skip


def crowd(sensor: tuple[int, int], count: int, seed: int):
    """Events in one corner of the sensor and along all of it."""
    g = np.random.default_rng(seed)
    near = np.minimum(sensor, 6)
    pixel = np.where(g.random(count)[:, None] < 0.7, g.integers(0, near, (count, 2)), g.integers(0, sensor, (count, 2)))
    return packed(*pixel.T, np.sort(g.integers(0, 20_000, count)), g.random(count) < 0.5, sensor)


def run(live, events, cuts, after=lambda: None):
    """Predictions, and the features of every level, of a stream that is cut at `cuts`."""
    answers, levels = [], {name: [] for name in live._names}
    for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True):
        answers += live.push(events[a:b])
        after()
        for name, level in levels.items():
            level.append(live.features(name)[1])
    answers = torch.stack([p.logits for p in answers] + [live.predict()])
    after()
    return answers, [torch.cat(level) for level in levels.values()]


def examine(monkeypatch, model, count, seed, cuts):
    guards, events = Guards(monkeypatch), crowd(tuple(model.config["sensor"]), count, seed)
    engine = guards.engine(model, blocks(model))
    answers, levels = run(engine, events, cuts, guards.check)
    exact = copy.deepcopy(model).double()
    # The worst of 752 networks is off by 1.2e-5 in a level and by 5.5e-5 in a logit, like torch's float32: many events
    # at few pixels are summed, and a logit may be a small difference of large numbers.
    for mine, expected in zip(levels, batch(exact, events)[1], strict=True):
        assert_close(mine, expected, 5e-5)
    assert_close(answers, run(Session(exact, blocks(exact)), events, [])[0], 2e-4)
    whole = run(stream(model, blocks(model)), events, [])
    assert torch.equal(whole[0], answers)
    assert all(torch.equal(a, b) for a, b in zip(whole[1], levels, strict=True))


# Fewer where kernels are compiled for another CPU: those are slow. The loop has the operations of these networks alone.
EXAMPLES = 30
if "NUMBA_CPU_NAME" in os.environ:
    EXAMPLES = 12
    settings_of_all = [
        {"levels": levels, "pooled": pooled, "head": head, "duration": 3_000}
        for levels, pooled in ((1, 0), (2, 0), (2, 1), (4, 3))
        for head in ("voxel", "stream")
    ]
    networks = [EventResNet(3, (20, 20), 4, **options).eval() for options in settings_of_all]
    compile_only(row.operation for model in networks for row in Program.of(model).rows)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.generate])
@given(sizes(), st.integers(1, 900), st.integers(0, 99), st.data())
def test_any_network_stays_inside_its_buffers_and_no_cut_changes_a_bit(options, count, seed, data):
    cuts = data.draw(st.sets(st.integers(1, count), max_size=6)) - {count}
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        examine(monkeypatch, trained(EventResNet(**options)), count, seed, sorted(cuts))


@pytest.mark.parametrize("width", [12, 24])
@pytest.mark.parametrize("head", ["voxel", "stream"])
def test_a_network_for_a_large_sensor_stays_inside_its_buffers(head, width, monkeypatch):
    # More than 2^16 pixels.
    model = trained(EventResNet(10, (300, 220), width, levels=3, pooled=1, threshold=1.0, head=head, duration=10**9))
    examine(monkeypatch, model, 2_000, 0, [1, 700])


def test_guards_notice_a_write_beside_a_buffer(monkeypatch):
    guards = Guards(monkeypatch)
    engine = guards.engine(trained(EventResNet(3, (9, 7), 3, levels=1, pooled=0, head="stream")))
    guards.check()
    place, _, _ = engine._lowered.place("head.logits")
    engine._f[place - 20] = 0.0
    with pytest.raises(AssertionError, match="1 elements beside"):
        guards.check()


def test_vectors_of_another_cpu_stay_inside_their_buffers_too(tmp_path):
    """The first test compiled for the other kind of CPU: without wide vectors, or with them where this one has none."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    # Elsewhere than on x86 the name of the feature only chooses vectors of 64 bytes, which LLVM takes apart.
    other = ("x86-64", "") if x86 else ("generic", "+avx512f")
    env = os.environ | {
        "NUMBA_CPU_NAME": other[0], "NUMBA_CPU_FEATURES": other[1], "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "1",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k", "any_network", str(Path(__file__))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
