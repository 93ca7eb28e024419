"""The samples that come with the package."""

from __future__ import annotations

import make_samples
import pytest
import torch

import gridless as gl
from gridless.data.samples import SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_read(name):
    path, thing = gl.data.sample_path(name), gl.data.sample(name)
    assert path.is_file()
    assert len(thing) > 1000
    thing.check()
    assert isinstance(thing, gl.Cloud) == (path.suffix == ".ply")


def test_samples_are_small():
    assert sum(gl.data.sample_path(name).stat().st_size for name in SAMPLES) < 500_000


def test_an_unknown_sample_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"'cup'.*chair.*street.*car.*digit"):
        gl.data.sample("cup")


def test_the_samples_are_those_that_the_script_makes(tmp_path):
    make_samples.main(tmp_path)
    for name in ("chair", "street"):
        generated, known = gl.read_cloud(tmp_path / f"{name}.ply"), gl.data.sample(name)
        assert torch.allclose(generated.coords, known.coords, atol=1e-5)
        assert generated.rows.keys() == known.rows.keys()
    assert torch.equal(gl.read_events(tmp_path / "car.es").pixel, gl.data.sample("car").pixel)


def test_the_scan_has_labels_and_intensity():
    scan = gl.data.sample("street")
    assert set(scan.rows) == {"intensity", "label"}
    assert scan.rows["label"].unique().tolist() == [0, 1, 2, 3]


def test_networks_name_the_samples():
    model = gl.load("modelnet40-plus")
    chances = gl.training.classify(model, gl.data.sample_path("chair"), up="z")
    assert model.about["class_names"][chances.argmax()] == "chair"
    model = gl.load("n-cars")
    chances = gl.training.classify_events(model, gl.data.sample_path("car"))
    assert model.about["class_names"][chances.argmax()] == "cars"
