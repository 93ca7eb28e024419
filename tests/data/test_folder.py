"""Folders of users' own files, as a notebook shows them. Their layouts and splits: tests/training/test_own_data.py."""

from __future__ import annotations

import torch

import gridless as gl


def test_a_folder_of_clouds_says_what_is_in_it(tmp_path):
    for name in ("mug", "chair"):
        (tmp_path / name).mkdir()
        for i in range(2):
            gl.write_cloud(tmp_path / name / f"{i}.ply", gl.Cloud.of(torch.rand(30, 3)))
    data = gl.data.CloudFolder(tmp_path, "train", points=20)
    assert repr(data) == f"CloudFolder({str(tmp_path)!r}, 'train'): 4 clouds, 80 points, 2 classes: chair, mug"


def test_a_folder_of_labelled_clouds_says_their_labels(tmp_path):
    gl.write_cloud(tmp_path / "a.ply", gl.Cloud.of(torch.rand(6, 3), label=torch.tensor([2, 2, 2, 7, 7, 7])))
    gl.write_cloud(tmp_path / "b.ply", gl.Cloud.of(torch.rand(6, 3), label=torch.tensor([2, 2, 2, 2, 7, 7])))
    data = gl.data.CloudFolder(tmp_path, "train", label="auto", names={2: "ground"})
    assert repr(data).endswith("'train'): 2 clouds, 12 points, labels of points: ground, 7")


def test_a_folder_of_recordings_says_what_is_in_it(tmp_path):
    for number in range(7):
        (tmp_path / f"class{number}").mkdir()
        for i in range(2):
            columns = {"x": [1, 3], "y": [0, 2], "t": [5, 9], "p": [1, 0]}
            gl.write_events(tmp_path / f"class{number}" / f"{i}.npz", gl.Events.of(columns, sensor=(4, 3)))
    data = gl.data.EventFolder(tmp_path, "train")
    summary = "14 recordings, 28 events on 4 x 3 pixels, 7 classes: class0, class1, class2, class3, class4, ..."
    assert repr(data) == f"EventFolder({str(tmp_path)!r}, 'train'): {summary}"
