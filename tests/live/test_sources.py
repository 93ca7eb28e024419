"""Live sources: framing, sockets, back-pressure, counted drops; and the command that uses them."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.cli.main import main
from gridless.live import stream
from gridless.live.overload import ROOM, Budget, Buffered, Overload, thinned
from gridless.live.overload import joined as overload_joined
from gridless.live.packets import CHECKED, checked_by_source
from gridless.live.sources import (
    BURST_BYTES,
    HEADER,
    JUMP,
    MAGIC,
    Camera,
    Datagrams,
    Fit,
    NewStream,
    encode,
    frames,
    recording,
)
from gridless.models import events as networks


@pytest.fixture(scope="module")
def events() -> gl.Events:
    return gl.data.MovingGlyphs(4)[3][0]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    torch.manual_seed(0)
    model = networks.n_mnist(head="stream", width=8, levels=2, pooled=1, threshold=0.9, reset=-0.5).eval()
    return str(
        gl.save(model, tmp_path_factory.mktemp("weights") / "small", class_names=[f"digit {k}" for k in range(10)])
    )


def same(a: gl.Events, b: gl.Events) -> bool:
    return torch.equal(a.pixel, b.pixel) and torch.equal(a.time, b.time) and torch.equal(a.polarity, b.polarity)


def joined(packets: list[gl.Events]) -> gl.Events:
    pixel, time_, polarity = (torch.cat([getattr(p, n) for p in packets]) for n in ("pixel", "time", "polarity"))
    return gl.Events(pixel, time_, polarity, torch.tensor([0, len(time_)]), packets[0].sensor)


def test_frames_carry_events_there_and_back(events):
    data = b"".join(encode(events[a : a + 100], k) for k, a in enumerate(range(0, len(events), 100)))
    assert same(joined(list(frames(io.BytesIO(data), (34, 34)))), events)
    assert same(next(frames(io.BytesIO(encode(events[:0])), (34, 34))), events[:0])


@pytest.mark.parametrize("cut", [3, HEADER.size + 5])
def test_a_frame_that_is_cut_off_names_the_byte(events, cut):
    whole = encode(events[:10])
    with pytest.raises(ValueError, match=f"at byte {len(whole)}"):
        list(frames(io.BytesIO(whole + whole[:cut]), (34, 34)))


def test_what_is_no_frame_is_refused():
    with pytest.raises(ValueError, match=r"b'nons'"):
        list(frames(io.BytesIO(b"nonsense, not events"), (34, 34)))
    with pytest.raises(ValueError, match="4294967295"):
        list(frames(io.BytesIO(HEADER.pack(MAGIC, 0, 2**32 - 1)), (34, 34)))


def test_a_recording_comes_in_packets_of_its_own_time(events, tmp_path):
    path = tmp_path / "glyph.npz"
    gl.write_events(path, events)
    packets = list(recording(path, (34, 34), packet=2000))
    assert same(joined(packets), events)
    assert all(int(p.time[-1] - p.time[0]) < 2000 for p in packets)
    for parts in ([[5, 1004], [1005], [3005]], [[5], [1005]]):
        gl.write_events(path, at(*(t for part in parts for t in part)))
        assert [p.time.tolist() for p in recording(path, (34, 34), packet=1000)] == parts


def at(*times: int) -> gl.Events:
    """Events at one pixel."""
    pixel, polarity = torch.ones(len(times), 2, dtype=torch.int32), torch.ones(len(times), dtype=torch.bool)
    return gl.Events(pixel, torch.tensor(times), polarity, torch.tensor([0, len(times)]), (34, 34))


@pytest.mark.parametrize("gap", [24 * 3600 * 10**6, 10**12, 2**63 - 1])
def test_a_recording_needs_memory_for_its_events_not_for_its_time(gap, tmp_path):
    path = tmp_path / "two.npz"
    gl.write_events(path, at(0, gap))
    list(recording(path, (34, 34)))
    tracemalloc.start()
    packets = list(recording(path, (34, 34)))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [p.time.tolist() for p in packets] == [[0], [gap]]
    assert most < 10**6


def test_what_a_frame_cannot_hold_is_refused_by_name(events):
    wide = gl.Events(torch.tensor([[1, 2], [70_000, 3]], dtype=torch.int32), torch.tensor([1, 2]),
                     torch.tensor([True, False]), torch.tensor([0, 2]), (80_000, 10))  # fmt: skip
    with pytest.raises(ValueError, match=r"event 1 .*\(70000, 3\)"):
        encode(wide)
    with pytest.raises(ValueError, match="-5"):
        encode(at(-5, 3))
    with pytest.raises(ValueError, match=r"recording.* 2"):
        encode(gl.Events.of([events, events], sensor=(34, 34)))
    with pytest.raises(ValueError, match="1048577"):
        encode(at(*range((1 << 20) + 1)))
    padded = gl.Events(*(getattr(at(1, 2, 0), k) for k in ("pixel", "time", "polarity")), torch.tensor([0, 2]),
                       (34, 34), padding=1)  # fmt: skip
    assert same(next(frames(io.BytesIO(encode(padded)), (34, 34))), at(1, 2))


def test_realtime_takes_as_long_as_the_recording(events, tmp_path):
    path = tmp_path / "glyph.npz"
    gl.write_events(path, replace(events, time=events.time + 5_000_000))
    begin = time.monotonic()
    list(recording(path, (34, 34), packet=5000, realtime=True))
    assert 0.9 * int(events.time[-1] - events.time[0]) * 1e-6 <= time.monotonic() - begin < 5


def test_datagrams_arrive_and_missing_ones_are_counted(events):
    source = Datagrams("127.0.0.1", 0, (34, 34), idle=1.0)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number, a in enumerate(range(0, 500, 50)):
        if number not in (3, 4):
            sender.sendto(encode(events[a : a + 50], number), ("127.0.0.1", source.port))
    sent = [events[a : a + 50] for a in range(0, 500, 50) if a not in (150, 200)]
    packets = list(source)
    assert len(packets) == 1, "frames that waited come as one"
    assert same(packets[0], joined(sent))
    assert source.lost == 2


def heard(*datagrams: bytes, **options) -> tuple[Datagrams, list[gl.Events]]:
    """Events that a socket reads from these datagrams."""
    source = Datagrams("127.0.0.1", 0, (34, 34), idle=0.5, **options)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in datagrams:
            sender.sendto(data, ("127.0.0.1", source.port))
    return source, list(source)


def test_a_socket_that_cannot_be_is_refused_by_name():
    for options, message in (
        ({"idle": 0}, "idle .* 0"),
        ({"idle": -1.0}, "idle .* -1"),
        ({}, "port .*65536"),
    ):
        with pytest.raises(ValueError, match=message):
            Datagrams("127.0.0.1", 65_536 if not options else 0, (34, 34), **options)
    with pytest.raises(OSError, match=r"192\.0\.2\.1, port 9000"):
        Datagrams("192.0.2.1", 9000, (34, 34))


class Silent:
    """A socket at which nothing comes; it knows how long each wait may last."""

    def __init__(self, most: int) -> None:
        self.waits, self.most = [], most

    def settimeout(self, seconds) -> None:
        self.waits.append(seconds)

    def recv(self, size) -> bytes:
        if len(self.waits) == self.most:
            raise KeyboardInterrupt
        raise TimeoutError

    def close(self) -> None:
        pass


def test_a_silent_socket_is_waited_for_in_moments_so_that_ctrl_c_ends_it_on_windows_too():
    source = Datagrams("127.0.0.1", 0, (34, 34))
    source.socket.close()
    source.socket = Silent(5)
    with pytest.raises(KeyboardInterrupt):
        list(source)
    assert source.socket.waits == [1.0] * 5


def test_idle_seconds_count_from_the_first_frame(events):
    source = Datagrams("127.0.0.1", 0, (34, 34), idle=0.2)
    packets = iter(source)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"no frame", ("127.0.0.1", source.port))
        late = threading.Timer(0.7, sender.sendto, (encode(events[:50]), ("127.0.0.1", source.port)))
        late.start()
        assert same(next(packets), events[:50])
        late.join()
        assert list(packets) == []
    assert source.bad == 1


def test_pixels_of_a_datagram_are_copied_once_and_checked_once(events, monkeypatch):
    """From the bytes to the columns that the engine reads; a burst of several frames is one packet."""
    checks, firsts = [], []
    check, array = gl.Events._check, np.empty
    monkeypatch.setattr(gl.Events, "_check", lambda self, what: checks.append(what) or check(self, what))
    monkeypatch.setattr("gridless.live.sources.np.empty", lambda *about: firsts.append(array(*about)) or firsts[-1])
    for fit in (Fit((34, 34)), None):
        checks.clear(), firsts.clear()
        options = {"fit": fit} if fit else {}
        _, (packet,) = heard(*(encode(events[k : k + 50], k // 50) for k in (0, 50)), **options)
        assert same(packet, events[:100])
        assert packet.pixel.data_ptr() == firsts[0].ctypes.data
        assert CHECKED in packet.__dict__
        assert len([name for name in checks if name != "encode"]) == 1


def test_packets_of_one_buffer_are_trusted_only_if_their_times_go_on(events, weights):
    first, second = checked_by_source(events[:50]), checked_by_source(events[50:100])
    assert CHECKED in overload_joined([first, second]).__dict__
    assert CHECKED not in overload_joined([second, first]).__dict__
    assert CHECKED not in overload_joined([first, replace(second)]).__dict__
    assert CHECKED not in first[:20].__dict__
    whole = overload_joined([first, second])
    whole.time[:] += 5
    engine = stream(gl.load(weights))
    engine(whole)
    with pytest.raises(ValueError, match="event 0"):
        engine(first)
    assert engine.events_seen == 100


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_address_of_ipv6_is_listened_at(events):
    try:
        source = Datagrams("::1", 0, (34, 34), idle=0.5)
    except OSError:
        pytest.skip("this machine has no IPv6 address")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.sendto(encode(events[:50]), ("::1", source.port))
    assert same(joined(list(source)), events[:50])


def test_late_and_repeated_datagrams_are_counted_and_skipped(events):
    parts = [events[50 * k : 50 * k + 50] for k in range(4)]
    source, packets = heard(*(encode(parts[k], k) for k in (0, 2, 1, 3, 3)))
    assert same(joined(packets), joined([parts[k] for k in (0, 2, 3)]))
    assert (source.lost, source.late, source.bad, source.refused) == (1, 2, 0, 0)


def test_the_numbers_of_datagrams_begin_again(events):
    parts = [events[50 * k : 50 * k + 50] for k in range(4)]
    source, packets = heard(*(encode(part, 2**32 - 2 + k) for k, part in enumerate(parts) if k != 2))
    assert same(joined(packets), joined([parts[k] for k in (0, 1, 3)]))
    assert (source.lost, source.late) == (1, 0)


def test_what_is_no_frame_does_not_end_a_socket(events):
    first, second = encode(events[:50], 0), encode(events[50:100], 1)
    strange = [b"", b"hello", b"nonsense, not events", second[:-1], HEADER.pack(MAGIC, 7, 2**32 - 1)]
    source, packets = heard(first, *strange, second)
    assert same(joined(packets), events[:100])
    assert (source.lost, source.late, source.bad, source.refused) == (0, 0, 5, 0)
    assert "frame 7" in source.reason


def test_frames_that_cannot_follow_do_not_end_a_socket(events, weights):
    back = encode(events[:50], 1)
    outside = encode(gl.Events(events.pixel[50:60] + 34, events.time[50:60], events.polarity[50:60],
                               torch.tensor([0, 10]), (90, 90)), 2)  # fmt: skip
    whole = encode(events[50:60], 3)
    mixed = whole[: HEADER.size] + whole[-16:] + whole[HEADER.size : -16]
    source, packets = heard(encode(events[:50], 0), back, outside, mixed, encode(events[50:], 4))
    assert same(joined(packets), events)
    assert (source.lost, source.late, source.bad, source.refused) == (0, 0, 0, 3)
    engine = stream(gl.load(weights))
    for packet in packets:
        engine(packet)


FAR = 2**59


@pytest.mark.parametrize("end", [2**60, 2**63 - 1])
def test_a_socket_whose_first_datagram_is_after_the_end_of_time_goes_on(end):
    source, packets = heard(encode(at(7, end), 0), encode(at(60), 1), encode(at(61), 2))
    assert [p.time.tolist() for p in packets] in ([[60, 61]], [[60], [61]])
    assert (source.bad, source.refused) == (0, 1)
    assert f"{end} us" in source.reason


@pytest.mark.parametrize("stray", [(FAR,), (50, FAR), (10**9,)])
def test_one_datagram_from_the_far_future_is_refused_alone(stray):
    frames = [encode(at(k), k) for k in range(60, 64)]
    source, packets = heard(frames[0], encode(at(*stray), 60), *frames[1:])
    assert joined(packets).time.tolist() == [60, 61, 62, 63]
    assert (source.lost, source.late, source.bad, source.refused, source.restarts) == (0, 0, 0, 1, 0)
    assert all(f"{number} us" in source.reason for number in (stray[-1], 10_000_000, 60))


def test_the_last_datagram_of_a_burst_is_judged_as_any_other():
    good, more = [encode(at(k), k) for k in (60, 61)], encode(at(62), 62)
    bad = more + more[HEADER.size :], b"GLE2" + more[4:]
    for strange, counts in (
        (encode(at(FAR), 62), (0, 1)),
        *((b, (1, 0)) for b in bad),
        (encode(at(7)[:0], 62), (0, 0)),
    ):
        source, packets = heard(*good, strange)
        assert joined(packets).time.tolist() == [60, 61]
        assert (source.bad, source.refused) == counts


@pytest.mark.parametrize("first", [(60, 61), (60,)])
def test_two_frames_far_ahead_begin_a_new_stream_only_after_a_single_one(first):
    source, ended = Datagrams("127.0.0.1", 0, (34, 34), idle=0.5), len(first) == 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        packets = iter(source)
        for times in (first, (FAR, FAR + 1)):
            for k in times:
                sender.sendto(encode(at(k), k % 100), ("127.0.0.1", source.port))
            if times is first:
                assert next(packets).time.tolist() == [*first]
        kinds = [type(p) for p in packets]
        assert kinds in (([NewStream, gl.Events], [NewStream, gl.Events, gl.Events]) if ended else ([],))
    assert (source.refused, source.restarts) == ((0, 1) if ended else (2, 0))


@pytest.mark.parametrize("strays", [(0, 5 * 10**8), (100, 50)])
def test_two_strays_of_another_session_that_do_not_continue_each_other_begin_no_new_stream(strays):
    frames = [encode(at(10**9 + k), k, session=1) for k in range(2)]
    source, packets = heard(*frames, *(encode(at(k), 2, session=2) for k in strays))
    assert joined(packets).time.tolist() == [10**9, 10**9 + 1]
    assert (source.late + source.refused, source.restarts) == (2, 0)


@pytest.mark.parametrize("ahead", [2 * 10**5, 9 * 10**6])
@pytest.mark.parametrize("session", [None, 5])
def test_a_single_frame_ahead_does_not_move_the_clock(ahead, session):
    honest = [encode(at(60 + k), k, session) for k in range(6)]
    for lies in range(1, 6):
        lie = encode(at(60 + ahead), lies, session)
        source, packets = heard(*honest[:lies], lie, *honest[lies:])
        assert joined(packets).time.tolist() == [*range(60, 66)]
        assert (source.refused, source.restarts) == (1 if lies < 6 else 0, 0)
        assert f"{60 + ahead} us" in source.reason


@pytest.mark.parametrize("session", [None, 5])
def test_two_frames_ahead_that_continue_each_other_are_taken_and_so_is_a_last_one(session):
    times = [60, 61, 5 * 10**6, 5 * 10**6 + 1, 9 * 10**6]
    source, packets = heard(*(encode(at(t), k, session) for k, t in enumerate(times)))
    assert joined(packets).time.tolist() == times
    assert (source.lost, source.late, source.refused, source.restarts) == (0, 0, 0, 0)


def test_a_frame_ahead_that_comes_twice_is_late_the_second_time():
    frames = [encode(at(t), k) for k, t in enumerate((60, 61, 10**6))]
    source, packets = heard(*frames, frames[-1], encode(at(10**6 + 1), 3))
    assert joined(packets).time.tolist() == [60, 61, 10**6, 10**6 + 1]
    assert (source.late, source.refused) == (1, 0)


@pytest.mark.parametrize("numbers", [(0, 1, 2), (101, 102, 103)])
@pytest.mark.parametrize("behind", [10**9, 5 * 10**6, 10])
@pytest.mark.parametrize("old_session", [None, 7])
def test_another_session_begins_a_new_stream_whatever_its_clock_and_its_numbers(numbers, behind, old_session):
    old = [encode(at(behind + k), 98 + k, old_session) for k in range(3)]
    new = [encode(at(k), number, session=8) for k, number in enumerate(numbers)]
    source, packets = heard(*old, *new)
    times = [None if type(p) is NewStream else p.time.tolist() for p in packets]
    cut = times.index(None)
    assert [[t for times_ in part for t in times_] for part in (times[:cut], times[cut + 1 :])] == [
        [behind, behind + 1, behind + 2],
        [0, 1, 2],
    ]
    assert (source.lost, source.late, source.refused, source.restarts) == (0, 0, 0, 1)


def test_a_single_frame_of_another_session_begins_no_new_stream():
    frames = [encode(at(k), k, session=1) for k in range(4)]
    source, packets = heard(*frames[:2], encode(at(2), 2, session=2), *frames[2:])
    assert joined(packets).time.tolist() == [0, 1, 2, 3]
    assert (source.refused, source.restarts) == (1, 0)
    assert "session 2" in source.reason


def test_frames_without_a_session_are_one_and_a_clock_that_goes_back_is_refused():
    old = [encode(at(10**9 + k), 98 + k) for k in range(3)]
    source, packets = heard(*old, *(encode(at(k), k) for k in range(3)))
    assert joined(packets).time.tolist() == [10**9, 10**9 + 1, 10**9 + 2]
    assert (source.lost, source.late, source.refused, source.restarts) == (0, 0, 3, 0)


@pytest.mark.parametrize("session", [None, 2**32 - 1])
def test_frames_that_all_come_twice_are_late_the_second_time_and_no_new_stream(session):
    source, packets = heard(*(encode(at(k // 2), k // 2, session) for k in range(64)))
    assert [p.time.item() for p in packets] == [*range(32)]
    assert (source.late, source.refused, source.restarts) == (32, 0, 0)


@pytest.mark.parametrize("sessions", [(None, 3), (3, None), (3, 4)])
def test_a_byte_stream_tells_where_another_session_begins(sessions):
    data = b"".join(encode(at(k), k % 2, sessions[k // 2]) for k in range(4))
    packets = list(frames(io.BytesIO(data), (34, 34)))
    assert [None if type(p) is NewStream else p.time.item() for p in packets] == [0, 1, None, 2, 3]


@pytest.mark.parametrize("bytes_left", [13, 15])
def test_a_header_of_the_second_version_that_is_cut_off_is_refused(bytes_left):
    data = encode(at(1), 0, session=1)[:bytes_left]
    with pytest.raises(ValueError, match=r"standard input.* header"):
        list(frames(io.BytesIO(data), (34, 34)))
    source, packets = heard(encode(at(1), 0, session=1), data)
    assert (len(packets), source.bad) == (1, 1)


def test_a_burst_is_a_packet_that_can_be_dropped_or_thinned():
    frames = [encode(at(*range(1000 * k, 1000 * k + 1000)), k) for k in range(12)]
    _, packets = heard(*frames)
    assert sum(map(len, packets)) == 12_000
    assert max(map(len, packets)) <= BURST_BYTES // 16 + 1000


def test_a_first_datagram_from_the_far_future_does_not_blind_a_socket():
    source, packets = heard(encode(at(FAR), 7), *(encode(at(k), k) for k in range(3)))
    first, new, *rest = packets
    assert (first.time.tolist(), type(new), joined(rest).time.tolist()) == ([FAR], NewStream, [0, 1, 2])
    assert (source.refused, source.restarts) == (0, 1)


def test_a_sender_whose_first_datagram_was_followed_by_another_is_not_left_without_restart():
    first = [encode(at(5), 0), encode(at(6), 1)]
    source, packets = heard(*first, *(encode(at(FAR + k), k) for k in range(3)))
    assert [p.time.tolist() for p in packets] in ([[5, 6]], [[5], [6]])
    assert (source.refused, source.restarts) == (3, 0)


def test_a_counter_that_begins_anew_while_time_goes_on_is_followed():
    source, packets = heard(encode(at(5), 500), encode(at(6), 0), encode(at(7), 1), encode(at(8), 2**30))
    assert joined(packets).time.tolist() == [5, 6, 7, 8]
    assert (source.lost, source.late, source.refused) == (0, 0, 0)


def test_a_new_stream_parts_the_packets_around_it(events):
    parts = [events[:10], events[10:20], NewStream(), events[:10], events[10:20]]
    packets = list(Buffered(iter(parts)))
    cut = [type(p) for p in packets].index(NewStream)
    assert same(joined(packets[:cut]), events[:20])
    assert same(joined(packets[cut + 1 :]), events[:20])


def test_a_new_stream_is_never_dropped(events, monkeypatch):
    monkeypatch.setitem(ROOM, Overload.drop, 10)
    source = Buffered(iter([events, NewStream(), events]), Overload.drop)
    packets = iter(source)
    time.sleep(0.1)
    assert [type(packet) for packet in packets][:2] == [gl.Events, NewStream]


def test_packets_without_events_tell_nothing_about_the_cost_of_events(events):
    source = Buffered(iter([events[:0], events[:5]]))
    for _ in source:
        time.sleep(0.003)
    budget = Budget(0.0025)
    budget.spent(0, 10.0)
    assert (budget.events, budget.cost) == (1024, 0.0)


def test_thinning_is_even_and_counted(events):
    thin = thinned(events[:1000], 100)
    assert torch.equal(thin.time, events.time[0:1000:10])
    assert len(thinned(events[:10], 10)) == 10
    source = Buffered(iter([events[:500], events[500:1000]]), Overload.thin)
    source._budget.events = 100
    got = sum(map(len, source))
    assert source.thinned_events > 0
    assert got + source.thinned_events == 1000
    for overload in (Overload.wait, Overload.drop):
        whole = Buffered(iter([events[:1000]]), overload)
        whole._budget.events = 100
        assert sum(map(len, whole)) == 1000


@pytest.mark.parametrize("load", [0.5, 3.0, 10.0])
def test_thinning_keeps_the_lag_under_its_bound_whatever_the_load(load):
    """On a clock of its own: a call takes 50 us and 0.7, 1 or 1.3 us for each event, and every ms brings a packet."""
    now, lags, seen = 0.0, [], 0
    size = round(1000 * load)
    packet = gl.Events.of({"x": [1] * size, "y": [1] * size, "t": range(size), "p": [1] * size}, sensor=(34, 34))
    # The source is empty: packets are put in as the clock goes on.
    source = Buffered(iter(()), Overload.thin, lag=0.005, clock=lambda: now)
    packets, came = iter(source), 0
    while came < 500:
        now = max(now, 1e-3 * came)
        while 1e-3 * came <= now:
            source._put(packet, 1e-3 * came)
            came += 1
        taken = len(next(packets))
        now += 50e-6 + (0.7e-6, 1e-6, 1.3e-6)[len(lags) % 3] * taken
        seen += taken
        lags.append(now - source.received)
    assert max(lags) <= 0.005
    assert seen + source.thinned_events == came * size
    assert source.dropped_events == 0
    if load < 1:
        assert source.thinned_events == 0
    else:
        assert seen > 0.9e6 * now, "no more is thinned than must be"


def test_the_budget_of_thinning_follows_what_packets_cost():
    budget = Budget(0.0025)
    budget.spent(1024, 0.0001)
    assert budget.events == 2048
    budget.spent(10_000, 0.010)
    assert budget.events == 2500
    budget.spent(100, 0.0001)
    assert budget.events == 2500, "a small packet in good time tells nothing"
    budget.spent(2500, 0.00125)
    assert 2500 < budget.events < 2600, "a dear packet is remembered"
    for _ in range(200):
        budget.spent(budget.events, 0.5e-6 * budget.events)
    assert budget.events == 5000
    budget.spent(5000, 10.0)
    assert budget.events == 2500, "one slow packet does not take all"
    for _ in range(20):
        budget.spent(5000, 10.0)
    assert budget.events == 1


def test_no_more_events_wait_than_there_is_room_for_unless_in_one_packet(events, monkeypatch):
    monkeypatch.setitem(ROOM, Overload.drop, 10)
    for size, dropped in ((6, 2), (5, 1), (50, 2)):
        source = Buffered(iter([events[:size]] * 3), Overload.drop)
        source._read()
        assert (source.dropped_packets, source.dropped_events) == (dropped, dropped * size)


def test_a_slow_consumer_holds_the_source_back_or_counts_what_it_lost(events, monkeypatch):
    for overload in Overload:
        monkeypatch.setitem(ROOM, overload, 40)
    packets = [events[a : a + 10] for a in range(0, 400, 10)]

    def consume(source: Buffered) -> int:
        got = 0
        for k, packet in enumerate(source):
            if k == 0:
                time.sleep(0.3)
            got += len(packet)
        return got

    assert consume(Buffered(iter(packets))) == 400
    dropping = Buffered(iter(packets), Overload.drop)
    got = consume(dropping)
    assert dropping.dropped_events > 0
    assert got + dropping.dropped_events == 400


@pytest.mark.parametrize("overload", Overload)
def test_the_reader_of_a_source_that_goes_on_ends_when_it_is_closed(events, overload, monkeypatch):
    monkeypatch.setitem(ROOM, overload, 1)

    def forever():
        while True:
            yield events

    buffered = Buffered(forever(), overload)
    next(iter(buffered))
    # Until the reader waits for room, if it does.
    time.sleep(0.1)
    buffered.close()
    buffered._thread.join(5)
    assert not buffered._thread.is_alive()


def test_a_packet_and_the_end_of_a_source_are_heard_of_at_once(events, monkeypatch):
    def slow():
        for _ in range(2):
            time.sleep(0.1)
            yield events[:5]
        time.sleep(0.1)

    monkeypatch.setattr("gridless.live.overload.MOMENT", 10.0)
    begin = time.monotonic()
    assert len(list(Buffered(slow()))) == 2
    assert time.monotonic() - begin < 8


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


@pytest.mark.slow
def test_the_command_prints_the_predictions_of_the_engine(events, weights, tmp_path, capsys):
    path = tmp_path / "glyph.npz"
    gl.write_events(path, events)
    assert main(["stream", "--weights", weights, "--input", str(path)]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    engine = stream(gl.load(weights))
    expected = list(engine.push(events))
    assert [line["time"] for line in lines[:-1]] == [p.time for p in expected]
    assert [line["class"] for line in lines[:-1]] == [f"digit {int(p.logits.argmax())}" for p in expected]
    assert "events/s" in err
    command = [sys.executable, "-m", "gridless", "stream", "--weights", weights, "--input", "-", "--quiet"]
    piped = subprocess.run(command, input=encode(events), capture_output=True, timeout=250)
    assert [json.loads(line) for line in piped.stdout.splitlines()] == lines
    assert piped.stderr == b""


def test_classes_beyond_the_names_are_called_by_their_numbers(weights, events, tmp_path, capsys):
    gl.write_events(tmp_path / "one.npz", events)
    path = gl.save(gl.load(weights), tmp_path / "few", class_names=["digit 0"])
    assert main(["stream", "--weights", str(path), "--input", str(tmp_path / "one.npz"), "--quiet"]) == 0
    best = [int(p.logits.argmax()) for p in stream(gl.load(weights)).push(events)]
    assert any(best)
    said = [json.loads(line)["class"] for line in capsys.readouterr().out.splitlines()]
    assert said[: len(best)] == [str(k) if k else "digit 0" for k in best]


def test_the_command_begins_again_with_a_new_stream_and_says_nothing_of_one_without_events(
    events, weights, capsys, monkeypatch
):
    from gridless.cli import stream as command

    parts = [NewStream(), events[:500], NewStream(), events[:500]]
    options = {}
    monkeypatch.setattr(command, "_source", lambda *about: options.update(about[5]) or iter(parts))
    assert main(["stream", "--weights", weights, "--input", "camera"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert f"{2e-6 * int(events.time[499] - events.time[0]):.3f} s of sensor time" in err
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    assert json.loads(lines[-1])["time"] == int(events.time[499])
    assert options == {"jump": JUMP, "idle": None}


@pytest.mark.slow
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
    assert child.returncode == 3, "some datagrams were no frames"
    assert b"lost 0, late 0, bad " in errors
    assert b"refused 0, restarts 0\nnot taken: udp: a datagram of 8 bytes" in errors


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(events, weights):
    child = subprocess.Popen(
        [sys.executable, "-m", "gridless", "stream", "--weights", weights, "--input", "-", "--quiet"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    half = len(events) // 2
    child.stdin.write(encode(events[:half]))
    child.stdin.flush()
    assert "class" in json.loads(child.stdout.readline())
    child.stdout.close()
    # Standard input stays open: the thread that reads it must not keep the command, or its end, waiting.
    child.stdin.write(encode(events[half:]))
    child.stdin.flush()
    assert child.wait(timeout=100) == 0
    assert child.stderr.read() == b""
    child.stderr.close()
    child.stdin.close()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--weights", "nothing-of-the-kind", "--input", "-"], "nothing-of-the-kind"),
        # Before weights are loaded, and anything is compiled for them.
        (["--weights", "nothing-of-the-kind", "--input", "missing.raw"], "missing.raw"),
        (["--weights", "nothing-of-the-kind", "--input", "-", "--crop", "5"], "--crop"),
        (["--weights", "{weights}", "--input", "udp://nowhere"], "udp://HOST:PORT"),
        (["--weights", "{weights}", "--input", "udp://:9000"], "udp://HOST:PORT"),
        (["--weights", "{weights}", "--input", "udp://nowhere:port"], "udp://HOST:PORT"),
        (["--weights", "modelnet40-small", "--input", "-"], "PointResNet"),
        (["--weights", "{weights}", "--input", "-", "--packet", "0"], "--packet"),
        (["--weights", "{weights}", "--input", "-", "--packet", "-5"], "--packet"),
        (["--weights", "{weights}", "--input", "-", "--repair", "sort"], "--repair sort"),
    ],
)
def test_what_the_command_cannot_do_is_one_line(weights, command, message, capsys):
    assert main(["stream", *[w.format(weights=weights) for w in command]]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.slow
def test_closed_standard_streams_are_named(weights, capsys, monkeypatch):
    command = ["stream", "--weights", weights, "--input", "-"]
    closed = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "gridless", *command]
    done = subprocess.run(closed, capture_output=True, timeout=100)
    assert done.returncode == 1
    assert b"standard output" in done.stderr
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it then
    assert main(command) == 1
    assert "standard input" in capsys.readouterr().err


def test_a_larger_camera_is_cropped_pooled_or_dropped(events, weights, tmp_path, capsys):
    """The network's 34 x 34 pixels lie at (100, 60) of the camera, each of them 2 x 2."""
    path = tmp_path / "large.npz"
    pixel = 2 * events.pixel + torch.tensor([100, 60], dtype=torch.int32)
    gl.write_events(path, gl.Events(pixel, events.time, events.polarity, events.splits, (346, 260)))
    expected = stream(gl.load(weights))
    expected(events)
    live = stream(gl.load(weights))
    for packet in recording(path, None, fit=Fit((34, 34), crop=(100, 60), pool=2)):
        live(packet)
    assert torch.equal(live.predict(), expected.predict())
    remedy = r"34 x 34 .*--crop.*--pool.*--repair drop"
    with pytest.raises(ValueError, match=remedy):
        list(recording(path, None, fit=Fit((34, 34))))
    assert sum(map(len, recording(path, None, fit=Fit((34, 34), drop=True)))) == 0
    assert sum(map(len, recording(path, None, fit=Fit((34, 34), pool=8)))) == len(events)
    command = ["stream", "--weights", weights, "--input", str(path), "--crop", "100,60", "--pool", "2", "--quiet"]
    assert main(command) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["class"] == f"digit {int(expected.predict().argmax())}"
    for command in (["--crop", "340,250"], ["--repair", "drop"]):
        assert main(["stream", "--weights", weights, "--input", str(path), *command]) == 0
        assert capsys.readouterr() == ("", "no events arrived. Check the input, --crop and --repair.\n")
    assert main(["stream", "--weights", weights, "--input", str(path)]) == 1
    assert "34 x 34" in capsys.readouterr().err


