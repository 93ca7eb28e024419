"""A network as C: the session's answers, the same bits from every compiler, and nothing that it needs."""

from __future__ import annotations

import base64
import copy
import pickle
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser
from live import KINDS, assert_close, busy, settled, trained
from topologies import TOPOLOGIES, Drawn, FadingCounts
from torch.nn import functional

import gridless as gl
from gridless.cli.main import main
from gridless.live import Prediction, Session
from gridless.live.export import check as checking
from gridless.live.export import folder as exporting
from gridless.live.export.check import check, compilers, ways
from gridless.live.export.golden import recording
from gridless.live.export.page import web
from gridless.live.export.writer import Writer
from gridless.live.operations import OPERATIONS
from gridless.live.program import Program
from gridless.live.sources import encode
from gridless.nn.events import polarity_features

pytestmark = pytest.mark.slow

CC = compilers()
needs_compiler = pytest.mark.skipif(not CC, reason="no C compiler")

NETWORKS = {
    "stream": {"head": "stream"},
    "voxel": {"duration": 15_000},
}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporting, "GOLDEN", 2500)


@pytest.fixture
def unoptimised(monkeypatch: pytest.MonkeyPatch):
    """Streams are compiled several times as fast. No level of optimisation changes a bit (see below)."""
    monkeypatch.setattr(checking, "NATIVE", ("-std=c99", "-O0"))


def small(head: str, **options) -> torch.nn.Module:
    torch.manual_seed(3)
    sizes = {"width": 4, "levels": 2, "pooled": 0, "threshold": 0.8, "reset": -0.5}
    return trained(gl.models.event_resnet(3, (21, 18), **sizes | NETWORKS[head] | options))


def local(*flags: str) -> list[tuple[str, list[str]]]:
    return [("this machine", [*cc, *flags]) for cc in CC]


@needs_compiler
@pytest.mark.parametrize("head", NETWORKS)
def test_c_answers_as_the_session_does_and_with_the_same_bits_at_every_level(tmp_path: Path, head: str):
    folder = gl.export(small(head), tmp_path / "network")
    # Neither a level of optimisation, the dialect nor the compiler may change a bit; fused sums have bits of their own.
    levels = [local("-std=c99", "-O0")[-1], local(*checking.NATIVE)[0]]
    if head == "stream":
        levels += [local("-std=c99", "-O0")[0], local(*checking.NATIVE)[-1], *local("-std=c99", "-O2")]
        levels += local("-std=c99", "-O2", checking.FUSED) if checking.FUSES else []
    results = list(check(folder, 4000, levels))
    assert len(results) == len(levels)
    assert max(result.error for result in results) < 1e-5


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_vectors_of_16_give_the_bits_of_smaller_ones(tmp_path: Path):
    folder = gl.export(small("stream", width=8), tmp_path / "network")
    # As it is (on x86-64 with the widest vectors of the processor), with short ones, and with wide ones that gcc makes
    # of short ones.
    plain = ["gcc", "-std=gnu17", "-O0", "-Wno-psabi"]
    kinds = ([], ["-DNET_NARROW"], ["-D__AVX__", "-D__AVX512F__"])
    assert len(list(check(folder, 2500, [("this machine", [*plain, *kind]) for kind in kinds]))) == 3


