"""Geometry computed ahead of time, and the other ways to compute it."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import time
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch.utils.data import ConcatDataset, DataLoader, Subset

import gridless as gl
from gridless.augment import Drop, Jitter, Shuffle
from gridless.data import FormatError, Shapes, files, shards


def plan() -> gl.Plan:
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 0.3)
    coarse = plan.rejection_sample(near)
    plan.ball(cloud, coarse, 0.4)
    return plan


def shapes(*steps, size: int = 10) -> Shapes:
    return Shapes(size, points=40, transform=steps or (Shuffle(), Drop(0.5), Jitter()))


def assert_same(a, b) -> None:
    """Every field of every structure of two geometries."""
    shape, leaves = shards.flatten(a)
    other_shape, others = shards.flatten(b)
    assert shape == other_shape
    for name, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            assert leaf.dtype == others[name].dtype, name
            assert torch.equal(leaf.cpu(), others[name].cpu()), name
        else:
            assert leaf == others[name], name


class Scans:
    """Clouds with a colour, a normal and a label for each point."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> tuple[gl.Cloud, int]:
        x = torch.rand(20 + i, 3, generator=torch.Generator().manual_seed(i))
        colour = (x * 255).byte().to(torch.uint16)
        return gl.Cloud.of(x, rgb=colour, normal=x.double(), label=torch.arange(20 + i), directions="normal"), i


def test_rows_are_kept(tmp_path):
    data = gl.Precomputed(Scans(), tmp_path, plan(), shard=2)
    for i in range(5):
        geometry, label = data[i]
        assert label == i
        assert_same(geometry, plan()(Scans()[i][0]))
        assert torch.equal(geometry["X1"].rows["label"], geometry["X1"].parent_index)
        assert geometry["X0"].rows["rgb"].dtype == torch.uint16
        assert geometry["X1"].directions == ("normal",)


def test_a_data_set_gives_the_examples_of_a_file_at_once(tmp_path):
    class Together(Scans):
        asked: list[list[int]] = []

        def several(self, numbers):
            self.asked.append(list(numbers))
            return [Scans()[i] for i in numbers]

        def __getitem__(self, i):
            raise AssertionError("examples are asked for one by one")

    data = gl.Precomputed(Together(), tmp_path, plan(), shard=2)
    assert Together.asked == [[0, 1], [2, 3], [4]]
    for i in range(5):
        geometry, label = data[i]
        assert label == i
        assert_same(geometry, plan()(Scans()[i][0]))
    data.verify()


def test_what_is_read_is_what_the_plan_made(tmp_path):
    data = gl.Precomputed(shapes(gl.augment.First(30)), tmp_path, plan(), shard=4)
    assert len(data) == 10
    for i in range(10):
        geometry, label = data[i]
        example, expected = shapes(gl.augment.First(30))[i]
        assert label == expected
        assert_same(geometry, plan()(example))
    with pytest.raises(IndexError):
        data[10]


def test_what_another_plan_made_is_refused(tmp_path):
    other = gl.Plan()
    cloud = other.points(dim=3)
    near = other.ball(cloud, cloud, 0.2)
    geometry, _ = gl.Precomputed(shapes(size=2), tmp_path, plan())[0]
    with pytest.raises(ValueError, match=r"N00 .*geometry.* plan"):
        geometry[near]


@pytest.mark.slow
def test_all_four_ways_to_run_geometry_agree(tmp_path, shared_data):
    from gridless.data import ModelNet40

    steps, indices = [Shuffle(), Drop(0.5), Jitter()], list(range(0, 9000, 1500))
    raw = torch.utils.data.Subset(ModelNet40(shared_data, transform=steps, seed=1, points=200), indices)
    done = torch.utils.data.Subset(ModelNet40(shared_data, transform=[*steps, plan()], seed=1, points=200), indices)
    # In workers, collated; pinned where there is a device to pin for.
    pin = torch.cuda.is_available()
    loader = DataLoader(done, len(indices), num_workers=2, collate_fn=gl.collate, pin_memory=pin)
    in_workers, labels = next(iter(loader))
    # The whole batch at once, on the GPU where there is one.
    clouds, _ = gl.collate([raw[i] for i in range(len(raw))])
    at_once = plan()(clouds.to("cuda") if pin else clouds)
    # From disk.
    stored = gl.Precomputed(raw, tmp_path, plan(), shard=4)
    from_disk, stored_labels = gl.collate([stored[i] for i in range(len(stored))])
    assert_same(in_workers, at_once)
    assert_same(in_workers, from_disk)
    assert torch.equal(labels, stored_labels)
    with gl.use_backend("reference"):
        assert_same(in_workers, plan()(clouds))


