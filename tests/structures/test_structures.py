"""Clouds, edges, geometries, and how they are moved, pickled, collated and exchanged."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections import namedtuple
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csr_array
from torch.utils._python_dispatch import TorchDispatchMode

import gridless as gl

ROOT = Path(__file__).resolve().parents[1]


def cloud(*sizes: int, dim: int = 3, seed: int = 0) -> gl.Cloud:
    generator = torch.Generator().manual_seed(seed)
    return gl.Cloud.of([torch.rand(n, dim, generator=generator) for n in sizes])


def edges_of(*sizes: int) -> gl.Edges:
    points = cloud(*sizes)
    return gl.nearest(points, points, 3)


def run(code: str, **env: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# Clouds.


def test_a_cloud_is_made_of_one_array_or_of_several():
    one = gl.Cloud.of(np.zeros((4, 2)))
    assert (one.num_examples, len(one), one.dim, one.coords.dtype) == (1, 4, 2, torch.float64)
    several = gl.Cloud.of([torch.zeros(4, 3), torch.zeros(0, 3), torch.ones(2, 3)])
    assert several.splits.tolist() == [0, 4, 4, 6]
    assert several.sizes.tolist() == [4, 0, 2]
    assert several.example.tolist() == [0, 0, 0, 0, 2, 2]
    assert several.examples[-1].coords.tolist() == torch.ones(2, 3).tolist()
    assert len(several.examples[1]) == 0
    assert gl.Cloud.of(several) is several
    with pytest.raises(IndexError, match="example 3"):
        several.examples[3]
    with pytest.raises(TypeError, match=r"list.*gl.collate"):
        several.examples[[0, 2]]
    assert len(several.examples[torch.tensor(0)]) == 4
    with pytest.raises(TypeError, match=r"x.rows\['label'\]"):
        several["label"]


def test_blocks_of_clouds_in_a_list_are_several_examples():
    block, one = torch.rand(2, 5, 3), torch.rand(4, 3)
    for rows in ({}, {"label": [torch.arange(10), torch.arange(4)]}):
        assert gl.Cloud.of([block, one], **rows).splits.tolist() == [0, 5, 10, 14]


def test_a_batch_goes_to_its_device_once_however_many_clouds_it_has():
    class Copies(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            self.count += operation.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
            return operation(*args, **kwargs or {})

    clouds = [torch.empty(n, 3, device="meta") for n in (4, 1, 6, 2)]
    with Copies() as copies:
        batch = gl.Cloud.of(clouds)
    assert batch.splits.shape == (5,)
    assert copies.count <= 1


@pytest.mark.slow
def test_sources_that_32_bits_do_not_hold_are_refused():
    """2**32 + 3 would become 3."""
    for wrong in (2**32 + 3, -(2**32) + 3, 2**31):
        with pytest.raises(ValueError, match=f"source.*{wrong}"):
            gl.Edges(torch.tensor([0, 2]), torch.tensor([1, wrong]), 5)
    with pytest.raises(ValueError, match=r"source.*num_source"):
        gl.Edges.from_edge_index(torch.tensor([[2**32 + 3], [0]]), 5, 1)


@pytest.mark.parametrize("splits", [[0, 3, 2, 5], [1, 5], [0, 4], [0, 6], [0, 2, 7, 5]])
def test_splits_must_ascend_from_zero_to_the_number_of_rows(splits):
    with pytest.raises(ValueError, match="splits"):
        gl.Cloud(torch.zeros(5, 3), torch.tensor(splits))


@pytest.mark.parametrize(
    ("splits", "message"),
    [(torch.tensor([0.0, 5.0]), "float32"), (torch.zeros(0, dtype=torch.int64), r"\(0,\)"), ([[0, 5]], r"\(1, 2\)")],
)
def test_splits_must_be_whole_numbers_in_one_row(splits, message):
    with pytest.raises(ValueError, match=message):
        gl.Cloud(torch.zeros(5, 3), splits)


def test_splits_and_coordinates_must_be_on_one_device():
    with pytest.raises(ValueError, match=r"splits .*cpu.*meta"):
        gl.Cloud(torch.zeros(5, 3, device="meta"), torch.tensor([0, 5]))


@pytest.mark.parametrize("coords", [torch.zeros(5), torch.zeros(5, 0), torch.zeros(5, 9), torch.zeros(1, 5, 3)])
def test_coordinates_must_have_one_to_eight_dimensions(coords):
    with pytest.raises(ValueError, match=r"coords.*1 to 8"):
        gl.Cloud(coords, torch.tensor([0, 5]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16])
def test_coordinates_must_be_single_or_double(dtype):
    with pytest.raises(TypeError, match=r"\.float\(\)"):
        gl.Cloud(torch.zeros(5, 3, dtype=dtype), torch.tensor([0, 5]))
    with pytest.raises(TypeError, match=r"Cloud\.of"):
        gl.Cloud([[0.0, 0.0]], torch.tensor([0, 1]))


def test_points_that_are_not_finite_are_named_by_example_and_row():
    x = torch.rand(10, 3)
    x[7, 2] = torch.nan
    points = gl.Cloud(x, torch.tensor([0, 4, 10]))
    with pytest.raises(ValueError, match=r"here: 1 points.* finite.* row 3 of example 1"):
        points.check("here")


def test_huge_points_are_finite_although_their_sum_is_not():
    gl.Cloud.of(torch.full((9, 3), 3e38)).check()


def test_a_check_is_made_once():
    points = cloud(5)
    points.check()
    points.coords[0] = torch.nan
    points.check()


def test_an_empty_cloud_is_a_cloud():
    points = gl.Cloud.of(torch.zeros(0, 3))
    points.check()
    assert (len(points), points.num_examples) == (0, 1)
    none = gl.Cloud(torch.zeros(0, 3), torch.tensor([0]))
    assert (len(none), none.num_examples, none.example.tolist()) == (0, 0, [])


def test_parents_must_fit():
    with pytest.raises(ValueError, match="parent_index"):
        gl.Cloud(torch.zeros(5, 3), torch.tensor([0, 5]), torch.zeros(4, dtype=torch.int64), 9)


# Edges.


@pytest.mark.parametrize("splits", [[0, 2, 1, 3], [1, 3], [0, 2], [0, 4]])
def test_the_splits_of_edges_must_fit(splits):
    with pytest.raises(ValueError, match="splits"):
        gl.Edges(torch.tensor(splits), torch.tensor([0, 1, 2]), 5)


@pytest.mark.parametrize("source", [[-1, 0, 1], [0, 1, 5]])
def test_sources_must_be_rows_of_the_source(source):
    with pytest.raises(ValueError, match="num_source is 5"):
        gl.Edges(torch.tensor([0, 3]), torch.tensor(source), 5)


def test_sources_must_be_whole_numbers():
    with pytest.raises(TypeError, match=r"source.*int32"):
        gl.Edges(torch.tensor([0, 3]), torch.tensor([0.0, 1.0, 2.0]), 5)


def test_more_edges_than_can_be_numbered_are_refused():
    source = torch.zeros(1, dtype=torch.int32).expand(2**31)
    with pytest.raises(ValueError, match=r"edges.*[0-9]{10}"):
        gl.Edges(torch.tensor([0, 2**31]), source, 5)


def test_targets_and_counts():
    edges = gl.Edges(torch.tensor([0, 2, 2, 5]), torch.tensor([1, 3, 0, 1, 2]), 4)
    assert edges.target.tolist() == [0, 0, 2, 2, 2]
    assert edges.target.dtype == torch.int32
    assert edges.target is edges.target
    assert edges.counts.tolist() == [2, 0, 3]
    assert (edges.num_target, edges.num_source, len(edges)) == (3, 4, 5)


def test_edge_index_there_and_back_in_any_order():
    edges = edges_of(10, 0, 7)
    pairs = edges.to_edge_index()
    assert pairs.dtype == torch.int64
    shuffled = pairs[:, torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(0))]
    back = gl.Edges.from_edge_index(shuffled, 17, 17)
    assert torch.equal(back.splits, edges.splits)
    assert torch.equal(back.source, edges.source)
    assert gl.Edges.from_edge_index(torch.tensor([[2, 0], [1, 0]]), 3, 4).counts.tolist() == [1, 1, 0, 0]


def test_edge_index_is_read_as_pyg_reads_it():
    from torch_geometric.nn import SimpleConv

    edges = gl.nearest(cloud(9), cloud(5, seed=1), 3)
    features = torch.rand(9, 4)
    ours = edges.to_torch_csr() @ features
    theirs = SimpleConv(aggr="sum")((features, torch.zeros(5, 4)), edges.to_edge_index())
    torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [[[0, 1], [0, 5]], [[0, 1], [-1, 0]], [[0, 9], [0, 1]]])
def test_an_edge_index_out_of_range_is_refused(pairs):
    with pytest.raises(ValueError, match=r"(target|source).*(5|9|-1)"):
        gl.Edges.from_edge_index(torch.tensor(pairs), 5, 5)
    with pytest.raises(ValueError, match=r"\(2, E\)"):
        gl.Edges.from_edge_index(torch.zeros(3, 4), 5, 5)
    with pytest.raises(TypeError, match=r"edge_index .*float32.*\.long\(\)"):
        gl.Edges.from_edge_index(torch.tensor(pairs) + 0.7, 5, 5)
    assert len(gl.Edges.from_edge_index(torch.empty(2, 0), 5, 5)) == 0


def test_scipy_there_and_back():
    edges = edges_of(10, 0, 7)
    matrix = edges.to_scipy(np.arange(len(edges)))
    assert matrix.shape == (17, 17)
    assert matrix[0, int(edges.source[1])] == 1
    back = gl.Edges.from_scipy(matrix)
    assert torch.equal(back.splits, edges.splits)
    assert torch.equal(back.source, edges.source)
    assert torch.equal(gl.Edges.from_scipy(coo_array(matrix)).source, edges.source)


def test_reading_a_scipy_matrix_leaves_it_alone():
    matrix = csr_array((np.array([1.0, 2.0]), np.array([3, 1]), np.array([0, 2])), (1, 4))
    assert gl.Edges.from_scipy(matrix).source.tolist() == [1, 3]
    assert matrix.indices.tolist() == [3, 1]


def test_torch_csr_there_and_back():
    edges = edges_of(10, 0, 7)
    matrix = edges.to_torch_csr(torch.arange(len(edges)).double())
    assert torch.equal(matrix.to_dense(), torch.from_numpy(edges.to_scipy(np.arange(len(edges)) * 1.0).toarray()))
    back = gl.Edges.from_torch_csr(matrix)
    assert torch.equal(back.splits, edges.splits)
    assert torch.equal(back.source, edges.source)


def test_values_of_padded_edges_leave_out_padding():
    edges = edges_of(10, 0, 7)
    padded = gl.structures.pad(edges, [len(edges) + 9])
    assert padded.padding == 9
    values = torch.arange(len(padded)).double()
    expected = edges.to_torch_csr(values[: len(edges)]).to_dense()
    for given in (values, values[: len(edges)]):
        for dense in (padded.to_torch_csr(given).to_dense(), torch.from_numpy(padded.to_scipy(given).toarray())):
            assert torch.equal(dense[:17, :17], expected)
            assert dense.sum() == expected.sum()
    for wrong in (padded.to_torch_csr, padded.to_scipy):
        with pytest.raises(ValueError, match=f"{wrong.__name__}: 3 values.* {len(edges)} edges"):
            wrong(values[:3])


def test_torch_csr_comes_without_a_warning(recwarn):
    torch.set_warn_always(True)  # torch says it once in a process, whoever asks first
    try:
        edges_of(5).to_torch_csr()
    finally:
        torch.set_warn_always(False)
    assert not recwarn.list


# Moving and pickling.


def geometry(*sizes: int) -> gl.Geometry:
    plan = gl.Plan()
    points = plan.points()
    near = plan.ball(points, points, 0.3)
    coarse = plan.rejection_sample(near)
    plan.transpose(plan.ball(points, coarse, 0.5))
    return plan(cloud(*sizes))


def assert_same(a: gl.Geometry, b: gl.Geometry) -> None:
    assert list(a) == list(b)
    for name in a:
        assert repr(a[name]) == repr(b[name])
        for field, value in vars(a[name]).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, getattr(b[name], field)), (name, field)
            elif field != "_kept":
                assert value == getattr(b[name], field), (name, field)


def test_a_geometry_moves_as_structures_do_and_an_empty_one_is_nowhere():
    example = geometry(20)
    assert example.cpu().device == torch.device("cpu")
    assert_same(example.cpu(), example)
    with pytest.raises(ValueError, match="geometry is empty"):
        _ = gl.Geometry({}).device


def test_a_geometry_is_a_mapping_that_knows_its_names():
    example = geometry(20)
    assert list(example) == ["X0", "N00", "X1", "N01", "N10"]
    assert len(example) == 5
    with pytest.raises(KeyError, match="'X7'"):
        example["X7"]


def test_moving_takes_every_tensor_along():
    example = geometry(20, 10).to("meta")
    assert {v.device.type for v in example.values()} == {"meta"}
    assert example["X1"].parent_index.device.type == "meta"
    assert example["N01"].num_source == 30
    here = geometry(20)["X0"]
    assert here.to("cpu") is here
    assert here.cpu() is here


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a CUDA device")
def test_pinned_memory_and_the_gpu():
    example = geometry(20, 10)
    pinned = example.pin_memory()
    assert all(v.splits.is_pinned() for v in pinned.values())
    assert_same(pinned.to("cuda", non_blocking=True).to("cpu"), example)


def test_pinning_asks_every_tensor(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: asked.append(t.shape) or t.clone())
    example = geometry(20, 10)
    assert_same(example.pin_memory(), example)
    tensors = [v for s in example.values() for k, v in vars(s).items() if isinstance(v, torch.Tensor)]
    assert len(asked) == len(tensors)


def test_pickling_keeps_values_and_drops_what_is_derived():
    example = geometry(20, 10)
    example["N01"].transpose()
    back = pickle.loads(pickle.dumps(example))
    assert_same(back, example)
    assert "_kept" not in vars(back["N01"])


def test_structures_are_frozen():
    with pytest.raises(AttributeError):
        cloud(5).coords = torch.zeros(5, 3)
    with pytest.raises(AttributeError):
        edges_of(5).splits = torch.zeros(2)


def test_a_value_is_derived_once():
    points, calls = cloud(5), []
    assert points.cached("thing", lambda: calls.append(1) or 7) == 7
    assert points.cached("thing", lambda: calls.append(1) or 8) == 7
    assert calls == [1]


# Collating.


def test_collating_examples_is_the_batch():
    examples = [geometry(n) for n in (20, 1, 0, 33)]
    batch = gl.collate(examples)
    parts = [e["X0"].coords for e in examples]
    plan = gl.Plan()
    points = plan.points()
    coarse = plan.rejection_sample(plan.ball(points, points, 0.3))
    plan.transpose(plan.ball(points, coarse, 0.5))
    assert_same(batch, plan(gl.Cloud.of(parts)))


def test_tuples_mappings_and_labels_are_collated_part_by_part():
    pair = namedtuple("pair", "cloud label")
    batch = gl.collate([pair(cloud(3), 1), pair(cloud(5), 0)])
    assert type(batch) is pair
    assert batch.cloud.splits.tolist() == [0, 3, 8]
    assert batch.label.tolist() == [1, 0]
    plain = gl.collate([(cloud(3), {"y": 2.0}), (cloud(5), {"y": 3.0})])
    assert isinstance(plain, tuple)
    assert plain[1]["y"].tolist() == [2.0, 3.0]
    assert gl.collate([{"x": cloud(3)}, {"x": cloud(5)}])["x"].splits.tolist() == [0, 3, 8]
    assert gl.collate([[np.zeros(2)], [np.ones(2)]])[0].shape == (2, 2)


def test_arrays_of_another_byte_order_are_converted_and_those_of_no_numbers_refused_by_type():
    numbers = np.arange(6).reshape(2, 3)
    cloud = gl.Cloud.of(numbers.astype(">f4"), label=np.array([1, 2], ">i4"))
    assert cloud.coords.tolist() == numbers.tolist()
    assert cloud.rows["label"].tolist() == [1, 2]
    with pytest.raises(TypeError, match=r"Cloud.of: .*object"):
        gl.Cloud.of(numbers.astype(object))


@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
def test_examples_of_other_dimensions_are_refused_by_number(kind):
    with pytest.raises(ValueError, match=r"Cloud.of: example 0 .*3.* example 2 .*2"):
        gl.Cloud.of([kind((4, 3)), kind((5, 3)), kind((4, 2))])


def test_what_cannot_share_a_batch_is_said_with_what_differs():
    nothing = {name: np.zeros(0, np.int64) for name in "xytp"}
    events = [gl.Events.of(nothing, sensor=sensor) for sensor in ((8, 8), (9, 8), (8, 8))]
    with pytest.raises(ValueError, match=r"collate: Events .*sensor.*\(8, 8\).*\(9, 8\)"):
        gl.collate(events)
    clouds = [gl.Cloud.of(torch.rand(4, dim)) for dim in (3, 3, 2)]
    with pytest.raises(ValueError, match=r"coords .*\(4, 3\).* 0 .*\(4, 2\).* 2"):
        gl.collate(clouds)
    with pytest.raises(TypeError, match=r"collate: .*gl.Cloud.of\(x\)"):
        gl.collate([object(), object()])
    with pytest.raises(ValueError, match=r"pixel .*int64.*Events.of\(...\)"):
        gl.Events(torch.zeros(3, 2, dtype=torch.int64), torch.arange(3), None, torch.tensor([0, 3]), (4, 4))


def test_batches_are_collated_as_examples_are():
    twice = gl.collate([gl.collate([cloud(3), cloud(4)]), cloud(2)])
    assert twice.splits.tolist() == [0, 3, 7, 9]


def test_what_does_not_belong_together_is_refused():
    with pytest.raises(ValueError, match=r"collate: .*empty"):
        gl.collate([])
    near = cloud(5)
    with pytest.raises(ValueError, match=r"Edges.*limit"):
        gl.collate([gl.nearest(near, near, 2), gl.nearest(near, near, 3)])
    plans = gl.Plan(), gl.Plan()
    for plan, radius in zip(plans, (0.1, 0.2)):
        points = plan.points(dim=3)
        plan.ball(points, points, radius)
    with pytest.raises(ValueError, match=r"geometries.*plans"):
        gl.collate([plan(near) for plan in plans])
    with pytest.raises(TypeError, match=r"Cloud.*Edges"):
        gl.collate([cloud(5), edges_of(5)])
    with pytest.raises(ValueError, match="parent_index"):
        gl.collate([cloud(5), gl.farthest_sample(cloud(9), 5)])
    with pytest.raises(ValueError, match=r"devices.*meta"):
        gl.collate([cloud(5), cloud(5).to("meta")])


@pytest.mark.parametrize(
    ("examples", "error", "message"),
    [
        ([[1, 2], [3, 4], [5]], ValueError, "2 .*example 0.* 1 .*example 2"),
        ([torch.tensor(1), torch.tensor(2), 3], TypeError, "Tensor .*example 0.* int .*example 2"),
        ([{"a": 1}, {"a": 1, "b": 2}], ValueError, "example 1 .*'b'.* 0"),
        ([{"a": 1, "b": 2}, {"a": 1}], ValueError, "example 0 .*'b'.* 1"),
        ([1, None], TypeError, "example 1 .*None"),
        ([None, None], TypeError, "example 0 .*None"),
    ],
)
def test_the_example_that_differs_from_the_first_is_named(examples, error, message):
    for nested in (examples, [(cloud(3), example) for example in examples]):
        with pytest.raises(error, match=f"collate: {message}"):
            gl.collate(nested)


def test_numbers_of_several_types_share_a_batch():
    assert gl.collate([1, 2.5, np.float32(3), True]).tolist() == [1, 2.5, 3, 1]
    assert gl.collate([(cloud(3), "a"), [cloud(2), "b"]])[1] == ["a", "b"]


def test_a_cloud_is_no_sequence_of_points():
    with pytest.raises(TypeError, match=r"Cloud.* slices.*x\.examples\[i\]"):
        list(cloud(3))
    assert not isinstance(cloud(3), Iterable)


@pytest.mark.slow
def test_data_loader_workers_compute_and_collate():
    from torch.utils.data import DataLoader

    plan = gl.Plan()
    points = plan.points()
    plan.rejection_sample(plan.ball(points, points, 0.3))
    data = [np.random.default_rng(i).random((30 + i, 3), np.float32) for i in range(6)]
    loader = DataLoader(_Mapped(data, plan), 3, num_workers=2, collate_fn=gl.collate)
    for at, batch in enumerate(loader):
        assert_same(batch, plan(gl.Cloud.of([torch.from_numpy(x) for x in data[3 * at : 3 * at + 3]])))


class _Mapped(torch.utils.data.Dataset):
    def __init__(self, data, function):
        self.data, self.function = data, function

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.function(self.data[i])


# Importing, backends and compiling.


def test_a_backend_that_was_asked_for_never_falls_back(monkeypatch):
    points = cloud(5)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with gl.use_backend("gpu"), pytest.raises(ValueError, match=r"\.to\('cuda'\)"):
        gl.nearest(points, points, 2)
    far = points.to("meta")
    with gl.use_backend("cpu"), pytest.raises(ValueError, match=r"\.to\('cpu'\)"):
        gl.nearest(far, far, 2)
    with pytest.raises(ValueError, match="'meta'"):
        gl.nearest(far, far, 2)
    with pytest.raises(ValueError, match=r"backend.*fast"), gl.use_backend("fast"):
        pass


def test_the_backend_is_restored_even_after_an_error():
    from gridless.backends import backend_for

    with gl.use_backend("reference"):
        assert backend_for(torch.device("cpu")) == "reference"
    with pytest.raises(KeyError), gl.use_backend("reference"):
        raise KeyError
    assert backend_for(torch.device("cpu")) == "cpu"


def test_kernels_run_on_the_device_of_their_tensors(monkeypatch):
    """Triton launches on the current device, which need not be where the tensors are."""
    from gridless import backends

    current = [0]

    @contextmanager
    def device(there):
        before, current[0] = current[0], there.index
        yield
        current[0] = before

    module = SimpleNamespace(where=lambda *given, **named: (current[0], given, named), LIMIT=7)
    monkeypatch.setattr(backends, "load", lambda package, name: module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    for index in (0, 1):
        backend = backends.implementation("gridless.geometry.ball", torch.device("cuda", index))
        assert backend.where(1, a=2) == (index, (1,), {"a": 2})
        assert backend.LIMIT == 7
        assert current == [0]


@pytest.mark.parametrize(
    ("missing", "error", "message"), [("triton.language", ImportError, "Triton"), ("numba", None, "numba")]
)
def test_a_gpu_without_triton_is_told_what_to_do(monkeypatch, missing, error, message):
    from gridless import backends

    def absent(name):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(backends, "import_module", absent)
    with pytest.raises(error or ModuleNotFoundError, match=message) as raised:
        backends.load("gridless.geometry.missing", "gpu")
    assert error is None or raised.type is error


def test_threads_keep_the_order_of_jobs_and_pass_errors_on():
    from gridless.kernels.threads import in_threads

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert in_threads(lambda i: i * i, [(i,) for i in range(50)]) == [i * i for i in range(50)]
        with pytest.raises(ZeroDivisionError):
            in_threads(lambda i: 1 / i, [(1,), (0,), (2,)])
        assert in_threads(lambda i: i, []) == []
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_forked_child_has_threads_of_its_own():
    code = """
    import os, torch
    from gridless.kernels.threads import in_threads
    torch.set_num_threads(2)
    in_threads(abs, [(1,), (-2,)])
    child = os.fork()
    if child == 0:
        os._exit(0 if in_threads(abs, [(1,), (-2,)]) == [1, 2] else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    # Newer Pythons warn of any fork beside threads.
    assert run(code, PYTHONWARNINGS="ignore::DeprecationWarning").strip() == "0"


@pytest.mark.slow
def test_a_slow_compilation_is_announced_once_and_a_quick_one_not():
    code = """
    import time
    from numba.core import event
    from gridless.kernels.compile import njit
    njit()
    njit()
    with event.trigger_event("numba:compile"):
        time.sleep(0.2)
    time.sleep(1.2)
    print("quick one done", flush=True)
    for _ in range(2):
        with event.trigger_event("numba:compile"), event.trigger_event("numba:compile"):
            time.sleep(1.3)
    """
    lines = run(code).splitlines()
    assert len(lines) == 2
    assert lines[0] == "quick one done"
    assert "compiling CPU kernels" in lines[1]


def test_reprs_say_what_is_inside():
    points = gl.Cloud.of(torch.tensor([[0.0, 0, 1], [2, 0, -1.25]]), rgb=torch.zeros(2, 3, dtype=torch.uint8))
    assert repr(points) == (
        "Cloud(2 points in 3-D, float32, from (0, 0, -1.25) to (2, 0, 1), rows {rgb: (2, 3) uint8}, cpu)"
    )
    survey = gl.Cloud.of(torch.tensor([[500012.3, -5400000], [500089.6, -5399912]], dtype=torch.float64))
    assert "from (500012, -5400000) to (500090, -5399912)" in repr(survey)
    near = gl.Edges(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), 2)
    assert repr(near) == "Edges(3 edges from 2 sources to 2 targets, 1.5 each, 2 at most, cpu)"
    rows = {"x": np.array([1, 2]), "y": np.array([0, 0]), "t": np.array([500, 250_500]), "p": np.array([1, 0])}
    events = gl.Events.of(rows, sensor=(4, 3))
    assert repr(events) == "Events(2 events, 4 x 3 pixels, 0.25 s from 500 us on, 50% ON, cpu)"
    assert repr(gl.collate([points, points], "power_of_two")).startswith("Cloud(2 examples, 4 points")
    assert "1 rows of padding" in repr(gl.structures.pad(gl.Cloud.of(torch.rand(3, 3)), "power_of_two"))
    padded = gl.structures.pad(gl.Cloud.of(torch.rand(3, 3) + 1), "power_of_two")
    assert "from (1" in repr(padded)
    assert "from" not in repr(gl.structures.pad(gl.Cloud.of(torch.zeros(0, 3)), [2]))
    few = gl.Edges(torch.tensor([0, 2, 3, 3, 3]), torch.tensor([0, 1, 1, 3, 3]), 4, padding=2)
    assert "3 edges from 4 sources to 4 targets, 1.5 each, 2 at most" in repr(few)
    nothing = gl.Cloud.of(torch.zeros(0, 3))
    assert repr(nothing) == "Cloud(0 points in 3-D, float32, cpu)"


