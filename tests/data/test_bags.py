"""Recordings of ROS 1 and ROS 2: events and clouds."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
import torch

pytest.importorskip("rosbags")

from bag_files import KINDS, array, cloud, packet, store, write

import gridless as gl
from gridless.data import FormatError
from gridless.data.readers.events import read_packets


def evt3(events: list[tuple[int, int, int, int]], known: tuple[int, int] = (-1, -1)) -> bytes:
    """x, y, t, p as words of EVT3; `known` are time and row that earlier words said."""
    words, (before, row) = [], known
    for x, y, t, p in events:
        if t != before:
            if t >> 12 != before >> 12 or before < 0:
                words.append(0x8000 | t >> 12 & 0xFFF)
            words.append(0x6000 | t & 0xFFF)
            before = t
        if y != row:
            words.append(y)
            row = y
        words.append(0x2000 | p << 11 | x)
    return np.array(words, "<u2").tobytes()


EVENTS = [(i % 640, i * 7 % 480, 5000 + 13 * i, i % 2) for i in range(300)]


def check(events: gl.Events, rows=EVENTS) -> None:
    assert events.sensor == (640, 480)
    assert events.pixel.tolist() == [[x, y] for x, y, _, _ in rows]
    assert events.time.tolist() == [t for _, _, t, _ in rows]
    assert events.polarity is not None
    assert events.polarity.tolist() == [bool(p) for _, _, _, p in rows]


def mono(rows, base: int, order: str) -> bytes:
    """x, y, t in microseconds, p as words of 64 bits from `base` nanoseconds on."""
    return b"".join(struct.pack(f"{order}Q", p << 63 | y << 48 | x << 32 | 1000 * t - base) for x, y, t, p in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_packets_of_evt3_continue_each_other(kind, tmp_path):
    types = store(kind == "bag")
    parts, known = [], (-1, -1)
    for i in range(0, 300, 7):
        part = EVENTS[i : i + 7]
        # Time and row are said once, and hold over the end of a packet.
        parts.append(evt3(part, known))
        known = part[-1][2], part[-1][1]
    messages = [("/events", packet(types, data, seq=i)) for i, data in enumerate(parts)]
    path = write(tmp_path / f"a.{kind}", messages)
    check(gl.read_events(path))
    if kind == "mcap":
        check(gl.read_events(path, topic="/events", isolated=True))
    pieces = list(read_packets(path))
    assert len(pieces) == len(parts)
    assert [t for piece in pieces for t in piece.time.tolist()] == [t for _, _, t, _ in EVENTS]
    if kind != "bag":
        check(gl.read_events(tmp_path / "a-folder"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("big", [False, True])
def test_reads_mono_in_both_orders_of_bytes(kind, big, tmp_path):
    types = store(kind == "bag")
    base = 4_000_123
    messages = [
        ("/a", packet(types, mono(EVENTS[i : i + 50], base + i, ">" if big else "<"), "mono", i // 50, base + i, big))
        for i in range(0, 300, 50)
    ]
    check(gl.read_events(write(tmp_path / f"a.{kind}", messages)))


def test_reads_the_events_of_libcaer(tmp_path):
    types = store(False)
    rows = [(x, y, t + 10**9, p) for x, y, t, p in EVENTS]
    data = b"".join(struct.pack("<II", x << 17 | y << 2 | p << 1 | 1, t - 10**9) for x, y, t, p in rows)
    check(gl.read_events(write(tmp_path / "a.mcap", [("/a", packet(types, data, "libcaer", 0, 10**12))])), rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("package", ["dvs_msgs", "prophesee_event_msgs"])
def test_reads_arrays_of_events(kind, package, tmp_path):
    types = store(kind == "bag")
    rows = [(x, y, t + 1_600_000_000_000_000, p) for x, y, t, p in EVENTS]
    parts = [[(x, y, 1000 * t, bool(p)) for x, y, t, p in rows[i : i + k]] for i, k in ((0, 1), (1, 2), (3, 297))]
    messages = [("/dvs/events", array(types, package, part)) for part in (*parts[:2], [], parts[2])]
    check(gl.read_events(write(tmp_path / f"a.{kind}", messages)), rows)


def test_the_definition_in_a_bag_goes_before_the_usual_one(tmp_path):
    """Some programs write the same fields in another order."""
    from rosbags import rosbag1
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    types = get_typestore(Stores.ROS1_NOETIC)
    event = "time ts\nuint16 x\nuint16 y\nbool polarity\n"
    types.register(get_types_from_msg(event, "dvs_msgs/msg/Event"))
    outer = "std_msgs/Header header\ndvs_msgs/Event[] events\nuint32 height\nuint32 width\n"
    types.register(get_types_from_msg(outer, "dvs_msgs/msg/EventArray"))
    time, known = types.types["builtin_interfaces/msg/Time"], types.types
    events = [known["dvs_msgs/msg/Event"](time(0, 1000 * t), x, y, bool(p)) for x, y, t, p in EVENTS]
    head = known["std_msgs/msg/Header"](0, time(0, 0), "")
    message = known["dvs_msgs/msg/EventArray"](head, events, 480, 640)
    with rosbag1.Writer(tmp_path / "a.bag") as writer:
        connection = writer.add_connection("/e", "dvs_msgs/msg/EventArray", typestore=types)
        writer.write(connection, 1, types.serialize_ros1(message, "dvs_msgs/msg/EventArray"))
    check(gl.read_events(tmp_path / "a.bag"))


@pytest.mark.parametrize("packed", [False, True])
def test_bags_without_definitions_are_read_by_the_usual_ones(packed, tmp_path):
    """As ROS 2 wrote them up to Humble; messages may be packed one by one."""
    import sqlite3

    import zstandard

    types = store(False)
    array_kind, packet_kind = "dvs_msgs/msg/EventArray", "event_camera_msgs/msg/EventPacket"
    data = [
        types.serialize_cdr(array(types, "dvs_msgs", [(x, y, 1000 * t, bool(p)) for x, y, t, p in EVENTS]), array_kind),
        types.serialize_cdr(packet(types, evt3(EVENTS)), packet_kind),
        types.serialize_cdr(cloud(types, lidar(9)), "sensor_msgs/msg/PointCloud2"),
    ]
    names = [("/a", array_kind), ("/b", packet_kind), ("/c", "sensor_msgs/msg/PointCloud2")]
    with sqlite3.connect(tmp_path / "a.db3") as base:
        base.execute(
            "CREATE TABLE topics(id INTEGER PRIMARY KEY, name, type, serialization_format, offered_qos_profiles)"
        )
        base.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id, timestamp, data BLOB)")
        for i, ((topic, kind), raw) in enumerate(zip(names, data)):
            raw = zstandard.compress(bytes(raw)) if packed else bytes(raw)
            base.execute("INSERT INTO topics VALUES(?, ?, ?, 'cdr', '')", (i, topic, kind))
            base.execute("INSERT INTO messages VALUES(?, ?, ?, ?)", (i, i, i, raw))
    base.close()
    check(gl.read_events(tmp_path / "a.db3", topic="/a"))
    check(gl.read_events(tmp_path / "a.db3", topic="/b"))
    assert len(gl.read_cloud(tmp_path / "a.db3")) == 9


def test_lost_packets_are_said_and_events_without_a_row_are_left_out(tmp_path):
    types = store(False)
    parts = [evt3(EVENTS[:3]), evt3(EVENTS[5:8], (EVENTS[4][2], EVENTS[5][1]))]
    messages = [("/e", packet(types, data, seq=seq)) for seq, data in zip((0, 4), parts)]
    path = write(tmp_path / "a.mcap", messages)
    with pytest.warns(UserWarning, match="3 packets of '/e'"):
        events = gl.read_events(path)
    # The first event behind the gap lies in a row that a lost packet said.
    check(events, EVENTS[:3] + EVENTS[6:8])


@pytest.mark.parametrize("kind", KINDS)
def test_an_ambiguous_topic_is_refused_with_the_list(kind, tmp_path):
    types = store(kind == "bag")
    data = evt3(EVENTS)
    messages = [("/left", packet(types, data)), ("/right", packet(types, data)), ("/right", packet(types, b"", seq=1))]
    table = np.ones(3, [("x", "<f4"), ("y", "<f4"), ("z", "<f4")])
    path = write(tmp_path / f"a.{kind}", [*messages, ("/lidar", cloud(types, table))])
    counts = r"/left \(1 event_camera_msgs/EventPacket\), /right \(2 event_camera_msgs/EventPacket\)"
    with pytest.raises(FormatError, match=rf"topic=.*{counts}"):
        gl.read_events(path)
    check(gl.read_events(path, topic="/right"))
    with pytest.raises(FormatError, match=rf"'/lidar' .*sensor_msgs/PointCloud2.*{counts}"):
        gl.read_events(path, topic="/lidar")
    with pytest.raises(FormatError, match=rf"'/up'.*{counts}"):
        gl.read_events(path, topic="/up")
    assert len(gl.read_cloud(path)) == 3
    with pytest.raises(FormatError, match=r"'/lidar' .*message 1"):
        gl.read_cloud(path, message=1)


def test_a_bag_without_events_says_what_it_holds(tmp_path):
    types = store(True)
    table = np.ones(3, [("x", "<f4"), ("y", "<f4"), ("z", "<f4")])
    path = write(tmp_path / "a.bag", [("/lidar", cloud(types, table))])
    with pytest.raises(FormatError, match=r"no topic .*/lidar \(1 sensor_msgs/PointCloud2\)"):
        gl.read_events(path)


def test_other_files_have_no_topics(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 3), np.float32))
    with pytest.raises(FormatError, match="no topics"):
        gl.read_cloud(tmp_path / "a.npy", topic="/lidar")
    with pytest.raises(FormatError, match="no topics"):
        gl.read_events(tmp_path / "a.npy", topic="/events")


LIDAR = np.dtype(
    {
        "names": ["x", "y", "z", "intensity", "ring", "time", "rgb", "pair"],
        "formats": ["<f4", "<f4", "<f4", "<f4", "<u2", "<f8", "<u4", ("<i2", 2)],
        "offsets": [0, 4, 8, 16, 20, 24, 32, 36],
        "itemsize": 48,
    }
)


def lidar(count: int, kind: np.dtype = LIDAR) -> np.ndarray:
    random, table = np.random.default_rng(0), np.zeros(count, kind)
    for name in ("x", "y", "z", "intensity", "time"):
        table[name] = random.random(count)
    table["ring"], table["rgb"] = np.arange(count) * 300, 0x010203
    table["pair"] = np.arange(2 * count).reshape(count, 2) - 5
    return table


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "pad"), [(1, 0), (4, 0), (4, 24)])
def test_a_cloud_has_all_its_fields_as_rows(kind, rows, pad, tmp_path):
    types, table = store(kind == "bag"), lidar(20)
    table["x"][3] = np.nan
    path = write(tmp_path / f"a.{kind}", [("/points", cloud(types, table, rows, pad))])
    read = gl.read_cloud(path)
    coords = np.stack([table[axis] for axis in "xyz"], 1)
    assert np.array_equal(read.coords, coords, equal_nan=True)
    assert read.coords.dtype == torch.float32
    for name in ("intensity", "ring", "time", "pair"):
        assert read.rows[name].tolist() == table[name].tolist()
    assert read.rows["rgb"].tolist() == [[1, 2, 3]] * 20


def test_a_cloud_in_the_other_order_of_bytes_is_the_same(tmp_path):
    types, table = store(False), lidar(20)
    swapped = table.astype(LIDAR.newbyteorder(">"))
    one = gl.read_cloud(write(tmp_path / "a.mcap", [("/p", cloud(types, table))]))
    other = gl.read_cloud(write(tmp_path / "b.mcap", [("/p", cloud(types, swapped, big=True))]))
    assert torch.equal(one.coords, other.coords)
    for name in one.rows:
        assert torch.equal(one.rows[name], other.rows[name])


def test_messages_of_a_topic_are_chosen_by_number(tmp_path):
    types = store(False)
    path = write(tmp_path / "a.db3", [("/p", cloud(types, lidar(n))) for n in (5, 6, 7)])
    assert [len(gl.read_cloud(path, message=n)) for n in (0, 1, 2, -1, -3)] == [5, 6, 7, 7, 5]
    with pytest.raises(FormatError, match=r"3 messages.* -4"):
        gl.read_cloud(path, message=-4)


def test_clouds_that_do_not_hold_what_they_say_are_refused(tmp_path):
    types = store(False)
    message = cloud(types, lidar(20))
    for name, value in (("width", 21), ("point_step", 0)):
        path = write(tmp_path / f"{name}.mcap", [("/p", type(message)(**{**vars(message), name: value}))])
        with pytest.raises(FormatError, match="points of"):
            gl.read_cloud(path)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_a_bag(kind, tmp_path):
    types = store(kind == "bag")
    data = mono([(1, 2, 10, 1)] * 20_000, 0, "<")

    def peak(count: int) -> int:
        messages = [("/e", packet(types, data, "mono", i, 10**6 * i)) for i in range(count)]
        path = write(tmp_path / f"{count}.{kind}", messages)
        del messages
        tracemalloc.start()
        try:
            assert sum(len(piece) for piece in read_packets(path)) == 20_000 * count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    assert peak(60) < peak(6) + (2 << 20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_bag_is_refused(kind, tmp_path):
    types = store(kind == "bag")
    whole = write(tmp_path / f"a.{kind}", [("/e", packet(types, evt3(EVENTS)))]).read_bytes()
    for data in (whole[:100], whole[: len(whole) // 2], b""):
        (tmp_path / f"b.{kind}").write_bytes(data)
        with pytest.raises(FormatError, match=rf"b\.{kind}"):
            gl.read_events(tmp_path / f"b.{kind}")


def test_a_folder_of_bags_is_a_data_set(tmp_path):
    types = store(False)
    work = tmp_path / "work"
    work.mkdir()
    for name in ("wave", "clap"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            messages = [("/left", packet(types, evt3(EVENTS))), ("/right", packet(types, evt3(EVENTS[: 9 + i])))]
            write(work / f"{name}{i}.mcap", messages).rename(tmp_path / "data" / name / f"{i}.mcap")
    data = gl.data.EventFolder(tmp_path / "data", "train", topic="/right")
    assert data.class_names == ["clap", "wave"]
    assert sorted(len(events) for events, _ in data) == [9, 9, 10, 10, 11, 11]
    with pytest.raises(ValueError, match=r"6 of 6 files.*/left \(1 "):
        gl.data.EventFolder(tmp_path / "data", "train")


def test_a_folder_of_bags_with_clouds_is_a_data_set(tmp_path):
    types = store(False)
    work = tmp_path / "work"
    work.mkdir()
    for name in ("car", "van"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(2):
            messages = [("/top", cloud(types, lidar(30 + i))), ("/rear", cloud(types, lidar(9)))]
            write(work / f"{name}{i}.db3", messages).rename(tmp_path / "data" / name / f"{i}.db3")
    data = gl.data.CloudFolder(tmp_path / "data", "train", topic="/top", features=["intensity"])
    assert data.sizes.tolist() == [30, 31, 30, 31]


def test_a_recording_is_streamed_from_a_bag_as_from_another_file(tmp_path):
    from gridless.live.sources import recording

    types = store(False)
    rows = [(i % 600, i % 400, 1000 + 97 * i, i % 2) for i in range(500)]
    messages, known = [], (-1, -1)
    for i in range(0, 500, 33):
        part = rows[i : i + 33]
        messages.append(("/e", packet(types, evt3(part, known), seq=i // 33)))
        known = part[-1][2], part[-1][1]
    path = write(tmp_path / "a.mcap", messages)
    gl.write_events(tmp_path / "a.npz", gl.read_events(path))
    whole = list(recording(tmp_path / "a.npz", None, 1000))
    pieces = list(recording(path, None, 1000, topic="/e"))
    assert [piece.time.tolist() for piece in pieces] == [piece.time.tolist() for piece in whole]
    assert [piece.pixel.tolist() for piece in pieces] == [piece.pixel.tolist() for piece in whole]


def test_a_bag_is_drawn(tmp_path):
    from gridless.pictures import read

    types = store(False)
    table = cloud(types, lidar(20))
    path = write(tmp_path / "a.mcap", [("/e", packet(types, evt3(EVENTS))), ("/p", table)])
    check(read(path))
    assert len(read(path, "/p")) == 20
    assert len(read(write(tmp_path / "b.mcap", [("/p", table)]))) == 20