def test_repeats_are_augmented_anew_and_taken_in_turn(tmp_path):
    data = gl.Precomputed(shapes(), tmp_path, plan(), repeats=3, shard=4)
    epochs = []
    for epoch in range(4):
        data.set_epoch(epoch)
        epochs.append(data[7][0]["X0"].coords)
    assert torch.equal(epochs[0], epochs[3])
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in pairwise(epochs))


@pytest.mark.slow
def test_neither_workers_nor_pickling_change_the_entries(tmp_path):
    alone = gl.Precomputed(shapes(), tmp_path / "a", plan(), repeats=2, shard=3)
    shared = gl.Precomputed(shapes(), tmp_path / "b", plan(), repeats=2, shard=3, num_workers=2)
    assert alone.key == shared.key
    loader = DataLoader(shared, 10, num_workers=1, collate_fn=gl.collate)
    batch, _ = next(iter(loader))
    assert_same(batch, gl.collate([alone[i][0] for i in range(10)]))


class Elsewhere(Scans):
    """Scans that are not asked for in the process that made them."""

    def __init__(self) -> None:
        self.here = os.getpid()

    def __getitem__(self, i: int) -> tuple[gl.Cloud, int]:
        assert os.getpid() != self.here
        return super().__getitem__(i)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, {"label": "most"}])
def test_kernels_are_loaded_before_processes_are_forked_and_no_example_is_asked_for(tmp_path, monkeypatch, rows):
    planned = gl.Plan()
    cloud = planned.points(dim=3)
    near = planned.ball(cloud, cloud, 0.3)
    # The points that kernels are loaded with do not have these.
    planned.grid_sample(cloud, 0.2, rows=rows)
    seen = []
    run = gl.Plan.step
    monkeypatch.setattr(gl.Plan, "step", lambda self, *given: seen.append(os.getpid()) or run(self, *given))
    threads = torch.get_num_threads()
    files = gl.Precomputed(Elsewhere(), tmp_path, planned, num_workers=1, check=False)
    assert seen == [os.getpid()]
    assert torch.get_num_threads() == threads
    assert near in files[2][0]


def test_making_entries_leaves_torchs_generator_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    gl.Precomputed(shapes(), tmp_path, plan())
    assert torch.equal(torch.rand(3), expected)


def test_the_plan_may_be_part_of_the_transform(tmp_path):
    inside = gl.Precomputed(shapes(Jitter(), plan()), tmp_path)
    outside = gl.Precomputed(shapes(Jitter()), tmp_path, plan())
    assert inside.key != outside.key
    assert_same(inside[3][0], outside[3][0])


def test_plan_augmentation_data_seed_and_version_are_the_key(tmp_path):
    other_plan = gl.Plan()
    cloud = other_plan.points(dim=3)
    other_plan.ball(cloud, cloud, 0.1)
    data = [
        gl.Precomputed(shapes(), tmp_path, plan()),
        gl.Precomputed(shapes(), tmp_path, other_plan),
        gl.Precomputed(shapes(Jitter(0.02)), tmp_path, plan()),
        gl.Precomputed(shapes(size=9), tmp_path, plan()),
        gl.Precomputed(shapes(), tmp_path, plan(), seed=1),
        gl.Precomputed(shapes(), tmp_path, plan(), version="2"),
    ]
    assert len({d.key for d in data}) == len(data)
    about = json.loads((data[0].folder / "about.json").read_text())
    assert about["plan"] == str(plan())
    assert about["transform"][1] == "Drop(most=0.5)"


def changed(change: str) -> Shapes:
    """Ten shapes, with a change that the key does not show; none is in the first, the middle or the last."""
    data = Shapes(10, points=39 if change == "fewer points" else 40, seed=int(change == "another seed"))
    if change == "a label":
        data.labels[3] += 1
    elif change == "a coordinate":
        data.coords[3, 7, 1] += 1e-3
    elif change == "two points":
        data.coords[3, [7, 8]] = data.coords[3, [8, 7]]
    return data


