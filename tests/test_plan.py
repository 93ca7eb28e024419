"""The plan: written once, run anywhere."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gridless as gl
from gridless import plan as plan_module


def paper(radius: float = 0.1125, levels: int = 3) -> gl.Plan:
    """The searches and samplings of the paper's large network."""
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, radius)
    for _ in range(levels):
        coarse = plan.rejection_sample(near)
        plan.ball(cloud, coarse, radius * 2**0.5)
        radius = 2 * radius
        near = plan.ball(coarse, coarse, radius)
        cloud = coarse
    return plan


PRINTED = """\
X0 = points(dim=3)
N00 = ball(X0, X0, radius=0.1125)
X1 = rejection_sample(X0, N00)
N01 = ball(X0, X1, radius=0.1591)
N11 = ball(X1, X1, radius=0.225)
X2 = rejection_sample(X1, N11)
N12 = ball(X1, X2, radius=0.3182)
N22 = ball(X2, X2, radius=0.45)
X3 = rejection_sample(X2, N22)
N23 = ball(X2, X3, radius=0.6364)
N33 = ball(X3, X3, radius=0.9)"""


def everything() -> gl.Plan:
    plan = gl.Plan()
    points = plan.points(dim=2)
    near = plan.ball(points, points, 0.25)
    few = plan.farthest_sample(points, 0.3)
    plan.farthest_sample(points, 7, near=near)
    plan.farthest_sample(points, 0.5, near=near, reject=True)
    down = plan.nearest(points, few, 4)
    plan.transpose(down)
    plan.ball(points, plan.rejection_sample(near), 0.4, limit=3)
    drawn = plan.random_sample(points, 0.4, seed=3)
    plan.without_self(near)
    plan.without_self(plan.ball(points, drawn, 0.3))
    return plan


def assert_same(a: gl.Geometry, b: gl.Geometry) -> None:
    assert list(a) == list(b)
    for name in a:
        for field, value in vars(a[name]).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, getattr(b[name], field)), (name, field)
            elif field not in ("_kept", "_checked"):
                assert value == getattr(b[name], field), (name, field)


def test_the_papers_network_prints_seven_searches_and_three_samplings():
    assert str(paper()) == PRINTED


def test_a_printed_plan_rounds_its_numbers_and_only_the_text_decides_whether_plans_are_equal():
    near, nearer = paper(0.1), paper(0.1 + 1e-9)
    assert "radius=0.1414)" in str(near)
    assert "radius=0.14142135623730953)" in near.text
    assert str(near) == str(nearer)
    assert near != nearer


def test_the_digest_is_the_same_on_any_machine():
    assert paper().digest == "84cb5b30b1ba711b"
    assert paper(0.1).digest != paper().digest


def test_equal_plans_are_equal():
    assert paper() == paper()
    assert hash(paper()) == hash(paper())
    assert paper() != paper(levels=2)
    assert paper() != str(paper())


def test_a_pickled_plan_is_small_and_comes_back():
    for plan in (paper(), everything()):
        packed = pickle.dumps(plan)
        assert len(packed) < 1000
        assert pickle.loads(packed) == plan
        assert copy.deepcopy(plan) == plan


def test_names_know_their_clouds_and_survive_pickling():
    plan = gl.Plan()
    cloud = plan.points(dim=2)
    near = plan.ball(cloud, cloud, 0.5)
    coarse = plan.rejection_sample(near)
    down = plan.ball(cloud, coarse, 0.7)
    up = plan.transpose(down)
    assert (down, down.source, down.target, down.dim, down.radius) == ("N01", "X0", "X1", 2, 0.7)
    assert (up, up.source, up.target, up.radius) == ("N10", "X1", "X0", 0.7)
    assert plan.nearest(cloud, coarse, 3).radius is None
    back = pickle.loads(pickle.dumps(down))
    assert (back, back.source, back.radius) == ("N01", "X0", 0.7)
    assert copy.deepcopy(down).target == "X1"


