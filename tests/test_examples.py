"""The examples run, in their quick setting, and do what they say."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import gridless as gl

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[1] / "examples"


def example(name: str) -> ModuleType:
    """The file as a module, so that one process and its compiled kernels serve all of them."""
    spec = spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_clouds_are_classified_far_better_than_by_chance():
    assert example("classify_clouds").main(["--quick"]) > 3 / 14


def test_points_are_segmented_better_than_by_the_most_common_part():
    segment = example("segment")
    parts = segment.Parts(16, 1, gl.models.point_unet(3).plan)  # the shapes that its quick setting is tested on
    labels = torch.cat([parts[i]["X0"].rows["part"] for i in range(len(parts))])
    most_common = float(labels.bincount().max() / len(labels))
    assert segment.main(["--quick"]) > most_common + 0.1


def test_own_files_can_be_trained_on():
    assert example("own_ply_files").main(["--quick"]) > 0.5


def test_a_folder_without_files_is_refused_by_name(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="holds no CLASS/FILE"):
        example("own_ply_files").main([str(tmp_path)])


def test_an_event_network_is_trained_and_then_watches_live_what_it_sees_at_once():
    assert example("classify_events").main(["--quick"]) < 1e-4


def test_live_from_a_file_equals_the_whole_recording_and_resumes_to_the_bit():
    error, resumed = example("live_from_file").main(["--quick"])
    assert error < 1e-5
    assert resumed


def test_a_torch_geometric_network_learns_along_our_edges():
    pytest.importorskip("torch_geometric")
    assert example("pyg_with_our_searches").main(["--quick"]) > 0.35


def test_a_custom_basis_runs_compiled_or_as_the_reference():
    difference, change = example("custom_basis").main([])
    assert difference < 1e-5
    assert change < 1e-4


def test_a_task_of_ones_own_is_trained_and_judged_by_the_command_line(monkeypatch):
    monkeypatch.chdir(FOLDER.parent)
    error, guess = example("own_task").main(["--quick"])
    assert error < 0.9 * guess


def test_a_sparse_unet_labels_a_scene_better_than_by_its_most_common_class():
    # The road is half of the points of a generated street.
    assert example("sparse_unet").main(["--quick"]) > 0.55


def test_a_sparse_unet_labels_a_lidar_scan_better_than_by_its_most_common_class():
    scans = FOLDER.parents[1] / "shared" / "data" / "semantickitti_22_scans.npz"
    if not scans.exists():
        pytest.skip("no scans of SemanticKITTI")
    # Terrain is 27 % of the points.
    assert example("sparse_unet").main(["--quick", "--scans", str(scans)]) > 0.3


def test_examples_are_short_and_all_of_them_are_tested():
    tested = Path(__file__).read_text()
    for file in FOLDER.glob("*.py"):
        assert len(file.read_text().splitlines()) < 100, file.name
        assert f'example("{file.stem}")' in tested, file.name


def test_the_node_of_ros_2_predicts_from_packets_as_the_engine_does_from_events():
    pytest.importorskip("rosbags")
    sys.path.append(str(FOLDER.parent / "tests" / "data"))
    from bag_files import packet, store

    node = example("ros2_node")
    events = gl.data.sample("car")
    x, y, time, on = (events.numpy()[name].astype(np.uint64) for name in "xytp")
    words = on << np.uint64(63) | y << np.uint64(48) | x << np.uint64(32) | np.uint64(1000) * time
    types, predict = store(False), node.Predictor("n-cars-stream")
    assert predict.last() is None
    for number, part in enumerate(np.array_split(words, 7)):
        message = packet(types, part.astype("<u8").tobytes(), "mono", number)
        message.width, message.height = events.sensor
        list(predict(message))
    engine = gl.stream(gl.load("n-cars-stream").eval())
    list(engine.push(events))
    assert predict.last()["probability"] == pytest.approx(float(engine.predict().softmax(0).max()), abs=1e-3)
    assert predict.last()["time"] == engine.time


def test_without_ros_the_node_says_what_it_needs():
    with pytest.raises(SystemExit, match="ROS 2"):
        example("ros2_node").main()