@pytest.mark.parametrize("change", ["another seed", "fewer points", "a label", "a coordinate", "two points"])
def test_examples_that_changed_are_noticed(tmp_path, change):
    first = gl.Precomputed(changed(""), tmp_path, plan(), shard=4)
    gl.Precomputed(changed(""), tmp_path, plan(), shard=4).verify()
    message = r"000-00000\.safetensors .*example [0-3]"
    with pytest.raises(ValueError, match=message):
        gl.Precomputed(changed(change), tmp_path, plan(), shard=4)
    trusting = gl.Precomputed(changed(change), tmp_path, plan(), shard=4, check=False)
    assert trusting.key == first.key
    with pytest.raises(ValueError, match=message):
        trusting.verify()
    other = gl.Precomputed(changed(change), tmp_path, plan(), shard=4, version="2")
    assert not torch.equal(other[3][0]["X0"].coords, first[3][0]["X0"].coords) or other[3][1] != first[3][1]


def test_what_is_compared_is_what_was_kept_first(tmp_path):
    first = gl.Precomputed(shapes(), tmp_path, plan(), repeats=3, shard=4)
    (first.folder / "000-00000.safetensors").unlink()
    data = shapes()
    data.labels[3] += 1
    with pytest.raises(ValueError, match=r"001-00000\.safetensors .*example 3"):
        gl.Precomputed(data, tmp_path, plan(), repeats=3, shard=4)
    assert not (first.folder / "000-00000.safetensors").exists()


def test_rounding_is_no_change(tmp_path):
    data = shapes(gl.augment.First(30))
    first = gl.Precomputed(data, tmp_path, plan())
    data.coords *= 1 + 1e-7
    again = gl.Precomputed(data, tmp_path, plan())
    assert again.key == first.key
    assert torch.equal(again[3][0]["X0"].coords, first[3][0]["X0"].coords)


def test_subsets_are_told_apart(tmp_path):
    subsets = [torch.utils.data.Subset(shapes(), indices) for indices in ([1, 2, 3], [3, 2, 1])]
    data = [gl.Precomputed(subset, tmp_path, plan()) for subset in subsets]
    assert data[0].key != data[1].key
    assert data[0].about["transform"] == data[1].about["transform"]
    assert len(data[0].about["transform"]) == 3


def test_a_transform_without_a_stable_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="frozen dataclass"):
        gl.Precomputed(shapes(lambda x: x), tmp_path, plan())


def test_only_what_is_missing_is_made(tmp_path):
    first = gl.Precomputed(shapes(), tmp_path, plan(), shard=4)
    stamps = {p.name: p.stat().st_mtime_ns for p in first.folder.glob("*.safetensors")}
    (first.folder / "000-00001.safetensors").unlink()
    left = f"000-00001.safetensors{files._MARK}{files._machine()}-999999999-0"
    (first.folder / left).write_bytes(b"left by a killed process")
    second = gl.Precomputed(shapes(), tmp_path, plan(), shard=4)
    after = {p.name: p.stat().st_mtime_ns for p in second.folder.iterdir() if p.name != "about.json"}
    assert after.keys() == stamps.keys()
    assert [n for n in stamps if stamps[n] != after[n]] == ["000-00001.safetensors"]
    assert_same(first[9][0], second[9][0])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused_by_name(tmp_path, share):
    path = gl.Precomputed(shapes(), tmp_path, plan()).folder / "000-00000.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(FormatError, match="000-00000"):
        gl.Precomputed(shapes(), tmp_path, plan())


def test_a_foreign_file_is_refused_by_name(tmp_path):
    first = gl.Precomputed(shapes(), tmp_path, plan(), shard=10)
    path = first.folder / "000-00000.safetensors"
    path.write_bytes(b"something else altogether")
    with pytest.raises(FormatError, match="000-00000"):
        gl.Precomputed(shapes(), tmp_path, plan(), shard=10)
    other = gl.Precomputed(shapes(), tmp_path, plan(), shard=10, seed=1)
    path.write_bytes((other.folder / path.name).read_bytes())
    with pytest.raises(FormatError, match=other.key):
        gl.Precomputed(shapes(), tmp_path, plan(), shard=10)


def header_of(file: bytes) -> dict:
    return json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])


