"""Tracking: the task learns where a blob is, live as in a batch and in C; data with positions is checked and split."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.cli.main import main
from gridless.data.sets.spots import read_positions
from gridless.models import CountTracker
from gridless.structures import Rows
from gridless.tasks import find
from gridless.tasks.storage import Storage, load_splits
from gridless.tasks.track import TRUTH, Turn, last_event, pieces, training_set
from gridless.training import PackedSet, Recipe
from gridless.training.examples import TrainingSet

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
SENSOR = (20, 16)
RECIPE = {
    "model": {"model": "CountTracker", "widths": [8, 8], "strides": [2, 1], "hidden": 24},
    "data": "blobs",
    "data_options": {
        "size": 10, "held_out": 3, "sensor": list(SENSOR), "duration": 600_000, "radius": 3.0, "piece": 150_000,
        "warm_up": 150_000,
    },
    "epochs": 25,
    "batch_size": 4,
    "optimiser": "adamw",
    "learning_rate": 0.01,
    "clip": 1.0,
    "schedule": "cosine",
    "validate_every": 25,
}  # fmt: skip


def blobs(**settings):
    return gl.data.MovingBlobs(**{"size": 2, "sensor": SENSOR, "duration": 300_000, "radius": 3.0, **settings})


def tracker(seed: int = 0, **settings) -> CountTracker:
    """A network whose running statistics are those of blobs."""
    torch.manual_seed(seed)
    model = CountTracker(SENSOR, widths=(8, 8), strides=(2, 1), hidden=24, **settings)
    for _ in range(20):
        model(model.plan(blobs().batch()))
    return model.eval()


def ends(events: gl.Events, size: int = 97) -> torch.Tensor:
    """The last events of packets of `size` events."""
    return torch.cat([torch.arange(size - 1, len(events) - 1, size), torch.tensor([len(events) - 1])])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on generated blobs."""
    out = tmp_path_factory.mktemp("track")
    (out / "blobs.yaml").write_text(json.dumps(RECIPE))
    assert main(["train", str(out / "blobs.yaml"), "--out", str(out / "run")]) == 0
    return out / "run"


@pytest.mark.slow
def test_a_short_run_beats_the_mean_position_of_each_recording_by_far(run):
    results = json.loads((run / "results.json").read_text())
    assert results["valid_rms"] < 0.5 * results["valid_rms_of_the_mean"]


def test_the_figure_is_the_root_mean_square_distance_at_the_known_times(run):
    recipe = Recipe.from_dict(RECIPE)
    task, model = find("track"), gl.load(run / "weights").eval()
    data = task.load(recipe, None, "validation")
    known = blobs(size=3, duration=600_000, seed=1)
    expected = []
    for events, positions in known:
        engine, errors = gl.stream(model), []
        at = torch.searchsorted(events.time, positions[:, 0].long(), right=True)
        for a, b, (_, x, y) in zip([0, *at.tolist()], at.tolist(), positions.tolist(), strict=False):
            if b == 0:
                continue
            engine(events[a:b])
            answer = engine.predict()
            errors.append((answer[0] - x) ** 2 + (answer[1] - y) ** 2)
        expected.append(float(torch.stack(errors).mean().sqrt()))
    figures = task.evaluate(model, data, recipe)
    assert figures["by_recording"] == pytest.approx(expected, rel=1e-4)
    assert figures["rms"] == pytest.approx(np.mean(expected), rel=1e-4)


def test_positions_are_those_of_recordings_that_end_there():
    model, data = tracker(), blobs()
    place = torch.tensor([0, 50, 50, 300, 301])
    with torch.no_grad():
        answers = model.positions(model.plan(data.batch()), data.batch().splits[:-1, None] + place)
        rows = [[model(model.plan(one[: int(end) + 1]))[0] for end in place] for one in data.recordings]
    expected = torch.stack([torch.stack(row) for row in rows])
    assert (answers - expected).abs().max() < 1e-5 * answers.abs().max()


def test_the_engine_answers_after_each_packet_as_the_batch_does():
    model, data = tracker(), blobs()
    engine = gl.stream(model)
    for events in data.recordings:
        engine.reset()
        at = ends(events)
        with torch.no_grad():
            answers = model.positions(model.plan(events), at[None])[0]
        live = [engine(events[a:b]) for a, b in zip([0, *(at + 1).tolist()], (at + 1).tolist(), strict=False)]
        assert (torch.stack(live) - answers).abs().max() < 1e-5 * answers.abs().max()  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("bits", [32, 16])