def test_equal_lines_are_one_line():
    plan = gl.Plan()
    cloud = plan.points()
    assert plan.ball(cloud, cloud, 0.5) == plan.ball(cloud, cloud, 0.5)
    assert len(plan.steps) == 2
    names = [plan.ball(cloud, cloud, 0.5 + i / 64) for i in range(40)]
    assert len(set(names)) == 40
    assert len(plan.steps) == 41


def test_one_sample_is_not_a_fraction_of_one():
    plan = gl.Plan()
    cloud = plan.points()
    one, all_of_them = plan.farthest_sample(cloud, 1), plan.farthest_sample(cloud, 1.0)
    assert one != all_of_them
    geometry = plan(torch.rand(9, 3))
    assert (len(geometry[one]), len(geometry[all_of_them])) == (1, 9)


def test_names_of_many_clouds_are_not_mistaken():
    plan = gl.Plan()
    clouds = [plan.points()]
    for i in range(11):
        clouds.append(plan.farthest_sample(clouds[-1], 50 - i))
    assert plan.nearest(clouds[1], clouds[11], 2) == "N1_11"
    assert plan.nearest(clouds[11], clouds[1], 2) == "N11_1"
    assert plan.nearest(clouds[1], clouds[2], 2) == "N12"


def test_one_example_may_be_a_tensor_or_an_array_and_a_batch_a_cloud_or_a_list():
    x = np.random.default_rng(0).random((40, 3), np.float32)
    plan = paper(0.2)
    one = plan(torch.from_numpy(x))
    assert_same(plan(x), one)
    assert_same(plan(gl.Cloud.of([x])), one)
    assert_same(plan([x, x]), gl.collate([one, one]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(0, 99))
def test_the_plan_of_a_batch_is_the_batch_of_plans(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    # Every second example lies on a lattice, with duplicates and equal distances.
    parts = [torch.rand(n, 2, generator=generator) for n in sizes]
    parts = [(p * 5).round() / 5 if i % 2 else p for i, p in enumerate(parts)]
    plan = everything()
    assert_same(plan(gl.Cloud.of(parts)), gl.collate([plan(p) for p in parts]))


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 5), st.integers(0, 99))
def test_how_a_batch_is_cut_does_not_change_the_papers_geometry(cut, seed):
    parts = list(torch.rand(6, 50, 3, generator=torch.Generator().manual_seed(seed)))
    plan = paper(0.2)
    pieces = gl.collate([plan(gl.Cloud.of(parts[:cut])), plan(gl.Cloud.of(parts[cut:]))])
    assert_same(plan(gl.Cloud.of(parts)), pieces)


def test_every_backend_gives_the_same_geometry(backend, device):
    cloud = gl.Cloud.of([torch.rand(40, 2), torch.rand(0, 2), torch.rand(9, 2)])
    geometry = everything()(cloud.to(device)).to("cpu")
    with gl.use_backend("reference"):
        assert_same(geometry, everything()(cloud))


def test_symmetric_searches_are_marked():
    geometry = paper(0.2)(torch.rand(50, 3))
    assert [n for n in geometry if n[0] == "N" and geometry[n].symmetric] == ["N00", "N11", "N22", "N33"]


def test_the_wrong_input_is_refused():
    plan = paper()
    with pytest.raises(ValueError, match=r"3 dimensions.* 2"):
        plan(torch.rand(5, 2))
    with pytest.raises(ValueError, match=r"\(S, D\)"):
        plan(torch.rand(5))
    with pytest.raises(TypeError, match="float32 or float64"):
        plan(torch.zeros(5, 3, dtype=torch.int64))
    x = torch.rand(5, 3)
    x[2, 2] = torch.nan
    with pytest.raises(ValueError, match="row 2 of example 0"):
        plan(x)