def with_header(file: bytes, header: dict) -> bytes:
    """The file with another header."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + file[8 + int.from_bytes(file[:8], "little") :]


def with_about(path: Path, about: object) -> None:
    """Write other facts into a file, with a digest that fits, as one who means harm would."""
    text = json.dumps(about)
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    digest = shards._digest(text, tensors)
    path.write_bytes(save(tensors, {**metadata, "about": text, "digest": digest}))


def test_a_flipped_bit_in_a_header_is_refused_by_name(tmp_path):
    data = gl.Precomputed(shapes(), tmp_path, plan())
    path = data.folder / "000-00000.safetensors"
    whole = path.read_bytes()
    # Blanks at the end of a header say nothing.
    length = len(whole[: 8 + int.from_bytes(whole[:8], "little")].rstrip())
    for place in range(0, 8 * length, 8 * length // 150):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(FormatError, match="000-00000"):
            shards.Shard(path, data.key)


@pytest.mark.parametrize("harm", [
    {"dtype": "O"}, {"dtype": "F64"}, {"dtype": "I32"}, {"shape": [10**12]}, {"shape": [-1]}, {"shape": "ten"},
    {"shape": [2**40, 2**40]}, {"data_offsets": [2**62, 2**62 + 1]}, {"data_offsets": [-64, 0]}, {"data_offsets": 7},
])  # fmt: skip
def test_a_header_that_means_harm_is_refused_by_name(tmp_path, harm):
    data = gl.Precomputed(shapes(), tmp_path, plan())
    path = data.folder / "000-00000.safetensors"
    header = header_of(path.read_bytes())
    header["0/X0/coords"] |= harm
    path.write_bytes(with_header(path.read_bytes(), header))
    with pytest.raises(FormatError, match="000-00000"):
        shards.Shard(path, data.key)


def test_nothing_but_the_documented_error_comes_of_damaged_facts(tmp_path):
    """Any fact replaced by any other: refused when opened, or when the example is read, or harmless."""
    data = gl.Precomputed(shapes(), tmp_path, plan())
    path = data.folder / "000-00000.safetensors"
    whole = path.read_bytes()
    choose = random.Random(0)
    values = [None, True, -1, 0, 1, 3, 2**63, 10**400, 0.5, float("nan"), "", "leaf", "|O", [], {}, [[]], {"tuple": []}]
    refused = 0
    for _ in range(120):
        about = json.loads(header_of(whole)["__metadata__"]["about"])
        at, key = about, "key"
        while True:
            key = choose.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], dict | list) or not at[key] or choose.random() < 0.3:
                break
            at = at[key]
        at[key] = choose.choice(values)
        path.write_bytes(whole)
        with_about(path, about)
        try:
            shard = shards.Shard(path, data.key)
            for i in range(min(len(shard), 10)):
                shard[i]
        except FormatError as error:
            refused += "000-00000" in str(error)
    assert refused > 50


def test_rows_outside_the_file_are_refused_by_name(tmp_path):
    data = gl.Precomputed(shapes(), tmp_path, plan())
    path = data.folder / "000-00000.safetensors"
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    tensors["@0/X0/coords"][3] = 10**6
    path.write_bytes(save(tensors, metadata))
    with pytest.raises(FormatError, match=r"000-00000.*example 2"):
        shards.Shard(path, data.key)[2]


def test_files_of_an_older_release_are_passed_over(tmp_path):
    first = gl.Precomputed(shapes(), tmp_path, plan())
    assert first.about["files"] == shards.FORMAT
    (first.folder / "000-00000.shard").write_bytes(b"gridless shard 4")
    assert_same(gl.Precomputed(shapes(), tmp_path, plan())[0][0], first[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_full_disk_loses_nothing_that_was_written(tmp_path, monkeypatch, num_workers):
    if num_workers and multiprocessing.get_start_method() != "fork":
        pytest.skip("what is patched here reaches forked workers only")
    whole = gl.Precomputed(shapes(), tmp_path / "whole", plan(), shard=4)

    def full_at_last(path: Path, key: str, examples: list, origin: list) -> None:
        if path.name == "000-00002.safetensors":
            with files.whole_file(path) as file:
                file.write(b"the first bytes")
                raise OSError(errno.ENOSPC, "No space left on device")
        shards.write(path, key, examples, origin)

    with monkeypatch.context() as patch:
        patch.setattr("gridless.data.precompute.write", full_at_last)
        with pytest.raises(OSError, match="2 of 3 files"):
            gl.Precomputed(shapes(), tmp_path, plan(), shard=4, num_workers=num_workers)
    folder = tmp_path / whole.key
    assert sorted(p.name for p in folder.iterdir()) == ["000-00000.safetensors", "000-00001.safetensors", "about.json"]
    again = gl.Precomputed(shapes(), tmp_path, plan(), shard=4)
    assert_same(again[9][0], whole[9][0])


def test_an_interrupt_leaves_nothing_half_written(tmp_path):
    class Interrupted(Shapes):
        def __getitem__(self, i):
            if i == 6:
                raise KeyboardInterrupt
            return super().__getitem__(i)

    with pytest.raises(KeyboardInterrupt):
        gl.Precomputed(Interrupted(10, points=40), tmp_path, plan(), shard=4)
    assert sorted(p.name for p in tmp_path.glob("*/*")) == ["000-00000.safetensors", "about.json"]


@pytest.mark.slow
def test_a_killed_run_leaves_only_whole_files(tmp_path):
    script = """
        import sys, gridless as gl
        sys.path.insert(0, sys.argv[2])
        from test_precompute import plan, shapes
        gl.Precomputed(shapes(size=4000), sys.argv[1], plan(), shard=8)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": str(Path(gl.__file__).parents[1])}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*/*.safetensors"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    files = sorted(tmp_path.glob("*/*.safetensors"))
    assert 3 <= len(files) < 500
    key = files[0].parent.name
    assert all(len(shards.Shard(path, key)) == 8 for path in files)