def test_c_answers_when_asked_as_the_batch_does(tmp_path, bits):
    model, (events, _) = tracker(), blobs(size=1)[0]
    at = ends(events)
    with torch.no_grad():
        answers = model.positions(model.plan(events), at[None])[0]
    board = gl.stream(model, compiled=gl.export(model, tmp_path / "c", bits=bits))
    live = [board(events[a:b]) for a, b in zip([0, *(at + 1).tolist()], (at + 1).tolist(), strict=False)]
    error = (torch.stack(live) - answers).abs().max()  # type: ignore[arg-type]
    assert error < {32: 1e-5, 16: 1e-2}[bits] * answers.abs().max()


def test_a_live_network_answers_every_so_many_microseconds():
    model, (events, _) = tracker(every=10_000), blobs(size=1)[0]
    answers, start = list(gl.stream(model).push(events)), int(events.time[0])
    assert [answer.time - start for answer in answers] == [10_000 * (k + 1) for k in range(len(answers))]
    last = torch.searchsorted(events.time, torch.tensor([answer.time for answer in answers])) - 1
    with torch.no_grad():
        expected = model.positions(model.plan(events), last[None])[0]
    assert (torch.stack([answer.logits for answer in answers]) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_settings_that_make_no_network_are_refused():
    with pytest.raises(ValueError, match=r"CountTracker: widths .*\(2,\)"):
        CountTracker(SENSOR, strides=(2,))
    with pytest.raises(ValueError, match="LeakyCount: at"):
        tracker().count(tracker().plan(blobs().batch()), {}, torch.zeros(2, 1, dtype=torch.int64))


def test_a_known_position_belongs_to_the_last_event_up_to_its_time():
    assert last_event(torch.tensor([3, 5, 5, 9]), torch.tensor([2.0, 3.0, 5.0, 8.0, 20.0])).tolist() == [-1, 0, 2, 2, 3]
    data = blobs()
    whole = training_set(data)
    truth, ends = whole.rows[TRUTH], whole.splits.tolist()
    for i, known in enumerate(data.positions):
        known = known[known[:, 0] >= data.recordings[i].time[0]]
        assert torch.equal(whole.labels[i][: len(known)], known)
        at = last_event(data.recordings[i].time, known[:, 0])
        rows = truth[ends[i] : ends[i + 1]].isfinite().all(1).nonzero()[:, 0]
        assert torch.equal(rows, at.unique())
    assert torch.equal(truth[ends[0] + last_event(data.recordings[0].time, data.positions[0][-1:, 0])][0],
                       data.positions[0][-1, 1:].float())  # fmt: skip


def test_pieces_hold_every_known_position_once_and_have_a_warm_up():
    whole = training_set(blobs(duration=500_000))
    cut = pieces(whole, 200_000, 50_000)
    assert int((cut.labels >= 0).sum()) == int(whole.rows[TRUTH].isfinite().all(1).sum())
    assert len(cut) == 2 * 3
    for number in range(len(cut)):
        part, places = cut.cut(torch.tensor([number])), cut.labels[number]
        places = places[places >= 0]
        assert part.rows[TRUTH][places].isfinite().all()
        assert int(part.time[-1] - part.time[0]) <= 250_000
        assert number % 3 == 0 or int(part.time[places[0]] - part.time[0]) >= 40_000
    unknown = whole.events._changed(rows=Rows({TRUTH: torch.full_like(whole.rows[TRUTH], torch.nan)}))
    with pytest.raises(ValueError, match="no position is known"):
        pieces(TrainingSet.of(unknown, whole.labels), 200_000, 50_000)


def test_turns_move_known_positions_with_their_pixels():
    whole = training_set(blobs(size=8, sensor=(16, 16)))
    events = whole.events
    turned = Turn()(events, torch.Generator().manual_seed(0))
    known = events.rows[TRUTH].isfinite().all(1)
    before = (events.pixel - events.rows[TRUTH])[known].norm(dim=1)
    after = (turned.pixel - turned.rows[TRUTH])[known].norm(dim=1)
    assert torch.allclose(before, after, atol=1e-4)
    changed = [bool((a.pixel != b.pixel).any()) for a, b in zip(events.examples, turned.examples, strict=True)]
    assert any(changed)


def test_predict_writes_a_position_after_each_millisecond_with_events(run, tmp_path, capsys):
    (events, _) = blobs(size=1)[0]
    gl.data.write_events(tmp_path / "a.es", events)
    millisecond = events.time // 1000
    last = (millisecond != torch.cat([millisecond[1:], millisecond[-1:] + 1])).nonzero()[:, 0]
    for suffix in ("csv", "json"):
        out = tmp_path / f"a.{suffix}"
        arguments = ["predict", str(tmp_path / "a.es"), "--weights", str(run / "weights"), "--out", str(out)]
        assert main(arguments) == 0
        assert f"{len(last):,} positions" in capsys.readouterr().out
    rows = np.genfromtxt(tmp_path / "a.csv", delimiter=",", names=True)
    columns = json.loads((tmp_path / "a.json").read_text())
    assert rows.dtype.names == ("time_us", "x", "y")
    assert rows["time_us"].tolist() == columns["time_us"] == events.time[last].tolist()
    assert np.allclose(rows["x"], columns["x"], atol=1e-4)


def test_files_whose_positions_would_overwrite_each_other_are_refused(run, tmp_path, capsys):
    files = [tmp_path / name for name in ("1/a.es", "2/a.es", "2/b.es")]
    arguments = ["predict", *map(str, files[1:]), "--weights", str(run / "weights"), "--out", str(tmp_path / "a.csv")]
    assert main(arguments) == 1
    assert "a.csv" in capsys.readouterr().err
    arguments = ["predict", *map(str, files[:2]), "--weights", str(run / "weights"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert f"file in {tmp_path / 'out'}" in capsys.readouterr().err


def test_stream_prints_positions(run, tmp_path, capsys):
    (events, _) = blobs(size=1)[0]
    gl.data.write_events(tmp_path / "a.es", events)
    assert main(["stream", "--weights", str(run / "weights"), "--input", str(tmp_path / "a.es"), "--quiet"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert set(lines[0]) == {"time", "x", "y", "final"}
    assert len(lines) > 1


# Folders of recordings with CSV files.


def folder(root: Path, count: int = 5) -> Path:
    for i in range(count):
        (events, positions) = blobs(size=1, seed=i)[0]
        gl.data.write_events(root / f"session{i}_01.es", events)
        lines = [f"{int(t)},{x},{y}" for t, x, y in positions.tolist()]
        (root / f"session{i}_01.csv").write_text("\n".join(["time_us,x,y", *lines]))
    return root


def test_a_folder_of_recordings_with_positions_is_read_and_split_by_recording(tmp_path):
    whole = gl.data.TrackFolder(folder(tmp_path))
    assert len(whole) == 5
    events, positions = whole[0]
    expected_events, expected = blobs(size=1, seed=0)[0]
    assert torch.equal(events.time, expected_events.time)
    assert torch.allclose(positions, expected)
    parts = [gl.data.TrackFolder(tmp_path, split).names for split in ("fit", "validation")]
    assert sorted(parts[0] + parts[1]) == sorted(whole.names)
    assert all(parts)


@pytest.mark.slow
def test_a_folder_is_trained_on(tmp_path):
    (tmp_path / "data").mkdir()
    recipe = {**RECIPE, "data": "folder", "data_options": {"piece": 150_000, "warm_up": 50_000}, "epochs": 1}
    (tmp_path / "own.yaml").write_text(json.dumps(recipe))
    arguments = ["train", str(tmp_path / "own.yaml"), "--data", str(folder(tmp_path / "data")), "--out"]
    assert main([*arguments, str(tmp_path / "run")]) == 0
    assert gl.load(tmp_path / "run" / "weights").config["sensor"] == list(SENSOR)
    assert main([*arguments, str(tmp_path / "disk"), "--keep", "disk"]) == 0
    memory, disk = (gl.load(tmp_path / name / "weights").state_dict() for name in ("run", "disk"))
    assert all(torch.equal(tensor, disk[name]) for name, tensor in memory.items())
    weights = str(tmp_path / "run" / "weights")
    assert main(["evaluate", weights, "--data", str(tmp_path / "data"), "--split", "validation"]) == 0


def test_a_packed_folder_holds_the_same_recordings_positions_and_pieces(tmp_path):
    recipe = Recipe.from_dict({**RECIPE, "data": "folder", "data_options": {"piece": 90_000, "warm_up": 40_000}})
    task, root, parts = find("track"), folder(tmp_path), ("fit", "validation")
    memory_sets, disk_sets = (load_splits(task, recipe, root, parts, Storage(keep)) for keep in ("memory", "disk"))
    for memory, disk in zip(memory_sets, disk_sets, strict=True):
        assert isinstance(disk, PackedSet)
        assert disk.events.sensor == memory.events.sensor == SENSOR
        assert torch.equal(disk.labels.nan_to_num(-1), memory.labels.nan_to_num(-1))
        assert torch.equal(disk.files, memory.files)
        pieces, packed = (task.selected(recipe, data, True) for data in (memory, disk))
        assert torch.equal(pieces.labels, packed.labels)
        index = torch.randperm(len(pieces))
        chosen = packed.take(index)
        for a, b in (
            (memory.examples, disk.cut(torch.arange(len(disk)))),
            (pieces.cut(index), packed.cut(index)),
            (pieces.cut(index), chosen.cut(torch.arange(len(index)))),
            (pieces.cut(index), chosen.resident(torch.device("cpu")).examples),
        ):
            for (_, values), (_, others) in zip(a.parts(), b.parts(), strict=True):
                assert torch.equal(values.nan_to_num(-1), others.nan_to_num(-1))
    (tmp_path / "session0_01.csv").write_text("time_us,x,y\n20000,1,2\n")
    load_splits(task, recipe, root, ("fit",), Storage("disk"))
    assert len(list((tmp_path / ".gridless").glob("pack-*"))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_us,x\n1,2\n", "no column y"),
        ("", "no column time_us, x, y"),
        ("time_us,x,y\n", "no positions"),
        ("time_us,x,y\n10,1,2\n20,one,2\n", "line 3 has x = 'one'"),
        ("time_us,x,y\n10,1,nan\n", "line 2 has y = 'nan'"),
        ("time_us,x,y\n10,1\n", "line 2 has y = ''"),
        ("time_us,x,y\n10.5,1,2\n", "line 2 has time_us = '10.5'"),
        ("time_us,x,y\n-1,1,2\n", "line 2 has time_us = '-1'"),
        ("time_us,x,y\n20,1,2\n20,1,2\n", "time_us 20 of position 2"),
    ],
)
def test_a_bad_file_of_positions_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"a.csv.*{message}"):
        read_positions(path, tmp_path / "a.es")


def test_packs_without_known_positions_are_refused(tmp_path):
    gl.data.pack(gl.data.MovingGlyphs(4), tmp_path / "pack", progress=False)
    (data,) = load_splits(find("track"), Recipe.from_dict(RECIPE), tmp_path / "pack", ("train",))
    with pytest.raises(ValueError, match="no known positions"):
        find("track").fit(Recipe.from_dict(RECIPE), data)


def test_a_recording_without_positions_is_named(tmp_path):
    folder(tmp_path, 2)
    (tmp_path / "session1_01.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"session1_01.csv.*session1_01.es"):
        gl.data.TrackFolder(tmp_path)


def test_columns_of_positions_may_stand_in_any_order_beside_others(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("y, note,time_us, x\n2,first,10,1\n\n4,,20,3\n")
    assert read_positions(path, path).tolist() == [[10, 1, 2], [20, 3, 4]]


# The pack of spots.


def spots_pack(root: Path, numbers: list[tuple[int, int]]) -> Path:
    """A pack as that of EBWFNet, with two events and one position in each stream."""
    count = len(numbers)
    arrays = {
        "x": np.arange(2 * count) % 50, "y": np.full(2 * count, 3), "dt": np.full(2 * count, 100),
        "p": np.packbits(np.arange(2 * count) % 2 == 0),
    }  # fmt: skip
    arrays = {name: array.astype(np.uint8) for name, array in arrays.items()}
    arrays |= {"dt_big": np.empty(0, np.int64), "offsets": 2 * np.arange(count + 1), "label": np.zeros(count, np.uint8)}
    arrays |= {"sensor": np.array([50, 50]), "recording": np.array(numbers), "truth_offsets": np.arange(count + 1)}
    arrays |= {"truth_time": np.full(count, 60), "truth": np.full((count, 2), 256, np.int16)}
    arrays |= {"baseline": np.full((count, 2), -128, np.int16)}
    with lzma.open(root / "spots_train.npz.xz", "wb") as file:
        np.savez(file, **arrays)
    return root


def test_spots_are_split_by_recording_never_inside_one(tmp_path):
    numbers = [(k, lens) for k in range(1, 8) for lens in (3, 9)]
    root = spots_pack(tmp_path, numbers)
    whole = gl.data.Spots(root)
    events, positions = whole[0]
    assert positions.tolist() == [[60, 26, 26]]
    assert whole.filtered[0].tolist() == [[24.5, 24.5]]
    assert events.time.tolist() == [100, 200]
    seen = []
    for fold in range(5):
        fit, valid = (gl.data.Spots(root, split, fold) for split in ("fit", "validation"))
        recordings = [{name.split("-")[0] for name in part.names} for part in (fit, valid)]
        assert not recordings[0] & recordings[1]
        assert len(fit) + len(valid) == len(whole)
        seen += valid.names
    assert sorted(seen) == sorted(whole.names)
    with pytest.raises(ValueError, match="fold is 5"):
        gl.data.Spots(root, fold=5)
    with pytest.raises(FileNotFoundError, match=r"spots_test\.npz\.xz"):
        gl.data.Spots(root, "test")


def test_settings_that_do_not_move_positions_along_are_refused():
    for changes in ({"transforms": ["ReverseTime"]}, {"prepare": [{"PoolPixels": 2}]}):
        with pytest.raises(ValueError, match="transforms"):
            Recipe.from_dict({**RECIPE, **changes})
    with pytest.raises(ValueError, match=r"data_options\.piece is 0"):
        Recipe.from_dict({**RECIPE, "data_options": {"piece": 0}})
