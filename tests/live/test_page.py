"""The exported page: its readers beside ours, what it draws, and how it plays files in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser

import gridless as gl
from gridless.cli.main import main
from gridless.live.export import page as exported
from gridless.live.export.check import zig
from gridless.models import events as networks

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import event_encoders

WEB = Path(exported.__file__).with_name("web")
FORMATS = Path(__file__).resolve().parents[3] / "shared" / "data" / "formats"
NODE = shutil.which("node")
READ = """
const { readEvents } = require(process.argv[1]), fs = require("fs");
const answers = process.argv.slice(2).map(path => {
  const data = fs.readFileSync(path), name = path.split("/").pop();
  try {
    const e = readEvents(name, data.buffer.slice(data.byteOffset, data.byteOffset + data.length));
    const text = key => Buffer.from(Float64Array.from(e[key]).buffer).toString("base64");
    const columns = ["time", "x", "y", "polarity"].map(text);
    return { sensor: e.sensor, columns };
  } catch (error) { return { error: error.message }; }
});
console.log(JSON.stringify(answers));
"""
needs_node = pytest.mark.skipif(NODE is None, reason="no node here")


def read(*files: Path) -> list[dict]:
    """Results of the page's readers."""
    command = [str(NODE), "-e", READ, str(WEB / "formats.js"), *map(str, files)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


def assert_same(answer: dict, events: gl.Events) -> None:
    assert "error" not in answer, answer
    assert tuple(answer["sensor"]) == events.sensor
    columns = [np.frombuffer(base64.b64decode(text), "<f8") for text in answer["columns"]]
    expected = [events.time, *events.pixel.T, events.polarity]
    for column, values in zip(columns, expected, strict=True):
        assert np.array_equal(column, values.numpy().astype("<f8"))


def npy(events: gl.Events) -> bytes:
    out = io.BytesIO()
    np.save(out, events.numpy())
    return out.getvalue()


def text(head: str, form: str, events: gl.Events) -> bytes:
    rows = (form.format(t=t, x=x, y=y, p=p, s=t / 1e6) for t, x, y, p in event_encoders.fields(events))
    return (head + "\n".join(rows) + "\n").encode()


CASES = {
    "evt2.raw": event_encoders.evt2,
    "evt3.raw": event_encoders.evt3,
    "a.aedat4": event_encoders.aedat4,
    "lz4.aedat4": lambda events: event_encoders.aedat4(events, 1),
    "high.aedat4": lambda events: event_encoders.aedat4(events, 2),
    "b.npy": npy,
    "named.csv": lambda events: text("%geometry:320,240\nx, y ,p,timestamp\n", "{x},{y},{p},{t}", events),
    "plain.csv": lambda events: text("# a note\n", "{t} {x} {y} {p}", events),
    "seconds.csv": lambda events: text("", "{s:.6f};{x};{y};{p}", events),
    "signed.csv": lambda events: text("t\tx\ty\tp\tcell\n", "{t}\t{x}\t{y}\t{p}\t7", events),
    "points.csv": lambda events: text("x,y,t,p\n", "{x}.0,{y}.0,{t}.0,{p}.0", events),
    "logical.csv": lambda events: text("t,x,y,on\n", "{t},{x},{y},true", events),
}


@needs_node
def test_the_page_reads_small_files_as_python_does(tmp_path):
    events = event_encoders.recording()
    files = []
    for name, write in CASES.items():
        files.append(tmp_path / name)
        files[-1].write_bytes(write(events))
    small = gl.data.MovingGlyphs(2)[1][0]
    for suffix in (".es", ".dat", ".bin", ".csv"):
        files.append(tmp_path / f"ours{suffix}")
        gl.write_events(files[-1], small)
    for file, answer in zip(files, read(*files), strict=True):
        assert_same(answer, gl.read_events(file))


@needs_node
@pytest.mark.skipif(not FORMATS.is_dir(), reason="no recordings of cameras here")
def test_the_page_reads_recordings_of_cameras_as_python_does():
    files = [file for file in sorted(FORMATS.iterdir()) if file.suffix != ".aedat"]
    assert len(files) >= 6
    for file, answer in zip(files, read(*files), strict=True):
        assert_same(answer, gl.read_events(file))


@needs_node
def test_bad_files_are_named_and_nothing_else_happens(tmp_path):
    """Cut and flipped files: the page refuses them by name, or reads what Python reads."""
    events, random = event_encoders.recording(60), np.random.default_rng(0)
    files = []
    for name in ("evt2.raw", "evt3.raw", "a.aedat4", "lz4.aedat4", "b.npy", "named.csv"):
        whole = np.frombuffer(CASES[name](events), np.uint8)
        for k in range(12):
            data = whole[: random.integers(1, len(whole))].copy() if k % 2 else whole.copy()
            data[random.integers(0, len(data), 3)] = random.integers(0, 256, 3)
            files.append(tmp_path / f"{k}-{name}")
            files[-1].write_bytes(data.tobytes())
    refused = 0
    for file, answer in zip(files, read(*files), strict=True):
        try:
            expected = gl.read_events(file)
        except ValueError:
            refused += 1
            # The page reads descriptions less strictly than an XML parser, and compares no checksums.
            lenient = file.suffix == ".aedat4" and "error" not in answer
            assert lenient or answer.get("error", "").startswith(file.name), file
        else:
            # The page reports it if it is the stricter one.
            assert answer["error"].startswith(file.name) if "error" in answer else assert_same(answer, expected) is None
    assert 20 < refused < len(files)


@needs_node
def test_formats_of_others_are_refused_by_name(tmp_path):
    heads = {
        "a.npz": b"PK\x03\x04",
        "b.h5": b"\x89HDF\r\n",
        "c.aedat": b"#!AER-DAT2.0\r\n",
        "d.csv": b"",
        "e.raw": b"\0",
    }
    files = [tmp_path / name for name in heads]
    for file, head in zip(files, heads.values(), strict=True):
        file.write_bytes(head)
    for file, answer in zip(files, read(*files), strict=True):
        assert answer["error"].startswith(file.name)


@pytest.mark.parametrize(
    ("names", "source"),
    [
        ([f"digit {k}" for k in range(10)], "digits"),
        (["zero", "one", "two"], "digits"),
        (["hand clapping", "right hand wave", "air guitar"], "arms"),
        (["background", "cars"], "car"),
        (["airplane", "bird", "cat"], "shapes"),
        ([], "shapes"),
    ],
)
def test_a_page_draws_what_fits_the_names_of_the_classes(names, source):
    assert exported.drawing(names) == source
    assert f"  {source}: [" in (WEB / "index.html").read_text()


@pytest.fixture
def gestures(tmp_path, monkeypatch):
    """A page for a small network with the names of gestures; without a compiler it has no WebAssembly."""
    torch.manual_seed(0)
    model = networks.n_mnist(head="stream", width=8, levels=2, pooled=1, threshold=0.9, reset=-0.5, classes=3).eval()
    model.about = {"class_names": ["hand clapping", "</script>@NAMES@", "arm roll"]}  # type: ignore[assignment]
    if not zig():
        monkeypatch.setattr(exported, "_compiler", lambda: ["true"])
        monkeypatch.setattr(exported, "compiled", lambda command, work: (work / "network.wasm").write_bytes(b""))
    return exported.web(model, tmp_path / "web", title="my <gestures>") / "index.html"


def test_the_page_has_the_name_and_the_classes_of_the_network(gestures):
    page = gestures.read_text()
    assert "<h1>my &lt;gestures&gt;</h1>" in page
    assert '"\\u003c/script>@NAMES@"' in page
    assert 'DRAWN = "arms"' in page
    assert page.count("</script>") == 3
    assert "http" not in page.replace("http-equiv", "")


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    """The page of saved weights of a network that tracks, by the command."""
    torch.manual_seed(0)
    (tmp_path / "flights").mkdir()
    model = gl.models.CountTracker((24, 18), widths=(4,), strides=(4,), hidden=4, every=2000)
    gl.save(model, tmp_path / "flights" / "weights")
    if not zig():
        monkeypatch.setattr(exported, "_compiler", lambda: ["true"])
        monkeypatch.setattr(exported, "compiled", lambda command, work: (work / "network.wasm").write_bytes(b""))
    assert main(["export", str(tmp_path / "flights" / "weights"), "--web", str(tmp_path / "web")]) == 0
    return tmp_path / "web" / "index.html"


def test_the_page_of_a_network_that_tracks_says_so_and_has_the_name_of_the_run(tracker):
    page = tracker.read_text()
    assert "<h1>flights</h1>" in page
    assert "follows an object" in page
    assert "TRACKS = true" in page


@pytest.mark.slow
@pytest.mark.skipif(not zig(), reason="no compiler for WebAssembly (ziglang)")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_of_a_network_that_tracks_shows_positions(tracker, tmp_path):
    with Browser(tracker.as_uri(), tmp_path / "browser") as page:
        page.wait("document.readyState == 'complete' && past.length > 3")
        assert re.fullmatch(r"x -?[\d.]+, y -?[\d.]+", page.value("$('answer').textContent"))
        assert page.value("$('legend').textContent") == "xy"
        assert page.value("$('bars').childElementCount") == 0
        assert page.value("$('over').textContent") == "Position over time"


@pytest.mark.slow
@pytest.mark.skipif(not zig(), reason="no compiler for WebAssembly (ziglang)")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_recordings_are_dropped_or_chosen_and_bad_ones_are_named(gestures, tmp_path):
    events = gl.data.MovingGlyphs(4)[3][0]
    file, bad = tmp_path / "glyph.es", tmp_path / "bad.raw"
    gl.write_events(file, events)
    bad.write_bytes(b"% evt 9.9\n% end\n")
    with Browser(gestures.as_uri(), tmp_path / "browser") as page:
        page.wait("document.readyState == 'complete' && seen > 0")
        assert page.value("$('drawn').textContent") == "Waving arms"
        page.choose("#file", file)
        page.wait("$('status').textContent.endsWith('at its end.')")
        assert page.value("seen") == len(events)
        assert page.value("past.length") > 2
        page.drop(bad)
        page.wait("$('status').className == 'bad'")
        assert page.value("$('status').textContent").startswith("bad.raw the encoding is EVT 9.9")
        page.drop(file)
        page.wait("$('status').className == '' && seen > 0")
        # A refused file ends the drawing that played before.
        page.value("$('drawn').click()")
        page.wait("$('drawn').ariaPressed == 'true' && seen > 0")
        page.choose("#file", bad)
        page.wait("$('status').className == 'bad'")
        page.wait("new Promise(done => setTimeout(() => done(true), 300))")
        assert page.value("[$('drawn').ariaPressed, $('answer').textContent, seen]") == ["false", "no events yet", 0]
        # On a phone nothing is wider than the screen, and a finger hits every button.
        page.resize(360, 740, phone=True)
        page.wait("document.documentElement.scrollWidth <= 360")
        assert page.value("[...document.querySelectorAll('button, .button')].every(b => b.offsetHeight >= 44)")