def test_labels_may_be_tensors_and_examples_may_come_alone(tmp_path):
    class Parts(Shapes):
        def __getitem__(self, i):
            coords = super().__getitem__(i)[0][: 5 + i]
            return coords, torch.arange(len(coords)), torch.tensor(float(i)), f"name {i}"

    data = gl.Precomputed(Parts(6, points=40), tmp_path, plan(), shard=4)
    geometry, parts, number, name = data[5]
    assert len(geometry["X0"]) == 10
    assert parts.tolist() == list(range(10))
    assert number == 5.0
    assert name == "name 5"


def test_refuses_settings_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match=r"repeats .*0"):
        gl.Precomputed(shapes(), tmp_path, plan(), repeats=0)
    with pytest.raises(ValueError, match="empty"):
        gl.Precomputed(shapes(size=0), tmp_path, plan())
    with pytest.raises(TypeError, match=r"object .*stored"):
        shards.flatten(object())


class Labels:
    """Clouds with labels of several shapes."""

    def __init__(self, *labels) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int):
        return torch.rand(10, 3), torch.tensor(self.labels[i])


@pytest.mark.parametrize("labels", [(7, [1, 2, 3], 9), ([1, 2], 7, [3])])
def test_labels_of_different_dimensions_are_refused_by_name(labels, tmp_path):
    with pytest.raises(TypeError, match=r"'.*' of example 1"):
        gl.Precomputed(Labels(*labels), tmp_path, plan())


def test_repeats_of_a_part_of_a_data_set_are_augmented_anew(tmp_path):
    whole = Shapes(6, points=40, transform=(Jitter(),), seed=0)
    data = gl.Precomputed(Subset(whole, [0, 2, 4]), tmp_path, plan(), repeats=2)
    first = data[0][0]["X0"].coords
    data.set_epoch(1)
    assert not torch.equal(data[0][0]["X0"].coords, first)


def joined(sigma: float = 0.01) -> ConcatDataset:
    return ConcatDataset([Shapes(3, points=40, transform=(Jitter(sigma),), seed=seed) for seed in (3, 4)])


def test_repeats_of_joined_data_sets_are_augmented_anew(tmp_path):
    data = gl.Precomputed(Subset(joined(), [1, 4]), tmp_path, plan(), repeats=2)
    first = [data[i][0]["X0"].coords for i in (0, 1)]
    data.set_epoch(1)
    assert not any(torch.equal(data[i][0]["X0"].coords, first[i]) for i in (0, 1))
    assert [part.epoch for part in data.dataset.dataset.datasets] == [0, 0]


def test_the_augmentations_of_joined_data_sets_are_part_of_the_key(tmp_path):
    keys = {gl.Precomputed(joined(s), tmp_path, plan(), check=False).key for s in (0.01, 0.02)}
    assert len(keys) == 2


