"""Tasks give the same results here, in processes, and on a Ray cluster that loses a machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.kernels.pool import run

pytestmark = pytest.mark.slow


class Powers:
    def __init__(self, base: int) -> None:
        if base < 0:
            raise ValueError(f"no base {base}")
        self.base = base

    def __call__(self, task: int) -> int:
        if task < 0:
            raise ValueError(f"no power {task}")
        return self.base**task


def test_each_task_is_done_once():
    assert dict(run(Powers, {"base": 3}, range(8))) == {n: 3**n for n in range(8)}


def test_an_error_of_a_task_is_raised():
    with pytest.raises(ValueError, match="no power -1"):
        list(run(Powers, {"base": 3}, [-1]))


def test_an_error_of_what_is_made_in_a_process_is_raised():
    with pytest.raises(ValueError, match="no base -3"):
        list(run(Powers, {"base": -3}, range(4), workers=2))


class Killed:
    def __call__(self, task: int) -> int:
        if task == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return task


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_a_process_that_is_killed_ends_the_run_with_an_error_that_names_the_likely_cause():
    # Without an end: tasks are taken as they are needed.
    tasks = itertools.count()
    with pytest.raises(RuntimeError, match=r"2 processes.*killed"):
        list(run(Killed, {}, tasks, workers=2))


ORPHANS = """
import os, time
from gridless.kernels.pool import run

class Names:
    def __call__(self, task):
        print(os.getpid(), flush=True)
        time.sleep(0 if task < 2 else 600)

if __name__ == "__main__":
    list(run(Names, {}, range(4), workers=2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_processes_end_when_the_one_that_began_them_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(ORPHANS)
    with subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        names = {script.stdout.readline().strip() for _ in range(4)}
        script.kill()
    end = time.monotonic() + 20
    while any(_runs(name) for name in names) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(_runs(name) for name in names)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


SCRIPT = """
from gridless.kernels.pool import run

class Same:
    def __call__(self, task):
        return task

print(sorted(run(Same, {}, range(4), workers=2)))
"""


def test_a_script_that_processes_would_run_again_ends_with_an_error(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith("RuntimeError: ")
    assert "if __name__" in error
    file.write_text(SCRIPT.replace("print", "if __name__ == '__main__':\n    print"))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{[(i, i) for i in range(4)]}\n"


class Points(torch.utils.data.Dataset):
    fingerprint = "points"

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.rand(200, 3), i % 3


@pytest.fixture(scope="module")
def cluster():
    """Two nodes as processes of their own, each with one CPU."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Workers import this module, for the classes in it.
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join(paths))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()


def plan() -> gl.Plan:
    plan = gl.Plan()
    cloud = plan.points()
    plan.rejection_sample(plan.ball(cloud, cloud, 0.2))
    return plan


# The order matters: the last one kills a node.


def test_precomputed_files_of_a_cluster_are_those_of_one_machine(cluster, tmp_path):
    here = gl.Precomputed(Points(), tmp_path / "here", plan(), shard=5)
    there = gl.Precomputed(Points(), tmp_path / "there", plan(), shard=5, ray=cluster.address)
    names = [sorted(p.name for p in files.folder.glob("*.safetensors")) for files in (here, there)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (here.folder / name).read_bytes() == (there.folder / name).read_bytes()


def test_an_error_of_a_task_comes_back_by_name(cluster):
    with pytest.raises(ValueError, match="no power -1"):
        list(run(Powers, {"base": 3}, [2, -1], ray=cluster.address))
    with pytest.raises(ValueError, match="no base -3"):
        list(run(Powers, {"base": -3}, [2], ray=cluster.address))


def test_a_class_for_ray_data_labels_tiles(cluster, tmp_path, scene):
    ray_data = pytest.importorskip("ray.data")
    ray = pytest.importorskip("ray")
    if not ray.is_initialized():
        ray.init(cluster.address, log_to_driver=False)
    from gridless.scenes.label import Labeller

    city, model, labels = scene
    one = Labeller(city, model, size=8.0)
    keys = [{"i": i, "j": j} for i, j in one.tiles.keys]
    arguments = {"source": city, "weights": model, "size": 8.0}
    rows = ray_data.from_items(keys).map_batches(Labeller, fn_constructor_kwargs=arguments, batch_size=2, concurrency=1)
    together = np.full(len(labels), -1)
    for row in rows.take_all():
        assert together[row["index"]] == -1
        together[row["index"]] = row["label"]
    assert np.array_equal(together, labels)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A scene, a network, and the labels that one machine gives."""
    from gridless.scenes.label import label_scene

    folder = tmp_path_factory.mktemp("scene")
    x = np.random.default_rng(0).random((3000, 3)) * [40, 12, 1]
    np.save(folder / "city.npy", x)
    torch.manual_seed(0)
    model = gl.models.point_unet(4, width=8, levels=1, radius=0.5).eval()
    with torch.no_grad():
        logits = model(model.plan(torch.from_numpy(x).float()))
        model.head.bias -= logits.mean(0)
    label_scene(folder / "city.npy", model, folder / "one.npy", size=8.0)
    labels = np.load(folder / "one.npy")
    assert len(np.unique(labels)) > 1
    return folder / "city.npy", model, labels


def test_a_cluster_that_loses_a_node_labels_every_point_once(cluster, scene, tmp_path, monkeypatch):
    from gridless.scenes import label

    city, model, labels = scene
    seen, nodes = [], list(cluster.list_all_nodes())

    def losing(*arguments):
        for number, (key, result) in enumerate(run(*arguments)):
            if number == 1:
                cluster.remove_node(nodes[-1], allow_graceful=False)
            seen.append(key)
            yield key, result

    monkeypatch.setattr(label, "run", losing)
    label.label_scene(city, model, tmp_path / "out.npy", size=3.0, ray=cluster.address)
    assert len(seen) == len(set(seen)) > 10
    assert np.array_equal(np.load(tmp_path / "out.npy"), labels)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1"])
def test_an_address_where_nobody_listens_is_said_at_once(address, monkeypatch):
    # Ray itself tries for minutes. The cluster of the tests above may still be connected.
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: False)
    with pytest.raises(ConnectionError, match=r"1\]?:1: .*ray start"):
        list(run(Powers, {"base": 2}, [1], ray=address))


@pytest.mark.parametrize("error", [ConnectionError("Could not find"), ValueError("Invalid address format")])
def test_an_address_without_a_cluster_is_said_with_the_remedy(error, monkeypatch):
    def init(address, **_):
        raise error

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(ConnectionError, match=r"^--ray auto: .*local"):
        list(run(Powers, {"base": 2}, [1], ray="auto"))


def test_without_ray_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="pip install ray"):
        list(run(Powers, {"base": 2}, [1], ray="auto"))
