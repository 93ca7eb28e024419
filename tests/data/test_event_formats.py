"""Event files: what the readers return, and what they refuse."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from event_encoders import flat_table

import gridless as gl
from gridless.data import FormatError

# Counted, and compared event by event, with independent decoders.
SAMPLES = {
    "dvs.es": (473225, (320, 240)),
    "dvs128_aedat2.aedat": (160245, (128, 128)),
    "evt2.raw": (521252, (640, 480)),
    "evt3_sample.raw": (219596, (1280, 720)),
    "ncars_sample.dat": (2009, (304, 240)),
    "nmnist_train_00001.bin": (4681, (34, 34)),
    "sample.aedat4": (111954, (320, 240)),
}


def test_every_format_returns_what_was_written(event_format, tmp_path: Path):
    suffix, events, data = event_format
    path = tmp_path / f"file{suffix}"
    path.write_bytes(data)
    back = gl.read_events(path, sensor=events.sensor)
    assert np.array_equal(back.numpy(), events.numpy())
    assert back.pixel.dtype == torch.int32
    assert back.time.dtype == torch.int64


def test_of_a_file_that_was_cut_off_what_is_whole_can_be_kept(event_format, tmp_path: Path):
    suffix, events, data = event_format
    if suffix in (".mat", ".h5", ".npy", ".npz"):
        pytest.skip("nothing can be read of half a file of this format")
    path, refused = tmp_path / f"file{suffix}", ""
    for end in (*range(len(data) * 3 // 4, len(data) * 3 // 4 + 9), len(data) - 1):
        path.write_bytes(data[:end])
        repaired = gl.read_events(path, events.sensor, "cut").numpy()
        assert np.array_equal(repaired, events.numpy()[: len(repaired)])
        assert len(repaired) > 0.4 * len(events) or "aedat" in suffix
        try:
            gl.read_events(path, events.sensor)
        except FormatError as error:
            refused += str(error)
    assert "repair='cut'" in refused or suffix == ".csv"
    with pytest.raises(ValueError, match="repair 'cut'"):
        gl.Events.of(events, repair="cut")


def test_events_in_the_place_of_the_path_are_refused_with_the_order(tmp_path: Path):
    events = gl.Events.of([{"t": 1, "x": 2, "y": 3, "p": 1}], sensor=(4, 4))
    with pytest.raises(TypeError, match=r"str.*gl.write_events\(path, events\)"):
        gl.write_events(events, str(tmp_path / "a.npy"))  # type: ignore[arg-type]


def test_rows_are_written_and_read_or_refused(tmp_path: Path):
    array = {"t": np.array([5, 3, 9]), "x": np.array([1, 2, 3]), "y": np.zeros(3, int), "p": np.ones(3, int)}
    events = gl.Events.of(array, (8, 8), "sort", weight=[5.0, 3.0, 9.0], colour=torch.zeros(3, 3, dtype=torch.uint8))
    gl.write_events(tmp_path / "a.npz", events)
    back = gl.read_events(tmp_path / "a.npz", repair="shift")
    assert back.rows["weight"].tolist() == [3.0, 5.0, 9.0]
    assert back.rows["colour"].shape == (3, 3)
    for suffix in (".npy", ".csv", ".es", ".dat", ".bin"):
        with pytest.raises(ValueError, match=r"weight, colour.*\.npz"):
            gl.write_events(tmp_path / f"a{suffix}", events)
        assert not (tmp_path / f"a{suffix}").exists()
    np.savez(tmp_path / "b.npz", **array, **{"rows.weight": np.zeros(2)})
    with pytest.raises(gl.data.FormatError, match=r"b\.npz.*weight .*\(2,\).* 3"):
        gl.read_events(tmp_path / "b.npz")


def test_content_counts_more_than_the_suffix(event_format, tmp_path: Path):
    suffix, events, data = event_format
    if suffix == ".bin":
        pytest.skip("nothing in it to know it by")
    path = tmp_path / "file.unknown"
    path.write_bytes(data)
    assert len(gl.read_events(path)) == len(events)


@pytest.mark.parametrize(("name", "count", "sensor"), [(n, *v) for n, v in SAMPLES.items()])
def test_real_recordings_decode(shared_data: Path, name, count, sensor):
    events = gl.read_events(shared_data / "formats" / name)
    events.check()
    assert len(events) == count
    assert events.sensor == sensor
    assert 0.2 < events.polarity.float().mean() < 0.8
    assert events.pixel.float().std(0).min() > 1


def test_a_recording_of_nmnist_is_the_first_of_the_pack(shared_data: Path):
    events = gl.read_events(shared_data / "formats" / "nmnist_train_00001.bin")
    assert events.numpy()[:3].tolist() == [(893, 18, 16, True), (1060, 20, 17, True), (2443, 17, 9, False)]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# Counters that wrap.


def test_a_32_bit_counter_that_wraps_goes_on_counting(tmp_path: Path):
    stamps = [2**32 - 3, 2**32 - 1, 2, 5, 3 * 2**30, 2**32 - 1, 7]
    times = [2**32 - 3, 2**32 - 1, 2**32 + 2, 2**32 + 5, 7 * 2**30, 2 * 2**32 - 1, 2 * 2**32 + 7]
    pairs = np.array([[0x101 * i, t] for i, t in enumerate(stamps)], ">u4")
    events = gl.read_events(_write(tmp_path / "a.aedat", b"#!AER-DAT2.0\r\n" + pairs.tobytes()))
    assert events.time.tolist() == times
    pairs = np.array([[t, i] for i, t in enumerate(stamps)], "<u4")
    head = b"% Data file containing CD events.\n% Version 2\n" + bytes([12, 8])
    assert gl.read_events(_write(tmp_path / "a.dat", head + pairs.tobytes())).time.tolist() == times


def test_events_from_before_a_32_bit_counter_wrapped_may_come_late(tmp_path: Path):
    pairs = np.array([[t, 0] for t in (2**32 - 9, 3, 2**32 - 4, 4, 2**28)], "<u4")
    path = _write(tmp_path / "a.dat", b"% Data file containing CD events.\n% Version 2\n\x0c\x08" + pairs.tobytes())
    times = [2**32 - 9, 2**32 - 4, 2**32 + 3, 2**32 + 4, 2**32 + 2**28]
    assert gl.read_events(path, repair="sort").time.tolist() == times
    with pytest.raises(ValueError, match="after 4294967299"):
        gl.read_events(path)


def test_evt2_goes_on_after_34_bits(tmp_path: Path):
    words = np.array([0x8 << 28 | 0xFFFFFFF, 0x1 << 28 | 63 << 22, 0x8 << 28, 0x1 << 28 | 1 << 22], "<u4")
    events = gl.read_events(_write(tmp_path / "a.raw", b"% evt 2.0\n" + words.tobytes()))
    assert events.time.tolist() == [2**34 - 1, 2**34 + 1]


def test_evt3_goes_on_after_24_bits(tmp_path: Path):
    words = [0x8FFF, 0x6FFF, 0x0007, 0x2005, 0x8000, 0x6001, 0x2806]
    events = gl.read_events(_write(tmp_path / "a.raw", b"% evt 3.0\n" + np.array(words, "<u2").tobytes()))
    assert events.numpy().tolist() == [(2**24 - 1, 5, 7, False), (2**24 + 1, 6, 7, True)]


def test_evt3_vectors_are_neighbours_from_the_lowest_bit(tmp_path: Path):
    words = [0x8000, 0x6009, 0x0003, 0x3000 | 0x800 | 100, 0x4801, 0x5081]
    events = gl.read_events(_write(tmp_path / "a.raw", b"% evt 3.0\n" + np.array(words, "<u2").tobytes()))
    assert events.pixel.tolist() == [[100, 3], [111, 3], [112, 3], [119, 3]]
    assert events.polarity.all()


def test_events_before_the_first_time_are_left_out(tmp_path: Path):
    words = np.array([0x1 << 28, 0x8 << 28 | 5, 0x1 << 28 | 2 << 22], "<u4")
    assert gl.read_events(_write(tmp_path / "a.raw", b"% evt 2.0\n" + words.tobytes())).time.tolist() == [322]
    words = np.array([0x0003, 0x2005, 0x8001, 0x6002, 0x2006], "<u2")
    assert gl.read_events(_write(tmp_path / "b.raw", b"% evt 3.0\n" + words.tobytes())).pixel.tolist() == [[6, 3]]


def test_aedat3_extends_its_times_by_the_overflow_counter(tmp_path: Path):
    head = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#!END-HEADER\r\n"
    body = b""
    for overflow, stamp in ((0, 2**31 - 1), (1, 4)):
        body += np.array([1 << 16 | 1, 8, 4, overflow, 1, 1, 1], "<u4").tobytes()
        body += np.array([5 << 17 | 6 << 2 | 3, stamp], "<u4").tobytes()
    events = gl.read_events(_write(tmp_path / "a.aedat", head + body))
    assert events.numpy().tolist() == [(2**31 - 1, 5, 6, True), (2**31 + 4, 5, 6, True)]
    assert events.sensor == (128, 128)


# Entries that are left out.


def test_overflow_markers_of_nmnist_are_no_events(tmp_path: Path):
    rows = np.array([[1, 2, 0x80, 0, 5], [9, 240, 0, 0, 6], [3, 4, 0, 1, 0]], np.uint8)
    events = gl.read_events(_write(tmp_path / "a.bin", rows.tobytes()))
    assert events.numpy().tolist() == [(5, 1, 2, True), (256, 3, 4, False)]


def test_exposure_measurements_of_an_atis_are_no_events(tmp_path: Path):
    head = b"Event Stream" + bytes([2, 0, 0, 2]) + np.array([320, 240], "<u2").tobytes()
    body = b"\xfe\x0a\x01\x00\x02\x00" + b"\xfc\x05\x03\x00\x04\x00" + b"\xff\xfd\x04\x01\x00\x02\x00"
    assert gl.read_events(_write(tmp_path / "a.es", head + body)).numpy().tolist() == [
        (128, 1, 2, True),
        (382, 1, 2, False),
    ]


# Text.


@pytest.mark.parametrize(
    "text",
    [
        "t,x,y,p\n10,1,2,1\n20,3,4,0\n",
        "10,1,2,1\n20,3,4,0\n",
        "1,2,1,10\r\n3,4,0,20\r\n",
        "# made by hand\n%geometry:8,8\nPolarity; Y;X ;Timestamp\n1;2;1;10\n0;4;3;20",
        "0.000010 1 2 1\n0.0000204 3 4 0\n",
        "on\tx\ty\tts\textra\n1\t1\t2\t10\t7\n-1\t3\t4\t20\t7\n\n",
        "t, x, y, p,\n10 , 1, 2, 1,\r\n20,\t3, 4, 0\n",
        " t  x  y p\n 10  1  2 1 \n20 3 4 0\n",
        "1.000e+01 1.000e+00 2.000e+00 1.000e+00\n2.000e+01 3.000e+00 4.000e+00 0.000e+00\n",
        "t,x,y,p\n1.00e-05,1,2,1\n2.0e-5,3,4,-1\n",
        "0.00001;1;2;1\n2E-5;3;4;0\n",
        "\ufefft,x,y,p\r\n10,1,2,1\r\n20,3,4,0\r\n",
        "# times in µs\nt x y p\n\n10 1 2 1\n20 3 4 0\n",
        "\n" * 50 + "x,y,t,p,time of day\n1,2,10,1,0\n3,4,000000000000000000000020,0,0\n" + "\n" * 50,
    ],
)
def test_text_is_read_in_any_order_of_columns(tmp_path: Path, text):
    events = gl.read_events(_write(tmp_path / "a.csv", text.encode()))
    assert events.numpy().tolist() == [(10, 1, 2, True), (20, 3, 4, False)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t,x,y,p\n1,2,3\n", "columns"),
        ("t,x,y,p\n1,2,3,1\n1,2,oops,1\n", "line 3"),
        ("t,x,y,p\n1,2,3,1\n1,2,3,1,5\n", "line 3 .*4 columns"),
        ("t,x,y,p,q\n1,2,3,1\n", "4 columns.* 5 "),
        ("t,x,y,p\n1,2,3,1,5\n", "5 columns.* 4 "),
        ("q,t,x,y,p\n,1,2,3,1\n", "line 2 .*empty"),
        ("t,x,y,p,q\n1,2,3,1,5\n1,,2,3,1\n", "line 3 .*empty"),
        ("t,x,y,p,q\n1,2,3,1,5\n1,2,3,1,\n", "line 3 .*5 columns"),
        ("t,x,y,p\n1,2,3,1\n,,,\n", "line 3 .*empty"),
        ("1\t\t2\t3\t1\n2\t\t2\t3\t0\n", "empty"),
        ("1,2 3,4,1\n", "line 1"),
        ("t;x;y;p\n1,5;2;3;1\n", "line 2"),
        ("t,x,y,p\n9223372036854775808,2,3,1\n", "too large"),
        ("t,x,y,p\n1,2,3,7\n", "polarity"),
        ("a,x,y,p\n1,2,3,1\n", "column is t"),
        ("1,0,1,0\n", "t,x,y,p"),
        ("t,x,y,p\n1,2.5,3,1\n", "decimal"),
        ("t,x,y,p\n99999999999999999999,2,3,1\n", "too large"),
        ("t,x,y,p\n1e1,2.5e-1,3e0,1e0\n", "decimal"),
        ("t,x,y,p\n1.5e-1,2.5e-1,3e0,1e0\n", "only times"),
        ("t,x,y,p\n1e300,2e0,3e0,1e0\n", "too large"),
        ("t,x,y,p\n1e0,2e0,3e0,1e0\n2e0,nan,3e0,1e0\n", "only times|too large"),
        ("t,x,y,p\n1e0,2e0,3e0,1e0\n2e0,3e0,1e0\n", "columns"),
    ],
)
def test_text_that_is_no_table_of_events_is_refused(tmp_path: Path, text, message):
    with pytest.raises(FormatError, match=message):
        gl.read_events(_write(tmp_path / "a.csv", text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        "t,x,y,p\n10,1,2,True\n20,3,4,False\n",
        "10 1 2 true\n20 3 4 FALSE\n",
        "t,x,y,p\n10,1.0,2.0,1.0\n20,3.0,4.0,0.0\n",
        "t,x,y,p\n10,1.0,2,1\n20,3.0,4,0\n",
        "x,y,t,p\n1.0,2.0,0.00001,True\n3.0,4.0,0.00002,False\n",
    ],
)
def test_text_with_booleans_and_whole_numbers_as_decimals(tmp_path: Path, text):
    events = gl.read_events(_write(tmp_path / "a.csv", text.encode()))
    assert events.numpy().tolist() == [(10, 1, 2, True), (20, 3, 4, False)]


# HDF5.


def test_hdf5_layouts_in_use(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    t, x, y, p = np.array([10, 20]), np.array([1, 3]), np.array([2, 4]), np.array([1, 0])
    table = np.zeros(2, [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])
    table["x"], table["y"], table["p"], table["t"] = x, y, p, t
    layouts = {
        "top": {"x": x, "y": y, "t": t, "p": p},
        "offset": {"events/x": x, "events/y": y, "events/t": t - 7, "events/p": p, "t_offset": np.int64(7)},
        "seconds": {"events/xs": x, "events/ys": y, "events/ts": t / 1e6, "events/ps": p.astype(bool)},
        "table": {"CD/events": table},
        "columns": {"events": np.stack([t, x, y, p], 1).astype(np.uint32)},
        "mvsec": {
            "davis/left/events": np.stack([x, y, t / 1e6, 2.0 * p - 1], 1),
            "davis/right/events": np.zeros((1, 4)),
        },
    }
    for name, content in layouts.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for key, value in content.items():
                file[key] = value
            file.attrs["width"], file.attrs["height"] = 640, 480
        events = gl.read_events(tmp_path / f"{name}.h5")
        assert events.numpy().tolist() == [(10, 1, 2, True), (20, 3, 4, False)], name
        assert events.sensor == (640, 480)


@pytest.mark.parametrize("kind", ["u4", "i8", "f8"])
@pytest.mark.parametrize("order", ["txyp", "xytp"])
def test_hdf5_columns_are_known_by_times_that_never_step_back(tmp_path: Path, order, kind):
    h5py = pytest.importorskip("h5py")
    values = {"t": [10, 20, 20], "x": [7, 5, 6], "y": [4, 3, 9], "p": [1, 0, 1]}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["events"] = np.stack([values[name] for name in order], 1).astype(kind)
    assert gl.read_events(tmp_path / "a.h5").numpy().tolist() == [(10, 7, 4, 1), (20, 5, 3, 0), (20, 6, 9, 1)]


def test_hdf5_times_are_seconds_unless_all_are_whole(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    for times in ([10.0, 20.0], [0.00001, 0.00002]):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"], file["y"], file["p"], file["t"] = [1, 3], [2, 4], [1.0, 0.0], times
        assert gl.read_events(tmp_path / "a.h5").time.tolist() == [10, 20]


def test_hdf5_refuses_a_stream_that_it_does_not_know(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["davis/left/events"] = file["davis/right/events"] = [[1.0, 2.0, 0.5, 1.0]]
    assert len(gl.read_events(tmp_path / "a.h5", stream=1)) == 1
    with pytest.raises(FormatError, match="stream 2"):
        gl.read_events(tmp_path / "a.h5", stream=2)


@pytest.mark.parametrize("way", ["external link", "soft link", "external storage", "virtual dataset"])
def test_hdf5_that_leads_to_other_files_is_refused_unopened(tmp_path: Path, way):
    h5py = pytest.importorskip("h5py")
    other, path = tmp_path / "other.h5", tmp_path / "a.h5"
    os.mkfifo(other)  # to open it would wait for ever
    with h5py.File(path, "w") as file:
        if way == "external link":
            file["events"] = h5py.ExternalLink(str(other), "/events")
        elif way == "soft link":
            file["elsewhere"] = h5py.ExternalLink(str(other), "/events")
            file["events"] = h5py.SoftLink("/elsewhere")
        elif way == "external storage":
            for name in "xytp":
                file.create_dataset(f"events/{name}", (2,), "i4", external=[(str(other), 0, 8)])
        else:
            layout = h5py.VirtualLayout((2,), "i4", maxshape=(None,))
            layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource(str(other), "x", (2,), maxshape=(None,))[
                : h5py.h5s.UNLIMITED
            ]
            for name in "xytp":
                file.create_virtual_dataset(f"events/{name}", layout)
    with pytest.raises(FormatError, match=r"events.*(link|other files)"):
        gl.read_events(path)


@pytest.mark.parametrize(("t", "offset"), [(2**63 + 5, 7), (5, 2**63 - 3), (5, -(2**62))])
def test_hdf5_times_that_64_bits_do_not_hold_are_refused(tmp_path: Path, t, offset):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "xyp":
            file[f"events/{name}"] = np.array([0])
        file["events/t"], file["t_offset"] = np.array([t], np.uint64), np.int64(offset)
    with pytest.raises(FormatError, match="time"):
        gl.read_events(tmp_path / "a.h5")


def test_hdf5_attributes_are_left_alone_where_the_caller_gives_the_sensor(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "xytp":
            file[f"events/{name}"] = np.array([0, 1])
        file.attrs["width"], file.attrs["height"] = -5, 0
    with pytest.raises(FormatError, match=r"sensor .*-5 x 0"):
        gl.read_events(tmp_path / "a.h5")
    assert gl.read_events(tmp_path / "a.h5", sensor=(2, 2)).time.tolist() == [0, 1]


# Limits.


def _bombs() -> dict[str, bytes]:
    """Small files that unpack to 30 MB or more."""
    zeros = bytes(30_000_000)
    out = {}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in "xytp":
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, {"descr": "<i8", "fortran_order": False, "shape": (1_250_000,)})
            file.writestr(f"{name}.npy", head.getvalue() + zeros[:10_000_000], compresslevel=1)
    out["a.npz"] = archive.getvalue()
    element = struct.pack("<IIIIIIIIII", 6, 8, 6, 0, 5, 8, 3_750_000, 1, 1 << 16 | 1, ord("x"))
    element += struct.pack("<II", 9, len(zeros)) + zeros
    packed = zlib.compress(struct.pack("<II", 14, len(element)) + element, 1)
    out["a.mat"] = b"MATLAB".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed
    for name, compression, library in (("a.aedat4", 3, "zstandard"), ("b.aedat4", 1, "lz4.frame")):
        module = pytest.importorskip(library)
        packed = (module.compress if compression == 1 else module.ZstdCompressor().compress)(zeros)
        text = b'<dv><node name="outInfo"><node name="0"><attr key="typeIdentifier">EVTS</attr></node></node></dv>'
        head = flat_table(b"IOHE", struct.pack("<i", compression), struct.pack("<q", -1), vector=text, count=len(text))
        out[name] = b"#!AER-DAT4.0\r\n" + head + struct.pack("<ii", 0, len(packed)) + packed
    return out


def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path):
    for name, data in _bombs().items():
        assert len(data) < 200_000
        path = _write(tmp_path / name, data)
        with pytest.raises(FormatError, match=r"unpacks .*25000000.*max_bytes"):
            gl.read_events(path, max_bytes=25_000_000)
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "xytp":
            file.create_dataset(name, (10_000_000,), "i8", chunks=(1000,))
    with pytest.raises(FormatError, match="max_bytes"):
        gl.read_events(tmp_path / "a.h5")


def test_the_limit_can_be_raised_and_lowered(event_format, tmp_path: Path):
    suffix, events, data = event_format
    path = _write(tmp_path / f"file{suffix}", data)
    assert len(gl.read_events(path, max_bytes=10**12)) == len(events)
    if suffix in (".npz", ".mat", ".h5") or (
        suffix == ".aedat4" and b"EVTSEVTS" not in data and data[40:44] != b"\0" * 4
    ):
        with pytest.raises(FormatError, match="max_bytes"):
            gl.read_events(path, max_bytes=10)


def test_an_archive_may_hold_more_than_events(tmp_path: Path):
    np.savez(tmp_path / "a.npz", x=[1], y=[2], t=[3], p=[1], frames=np.zeros((10, 1000)), sensor=[34, 34])
    events = gl.read_events(tmp_path / "a.npz", max_bytes=2000)
    assert events.numpy().tolist() == [(3, 1, 2, True)]
    assert events.sensor == (34, 34)


def test_an_archive_of_one_plain_array_is_refused_with_its_shape(tmp_path: Path):
    np.savez(tmp_path / "a.npz", events=np.zeros((5, 4), np.int64))
    with pytest.raises(FormatError, match=r"\(5, 4\).*columns"):
        gl.read_events(tmp_path / "a.npz")


def test_a_description_nested_deeply_is_read_once(tmp_path: Path):
    """20,000 levels: read once for each level, they would take minutes."""
    depth = 20_000
    text = '<node name="outInfo"><node name="0"><attr key="a"/></node>' * depth + "</node>" * depth
    text = f"<dv>{text}</dv>".encode()
    head = flat_table(b"IOHE", struct.pack("<i", 0), struct.pack("<q", -1), vector=text, count=len(text))
    with pytest.raises(FormatError, match="event stream"):
        gl.read_events(_write(tmp_path / "a.aedat4", b"#!AER-DAT4.0\r\n" + head))


# Errors.


@pytest.mark.parametrize(
    ("name", "data", "offset", "message"),
    [
        ("a.bin", bytes(12), 10, "truncated"),
        ("a.raw", b"% evt 2.0\n" + bytes(7), 14, "truncated"),
        ("a.raw", b"% evt 2.1\n" + bytes(8), 0, "EVT 2.1"),
        ("a.es", b"Event Stream" + bytes([2, 0, 0, 1, 1, 0, 1, 0]) + bytes(7), 25, "truncated"),
        ("a.es", b"Event Stream" + bytes([1, 0, 0, 1, 1, 0, 1, 0]), 12, "version 1.0.0"),
        ("a.aedat", b"#!AER-DAT2.0\n" + bytes(9), 21, "truncated"),
        ("a.dat", b"% Version 2\n\x0c\x08" + bytes(4) + b"\x00\x00\x00\x50", 14, "polarity 5"),
        ("a.dat", b"% Version 2\n\x0e\x08", 12, "type 14"),
        ("a.dat", b"% Version 3\n\x0c\x08", 0, "version 3"),
        ("a.npy", b"\x93NUMPY\x01\x00\x05\x00oops\n", 0, "NumPy"),
        ("a.raw", b"\x7fELF and so on\x00", 0, r"\.raw file.*ELF"),
        ("a.xyz", b"\x7fELF and so on\x00", 0, r"format.*ELF.*\.xyz"),
        ("a.raw", b"", 0, "empty"),
    ],
)
def test_errors_name_file_and_byte(tmp_path: Path, name, data, offset, message):
    with pytest.raises(FormatError, match=message) as caught:
        gl.read_events(_write(tmp_path / name, data))
    assert caught.value.path == tmp_path / name
    assert caught.value.offset == offset
    assert str(tmp_path / name) in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.path, again.offset) == (str(caught.value), caught.value.path, offset)


def test_events_outside_the_sensor_are_refused_with_their_byte_or_dropped(tmp_path: Path):
    rows = np.array([[1, 2, 0, 0, 5], [33, 34, 0, 0, 6], [3, 4, 0, 1, 0]], np.uint8)
    path = _write(tmp_path / "a.bin", rows.tobytes())
    with pytest.raises(FormatError, match=r"event 1 .*\(33, 34\).* 34 x 34") as caught:
        gl.read_events(path, sensor=(34, 34))
    assert caught.value.offset == 5
    assert gl.read_events(path, sensor=(34, 34), repair="drop").time.tolist() == [5, 256]


@pytest.mark.parametrize("x", [2**31 - 1, 2**31, 2**40, -1])
def test_pixels_that_no_camera_has_are_refused(tmp_path: Path, x):
    with pytest.raises(FormatError, match=rf"{x}"):
        gl.read_events(_write(tmp_path / "a.csv", f"t,x,y,p\n1,2,3,1\n2,{x},3,1\n".encode()))
    np.savez(tmp_path / "a.npz", x=np.array([x]), y=[1], t=[1], p=[1])
    with pytest.raises(FormatError, match=rf"{x}"):
        gl.read_events(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", ["evt2", "es", "aedat3", "bin"])
def test_times_that_step_back_are_refused_with_their_byte(tmp_path: Path, kind):
    if kind == "evt2":
        words = np.array([0x8 << 28 | 9, 0x1 << 28 | 5 << 22, 0x1 << 28 | 4 << 22], "<u4")
        path, offset = _write(tmp_path / "a.raw", b"% evt 2.0\n" + words.tobytes()), 10 + 8
    elif kind == "aedat3":
        head = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n"
        packet = np.array([1 << 16 | 1, 8, 4, 0, 2, 2, 2, 1, 9, 1, 8], "<u4").tobytes()
        path, offset = _write(tmp_path / "a.aedat", head + packet), len(head) + 36
    elif kind == "es":
        # Its times are differences and cannot step back; pixels can be outside.
        head = b"Event Stream" + bytes([2, 0, 0, 1]) + np.array([4, 4], "<u2").tobytes()
        path, offset = _write(tmp_path / "a.es", head + b"\xff\x02\1\0\1\0" + b"\xff\x02\5\0\1\0"), 20 + 7
    else:
        path, offset = _write(tmp_path / "a.bin", bytes([0, 0, 0, 0, 9, 0, 0, 0, 0, 8])), 5
    with pytest.raises(FormatError, match=r"time|sensor") as caught:
        gl.read_events(path)
    assert caught.value.offset == offset
    if kind != "es":
        sort, hold = (gl.read_events(path, repair=r).time for r in ("sort", "hold"))
        assert (sort[1:] >= sort[:-1]).all()
        assert hold[0] == hold[1]


def test_a_file_of_two_cameras_needs_a_choice(tmp_path: Path):
    head = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n"
    packets = b"".join(np.array([s << 16 | 1, 8, 4, 0, 1, 1, 1, s << 17 | 1, 9], "<u4").tobytes() for s in (1, 2))
    path = _write(tmp_path / "a.aedat", head + packets)
    with pytest.raises(FormatError, match="stream="):
        gl.read_events(path)
    assert gl.read_events(path, stream=2).pixel.tolist() == [[2, 0]]


def test_empty_recordings_are_recordings(tmp_path: Path):
    for name, data in {
        "a.bin": b"",
        "a.raw": b"% evt 2.0\n% geometry 640x480\n",
        "a.aedat": b"#!AER-DAT2.0\r\n",
        "a.es": b"Event Stream" + bytes([2, 0, 0, 1, 64, 1, 240, 0]),
        "a.csv": b"t,x,y,p\n",
    }.items():
        assert len(gl.read_events(_write(tmp_path / name, data))) == 0


def test_pickled_arrays_are_never_loaded(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.array([{"x": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match="Python objects"):
        gl.read_events(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("suffix", "t", "x", "message"),
    [
        (".dat", 2**32, 0, "time .*[0-9]{7}"),
        (".bin", 2**23, 0, "time .*[0-9]{7}"),
        (".bin", 0, 256, "column .*256"),
        (".xyz", 0, 0, r"\.npz.*\.xyz"),
    ],
)
def test_what_a_form_cannot_hold_is_not_written(tmp_path: Path, suffix, t, x, message):
    events = gl.Events.of(
        {"x": np.array([x]), "y": np.array([0]), "t": np.array([t]), "p": np.array([1])}, sensor=(640, 480)
    )
    with pytest.raises(ValueError, match=message):
        gl.write_events(tmp_path / f"a{suffix}", events)
    assert not (tmp_path / f"a{suffix}").exists()


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".es", ".dat", ".bin"])
def test_padding_is_not_written(tmp_path: Path, suffix):
    pixel, time = torch.tensor([[1, 2], [3, 4], [0, 0], [0, 0]], dtype=torch.int32), torch.tensor([10, 20, 0, 0])
    polarity = torch.tensor([True, False, False, False])
    events = gl.Events(pixel, time, polarity, torch.tensor([0, 2]), (34, 34), padding=2)
    path = tmp_path / f"a{suffix}"
    gl.write_events(path, events)
    assert gl.read_events(path).numpy().tolist() == [(10, 1, 2, True), (20, 3, 4, False)]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".es", ".dat"])
def test_pixels_of_large_sensors_are_written_and_read_back(tmp_path: Path, suffix):
    array = {"t": np.array([10, 20]), "x": np.array([1279, 300]), "y": np.array([257, 719]), "p": np.array([0, 1])}
    gl.write_events(tmp_path / f"a{suffix}", gl.Events.of(array, sensor=(1280, 720)))
    assert gl.read_events(tmp_path / f"a{suffix}").pixel.tolist() == [[1279, 257], [300, 719]]


def test_the_latest_time_is_written_and_read_back(tmp_path: Path):
    time = np.array([10**18, 2**63 - 1])
    events = gl.Events.of({"x": time % 7, "y": time % 5, "t": time, "p": time % 2}, sensor=(34, 34))
    for suffix in (".csv", ".npz", ".npy"):
        gl.write_events(tmp_path / f"a{suffix}", events)
        assert gl.read_events(tmp_path / f"a{suffix}").time.tolist() == time.tolist()


def test_an_event_stream_that_would_be_mostly_pauses_is_not_written(tmp_path: Path):
    time = np.array([1_700_000_000_000_000, 1_700_000_000_000_001])
    events = gl.Events.of({"x": time % 7, "y": time % 5, "t": time, "p": time % 2}, sensor=(34, 34))
    with pytest.raises(ValueError, match=r"127 us.*repair='shift'"):
        gl.write_events(tmp_path / "a.es", events)
    assert not list(tmp_path.iterdir())
    gl.write_events(tmp_path / "a.es", gl.Events.of(events, repair="shift"))
    assert gl.read_events(tmp_path / "a.es").time.tolist() == [0, 1]