@pytest.mark.parametrize("radius", [0, -1, float("nan"), float("inf")])
def test_a_radius_is_checked_where_it_is_written(radius):
    plan = gl.Plan()
    cloud = plan.points()
    with pytest.raises(ValueError, match="radius"):
        plan.ball(cloud, cloud, radius)
    assert len(plan.steps) == 1


def test_lines_that_make_no_sense_are_refused():
    plan = gl.Plan()
    cloud = plan.points()
    near = plan.ball(cloud, cloud, 0.5)
    coarse = plan.rejection_sample(near)
    down = plan.ball(cloud, coarse, 0.5)
    with pytest.raises(ValueError, match=r"rejection_sample: N01.*in itself"):
        plan.rejection_sample(down)
    with pytest.raises(ValueError, match=r"farthest_sample: N00.*X1 in itself"):
        plan.farthest_sample(coarse, 5, near=near)
    with pytest.raises(ValueError, match=r"reject=True.*near"):
        plan.farthest_sample(cloud, 5, reject=True)
    with pytest.raises(ValueError, match=r"nearest: k.* 0"):
        plan.nearest(cloud, cloud, 0)
    with pytest.raises(ValueError, match=r"points.*input"):
        plan.points(dim=2)
    with pytest.raises(ValueError, match=r"points: dim.* 9.*1 to 8"):
        gl.Plan().points(dim=9)
    other = gl.Plan()
    other.points()
    with pytest.raises(ValueError, match=r"'X0'.*another plan"):
        other.ball(cloud, coarse, 0.5)


def test_numbers_of_neighbours_and_samples_are_checked_where_they_are_written():
    plan = gl.Plan()
    cloud = plan.points()
    for limit in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=f"ball: limit.*{limit}"):
            plan.ball(cloud, cloud, 0.5, limit=limit)
    for k in (0, 2.5, True, "3"):
        with pytest.raises(ValueError, match=f"nearest: k.*{k}"):
            plan.nearest(cloud, cloud, k)
    for start in (-1, 0.5, True):
        with pytest.raises(ValueError, match=f"farthest_sample: start.*{start}"):
            plan.farthest_sample(cloud, 3, start=start)
    for size in (-3, 1.5, "5", True):
        with pytest.raises((TypeError, ValueError), match=f"farthest_sample: (size|a fraction).*{size}"):
            plan.farthest_sample(cloud, size)
    assert len(plan.steps) == 1
    assert plan.nearest(cloud, cloud, 4.0) == plan.nearest(cloud, cloud, 4)
    assert plan.farthest_sample(cloud, np.array([3, 2])) == plan.farthest_sample(cloud, [3, 2])
    assert plan.farthest_sample(cloud, np.int64(3), np.int64(1)) == plan.farthest_sample(cloud, 3, 1)
    assert plan.farthest_sample(cloud, np.float32(0.3)) == plan.farthest_sample(cloud, 0.3)
    assert plan.nearest(cloud, cloud, np.int64(3)) == plan.nearest(cloud, cloud, 3)
    assert plan.ball(cloud, cloud, 0.5, np.int32(3)) == plan.ball(cloud, cloud, 0.5, 3)


def test_a_geometry_is_no_input_of_a_plan():
    points, events = paper(), gl.Plan()
    events.events((8, 8))
    geometry = points(torch.rand(50, 3))
    for plan in (points, events):
        with pytest.raises(TypeError, match="Geometry"):
            plan(geometry)


def test_a_plan_says_how_it_takes_part_in_transforms_of_functions():
    plan, x = paper(), torch.rand(50, 3)

    def spread(x):
        return plan(x)["X0"].coords.square().sum()

    with pytest.raises(NotImplementedError, match=r"plan.*torch\.func.*gl\.use_backend"):
        torch.func.grad(spread)(x)
    with gl.use_backend("reference"):
        torch.testing.assert_close(torch.func.grad(spread)(x), 2 * x)