def test_structures_refuse_types_that_they_cannot_have():
    with pytest.raises(TypeError, match=r"Cloud.to: .*float16"):
        gl.Cloud.of(torch.zeros(2, 3)).to(torch.float16)
    events = gl.Events.of({"x": [1], "y": [0], "t": [5], "p": [1]}, sensor=(4, 3))
    with pytest.raises(TypeError, match=r"Events.to .*float64"):
        events.to(torch.float64)


def test_coordinates_become_another_type_and_rows_keep_theirs():
    x = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    cloud = gl.Cloud.of(x, gps_time=torch.rand(5, dtype=torch.float64), directions=())
    for narrow in (cloud.float(), cloud.to(torch.float32)):
        assert narrow.coords.dtype == torch.float32
        assert narrow.rows["gps_time"].dtype == torch.float64
        assert torch.equal(narrow.coords, x.float())
        narrow.check()
    cloud.float().coords.sum().backward()
    assert x.grad.eq(1).all()
    wide = cloud.float().double()
    assert wide.coords.dtype == torch.float64
    assert wide.double() is wide
    assert gl.Cloud.of(torch.rand(4, 3)).double().is_alone


def test_a_cloud_takes_a_device_and_a_type_together_as_a_tensor_does():
    cloud = gl.Cloud.of(torch.rand(5, 3, dtype=torch.float64), label=torch.arange(5))
    for far in (
        cloud.to("meta", torch.float32),
        cloud.to(device="meta", dtype=torch.float32),
        cloud.to("meta", torch.float32, non_blocking=True),
        cloud.float().double().to("meta").to(dtype=torch.float32),
    ):
        assert far.coords.dtype == torch.float32
        assert far.coords.device == far.rows["label"].device == torch.device("meta")
    assert cloud.float().to("meta", torch.float64).coords.dtype == torch.float64
    assert cloud.to("cpu", True) is cloud.to("cpu", torch.float64) is cloud
    assert cloud.to() is cloud
    with pytest.raises(TypeError, match=r"Cloud.to: .*int32"):
        cloud.to("cpu", torch.int32)