@needs_compiler
def test_nothing_is_read_or_written_out_of_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Without optimisation every access is there to be checked, and gcc takes half as long.
    safe = local("-std=c99", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")[:1]
    # Nothing is allocated that could be lost, and to look for it takes seconds.
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    for head, chunk in (("stream", 1), ("voxel", 50)):
        assert list(check(gl.export(small(head), tmp_path / head, chunk=chunk), 2500, safe))


@needs_compiler
def test_how_many_events_are_worked_on_together_changes_no_bit(tmp_path: Path):
    digests = {
        result.digest
        for chunk in (1, 7, 2048)
        for result in check(gl.export(small("stream"), tmp_path / str(chunk), chunk=chunk), 5000, local("-O0")[:1])
    }
    assert len(digests) == 1


@needs_compiler
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
def test_it_calls_no_library_keeps_nothing_in_the_file_and_no_compiler_complains(tmp_path: Path):
    counts = gl.models.EventCounts(3, (9, 7), width=4, levels=1, every=1000, fit=True).eval()
    for name, model in (("voxel", small("voxel")), ("counts", counts)):
        folder = gl.export(model, tmp_path / name)
        for command, level in [(command, level) for command in CC for level in ("-O0", "-O3")]:
            strict = ["-std=c99", level, "-Wall", "-Wextra", "-pedantic", "-Werror"]
            subprocess.run([*command, *strict, "-c", "network.c"], cwd=folder, check=True)
            symbols = subprocess.run(["nm", "network.o"], cwd=folder, check=True, capture_output=True, text=True).stdout
            kinds = {line.split()[-2] for line in symbols.splitlines()}
            assert not kinds & set("UBbDd"), symbols
            seen = {line.split()[-1] for line in symbols.splitlines() if line.split()[-2] == "T"}
            assert seen == {"net_bytes", "net_reset", "net_push", "net_push_packed", "net_predict"}


@needs_compiler
@pytest.mark.parametrize("head", NETWORKS)
def test_16_bits_are_half_the_size_and_answer_nearly_the_same_fused_or_not(tmp_path: Path, head: str):
    model = small(head)
    folder = gl.export(model, tmp_path / "small", bits=16)
    # Products are exact, so that processors which fuse them give the same bits.
    results = list(check(folder, 4000, [local("-O0")[-1], local(*checking.NATIVE)[0]]))
    assert max(result.error for result in results) < 1e-2
    one, two = written(model, 16, 32)
    assert one.weights.size * 2 + one.constants.size * 4 < 0.7 * two.constants.size * 4
    assert one.memory.bytes < 0.6 * two.memory.bytes


@needs_compiler
def test_functions_of_one_number_are_those_of_torch_wherever_floats_are(tmp_path: Path):
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "exp": torch.exp, "log1p": torch.log1p, "elu": functional.elu, "sigmoid": torch.sigmoid,
        "silu": functional.silu, "tanh": torch.tanh, "gelu": functional.gelu, "softplus": functional.softplus,
    }  # fmt: skip
    far = torch.tensor([8.4, 8.5, 9.0, 20.0, 20.1, 60.0, 88.0])
    x = torch.cat([torch.linspace(-12, 12, 4801), far, -far, torch.logspace(-6, 0, 50), -torch.logspace(-6, 0, 50)])
    text = (Path(exporting.__file__).parent / "functions.c").read_text()
    expressions = {name: OPERATIONS[name].expression for name in functions}
    lines = "".join(f'        printf("%.9g ", (double)(float)({c}));\n' for c in expressions.values())
    (tmp_path / "main.c").write_text(
        f"#include <stdint.h>\n#include <stdio.h>\n#define INLINE static inline\n{text}\n"
        f'int main(void) {{\n    float x;\n    while (scanf("%f", &x) == 1) {{\n{lines}    }}\n    return 0;\n}}\n'
    )
    subprocess.run([*CC[0], "-std=c99", "-O2", "main.c", "-o", "main"], cwd=tmp_path, check=True)
    numbers = " ".join(f"{v:.9g}" for v in x.tolist())
    said = subprocess.run([tmp_path / "main"], input=numbers, capture_output=True, text=True, check=True).stdout.split()
    values = torch.tensor([float(w) for w in said], dtype=torch.float64).view(len(x), len(functions))
    for column, (name, function) in zip(values.T, functions.items(), strict=True):
        wanted, real = function(x.double()), x > -1 if name == "log1p" else x < 100
        torch.testing.assert_close(column[real], wanted[real], rtol=2e-7, atol=1e-14, msg=lambda m, n=name: f"{n}: {m}")


def test_weights_that_16_bits_can_hold_stay_as_they_are():
    writer, weight = Writer(Program.of(small("stream")), 16), torch.randn(5, 7).half().float().numpy()
    writer.matrix(weight, np.zeros(7))
    scales, halves = writer.constants.parts[0], writer.weights.parts[0].view(np.float16).astype(np.float32)
    assert (halves.reshape(5, 8)[:, :7] * scales == weight).all()
    # Tiny weights become 0.
    writer.matrix(np.full((5, 7), 1e-42, np.float32), np.zeros(7))
    assert (writer.constants.parts[-2] > 0).all()
    assert not writer.weights.parts[-1].any()


