"""Live sources: framing, sockets, back-pressure, counted drops; and the command that uses them."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.models import events as networks
from gridless.streaming import stream
from gridless.streaming.sources import HEADER, MAGIC, Buffered, Camera, Datagrams, encode, frames, recording


@pytest.fixture(scope="module")
def events() -> gl.Events:
    return gl.data.MovingGlyphs(4)[3][0]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    torch.manual_seed(0)
    model = networks.n_mnist(head="stream", width=8, levels=2, pooled=1, threshold=0.9, reset=-0.5).eval()
    return str(gl.save(model, tmp_path_factory.mktemp("weights") / "small", classes=[f"digit {k}" for k in range(10)]))


def same(a: gl.Events, b: gl.Events) -> bool:
    return torch.equal(a.pixel, b.pixel) and torch.equal(a.time, b.time) and torch.equal(a.polarity, b.polarity)


def joined(packets: list[gl.Events]) -> gl.Events:
    pixel, time_, polarity = (torch.cat([getattr(p, n) for p in packets]) for n in ("pixel", "time", "polarity"))
    return gl.Events(pixel, time_, polarity, torch.tensor([0, len(time_)]), packets[0].sensor)


def test_frames_carry_events_there_and_back(events):
    data = b"".join(encode(events[a : a + 100], k) for k, a in enumerate(range(0, len(events), 100)))
    assert same(joined(list(frames(io.BytesIO(data), (34, 34)))), events)


@pytest.mark.parametrize("cut", [3, HEADER.size + 5])
def test_a_frame_that_is_cut_off_names_the_byte(events, cut):
    whole = encode(events[:10])
    with pytest.raises(ValueError, match=f"at byte {len(whole)}"):
        list(frames(io.BytesIO(whole + whole[:cut]), (34, 34)))


def test_what_is_no_frame_is_refused():
    with pytest.raises(ValueError, match="expected a frame that begins with"):
        list(frames(io.BytesIO(b"nonsense, not events"), (34, 34)))
    with pytest.raises(ValueError, match="claims 4294967295 events"):
        list(frames(io.BytesIO(HEADER.pack(MAGIC, 0, 2**32 - 1)), (34, 34)))


def test_a_recording_comes_in_packets_of_its_own_time(events, tmp_path):
    path = tmp_path / "glyph.npz"
    gl.write_events(path, events)
    packets = list(recording(path, (34, 34), packet=2000))
    assert same(joined(packets), events)
    assert all(int(p.time[-1] - p.time[0]) < 2000 for p in packets)


def test_realtime_takes_as_long_as_the_recording(events, tmp_path):
    path = tmp_path / "glyph.npz"
    gl.write_events(path, events)
    begin = time.monotonic()
    list(recording(path, (34, 34), packet=5000, realtime=True))
    assert time.monotonic() - begin >= 0.9 * int(events.time[-1] - events.time[0]) * 1e-6


def test_datagrams_arrive_and_missing_ones_are_counted(events):
    source = Datagrams("127.0.0.1", 0, (34, 34), idle=1.0)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number, a in enumerate(range(0, 500, 50)):
        if number not in (3, 4):
            sender.sendto(encode(events[a : a + 50], number), ("127.0.0.1", source.port))
    packets = list(source)
    assert len(packets) == 8
    assert source.lost == 2


def heard(*datagrams: bytes) -> tuple[Datagrams, list[gl.Events]]:
    """What a socket makes of these."""
    source = Datagrams("127.0.0.1", 0, (34, 34), idle=0.5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in datagrams:
            sender.sendto(data, ("127.0.0.1", source.port))
    return source, list(source)


def test_late_and_repeated_datagrams_are_counted_and_skipped(events):
    parts = [events[50 * k : 50 * k + 50] for k in range(4)]
    source, packets = heard(*(encode(parts[k], k) for k in (0, 2, 1, 3, 3)))
    assert same(joined(packets), joined([parts[k] for k in (0, 2, 3)]))
    assert (source.lost, source.late, source.bad, source.refused) == (1, 2, 0, 0)


def test_the_numbers_of_datagrams_begin_again(events):
    parts = [events[50 * k : 50 * k + 50] for k in range(4)]
    source, packets = heard(*(encode(part, 2**32 - 2 + k) for k, part in enumerate(parts) if k != 2))
    assert len(packets) == 3
    assert (source.lost, source.late) == (1, 0)


def test_what_is_no_frame_does_not_end_a_socket(events):
    first, second = encode(events[:50], 0), encode(events[50:100], 1)
    strange = [b"", b"hello", b"nonsense, not events", second[:-1], HEADER.pack(MAGIC, 7, 2**32 - 1)]
    source, packets = heard(first, *strange, second)
    assert same(joined(packets), events[:100])
    assert (source.lost, source.late, source.bad, source.refused) == (0, 0, 5, 0)
    assert "frame 7 claims" in source.reason


def test_frames_that_cannot_follow_do_not_end_a_socket(events, weights):
    back = encode(events[:50], 1)
    outside = encode(gl.Events(events.pixel[50:60] + 34, events.time[50:60], events.polarity[50:60],
                               torch.tensor([0, 10]), (90, 90)), 2)  # fmt: skip
    mixed = encode(gl.Events(events.pixel[50:60], events.time[50:60].flip(0), events.polarity[50:60],
                             torch.tensor([0, 10]), (34, 34)), 3)  # fmt: skip
    source, packets = heard(encode(events[:50], 0), back, outside, mixed, encode(events[50:], 4))
    assert same(joined(packets), events)
    assert (source.lost, source.late, source.bad, source.refused) == (0, 0, 0, 3)
    engine = stream(gl.load(weights))
    for packet in packets:
        engine(packet)


def test_a_slow_consumer_holds_the_source_back_or_counts_what_it_lost(events):
    packets = [events[a : a + 10] for a in range(0, 400, 10)]

    def consume(source: Buffered) -> int:
        got = 0
        for k, packet in enumerate(source):
            if k == 0:
                time.sleep(0.3)
            got += len(packet)
        return got

    assert consume(Buffered(iter(packets), room=4)) == 400
    dropping = Buffered(iter(packets), room=4, drop=True)
    got = consume(dropping)
    assert dropping.dropped_events > 0
    assert got + dropping.dropped_events == 400


def test_an_error_in_the_source_reaches_the_consumer():
    def broken():
        raise OSError("unplugged")
        yield

    with pytest.raises(OSError, match="unplugged"):
        list(Buffered(broken()))


def test_a_camera_is_a_source_of_the_same_packets(events, weights):
    """A recorded stream in the packets of the camera driver: structured arrays with the fields t, x, y, on."""
    record = np.zeros(len(events), [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])
    record["t"], record["on"] = events.time, events.polarity
    record["x"], record["y"] = events.pixel.numpy().T
    packets = [
        SimpleNamespace(polarity_events=part, polarity_events_overflow_indices=None)
        for part in np.array_split(record, 9)
    ]
    packets.insert(4, SimpleNamespace(polarity_events=None, polarity_events_overflow_indices=np.array([0])))
    camera = Camera((34, 34), device=[(None, packet) for packet in packets])
    live, whole = stream(gl.load(weights)), stream(gl.load(weights))
    for packet in camera:
        live(packet)
    whole(events)
    assert torch.equal(live.predict(), whole.predict())
    assert camera.overflows == 1


def run(*words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "gridless", *words], input=stdin, capture_output=True, timeout=250)


def test_the_command_prints_the_predictions_of_the_engine(events, weights, tmp_path):
    path = tmp_path / "glyph.npz"
    gl.write_events(path, events)
    done = run("stream", "--weights", weights, "--input", str(path))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    engine = stream(gl.load(weights))
    expected = list(engine.push(events))
    assert [line["time"] for line in lines[:-1]] == [p.time for p in expected]
    assert [line["class"] for line in lines[:-1]] == [f"digit {int(p.logits.argmax())}" for p in expected]
    assert b"events/s" in done.stderr
    piped = run("stream", "--weights", weights, "--input", "-", "--quiet", stdin=encode(events))
    assert [json.loads(line) for line in piped.stdout.splitlines()] == lines
    assert piped.stderr == b""


def test_the_command_listens_to_a_socket(events, weights):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stop = threading.Event()

    def send() -> None:
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        number = 0
        # The same moment again and again, until the listener is there: times may stand still, but not step back.
        while not stop.wait(0.2) and number < 500:
            frozen = gl.Events(
                events.pixel[:50],
                torch.zeros(50, dtype=torch.int64),
                events.polarity[:50],
                torch.tensor([0, 50]),
                (34, 34),
            )
            sender.sendto(encode(frozen, number), ("127.0.0.1", port))
            sender.sendto(b"no frame", ("127.0.0.1", port))
            number += 1

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    child = subprocess.Popen(
        [sys.executable, "-m", "gridless", "stream", "--weights", weights,
         "--input", f"udp://127.0.0.1:{port}", "--idle", "3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    first = child.stdout.readline()
    stop.set()
    assert "class" in json.loads(first)
    _, errors = child.communicate(timeout=100)
    assert child.returncode == 0
    assert b"lost 0, late 0, bad " in errors
    assert b"refused 0\nnot taken: udp: a datagram of 8 bytes is no frame" in errors


@pytest.mark.parametrize("source", ["file", "-"])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(events, weights, tmp_path, source):
    path = tmp_path / "glyph.npz"
    gl.write_events(path, events)
    child = subprocess.Popen(
        [sys.executable, "-m", "gridless", "stream", "--weights", weights, "--input",
         str(path) if source == "file" else "-", "--quiet"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    half = len(events) // 2
    child.stdin.write(encode(events[:half]))
    child.stdin.flush()
    assert "class" in json.loads(child.stdout.readline())
    child.stdout.close()
    # Standard input stays open: the thread that reads it must not keep the command, or its end, waiting.
    if source == "-":
        child.stdin.write(encode(events[half:]))
        child.stdin.flush()
    assert child.wait(timeout=100) == 0
    assert child.stderr.read() == b""
    child.stderr.close()
    child.stdin.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--weights", "nothing-of-the-kind", "--input", "-"], "no weights named"),
        (["--weights", "{weights}", "--input", "missing.raw"], "no file missing.raw"),
        (["--weights", "{weights}", "--input", "udp://nowhere"], "udp://HOST:PORT"),
        (["--weights", "modelnet40-small", "--input", "-"], "PointResNet is not an event network"),
        (["--weights", "{weights}", "--input", "-", "--packet", "0"], "--packet"),
        (["--weights", "{weights}", "--input", "-", "--packet", "-5"], "--packet"),
    ],
)
def test_what_the_command_cannot_do_is_one_line(weights, words, message):
    done = run("stream", *[w.format(weights=weights) for w in words])
    assert done.returncode in (1, 2)
    assert message in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