def test_what_was_not_taken_is_told_where_no_event_came(capsys):
    from gridless.cli import stream as command

    command.Meter(False, lambda: {"bad": 2}).close("udp: no frame")
    assert capsys.readouterr().err.endswith(", bad 2\nnot taken: udp: no frame\n")
    command.Meter(False, lambda: {"bad": 0}).close("")
    assert capsys.readouterr().err == ""


def test_lag_is_never_negative_and_statistics_tell_the_clocks_apart(events, monkeypatch):
    """A sensor whose clock runs twice as fast as ours, and stands still, and runs slower."""
    from gridless.cli import stream as command

    now = 100.0
    monkeypatch.setattr(command.time, "perf_counter", lambda: now)
    meter = command.Meter(True, dict)
    for sensor, step in ((0, 0.125), (250_000, 0.125), (500_000, 0.125), (500_000, 0.5), (625_000, 1.0)):
        begin = now
        now += step
        meter.tick(at(sensor), begin, begin)
        assert meter.lag >= step
    # One part in 10,000 of the 1.5 s since the third packet may be the clocks'.
    assert meter.lag == meter.longest_lag == pytest.approx(1.5 - 1.5e-4)
    assert "0.625 s of sensor time in 1.875 s" in meter.line()
    assert re.match("5 events, 0.00 M events/s of work, packet p50 125000 us, ", meter.line())
    assert meter.line().endswith(" s, lag 1499.8 ms, at most 1499.8 ms")
    meter.restart()
    meter.tick(at(0), now, now)
    assert meter.lag == pytest.approx(0.0)