def test_arrays_of_the_state_and_panels_of_weights_begin_with_a_cache_line():
    for writer in written(small("stream", width=12), 32, 16):
        for layout in (writer.memory, writer.work):
            arrays = [layout.SIZES[kind] * count for kind, _, count in layout.parts if count is not None]
            assert arrays
            assert not any(size % 64 for size in [*arrays, layout.bytes])
            assert str(layout).index("[") < str(layout).index(";")
        table, size = ("small", 2) if writer.bits == 16 else ("constants.value", 4)
        panels = re.findall(rf"product\(.*?(?:, \d+){{2}}, (?:&seen|0), {table} \+ (\d+)", writer.text)
        assert len(panels) > 5
        assert not any(int(place) * size % 64 for place in panels)


@needs_compiler
@pytest.mark.parametrize("bits", [32, 16])
def test_taps_that_share_their_rates_share_traces_and_answer_the_same(tmp_path: Path, bits: int):
    model = small("stream", width=12, rates="shared")
    apart = Writer(Program.of(small("stream", width=8)), bits)
    shared = Writer(Program.of(model), bits)
    assert shared.text
    assert apart.text
    assert shared.memory.bytes < 0.6 * apart.memory.bytes
    levels = [local("-O0")[0], local(*checking.NATIVE)[-1]]
    results = list(check(gl.export(model, tmp_path / "shared", bits=bits), 4000, levels))
    assert max(result.error for result in results) < (1e-5 if bits == 32 else 1e-2)


def written(model: torch.nn.Module, *bits: int) -> list[Writer]:
    writers = [Writer(Program.of(model), count) for count in bits]
    assert all(writer.text for writer in writers)
    return writers


def test_the_same_weights_give_the_same_text_and_others_another_digest():
    model = small("stream")
    one, two = written(model, 32, 32)
    assert one.text == two.text
    model.head.logits.bias.data[0] += 1
    assert written(model, 32)[0].digest != one.digest


def test_only_networks_that_magnify_have_the_function():
    for fit in (False, True):
        (one,) = written(gl.models.EventCounts(3, (9, 7), width=4, levels=1, every=1000, fit=fit).eval(), 32)
        assert ("magnify" in one.text) == fit


@needs_compiler
def test_the_same_events_give_the_same_bytes_of_the_state(tmp_path: Path):
    folder = gl.export(settled(Named), tmp_path / "network")
    (folder / "main.c").write_text("""
#include <string.h>
#include "network.h"
static net_state one, two;
static void soil(int byte) {
    volatile unsigned char stack[50000];
    unsigned i;
    for (i = 0; i < sizeof stack; i++) stack[i] = (unsigned char)byte;
}
int main(void) {
    net_event events[2] = {{5, 1, 2, 1, {0}}, {7, 2, 2, 0, {0}}};
    net_reset(&one), net_reset(&two);
    soil(0x55);
    if (net_push(&one, events, 2, 0, 0)) return 1;
    soil(0xAA);
    if (net_push(&two, events, 2, 0, 0)) return 1;
    return memcmp(&one, &two, sizeof one) != 0;
}
""")
    subprocess.run([*CC[0], "-O0", "network.c", "main.c", "-o", "main"], cwd=folder, check=True)
    subprocess.run(["./main"], cwd=folder, check=True)