def test_a_name_belongs_to_its_plan_and_to_its_copies():
    plan, other = gl.Plan(), gl.Plan()
    cloud, same = plan.points(), other.points()
    assert cloud == same
    with pytest.raises(ValueError, match=r"ball: source 'X0'.*another plan"):
        other.ball(cloud, same, 0.5)
    with pytest.raises(ValueError, match=r"ball: target 'X0'.*another plan"):
        other.ball(same, cloud, 0.5)
    with pytest.raises(TypeError, match=r"nearest: source.*'X0'"):
        plan.nearest("X0", cloud, 3)
    again, name = copy.deepcopy((plan, cloud))
    assert again.ball(name, cloud, 0.5) == pickle.loads(pickle.dumps(plan)).ball(cloud, cloud, 0.5) == "N00"


def test_clouds_and_events_are_told_apart_where_a_line_is_written():
    plan, stream = gl.Plan(), gl.Plan()
    cloud, events = plan.points(), stream.events((8, 8))
    near, seen = plan.ball(cloud, cloud, 0.5), stream.causal(events, events, 3, window=100)
    with pytest.raises(TypeError, match=r"X0 .*causal"):
        stream.ball(events, events, 0.5)
    for wrong in (
        lambda: stream.nearest(events, events, 3),
        lambda: stream.farthest_sample(events, 3),
        lambda: stream.rejection_sample(seen),
        lambda: stream.transpose(seen),
        lambda: plan.ball(near, cloud, 0.5),
        lambda: plan.rejection_sample(cloud),
        lambda: plan.farthest_sample(cloud, 3, near=cloud),
        lambda: plan.lif(cloud, decay_time=1, threshold=1, reset=-1),
        lambda: plan.causal(cloud, cloud),
    ):
        with pytest.raises(TypeError, match="the name of"):
            wrong()
    assert (len(plan.steps), len(stream.steps)) == (2, 2)


def test_the_sensor_kernel_and_stride_of_events_are_checked_where_they_are_written():
    plan = gl.Plan()
    for sensor, message in (
        ((34.7, 34), r"sensor .*34\.7"),
        ((-5, 3), "sensor .*-5 x 3"),
        ((34,), "must be"),
        (34, "must be"),
    ):
        with pytest.raises(ValueError, match=f"events: .*{message}"):
            plan.events(sensor)
    events = plan.events((34, 34, 2))
    assert events.sensor == (34, 34)
    for line in (
        lambda **more: plan.lif(events, decay_time=1, threshold=1, reset=-1, **more),
        lambda **more: plan.causal(events, events, **more),
    ):
        with pytest.raises(ValueError, match=r"stride.* 0"):
            line(stride=0)
        with pytest.raises(ValueError, match=r"kernel.*odd"):
            line(kernel=4)
    assert len(plan.steps) == 1


def test_several_inputs_have_names():
    plan = gl.Plan()
    scan, queries = plan.points(3, name="scan"), plan.points(3, name="queries")
    near = plan.ball(scan, queries, 0.4)
    assert (scan, queries, near) == ("X0", "X1", "N01")
    a, b = torch.rand(40, 3), torch.rand(7, 3)
    geometry = pickle.loads(pickle.dumps(plan))({"scan": a, "queries": b})
    assert torch.equal(geometry[near].source, gl.ball(gl.Cloud.of(a), gl.Cloud.of(b), 0.4).source)
    assert torch.equal(geometry[queries].coords, b)
    swapped = plan({"queries": a, "scan": b})
    assert len(swapped[scan]) == 7
    for wrong in (a, {"scan": a}, {"scan": a, "query": b}, {"scan": a, "queries": b, "more": a}):
        with pytest.raises(TypeError, match=r'plan\(\{"scan": ..., "queries": ...\}\)'):
            plan(wrong)
    with pytest.raises(ValueError, match="input 'scan'"):
        plan.points(3, name="scan")
    with pytest.raises(ValueError, match=r"points.*input.*plan\.points"):
        plan.points(3)
    assert plan.digest != gl.Plan().digest


