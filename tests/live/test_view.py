"""Views of a live network: the page, its data, the terminal, and the page in a real browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser

import gridless as gl
from gridless.live import stream
from gridless.live.view import LivePage, Terminal
from gridless.models import events as networks

METER = SimpleNamespace(offset=1.0, lag=0.0025, sensor=0.5)
NAMES = [f"digit {k}" for k in range(10)]


@pytest.fixture(scope="module")
def events() -> gl.Events:
    return gl.data.MovingGlyphs(4)[3][0]


def messages(url: str, received: list[dict], begun: threading.Event) -> None:
    with urllib.request.urlopen(url + "live", timeout=20) as answer:
        begun.set()
        for line in answer:
            if line.startswith(b"data: "):
                received.append(json.loads(line[6:]))


@pytest.mark.parametrize("sensor", [(34, 34), (700, 400)])
def test_the_page_is_told_of_every_event_and_of_the_newest_prediction(events, sensor):
    page = LivePage(sensor, NAMES, METER)
    received: list[dict] = []
    begun = threading.Event()
    reader = threading.Thread(target=messages, args=(page.url, received, begun))
    reader.start()
    begun.wait(20)
    logits = torch.arange(10.0)
    for begin in range(0, len(events), 100):
        page.add(events[begin : begin + 100], logits if begin else None)
    page.close()
    reader.join(20)
    pool = -(-max(sensor) // 320)
    width, height = -(-sensor[0] // pool), -(-sensor[1] // pool)
    for name, polarity in (("on", True), ("off", False)):
        seen = sum(np.frombuffer(base64.b64decode(m[name]), np.uint8).astype(int) for m in received)
        x, y = (events.pixel[events.polarity == polarity] // pool).numpy().T
        assert np.array_equal(seen, np.bincount(y * width + x, minlength=width * height))
    assert received[-1]["ended"]
    assert received[-1]["events"] == len(events)
    assert received[-1]["time"] == int(events.time[-1])
    assert received[-1]["lag"] == 2.5
    assert received[-1]["seconds"] == 0.5, "a new stream has another clock: the meter counts the seconds of all"
    assert received[-1]["probabilities"] == pytest.approx(logits.softmax(0).tolist())


@pytest.mark.parametrize(("sensor", "point"), [((34, 34), [12.0, 7.5]), ((700, 400), [11 / 3, 13 / 6])])
def test_where_a_network_tracks_the_page_and_the_terminal_show_a_point(events, sensor, point):
    page = LivePage(sensor, [], METER)
    received: list[dict] = []
    begun = threading.Event()
    reader = threading.Thread(target=messages, args=(page.url, received, begun))
    reader.start()
    begun.wait(20)
    page.add(events, torch.tensor([12.0, 7.5]))
    page.close()
    reader.join(20)
    assert received[-1]["point"] == pytest.approx(point)
    assert received[-1]["probabilities"] is None
    terminal = Terminal(sensor, [], METER)
    terminal.add(events, torch.tensor([12.0, 7.5]))
    picture = terminal._picture(1.0)
    terminal._level = np.zeros((terminal.size[1], terminal.size[0]), np.float32)
    assert f"x {point[0]:.1f}, y {point[1]:.1f}" in terminal.lines(picture | {"point": point})[-2]
    terminal.close()


def test_no_name_of_a_class_ends_the_script_that_holds_it():
    page = LivePage((34, 34), ["</script><script>alert(1)</script>"], METER)
    try:
        with urllib.request.urlopen(page.url, timeout=20) as answer:
            text = answer.read().decode()
        assert text.count("</script>") == 1
        assert json.loads(re.search(r"const about = (.*);", text)[1])["names"] == page.names  # type: ignore[index]
    finally:
        page.close()


def test_the_page_is_for_this_machine_alone():
    page = LivePage((34, 34), NAMES, METER)
    try:
        with urllib.request.urlopen(page.url, timeout=20) as answer:
            assert json.dumps(NAMES) in answer.read().decode()
        for path, host, status in (("", "elsewhere.example:80", 403), ("other", "localhost:80", 404)):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(page.url + path, headers={"Host": host}), timeout=20)
            assert error.value.code == status
        with pytest.raises(ValueError, match=r"--view-port \d+"):
            LivePage((34, 34), NAMES, METER, int(page.url.split(":")[2][:-1]))
    finally:
        page.close()


@pytest.mark.parametrize("size", [(80, 24), (20, 8), (200, 60)])
def test_the_terminal_holds_the_frame_and_the_words(events, size, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: size)
    view = Terminal((34, 34), NAMES, METER)
    view.add(events, torch.eye(10)[7] * 9)
    view.close()
    picture = {"probabilities": [0.1] * 9 + [0.9], "lag": None, "seconds": 1.0, "events": 5, "rate": 2.0}
    lines = [re.sub(r"\x1b\[[\d;]*[a-zA-Z]", "", line) for line in view.lines(picture)]
    assert len(lines) <= size[1]
    assert all(len(line) < size[0] for line in lines[:-2])
    assert lines[-2:] == ["digit 9 90.0 %", "1.00 s, 5 events, 2/s"]
    view.add(events, None)
    assert view._picture(0.5)["rate"] == 2 * len(events)
    drawn = capsys.readouterr().err
    assert "digit 7" in drawn
    assert f"{len(events):,} events" in drawn
    assert {"33", "203"} <= set(re.findall(r"38;5;(\d+)m", drawn))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_a_recording_in_real_time(events, tmp_path):
    torch.manual_seed(0)
    model = networks.n_mnist(head="stream", width=8, levels=2, pooled=1, threshold=0.9, reset=-0.5).eval()
    weights = gl.save(model, tmp_path / "small", class_names=NAMES)
    gl.write_events(tmp_path / "glyph.npz", events)
    arguments = [
        "stream",
        "--weights",
        str(weights),
        "--input",
        str(tmp_path / "glyph.npz"),
        "--realtime",
        "--view",
        "page",
    ]
    with subprocess.Popen([sys.executable, "-m", "gridless", *arguments], stdout=-1, stderr=-1, text=True) as running:
        url = next(line for line in running.stderr if line.startswith("view: ")).split()[-1]  # type: ignore[union-attr]
        with Browser(url, tmp_path / "browser") as page:
            page.wait("document.body && document.body.dataset.ended")
            body = page.value("({...document.body.dataset})")
            arguments = page.value("document.body.innerText")
            complaints = page.complaints
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert not complaints
    assert int(body["events"]) == len(events)
    assert int(body["pictures"]) > 2
    assert f"{len(events):,} events" in arguments
    engine = stream(gl.load(weights))
    engine(events)
    assert body["best"] == NAMES[int(engine.predict().argmax())] == json.loads(out.splitlines()[-1])["class"]