@needs_compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_cpp_stream_predicts_saves_and_refuses(tmp_path: Path):
    folder = gl.export(small("stream"), tmp_path / "network")
    (folder / "main.cpp").write_text("""
#include "network.hpp"
int main() {
    int predictions = 0;
    net::Stream stream([&](std::int64_t, const float *) { predictions++; });
    std::vector<net_event> events;
    for (std::uint16_t i = 0; i < 3000; i++)
        events.push_back({i, std::uint16_t(i % 5), std::uint16_t(i % 7), std::uint8_t(i & 1), {}});
    stream.push(events);
    auto saved = stream.save();
    auto logits = stream.predict();
    stream.reset();
    stream.restore(saved);
    if (stream.predict() != logits || predictions == 0) return 1;
    try {
        stream.push(events);
        return 2;
    } catch (const std::invalid_argument &) {
    }
    // What a callback throws comes out of push, when all events have been taken.
    int calls = 0;
    net::Stream other([&](std::int64_t, const float *) {
        if (++calls == 2) throw std::runtime_error("late");
    });
    try {
        other.push(events);
        return 3;
    } catch (const std::runtime_error &) {
    }
    if (calls != 2 || other.predict() != logits) return 4;
    other.push(&events.back(), 1);
    stream.push(&events.back(), 1);
    return other.predict() == stream.predict() ? 0 : 5;
}
""")
    subprocess.run([*CC[0], "-O0", "-c", "network.c"], cwd=folder, check=True)
    subprocess.run(
        ["g++", "-std=c++11", "-Wall", "-Werror", "main.cpp", "network.o", "-o", "main"], cwd=folder, check=True
    )
    subprocess.run(["./main"], cwd=folder, check=True)


@needs_compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.usefixtures("unoptimised")
def test_networks_of_different_names_go_into_one_program(tmp_path: Path):
    left, right = small("stream"), small("stream", width=6)
    gl.export(left, tmp_path / "left", name="left")
    gl.export(right, tmp_path / "right")
    (tmp_path / "main.cpp").write_text("""
#include "left/network.hpp"
#include "right/network.hpp"
int main() {
    left::Stream one;
    net::Stream other;
    left_event event = {5, 1, 2, 1, {}};
    one.push(&event, 1);
    return sizeof(left_state) == LEFT_BYTES && LEFT_BYTES != NET_BYTES && other.predict().size() == 3 ? 0 : 1;
}
""")
    for name in ("left", "right"):
        subprocess.run([*CC[0], "-O0", "-c", f"{name}/network.c", "-o", f"{name}.o"], cwd=tmp_path, check=True)
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "main.cpp", "left.o", "right.o", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run(["./main"], cwd=tmp_path, check=True)
    assert "add_library(left network.c)" in (tmp_path / "left" / "CMakeLists.txt").read_text()
    assert not re.search(
        r"\bnet_|\bNET_(?!FUSED|NARROW)", "".join(p.read_text() for p in (tmp_path / "left").iterdir())
    )
    before = (tmp_path / "left" / "network.c").read_text()
    live, events = gl.stream(left, compiled=tmp_path / "left"), busy("plain", (21, 18), 300)
    assert (tmp_path / "left" / "network.c").read_text() == before
    assert_close(live(events), gl.stream(left)(events), 1e-6)
    with pytest.raises(ValueError, match="'left eye'"):
        gl.export(left, tmp_path / "a", name="left eye")
    for name in ("class", "std", "test", "Golden", "time"):
        with pytest.raises(ValueError, match=f"'{name}'"):
            gl.export(left, tmp_path / "a", name=name)


def test_files_of_the_user_are_not_replaced(tmp_path: Path):
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match=r"README\.md"):
        gl.export(small("stream"), tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]
    for _ in range(2):
        gl.export(small("stream"), tmp_path / "other")


def test_the_page_of_an_export_says_what_an_event_costs():
    # A tap holds 4 decays of 2 polarities, and an event is in 2.25 taps; 3 decays of 2 counts.
    page = exporting.texts(settled(FadingCounts))["README.md"]
    assert "| X0 | 21 x 17 | 24 | 1.0000 |" in page


LOADED = "location.protocol == 'file:' && document.readyState == 'complete'"


def first_words(folder: Path, tmp_path: Path) -> str:
    subprocess.run([*CC[0], "-O1", "network.c", "test.c", "-o", str(tmp_path / "test")], cwd=folder, check=True)
    return subprocess.run([str(tmp_path / "test")], check=True, capture_output=True, text=True).stdout