@pytest.mark.parametrize("radius", ["a", None, True])
def test_a_radius_that_is_no_number_is_refused_where_it_is_written(radius):
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    with pytest.raises(TypeError, match=r"ball: radius.*number"):
        plan.ball(cloud, cloud, radius)


@pytest.mark.parametrize("x", ["scan.ply", None])
def test_a_plan_called_with_no_data_says_what_it_takes(x):
    points, events = gl.Plan(), gl.Plan()
    points.points(dim=3)
    events.events((8, 8))
    with pytest.raises(TypeError, match=r"\(S, 3\).*gl\.read_cloud\(path\)"):
        points(x)
    with pytest.raises(TypeError, match=r"Events.*gl\.read_events\(path\)"):
        events(x)


def test_reach_adds_up_the_radii_that_a_result_depends_on():
    plan = paper(0.5)
    # Along the finest chain: N00, N11, N22, N33; searches between levels run beside them.
    assert plan.reach() == pytest.approx(0.5 + 1 + 2 + 4)
    assert plan.reach(["N00", "N00"]) == pytest.approx(plan.reach() + 1.0)
    back = gl.Plan()
    cloud = back.points(dim=2)
    back.transpose(back.ball(cloud, cloud, 0.5))
    assert back.reach() == pytest.approx(0.5)
    assert gl.Plan().reach() == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (lambda plan, cloud: plan.farthest_sample(cloud, 5), "X1 = farthest_sample.*rejection"),
        (lambda plan, cloud: plan.nearest(cloud, cloud, 5), "N00 = nearest.*ball"),
        (lambda plan, cloud: plan.grid_sample(cloud, 0.3), "X1 = grid_sample.*cells"),
    ],
)
def test_reach_refuses_what_parts_of_a_scene_cannot_give_by_name(line, reason):
    plan = gl.Plan()
    line(plan, plan.points())
    with pytest.raises(ValueError, match=reason):
        plan.reach()


def test_float64_arrays_are_used_as_float32_with_a_word_and_tensors_are_not():
    plan = gl.Plan()
    plan.points(dim=3)
    x = np.random.default_rng(0).random((20, 3))
    table = dict(zip("xyz", x.T, strict=True)) | {"label": np.arange(20)}
    for held in (x, [x, x], x[None], table):
        with pytest.warns(UserWarning, match="float64.*float32") as said:
            cloud = plan(held)["X0"]
        assert said[0].filename == __file__
        assert cloud.coords.dtype == torch.float32
        assert torch.equal(cloud.coords[:20], torch.from_numpy(x).float())
    with pytest.warns(UserWarning, match="float64.*float32"):
        assert plan(table)["X0"].rows["label"].tolist() == list(range(20))
    assert plan(torch.from_numpy(x))["X0"].coords.dtype == torch.float64
    # Metres far from the origin need all their digits.
    assert plan(x + 5_000_000)["X0"].coords.dtype == torch.float64
    assert plan([x, x + 5_000_000])["X0"].coords.dtype == torch.float64
    trimesh = pytest.importorskip("trimesh")
    with pytest.warns(UserWarning, match="float64.*float32"):
        assert plan(trimesh.PointCloud(x))["X0"].coords.dtype == torch.float32


EVENTS = np.array([(0, 0, 0, 1), (5, 1, 0, 1), (9, 1, 1, 0)], [("t", "i8"), ("x", "i2"), ("y", "i2"), ("p", "i1")])