def test_arrays_that_are_damaged_are_found_by_verify(tmp_path):
    data = gl.Precomputed(shapes(), tmp_path, plan())
    data.verify()
    path = next(data.folder.glob("*.safetensors"))
    whole = bytearray(path.read_bytes())
    whole[-200] ^= 1
    path.write_bytes(whole)
    with pytest.raises(FormatError, match=f"{path.name}: .*damaged"):
        gl.Precomputed(shapes(), tmp_path, plan()).verify()


class Given:
    """Examples that are given."""

    def __init__(self, *examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int):
        return self.examples[i]


def test_numbers_that_are_not_finite_are_compared_by_their_places(tmp_path):
    def weighed(place: int) -> Given:
        weight = torch.ones(9)
        weight[place] = math.nan
        return Given(gl.Cloud.of(torch.arange(27.0).view(9, 3), weight=weight))

    for _ in range(2):
        gl.Precomputed(weighed(2), tmp_path, plan()).verify()
    with pytest.raises(ValueError, match=r"000-00000\.safetensors .*example 0"):
        gl.Precomputed(weighed(3), tmp_path, plan())


def test_another_label_of_one_point_is_noticed(tmp_path):
    def labelled(last: int) -> Given:
        return Given(gl.Cloud.of(torch.arange(27.0).view(9, 3), label=torch.tensor([0] * 8 + [last])))

    gl.Precomputed(labelled(1), tmp_path, plan())
    gl.Precomputed(labelled(1), tmp_path, plan())
    with pytest.raises(ValueError, match=r"000-00000\.safetensors .*example 0"):
        gl.Precomputed(labelled(2), tmp_path, plan())


def test_what_identifies_a_data_set_is_part_of_the_key(tmp_path):
    data = [Given(torch.rand(9, 3)) for _ in range(2)]
    data[1].fingerprint = "release 2"
    assert len({gl.Precomputed(one, tmp_path, plan()).key for one in data}) == 2


def test_a_label_that_is_there_later_only_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"'1/' .*example 1"):
        gl.Precomputed(Given((torch.rand(9, 3), None), (torch.rand(9, 3), torch.tensor(1))), tmp_path, plan())


def test_half_precision_is_stored_to_the_bit(tmp_path):
    values = torch.arange(6, dtype=torch.bfloat16) / 3
    stored = gl.Precomputed(Given((torch.rand(9, 3), values)), tmp_path, plan())[0][1]
    assert stored.dtype == torch.bfloat16
    assert torch.equal(stored, values)


def test_types_that_cannot_be_stored_are_refused_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"'1/' .*torch\.complex128"):
        gl.Precomputed(Given((torch.rand(9, 3), torch.ones(2, dtype=torch.complex128))), tmp_path, plan())


def test_lists_of_an_example_and_its_label_are_taken(tmp_path):
    geometry, label = gl.Precomputed(Given([torch.rand(9, 3), 4]), tmp_path, plan())[0]
    assert len(geometry["X0"]) == 9
    assert label == 4


class Fatal(Given):
    def __getitem__(self, i: int):
        if i == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_what_is_complete(tmp_path):
    data = Fatal(*((torch.rand(9, 3), i) for i in range(6)))
    with pytest.raises(RuntimeError, match=r"1 processes .*killed.*num_workers"):
        gl.Precomputed(data, tmp_path, plan(), shard=2, num_workers=1)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2


@pytest.mark.slow
def test_persistent_workers_see_another_epoch(tmp_path):
    data = gl.Precomputed(shapes(size=2), tmp_path, plan(), repeats=2)
    loader = DataLoader(data, 2, collate_fn=gl.collate, num_workers=1, persistent_workers=True)
    # As it reaches a process that is not forked.
    sent = pickle.loads(ForkingPickler.dumps(data))
    for epoch in (0, 1):
        data.set_epoch(epoch)
        ((geometry, _),) = list(loader)
        assert torch.equal(geometry["X0"].coords[: len(data[0][0]["X0"])], data[0][0]["X0"].coords)
        assert sent.epoch == epoch
    other = pickle.loads(pickle.dumps(data))
    other.set_epoch(0)
    assert (other.epoch, data.epoch) == (0, 1)


def test_parts_of_different_parts_have_files_of_their_own(tmp_path):
    whole = Labels(*range(12))
    folds = [Subset(whole, range(6)), Subset(whole, range(6, 12))]
    first, second = (gl.Precomputed(Subset(f, [0, 2, 4]), tmp_path, plan(), check=False) for f in folds)
    assert first.key != second.key
    assert [int(second[i][1]) for i in range(3)] == [6, 8, 10]