@needs_compiler
@pytest.mark.skipif(not checking.zig(), reason="no compiler for WebAssembly (ziglang)")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_gives_the_golden_bits_and_shows_digits_recordings_and_the_webcam(tmp_path: Path):
    model = small("stream")
    native = first_words(gl.export(model, tmp_path / "c"), tmp_path)
    url = (web(model, tmp_path / "web") / "index.html").as_uri()
    with Browser(f"{url}#golden", tmp_path / "golden") as page:
        page.wait(LOADED)
        page.wait("$('status').textContent.startsWith('golden')")
        status = page.value("$('status').textContent")
        assert status.partition("bits ")[2] == re.search(r"logits +([\w ]+)", native)[1]  # type: ignore[index]
        assert f" {status.split()[1]} predictions" in native
        frame = base64.b64encode(encode(gl.Events.of(recording(0, 3000, (21, 18)), sensor=(21, 18)))).decode()
        page.value(f"play(new File([Uint8Array.from(atob('{frame}'), c => c.charCodeAt(0))], 'one.gle'), true)")
        assert page.value("[seen, $('status').textContent.startsWith('one.gle: 3,000 events')]") == [3000, True]
        assert page.value("net.predictions()") > 0
        # It tells its predictions, and is asked no more.
        page.value("one = t => ({time: [t], x: [3], y: [4], polarity: [1]})")
        page.value("asked = 0, net = {...net, predict: () => asked++}, push(one(1e7))")
        assert page.value("[asked, net.reset(), push(one(5)), asked]")[::3] == [0, 1]
        assert not page.complaints
    for source in ("", "#webcam"):
        camera = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
        with Browser(url + source, tmp_path / f"live{source}", *camera) as page:
            page.wait(LOADED)
            page.wait("seen > 200 && net.predictions() > 0 && $('bars').children.length == Math.min(classes, 6)")
            assert not page.complaints


def run(live, events: gl.Events, size: int):
    predictions = [p for a in range(0, len(events), size) for p in live.push(events[a : a + size])]
    return [p.time for p in predictions], torch.stack(
        [p.logits for p in predictions or [Prediction(0, live.predict())]]
    )


@needs_compiler
@pytest.mark.parametrize("make", [*TOPOLOGIES, *(partial(Drawn, seed) for seed in range(6))])
def test_the_c_of_any_network_equals_the_session_on_adversarial_streams(
    tmp_path: Path, make: Callable, monkeypatch: pytest.MonkeyPatch
):
    # No level of optimisation changes a bit (see above). One network in four is compiled as users do.
    if ([*TOPOLOGIES, *range(6)].index(getattr(make, "args", (make,))[0])) % 4:
        monkeypatch.setattr(checking, "NATIVE", ("-std=c99", "-O0"))
    model = settled(make)
    live = gl.stream(model, compiled=tmp_path / "network")
    for kind in KINDS:
        events = busy(kind, live.sensor, 300)
        session = Session(model)
        expected, last = run(session, events, 300), session.predict()
        # A network that answers when it is asked does so at the end of each packet.
        asked = live.program.answers is None and live.duration is None
        for size in (300,) if asked else (300, 1, 7):
            times, logits = run(live, events, size)
            assert times == expected[0]
            assert_close(logits, expected[1], 1e-5)
            assert_close(live.predict(), last, 1e-5)
            live.reset()