def test_conversion_keeps_what_a_sample_knows_and_looks_at_points_again():
    x = gl.Cloud.of(torch.rand(4, 3))
    wide = x.sampled(torch.tensor([0, 2]), torch.tensor([0, 2]), distance=torch.rand(4)).double()
    assert wide.distance.dtype == torch.float64
    assert wide.parent_index.tolist() == [0, 2]
    assert wide.num_parent == 4
    far = gl.Cloud.of(torch.tensor([[1e300, 0.0], [0.0, 0.0]], dtype=torch.float64))
    far.check()
    with pytest.raises(ValueError, match=r"1 points .*finite.* row 0 of example 0"):
        far.float().check()


def test_notebooks_show_rows_as_a_table():
    rgb = torch.tensor([[0, 7, 0], [9, 0, 0]], dtype=torch.uint16)
    cloud = gl.Cloud.of(torch.rand(2, 3), rgb=rgb, **{"a<b": torch.tensor([0.5, 0.25])}, none=torch.zeros(2, 0))
    page = cloud._repr_html_()
    assert "<td>rgb</td><td>(2, 3)</td><td>uint16</td><td>0 to 9</td>" in page
    assert "<td>a&lt;b</td><td>(2,)</td><td>float32</td><td>0.25 to 0.5</td>" in page
    assert "<td>none</td><td>(2, 0)</td><td>float32</td><td></td>" in page
    assert page.startswith("<pre>Cloud(2 points in 3-D")
    assert "rgb" not in page.split("</pre>")[0]
    assert "<table>" not in gl.Cloud.of(torch.rand(2, 3))._repr_html_()
    assert gl.Edges(torch.tensor([0, 1]), torch.tensor([0]), 1)._repr_html_().startswith("<pre>Edges(1 edges")