@pytest.mark.slow
def test_compiled_code_calls_plans_searches_and_samplers_and_traces_none_of_them():
    """Dynamo breaks Numba's compiler when it traces it: what is traced is what the user wrote, here two sums."""
    torch.manual_seed(0)
    cloud, events = gl.Cloud.of(torch.rand(60, 3)), gl.Events.of(EVENTS, (2, 2))
    plan = paper(0.3, 1)
    traced = []

    def remember(graph, inputs):
        traced.extend(node.meta["stack_trace"] for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    def user(coords, cloud, events):
        doubled, near = coords * 2, gl.ball(cloud, cloud, 0.3)
        results = [
            near.transpose().source,
            gl.rejection_sample(cloud, near).coords,
            gl.farthest_sample(cloud, 7).coords,
        ]
        results += [gl.causal(events, events).source, gl.lif(events).time, plan(cloud)["N11"].source]
        return [doubled, *results, coords + 1]

    given = cloud.coords, cloud, events
    with gl.use_backend("cpu"):
        for a, b in zip(torch.compile(user, backend=remember)(*given), user(*given), strict=True):
            assert a.equal(b)
    assert len(traced) == 2
    assert not any("gridless/geometry" in where or "gridless/plan" in where for where in traced)


def test_balls_of_samples_with_a_radius_that_the_cloud_was_searched_with_are_not_searched_again(monkeypatch):
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near, wide = plan.ball(cloud, cloud, 0.2), plan.ball(cloud, cloud, 0.3)
    few = plan.rejection_sample(near)
    down, far = plan.ball(cloud, few, 0.2), plan.ball(cloud, few, 0.3)
    limited, other = plan.ball(cloud, few, 0.2, limit=3), plan.ball(cloud, few, 0.25)
    batch = gl.Cloud.of([torch.rand(n, 3, generator=torch.Generator().manual_seed(n)) for n in (60, 0, 90)])
    searched = []
    monkeypatch.setitem(plan_module._RUN, "ball", lambda *a, **k: (searched.append(k), gl.ball(*a, **k))[1])
    geometry = plan(batch)
    for name, radius in ((down, 0.2), (far, 0.3), (other, 0.25)):
        want = gl.ball(batch, geometry[few], radius)
        assert torch.equal(geometry[name].splits, want.splits)
        assert torch.equal(geometry[name].source, want.source)
        assert geometry[name].num_source == len(batch)
    assert geometry[limited].limit == 3
    assert len(geometry[wide]) > len(geometry[near])
    assert searched == [{"radius": 0.2}, {"radius": 0.3}, {"radius": 0.2, "limit": 3}, {"radius": 0.25}]


def test_a_plan_keeps_the_places_of_a_survey():
    """Coordinates of a map: one is much larger than the others, and than the cloud."""
    points = np.random.default_rng(0).random((300, 3)) * 10 + [5e5, 5.2e6, 100]
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 1.0)
    geometry, wanted = plan(points), plan(torch.from_numpy(points))
    assert geometry[cloud].coords.dtype == torch.float64
    assert torch.equal(geometry[near].source, wanted[near].source)


def test_a_geometry_of_another_plan_is_refused_by_the_layers_of_this_one():
    def made(radius):
        plan = gl.Plan()
        cloud = plan.points(dim=3)
        return plan, gl.nn.PointConv(plan.ball(cloud, cloud, radius), 2, 2)

    (plan, conv), (other, _), (equal, _) = made(0.1), made(0.3), made(0.1)
    points, features = torch.rand(20, 3), torch.rand(20, 2)
    # By what was found, not by who found it: equal plans, and copies, serve each other.
    for one in (plan, equal, copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        conv(features, one(points))
    conv(features, pickle.loads(pickle.dumps(plan(points))).to("cpu"))
    for geometry in (other(points), gl.collate([other(points)])):
        with pytest.raises(ValueError, match=r"N00 .*geometry.* plan"):
            conv(features, geometry)


def test_geometries_of_different_plans_are_not_collated():
    plans = []
    for radius in (0.1, 0.3):
        plans.append(gl.Plan())
        cloud = plans[-1].points(dim=3)
        plans[-1].ball(cloud, cloud, radius)
    short = gl.Plan()
    short.points(dim=3)
    points = torch.rand(20, 3)
    for first, second in ((plans[0], plans[1]), (short, plans[0])):
        with pytest.raises(ValueError, match=r"collate: .*geometries.* plans"):
            gl.collate([first(points), second(points)])