@needs_compiler
@pytest.mark.usefixtures("unoptimised")
def test_means_over_a_large_grid_are_exact(tmp_path: Path):
    class Grid(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            plan = self.plan = gl.Plan()
            self.count = gl.nn.LeakyCount(plan.events((400, 300)), 1, (1000.0,))

        def forward(self, geometry, memory=None):
            grid = self.count(geometry, memory) + 0.1
            return torch.cat([grid.mean((1, 2, 3)), grid.amax((1, 2, 3))], 1)

    live = gl.stream(Grid().eval(), compiled=tmp_path / "network")
    logits = live({"x": [399], "y": [299], "t": [5], "p": [1]})
    assert_close(logits, torch.tensor([0.1, 0.1, 0.1, 0.1 + np.log(2)]), 1e-5)


@needs_compiler
@pytest.mark.usefixtures("unoptimised")
def test_a_compiled_stream_is_a_stream(tmp_path: Path):
    model, folder = small("voxel"), tmp_path / "network"
    live, events = gl.stream(model, compiled=folder), busy("plain", (21, 18), 1500)
    live(events[:700])
    state = live.state_dict()
    last = live(events[700:])
    again = gl.stream(model, compiled=folder)
    again.load_state_dict(state)
    assert torch.equal(again(events[700:]), last)
    assert (again.events_seen, again.time) == (1500, int(events.time[-1]))
    again(events[-1:].numpy()[0])
    assert again.events_seen == 1501
    assert again.memory_bytes > 1000
    assert len(list(folder.glob("*.so"))) == 1
    with pytest.raises(ValueError, match="event 0"):
        again(events[:10])
    with pytest.raises(ValueError, match="features"):
        again.features("blocks.0")
    with pytest.raises(ValueError, match="features"):
        gl.stream(model, ["blocks.0"], compiled=folder)
    model.head.lift.bias.data += 1
    other = gl.stream(model, compiled=folder)
    other(events)
    assert str(other) == str(other.program)
    with pytest.raises(ValueError, match="weights"):
        other.load_state_dict(state)
    assert other.events_seen == 1500
    assert not torch.equal(other.predict(), again.predict())


@needs_compiler
@pytest.mark.usefixtures("unoptimised")
def test_copies_of_a_compiled_stream_go_on_by_themselves(tmp_path: Path):
    model, events = small("voxel"), busy("plain", (21, 18), 1500)
    live = gl.stream(model, compiled=tmp_path / "network")
    live(events[:700])
    model.train().head.lift.bias.data += 1
    saved = pickle.dumps(live)
    copies = [copy.copy(live), copy.deepcopy(live), pickle.loads(saved)]
    before, last = live.predict(), copies[0](events[700:])
    assert torch.equal(live.predict(), before)
    assert not torch.equal(last, before)
    for other in (*copies[1:], live):
        assert torch.equal(other(events[700:]), last)
        assert (other.events_seen, str(other)) == (1500, str(live))
    for path in (tmp_path / "network").glob("*.so"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"\.so, .*compiled="):
        pickle.loads(saved)


@needs_compiler
@pytest.mark.usefixtures("unoptimised")
def test_a_compiled_stream_runs_a_small_export_as_it_is(tmp_path: Path):
    model = small("stream")
    folder = gl.export(model, tmp_path / "network", bits=16, chunk=64)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    live, events = gl.stream(model, compiled=folder), busy("plain", (21, 18), 900)
    assert all((folder / name).read_bytes() == content for name, content in files.items())
    logits, expected = live(events), gl.stream(model)(events)
    assert 0 < (logits - expected).abs().max() < 1e-2 * expected.abs().max()


others = [way for way in ways() if way[0] != "this machine"]


@pytest.mark.slow
@pytest.mark.skipif(
    not others, reason="nothing that compiles for and runs other machines (ziglang with qemu-user, wasmtime)"
)
def test_other_machines_and_webassembly_give_the_same_bits(tmp_path: Path):
    assert list(check(gl.export(small("voxel"), tmp_path / "network"), 4000, [*local("-O1")[:1], *others]))


def test_what_torch_compile_made_is_exported_and_saved_as_what_it_was_made_of(tmp_path: Path):
    model = small("stream")
    compiled = torch.compile(model, backend="eager")
    plain, folder = gl.export(model, tmp_path / "plain"), gl.export(compiled, tmp_path / "compiled")
    for path in plain.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert gl.load(gl.save(compiled, tmp_path / "weights")).config == model.config


def test_the_golden_recording_is_in_order_and_on_the_sensor():
    events = recording(0, 5000, (21, 18))
    assert (np.diff(events["t"]) >= 0).all()
    assert events["x"].max() < 21
    assert events["y"].max() < 18
    assert {0, 1} == set(events["p"].tolist())
    assert all((recording(100, 200, (21, 18))[k] == v[100:200]).all() for k, v in events.items())


def test_what_cannot_be_written_is_refused(tmp_path: Path):
    model = small("stream")
    with pytest.raises(ValueError, match=r"bits.* 8\b"):
        gl.export(model, tmp_path / "a", bits=8)
    with pytest.raises(ValueError, match=r"chunk.* 0\b"):
        gl.export(model, tmp_path / "a", chunk=0)
    with pytest.raises(ValueError, match=r"1e\+11 us of X1 .*14 MB"):
        gl.export(small("stream", decay_time=1e11), tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"network\.c"):
        list(check(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        gl.export(model, tmp_path / "file")
    (tmp_path / "network.c").touch()
    with pytest.raises(ValueError, match=r"'gcc'.*x86_64-linux-musl"):
        list(check(tmp_path, chosen=[("gcc", ["gcc", "-O2"])]))
    model.head.logits.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match=r"bias of head\.logits"):
        gl.export(model, tmp_path / "a")
    model.downs[0].conv.log_rate.data[0] = float("nan")
    with pytest.raises(ValueError, match=r"downs\.0\.conv"):
        gl.stream(model)
    with pytest.raises(TypeError, match=r"float64.*dtype"):
        gl.export(Polarity(), tmp_path / "a")
    assert not (tmp_path / "a").exists()


class Polarity(torch.nn.Module):
    """Returns float32 for the camera's events, whatever its weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = gl.Plan()
        self.camera = self.plan.events((5, 4))
        self.logits = gl.nn.Dense(2, 3)
        self.eval()

    def forward(self, geometry, memory=None):
        return self.logits(polarity_features(geometry[self.camera]))


class Named(torch.nn.Module):
    """Its input and one of its layers have names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = gl.Plan()
        stream = self.plan.events((21, 18), name="left")
        self.first = gl.nn.PolarityConv(self.plan.causal(stream, stream, 3), 4)
        self.parts = torch.nn.ModuleDict({"*/ int x; /*\n": gl.nn.Dense(4, 3)})
        self.eval()

    def forward(self, geometry, memory=None):
        return self.parts["*/ int x; /*\n"](self.first(geometry, memory))


class Endless(Named):
    def forward(self, geometry, memory=None):
        return (super().forward(geometry, memory) + 1e4).exp()


def test_a_network_whose_logits_are_endless_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"\[inf, "):
        gl.export(Endless(), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@needs_compiler
def test_names_of_inputs_and_layers_are_no_part_of_the_code(tmp_path: Path):
    model = settled(Named)
    folder = gl.export(model, tmp_path / "a")
    strict = local("-std=c99", "-O0", "-Wall", "-Wextra", "-pedantic", "-Werror")
    (result,) = check(folder, 2500, strict[:1])
    assert checking.beside_engine(model, result) < 1e-6
    events = busy("plain", (21, 18), 50)
    assert_close(gl.stream(model)(events), Session(model)(events), 1e-6)


@needs_compiler
def test_the_name_of_a_class_is_no_part_of_the_code(tmp_path: Path):
    name = "Net*/ #error /*\n\x1b[31m<script>"
    folder = gl.export(settled(type(name, (Named,), {})), tmp_path / "a")
    command = [
        "cc",
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-pedantic",
        "-Werror",
        "-O0",
        "-c",
        "network.c",
        "-o",
        "network.o",
    ]
    subprocess.run(command, cwd=folder, check=True)
    for file in folder.iterdir():
        if file.suffix in (".h", ".c", ".hpp", ".md"):
            assert not set(file.read_text()) & {"\x1b", "\r"}


class Odd(Named):
    """Its last convolution keeps 9 numbers of every tap: no whole vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.second = gl.nn.EventConv(self.first.near, 3, 3, 3)

    def forward(self, geometry, memory=None):
        return self.second(super().forward(geometry, memory), geometry, memory)


@needs_compiler
@pytest.mark.usefixtures("unoptimised")
def test_traces_of_an_odd_number_of_channels_are_filled_up(tmp_path: Path):
    model, events = settled(Odd), busy("plain", (21, 18), 300)
    assert_close(gl.stream(model, compiled=tmp_path / "network")(events), Session(model)(events), 1e-5)


class Remembered(Named):
    """A function of the last value of its stream, which is kept as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.last = gl.nn.Last("X0")

    def forward(self, geometry, memory=None):
        return torch.tanh(self.last(super().forward(geometry, memory), geometry, memory))


@needs_compiler
@pytest.mark.usefixtures("unoptimised")
def test_to_ask_for_an_answer_changes_none(tmp_path: Path):
    model, events = settled(Remembered), busy("plain", (21, 18), 50)
    live = gl.stream(model, compiled=tmp_path / "network")
    logits = live(events)
    assert_close(logits, Session(model)(events), 1e-5)
    for _ in range(2):
        assert torch.equal(live.predict(), logits)


@pytest.mark.skipif(not shutil.which("gcc") or platform.machine() != "x86_64", reason="no gcc for x86")
def test_arithmetic_in_more_bits_than_float_has_is_refused(tmp_path: Path):
    folder = gl.export(small("stream"), tmp_path / "a")
    command = ["gcc", "-m32", "-ffreestanding", "-std=c99", "-fsyntax-only", "network.c"]
    result = subprocess.run([*command, "-mfpmath=387"], cwd=folder, capture_output=True, text=True)
    assert result.returncode
    assert "compile with -msse2 -mfpmath=sse" in result.stderr
    subprocess.run([*command, "-msse2", "-mfpmath=sse"], cwd=folder, check=True)


@needs_compiler
def test_a_network_that_never_fires_passes_the_check(tmp_path: Path):
    model = small("stream", threshold=1e9)
    result = next(check(gl.export(model, tmp_path / "network"), 2500, local("-O0")[:1]))
    model.head.logits.bias.data[:] = 0
    nothing = next(check(gl.export(model, tmp_path / "nothing"), 2500, local("-O0")[:1]))
    assert any(result.logits)
    assert not any(nothing.logits)
    assert checking.beside_engine(model, nothing) == 0


def test_a_failing_test_and_other_bits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = gl.export(small("stream"), tmp_path / "network")
    if not CC:
        pytest.skip("no C compiler")
    golden = (folder / "golden.h").read_text()
    (folder / "golden.h").write_text(golden.replace("golden_logits[] = {", "golden_logits[] = {1e3, "))
    with pytest.raises(ValueError, match="golden logits"):
        list(check(folder, 4000, local("-O0")[:1]))
    (folder / "golden.h").write_text(golden)
    code = (folder / "network.c").read_text()
    spoilt = re.sub(r"(answer\(\(struct state.*;) }", r"\1 logits[0] = 1e39f - 1e39f; }", code)
    (folder / "network.c").write_text(spoilt)
    with pytest.raises(ValueError, match=r"relative error -?nan[^$]*golden logits"):
        list(check(folder, 4000, local("-O0", "-w")[:1]))
    (folder / "network.c").write_text(code)
    digits = iter("ab")
    run = checking._run
    monkeypatch.setattr(checking, "_run", lambda *a: run(*a).replace("digest     ", "digest     " + next(digits))[:-1])
    monkeypatch.setattr(checking, "_PATTERNS", (r"digest +(\w{17})", *checking._PATTERNS[1:]))
    with pytest.raises(ValueError, match="differ in a bit"):
        list(check(folder, 4000, 2 * local("-O0")[:1]))


@needs_compiler
def test_c_is_held_to_the_engine(tmp_path: Path):
    model = small("stream")
    result = next(check(gl.export(model, tmp_path / "network"), 2500, local("-O0")[:1]))
    assert checking.beside_engine(model, result) < 1e-6
    model.head.logits.bias.data[0] += 1e-4
    with pytest.raises(ValueError, match="1e-06"):
        checking.beside_engine(model, result)


def test_the_command_writes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    gl.save(small("voxel"), tmp_path / "mine")
    assert main(["export", str(tmp_path / "mine.safetensors"), "--out", str(tmp_path / "c")]) == 0
    assert {path.name for path in (tmp_path / "c").iterdir()} == {
        "network.c", "network.h", "network.hpp", "test.c", "golden.h", "Makefile", "CMakeLists.txt", "README.md"
    }  # fmt: skip
    assert "network.c" in capsys.readouterr().out