def test_the_points_of_a_cloud_are_dense_also_where_a_gradient_goes_to_them(backend, device):
    points = torch.rand(80, 6, device=device, requires_grad=True)
    cloud = gl.Cloud.of(points[:, :3])
    assert cloud.coords.is_contiguous()
    dense = gl.Cloud.of(points.detach()[:, :3].contiguous())
    assert torch.equal(gl.ball(cloud, cloud, 0.3).source, gl.ball(dense, dense, 0.3).source)
    cloud.coords.sum().backward()
    assert points.grad[:, :3].eq(1).all()
    assert not points.grad[:, 3:].any()


def test_splits_are_dense():
    splits = torch.tensor([[0, 7], [2, 7], [3, 7]])[:, 0]
    assert gl.Cloud(torch.rand(3, 3), splits).splits.is_contiguous()
    assert gl.Edges(splits, torch.tensor([0, 1, 0]), 3).splits.is_contiguous()


def test_what_is_kept_beside_a_structure_in_inference_serves_training():
    cloud = gl.Cloud.of(torch.rand(30, 3))
    edges = gl.ball(cloud, gl.rejection_sample(cloud, radius=0.3), 0.5)
    with torch.inference_mode():
        back = edges.transpose()
    assert not back.source.is_inference()
    assert edges.transpose() is back


def test_lists_of_numbers_have_the_type_that_they_need():
    assert gl.Cloud.of([[0.1, 0.2], [0.3, 0.4]]).coords.dtype == torch.float32
    survey = gl.Cloud.of([[500000.12, 5200000.34, 100.5], [500010.12, 5200001.34, 101.5]])
    assert survey.coords.dtype == torch.float64
    assert survey.coords[0].tolist() == [500000.12, 5200000.34, 100.5]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.empty((0, 3)), np.float32),
        (np.array([[0.1, 0.2]]), np.float32),
        (np.array([[0.1, np.nan], [0.3, np.inf]]), np.float32),
        (np.array([[5e6 + 0.1, 0], [5e6 + 9.3, 1]]), np.float64),
        (np.array([[1e300, 0.0], [-1e300, 0.0]]), np.float64),
        # A side of the same length as the offset of another is none.
        (np.array([[0.1, 5.2e6 + 0.1], [9.1, 5.2e6 + 9.1]]), np.float64),
    ],
)
def test_float32_is_enough_where_it_moves_no_point_by_a_millionth_of_the_widest_side(values, dtype):
    from gridless.structures.interchange import narrowest

    assert narrowest(values) == dtype


def test_what_was_checked_stays_as_it_was():
    """Splits, sources and pixels that changed later would be read beyond their ends."""
    splits, source, pixel = (
        torch.tensor([0, 3]),
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(3, 2, dtype=torch.int32),
    )
    cloud, edges = gl.Cloud(torch.rand(3, 3), splits), gl.Edges(splits, source, 1)
    events = gl.Events(pixel, torch.arange(3), None, splits, (4, 4))
    for tensor in (splits, source, pixel):
        tensor.fill_(2**30)
    assert [s.splits.tolist() for s in (cloud, edges, events)] == 3 * [[0, 3]]
    assert edges.source.tolist() == [0, 0, 0]
    assert not events.pixel.any()


def test_rows_of_examples_of_one_point_keep_their_shape():
    assert gl.Cloud.of(torch.rand(5, 1, 3), w=torch.rand(5, 1)).rows["w"].shape == (5, 1)
    assert gl.Cloud.of(torch.rand(5, 2, 3), w=torch.rand(5, 2)).rows["w"].shape == (10,)


def test_clouds_stay_where_their_tensors_are_whatever_the_default_device_is():
    x, boxes = torch.rand(6, 3), np.random.rand(2, 3, 3).astype(np.float32)
    with torch.device("meta"):
        clouds = gl.Cloud.of(x, rgb=x.numpy()), gl.Cloud.of(boxes), gl.Cloud.of([*x])
        sampled = gl.farthest_sample(clouds[1], [1, 2])
    assert [one.device.type for one in clouds] == ["cpu"] * 3
    assert sampled.splits.tolist() == [0, 1, 3]
