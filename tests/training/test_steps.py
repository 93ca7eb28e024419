"""The training step, schedules, the loader, and the direct loop."""

from __future__ import annotations

import copy
import gc
import threading
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from direct import Run, fit
from small_run import shapes
from streams import stream
from torch.optim import Adam, AdamW

import gridless as gl
from gridless import models
from gridless.nn.norm import BatchNorm
from gridless.structures import pad
from gridless.tasks.classify import report
from gridless.tasks.clouds import views_of_cloud
from gridless.training import (
    Average,
    Clouds,
    Loader,
    Policy,
    Recipe,
    TrainStep,
    accuracy,
    prefetch,
    probabilities,
)
from gridless.training.batch import EXAMPLES, Group
from gridless.training.captured import Slot, capacity
from gridless.training.evaluate import seen
from gridless.training.recipe import read_yaml
from gridless.training.schedule import Cosine, Plateau
from gridless.training.step import begin_step


def test_a_small_network_learns_shapes(recipe, clouds):
    plus = {
        "model": "PointResNetPlus",
        "classes": 3,
        "width": 8,
        "levels": 2,
        "spacing": 0.4,
        "stem_radius": 0.4,
        "lift": 32,
    }
    recipe = recipe.changed(model=plus, epochs=20, learning_rate=0.003, schedule="cosine", average=None)
    model, history = fit(recipe, clouds, shapes(30, seed=1))
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["valid"] > 0.9
    assert accuracy(model, shapes(30, seed=2), views=views_of_cloud(3)) > 0.9


def test_two_runs_of_a_recipe_end_with_the_same_weights(recipe, clouds):
    recipe = recipe.changed(epochs=1)
    first, second = (fit(recipe, clouds)[0].state_dict() for _ in range(2))
    other = fit(recipe.changed(seed=1), clouds)[0].state_dict()
    assert all(torch.equal(a, b) for a, b in zip(first.values(), second.values()))
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_the_direct_loop_and_a_whole_run_train_the_same_network(recipe, clouds, tmp_path):
    from safetensors.torch import load_file

    from gridless.training.run import run

    recipe = recipe.changed(epochs=2, schedule="cosine")
    model, history = fit(recipe, clouds)
    results = run(recipe, clouds, None, tmp_path, progress=False)
    assert results["train_loss"] == pytest.approx(history[-1]["loss"], rel=1e-6)
    weights = load_file(tmp_path / "weights.safetensors")
    # Statistics are estimated anew by the run.
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, weights[name]), name


def test_bfloat16_trains_on_a_gpu_and_keeps_float32_weights(recipe, clouds):
    """On the CPU it is float32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, history = fit(recipe.changed(precision="bf16", epochs=2), clouds.to(device))
    exact, plain = fit(recipe.changed(epochs=2), clouds.to(device))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert history[-1]["loss"] == pytest.approx(plain[-1]["loss"], rel=0.3)
    assert torch.equal(model.stem.weight, exact.stem.weight) == (device == "cpu")


@pytest.mark.slow
def test_l2_is_the_gradient_of_the_sum_of_squares(recipe, clouds):
    """One step with it, against one whose loss has the term written out."""
    weights = []
    for written in (False, True):
        chosen = recipe.changed(l2=0.0 if written else 0.01, model__dropout=0.0, average=None)
        run = Run(chosen, clouds)
        batch = next(iter(run.loader))
        if written:
            run.model.train()
            loss = torch.nn.functional.cross_entropy(run.model(batch.geometry), batch.labels)
            loss = loss + 0.01 * sum(p.square().sum() for p in run.model.parameters() if p.ndim > 1)
            loss.backward()
            run.optimiser.step()
        else:
            run.model.train()
            run.step(batch)
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters() if p.ndim > 1]))
    torch.testing.assert_close(*weights, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("name", "kind", "decay"), [("adam", Adam, 0.02), ("adamw", AdamW, 0.3)])
def test_a_recipe_decides_the_optimiser_and_how_norms_follow(recipe, name, kind, decay):
    usual = {module.momentum for module in recipe.make_model().modules() if isinstance(module, BatchNorm)}
    values = {"l2": 0.01, "weight_decay": 0.3, "epsilon": 1e-4, "learning_rate": 0.005, "norm_momentum": 0.25}
    chosen = recipe.changed(optimiser=name, **values)
    model = chosen.make_model()
    optimiser = chosen.make_optimiser(model)
    assert type(optimiser) is kind
    for group, expected in zip(optimiser.param_groups, (decay, 0), strict=True):
        assert (group["weight_decay"], group["eps"], group["lr"]) == (expected, 1e-4, 0.005)
    assert {module.momentum for module in model.modules() if isinstance(module, BatchNorm)} == {0.25} != usual


def test_the_average_follows_the_weights():
    model = torch.nn.Linear(2, 2)
    average = Average(model, 0.75)
    start = average.model.weight.clone()
    with torch.no_grad():
        model.weight += 1
    average.update()
    torch.testing.assert_close(average.model.weight, start + 0.25)


def test_capture_on_the_cpu_is_refused(recipe):
    model = recipe.make_model()
    with pytest.raises(ValueError, match=r"capture.*CUDA"):
        TrainStep(model, recipe.make_optimiser(model), capture=True)


@pytest.mark.slow
def test_batches_of_different_sizes_share_one_slot(recipe, clouds):
    """A captured graph relies on this: capacities hold, addresses stay, results are those of the plain batch."""
    model = recipe.changed(model__dropout=0.0).make_model().double()
    data = Clouds(clouds.points.double(), clouds.labels)
    batches = list(Loader(data, model.plan, 14, Policy(shuffle=True, drop=0.3)))
    room = capacity({n: max(b.sizes[n] for b in batches) for n in batches[0].sizes})
    slot = Slot(batches[0], room)
    address = slot.batch.geometry["N00"].source.data_ptr()
    for batch in batches:
        slot.load(batch)
        assert slot.batch.geometry["N00"].source.data_ptr() == address
        results = []
        for either in (batch, slot.batch):
            model.zero_grad()
            logits = model.train()(either.geometry)
            torch.nn.functional.cross_entropy(logits, either.labels).backward()
            results.append(torch.cat([logits.flatten(), *(p.grad.flatten() for p in model.parameters())]))
        torch.testing.assert_close(*results)


def numbered(clouds: Clouds) -> Clouds:
    """The same clouds, each with its number as its label."""
    return Clouds(clouds.points, torch.arange(len(clouds)))


def in_groups(count: int, loader: Loader) -> Loader:
    """The loader, which makes the geometry of `count` batches at once."""
    loader.group = count
    return loader


def test_an_epoch_is_every_cloud_once_in_an_order_of_its_own(clouds):
    plan = gl.Plan()
    plan.points(3)
    loader = Loader(numbered(clouds), plan, 10)
    assert len(loader) == 5
    first, second = (torch.cat([b.labels for b in loader]) for _ in range(2))
    assert loader.state_dict() == {"epoch": 2, "start": 0}
    assert torch.equal(first.sort().values, torch.arange(42))
    assert not torch.equal(first, second)


def test_a_loader_goes_on_where_its_state_says(clouds):
    plan = gl.Plan()
    plan.points(3)
    loader = Loader(numbered(clouds), plan, 10, Policy(shuffle=True, drop=0.5))
    whole = list(loader)
    loader.load_state_dict({"epoch": 0, "start": 3})
    rest = list(loader)
    assert len(rest) == 2
    for a, b in zip(whole[3:], rest):
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.geometry["X0"].coords, b.geometry["X0"].coords)


def tensors_of(batch) -> list[torch.Tensor]:
    """The labels, and every tensor of its structures, those of the transposed edges included."""
    tensors = [batch.labels]
    for value in batch.geometry.values():
        if isinstance(value, gl.Cloud):
            tensors += [t for t in (value.coords, value.splits, value.parent_index) if t is not None]
        else:
            ways = [value] if value.symmetric else [value, value.transpose()]
            tensors += [tensor for edges in ways for tensor in (edges.splits, edges.source)]
    return tensors


def padded(plan, geometry, room) -> list[torch.Tensor]:
    """The tensors of a geometry, each grown to the room it has."""

    def grown(tensor: torch.Tensor, length: int, value: int = 0) -> torch.Tensor:
        return torch.cat([tensor, tensor.new_full((length - len(tensor), *tensor.shape[1:]), value)])

    def spread(index: torch.Tensor, length: int, into: int) -> torch.Tensor:
        return torch.cat([index, torch.tensor([row % into for row in range(len(index), length)]).to(index)])

    tensors = []
    for name, value in geometry.items():
        if isinstance(value, gl.Cloud):
            tensors += [grown(value.coords, room[name]), value.splits]
            if value.parent_index is not None:
                tensors.append(spread(value.parent_index, room[name], room[plan.steps[name].inputs[0]]))
            continue
        source, target = plan.ends(name)
        ways = [(value, source, target)]
        if not value.symmetric:
            ways.append((value.transpose(), target, source))
        for edges, source, target in ways:
            tensors.append(grown(edges.splits, room[target] + 1, len(edges)))
            tensors.append(spread(edges.source, room[name], room[source]))
    return tensors


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("point_resnet_plus", {}),
        ("point_resnet_large", {"self_edge": False}),
        ("point_resnet_large", {"limit": 6}),
        ("point_unet", {}),
    ],
)
def test_batches_cut_from_a_group_are_those_made_one_by_one(clouds, name, more):
    plan = models.build({"model": name, "classes": 3, "width": 8, "levels": 2, **more}).plan
    settings = {"batch_size": 10, "augment": Policy(shuffle=True, drop=0.5)}
    alone = list(in_groups(1, Loader(clouds, plan, **settings)))
    group = list(in_groups(3, Loader(clouds, plan, **settings)))
    assert len(alone) == len(group) == 5
    for a, b in zip(alone, group):
        for one, other in zip(tensors_of(a), tensors_of(b), strict=True):
            assert torch.equal(one, other)
        assert a.sizes == b.sizes
        for key, value in a.geometry.items():
            for size in ("num_source", "num_parent", "num_target"):
                assert getattr(value, size, 0) == getattr(b.geometry[key], size, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("group", [1, 3])
def test_a_slot_holds_whatever_batch_was_loaded_last(clouds, backend, device, group, dtype):
    """One launch cuts a batch out of its group and pads it: what cutting and padding one by one would give."""
    with gl.use_backend(None):
        plan = models.point_unet(3, width=8, levels=2).plan
        data = Clouds(clouds.points[:20].to(device, dtype), clouds.labels[:20].to(device))
        loader = in_groups(group, Loader(data, plan, 5, Policy(shuffle=True, drop=0.5)))
        batches = list(loader)
        room = capacity({n: max(b.sizes[n] for b in batches) for n in batches[0].sizes})
    wanted = [[batch.labels, *padded(plan, batch.geometry, room)] for batch in batches]
    slot = Slot(batches[0], room)
    for batch, expected in reversed([*zip(batches, wanted, strict=True)]):
        slot.load(batch)
        for one, other in zip(tensors_of(slot.batch), expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), data.labels[loader.order(0).to(device)])


def test_edges_have_more_room_than_rows():
    """Twice the spread: up to an eighth of rows, up to half of edges."""
    high, low = {EXAMPLES: 8, "X0": 6400, "N00": 64_000}, {EXAMPLES: 8, "X0": 1000, "N00": 1000}
    room = capacity(high, low, {"N00"})
    assert room == {EXAMPLES: 8, "X0": 7424, "N00": 97_344}
    assert capacity(high, high, {"N00"})["N00"] == 65_344


def test_a_slot_is_padded_as_a_collated_batch_is(clouds, backend, device):
    with gl.use_backend(None):
        plan = models.point_unet(3, width=8, levels=2).plan
        data = Clouds(clouds.points[:6].to(device), clouds.labels[:6].to(device))
        group = next(iter(in_groups(2, Loader(data, plan, 3, Policy(shuffle=True, drop=0.5))))).group
    most = 100 + max(max(batch.sizes.values()) for batch in group)
    slot = Slot(group[0], dict.fromkeys(group[0].sizes, most) | {EXAMPLES: 3})
    for batch in group:
        slot.load(batch)
        for name, value in batch.geometry.items():
            wanted, slot_value = pad(value, [most]), slot.batch.geometry[name]
            for (_, a), (_, b) in zip(wanted.parts(), slot_value.parts(), strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("group", [1, 2])
def test_streams_are_cut_and_padded_as_clouds_are(backend, device, group):
    """With their rows, of which events that are fired have those of their causes, and with what fired them."""
    with gl.use_backend(None):
        plan = models.event_resnet(3, (7, 6), width=4, levels=2, pooled=0, threshold=0.5, reset=-1.0).plan
        recordings = [stream((n,), seed=n) for n in (90, 0, 60, 130)]
        recordings = [gl.Events.of(r, weight=torch.rand(len(r), 2), seen=r.time % 3 == 0) for r in recordings]
        each = 4 // group
        geometry = plan(gl.collate(recordings).to(device))
        whole = Group(plan, geometry, torch.arange(4, device=device), [1.0] * group, [each] * group)
        room = capacity({n: max(b.sizes[n] for b in whole) for n in whole[0].sizes})
        wanted = [plan(gl.collate(recordings[k * each : (k + 1) * each]).to(device)) for k in range(group)]
    slot = Slot(whole[0], room)
    for batch, expected in reversed([*zip(whole, wanted, strict=True)]):
        slot.load(batch)
        assert len(expected["X1"]) > 3
        for name, value in expected.items():
            cut, held, most = batch.geometry[name], slot.batch.geometry[name], room[name]
            assert len(held) == most
            for parent in plan.steps[name].inputs:
                assert held.num_parent == room[parent]
            for (kind, one), (_, other), (_, third) in zip(value.parts(), cut.parts(), held.parts(), strict=True):
                assert torch.equal(one, other)
                assert torch.equal(one, third[: len(one)])
                if kind != "splits":
                    assert len(third) == most
            assert torch.equal(held.example[len(value) :], held.example.new_full((most - len(value),), each))


@pytest.mark.parametrize("group", [1, 2])
def test_rows_are_cut_and_padded_with_their_points(backend, device, group):
    """Rows have any dtype and shape, in the batches of a group and in a slot."""
    with gl.use_backend(None):
        generator = torch.Generator().manual_seed(0)
        sizes = (7, 30, 11, 19)
        clouds = [
            gl.Cloud.of(
                torch.rand(n, 3, generator=generator),
                rgb=torch.randint(256, (n, 3), generator=generator, dtype=torch.uint8),
                normal=torch.rand(n, 3, generator=generator, dtype=torch.float64),
                label=torch.arange(n) % 5,
                half=torch.rand(n, 2, 2, generator=generator).half(),
                seen=torch.rand(n, generator=generator) < 0.5,
            )
            for n in sizes
        ]
        plan = models.point_resnet_small(3, width=8).plan
        geometry = plan(gl.collate(clouds).to(device))
        whole = Group(plan, geometry, torch.arange(4, device=device), [1.0] * group, [4 // group] * group)
        room = capacity({n: max(b.sizes[n] for b in whole) for n in whole[0].sizes})
        wanted = [plan(gl.collate(clouds[k * (4 // group) : (k + 1) * (4 // group)]).to(device)) for k in range(group)]
    slot = Slot(whole[0], room)
    for batch, expected in reversed([*zip(whole, wanted, strict=True)]):
        slot.load(batch)
        for name in ("X0", "X1"):
            rows, end = expected[name].rows, len(expected[name])
            assert set(rows) == {"rgb", "normal", "label", "half", "seen"}
            for key, value in rows.items():
                assert torch.equal(batch.geometry[name].rows[key], value)
                padded = slot.batch.geometry[name].rows[key]
                assert torch.equal(padded[:end], value)
                assert not padded[end:].any()


@pytest.fixture
def threads(monkeypatch):
    """The thread that prepares batches, without the streams of a GPU."""
    stream = SimpleNamespace(record_event=lambda: None, wait_event=lambda event: None)
    monkeypatch.setattr(prefetch, "_side_stream", lambda device: stream)
    monkeypatch.setattr(Group, "tensors", lambda group: ())
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)


def labels_of(batches) -> list[int]:
    return torch.cat([batch.labels for batch in batches]).tolist()


@pytest.fixture
def ahead(clouds, threads):
    plan = gl.Plan()
    plan.points(3)
    return in_groups(2, Loader(numbered(clouds), plan, 5, epochs=3))


def test_threads_end_before_the_program_does(ahead):
    batches = ahead._ahead(0, range(0, len(ahead), 2))
    next(batches)
    running = [t for t in threading.enumerate() if t.name == "gridless-prepare"]
    assert running
    prefetch._end_all()
    assert not any(thread.is_alive() for thread in running)


def test_a_thread_goes_on_with_the_next_epoch(ahead):
    firsts = range(0, len(ahead), 2)
    one = ahead._ahead(0, firsts)
    assert labels_of(islice(one, len(ahead))) == ahead.order(0).tolist()
    # The first iterator was never asked for more than there is; whoever begins the next takes its thread over.
    two = ahead._ahead(1, firsts)
    began = [next(two)]
    one.close()
    assert labels_of(began + list(two)) == ahead.order(1).tolist()
    assert labels_of(ahead._ahead(2, firsts)) == ahead.order(2).tolist()
    assert ahead._next is None


def test_iterating_elsewhere_begins_anew(ahead):
    firsts = range(0, len(ahead), 2)
    list(ahead._ahead(0, firsts))
    assert labels_of(ahead._ahead(2, range(4, len(ahead), 2))) == ahead.order(2)[20:].tolist()
    ahead.epochs = 5
    assert labels_of(ahead._ahead(2, firsts)) == ahead.order(2).tolist()


def test_mistakes_in_the_thread_are_raised_where_batches_are_taken(ahead, monkeypatch):
    monkeypatch.setattr(type(ahead), "prepare", lambda *job: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(ahead._ahead(0, range(0, len(ahead), 2)))


def test_the_thread_ends_with_its_loader(clouds, threads):
    plan = gl.Plan()
    plan.points(3)
    loader = Loader(numbered(clouds), plan, 5, epochs=3)
    list(loader._ahead(0, range(len(loader))))
    thread = loader._next[1].thread
    assert thread.is_alive()
    assert copy.deepcopy(loader)._next is None
    del loader
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="threads and graphs are for CUDA devices")


@needs_cuda
def test_epochs_follow_each_other_without_a_pause(clouds):
    """The next epoch is begun ahead of time, up to the last; jumping elsewhere gives what a fresh loader gives."""
    plan = gl.Plan()
    plan.points(3)

    def loader(**more) -> Loader:
        return in_groups(2, Loader(numbered(clouds).to("cuda"), plan, 5, Policy(shuffle=True), **more))

    def epochs(loader: Loader, at: list[tuple[int, int]]) -> list[torch.Tensor]:
        tensors = []
        for loader.epoch, loader.start in at:
            tensors += [
                torch.cat([b.labels[:, None], b.geometry["X0"].coords.view(len(b.labels), -1)], 1) for b in loader
            ]
        return tensors

    for at in ([(0, 0), (1, 0), (2, 0), (3, 0)], [(0, 0), (2, 0), (1, 3), (2, 0)]):
        ahead, plain = loader(epochs=3), loader(prefetch=0)
        for one, other in zip(epochs(ahead, at), epochs(plain, at), strict=True):
            assert torch.equal(one, other)
    thread = None
    for _ in ahead:
        thread = next(t for t in threading.enumerate() if t.name == "gridless-prepare")
        break
    del ahead
    gc.collect()
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()


@needs_cuda
def test_captured_steps_are_those_launched_one_by_one(recipe, clouds):
    """Each step from the same state, and in float64: a sign before a ReLU that rounding decides moves a gradient by a
    tenth here."""
    recipe = recipe.changed(epochs=2, model__dropout=0.0, batch_size=6, augment__drop=0.3, average=None)
    captured, plain = runs = [Run(recipe.changed(capture=capture), clouds.to("cuda")) for capture in (True, False)]
    for run in runs:
        run.model.double()
    for epoch in range(2):
        captured.loader.epoch = epoch
        for number, batch in enumerate(captured.loader):
            model, optimiser = copy.deepcopy((captured.model.state_dict(), captured.optimiser.state_dict()))
            plain.model.load_state_dict(model)
            plain.optimiser.load_state_dict(optimiser)
            state, wanted = (one_step(run, batch, epoch, number) for run in runs)
            for name, tensor in wanted.items():
                assert (state[name] - tensor).norm() <= 1e-5 * tensor.norm(), (epoch, number, name)
    assert captured.step.captured.graphs


def test_the_position_of_a_step_alone_decides_its_rate_and_its_random_numbers():
    optimiser, draws = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), []
    for number in (1, 2, 1):
        begin_step(SimpleNamespace(seed=0), lambda position: position, optimiser, 3, number, 4)
        assert optimiser.param_groups[0]["lr"] == 3 + number / 4
        draws.append(torch.rand(()).item())
    assert draws[0] == draws[2] != draws[1]


def one_step(run, batch, epoch, number):
    """The state after a step: its loss, the optimiser's means of gradients, and running statistics."""
    begin_step(run.recipe, run.schedule, run.optimiser, epoch, number, len(run.loader))
    run.step(batch)
    left = {name: buffer.double() for name, buffer in run.model.named_buffers()}
    left["gradients"] = torch.cat([run.optimiser.state[p]["exp_avg"].flatten() for p in run.model.parameters()])
    left["loss"] = torch.tensor(run.step.read()[0])
    return left


def test_processes_divide_each_batch(clouds):
    plan = gl.Plan()
    plan.points(3)
    parts = [list(Loader(numbered(clouds), plan, 10, rank=r, world=3)) for r in range(3)]
    whole = list(Loader(numbered(clouds), plan, 10))
    for *three, one in zip(*parts, whole):
        assert torch.equal(torch.cat([b.labels for b in three]), one.labels)
        assert sum(b.share for b in three) == pytest.approx(3)


def test_the_plateau_lowers_the_rate_after_its_patience():
    rule = Plateau(1.0, factor=0.2, patience=3)
    rates = []
    for reached in (0.5, 0.6, 0.6, 0.60005, 0.6, 0.6, 0.6, 0.6):
        rule.epoch_ended(reached)
        rates.append(rule(0))
    assert rates == pytest.approx([1, 1, 1, 1, 0.2, 0.2, 0.2, 0.04])
    rising = Plateau(1.0, patience=3)
    for epoch in range(20):
        rising.epoch_ended(0.5 + 2e-4 * epoch)
    assert rising(0) == 1.0


def test_the_cosine_rises_then_falls_to_its_floor():
    rule = Cosine(2.0, epochs=10, warm_up=2, floor=0.1)
    assert rule(0) < 0.02
    assert rule(1) == pytest.approx(1.0, rel=0.01)
    assert rule(2 - 1e-9) == pytest.approx(2.0)
    assert rule(2) == pytest.approx(2.0)
    assert rule(6) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rule(10) == pytest.approx(0.2)


def test_probabilities_sum_to_one_and_votes_are_repeatable(recipe, clouds):
    model = recipe.make_model()
    once, again = (probabilities(model, clouds, views_of_cloud(2), batch_size=16) for _ in range(2))
    assert torch.equal(once, again)
    torch.testing.assert_close(once.sum(1), torch.ones(42))
    whole, thrice = (probabilities(model, clouds, views_of_cloud(n), batch_size=16) for n in (1, 3))
    assert not torch.equal(once, whole)
    assert not torch.allclose(2 * once - whole, 3 * thrice - 2 * once, atol=1e-4), "each view is another"
    assert model.training


def test_as_many_views_of_a_cloud_vote_as_are_asked_for():
    assert [len(views_of_cloud(votes)) for votes in (1, 2, 10)] == [1, 2, 10]


@pytest.mark.parametrize(
    ("trained", "expected"), [("train", ["all", "all", "all", "none"]), ("fit", ["some", "all", "none", "none"])]
)
def test_what_weights_were_trained_on_is_known_of_every_split(trained, expected):
    assert [seen({"split": trained}, split) for split in ("train", "fit", "validation", "test")] == expected
    assert seen({}, "test") == "unknown"


def test_a_report_counts_each_class():
    p = torch.eye(3)[[0, 1, 1, 2]]
    # One of which there is no example does not count.
    result = report(p, torch.tensor([0, 1, 2, 2]), ["a", "b", "c", "d"])
    assert result["accuracy"] == 0.75
    assert result["by_class"] == {"a": 1.0, "b": 1.0, "c": 0.5}
    assert result["mean_class_accuracy"] == pytest.approx(2.5 / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 3}, "'epoch'.*model, start, frozen, data"),
        ({"augment": {"jiter": 1}}, "augment.*'jiter'"),
        ({"optimiser": "sgd"}, "optimiser.*adam, adamw.*'sgd'"),
        ({"batch_size": 0}, "batch_size.* 1.* 0"),
        ({"learning_rate": float("nan")}, "learning_rate.* 0.*nan"),
        ({"epochs": "abc"}, "epochs.*whole.*'abc'"),
        ({"epochs": 2.5}, "epochs.*whole.*2.5"),
        ({"clip": "no"}, "clip.*'no'"),
        ({"learning_rate": None}, "learning_rate.*None"),
        ({"clip": 0}, "clip.*above 0.* 0"),
        ({"clip": -1.0}, "clip.*above 0.*-1.0"),
        ({"average": 1.0}, "average.*above 0.*below 1.*1.0"),
        ({"average": 0}, "average.*above 0.*below 1.* 0"),
        ({"norm_momentum": 0.0}, "norm_momentum.*above 0.*at most 1.*0.0"),
        ({"norm_momentum": 1.5}, "norm_momentum.*above 0.*at most 1.*1.5"),
        ({"weight_decay": -0.1}, "weight_decay.*at least 0.*-0.1"),
        ({"weight_decay": float("nan")}, "weight_decay.*at least 0.*nan"),
        ({"factor": 1.5}, "factor.*above 0.*at most 1.*1.5"),
        ({"warm_up": -1}, "warm_up.*at least 0.*-1"),
        ({"floor": 1.1}, "floor.*0 to 1.*1.1"),
        ({"capture": 1}, "capture.*true.*false.* 1"),
        ({"capture": "no"}, "capture.*true.*false.*'no'"),
        ({"augment": {"azimuth": 3}}, "augment.azimuth.*true.*false.*3"),
        ({"augment": {"shift": "far"}}, "augment.shift.*number.*'far'"),
        ({"augment": {"scale": 2}}, "augment.scale.*two numbers.* 2"),
        ({"augment": {"scale": [1.0]}}, r"augment.scale.*two numbers.*\[1.0\]"),
        ({"augment": 5}, "augment.*mapping.*5"),
        ({"data_options": None}, "data_options.*mapping.*None"),
        ({"model": 3}, "model.*mapping.*3"),
        ({"start": 3}, "start.*text.*3"),
        ({"model": {}, "start": 3}, "start.*text.*3"),
        ({"transforms": 5}, "transforms.*list.*5"),
        ({"task": "parts"}, "data.*semantickitti, shapenetpart, folder.*'modelnet40'"),
        ({"task": 3}, "task.*text.*3"),
        ({"precision": 16}, "precision.*32, bf16.* 16"),
        ({"transforms": ["ReverseTime"]}, "transforms.*recordings.*augment"),
        ({"seed": 2**64}, "seed.*18446744073709551616"),
        ({"smoothing": 2}, "smoothing.*0 to 1.*2"),
        ({"epsilon": -1}, "epsilon.*at least 0.*-1"),
        ({"l2": float("nan")}, "l2.*at least 0.*nan"),
        ({"patience": -1}, "patience.*at least 0.*-1"),
        ({"data_options": {"names": {"ground": 2}}}, r"names: 'ground' .*\{2: "),
        ({"data_options": {"names": {2: 5}}}, "names.* 5 .* 2"),
        ({"data_options": {"names": ["ground"]}}, "names.*mapping"),
    ],
)
def test_mistakes_in_a_recipe_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_dict({"model": {"model": "point_resnet_large"}, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs__x": 3}, "epochs.*'x'.*epochs=VALUE"),
        ({"nope__x": 3}, "'nope'.*model, start"),
    ],
)
def test_changes_inside_of_what_has_no_inside_are_refused(recipe, change, message):
    with pytest.raises(ValueError, match=message):
        recipe.changed(**change)


def test_a_recipe_takes_what_yaml_makes_of_words():
    values = {"model": {"model": "point_resnet_large"}, "start": "modelnet40-large"}
    for given in (32, 32.0, "32"):
        assert Recipe.from_dict({**values, "precision": given}).precision == "32"
    assert Recipe.from_dict({**values, "frozen": "stem"}).frozen == ["stem"]
    for text, number in (("1e-3", 1e-3), ("2E4", 2e4), ("-1.5e+2", -150.0), (".5e1", 5.0)):
        assert read_yaml(f"rate: {text}", "it") == {"rate": number}
    assert read_yaml("[1e, e3, 1e3x, '1e3', 10.0.0.1e3]", "it") == ["1e", "e3", "1e3x", "1e3", "10.0.0.1e3"]


def test_a_batch_of_other_rows_or_types_does_not_fill_a_slot():
    """Bytes would be copied as they are."""
    plan = gl.Plan()
    plan.points(3)

    def batch(dtype=torch.float32, rows=("rgb", "label")):
        cloud = gl.Cloud.of(torch.rand(9, 3, dtype=dtype), **{name: torch.ones(9, 1) for name in rows})
        return Group(plan, plan(cloud), torch.zeros(1))[0]

    slot = Slot(batch(), {"X0": 64, EXAMPLES: 1})
    slot.load(batch())
    for other in (batch(torch.float64), batch(rows=("label", "rgb"))):
        with pytest.raises(ValueError, match="rows or types"):
            slot.load(other)
        assert other.group.layout != batch().group.layout


@needs_cuda
def test_geometry_ahead_waits_for_points_that_are_still_being_made():
    plan = gl.Plan()
    cloud = plan.points(3)
    wanted = torch.rand(1000, 3, device="cuda")
    late = torch.zeros_like(wanted)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    late.copy_(wanted)
    (geometry,) = gl.training.ahead(plan, [gl.Cloud.of(late)], "cuda")
    assert torch.equal(geometry[cloud].coords, wanted)


def test_a_module_of_ones_own_logs_in_validation():
    lightning = pytest.importorskip("lightning")
    model = models.PointResNet(classes=14, width=8, levels=2, radius=0.4)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def validation_step(self, batch, number):
            loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.log("plain", loss)
            self.log("loss", loss, batch_size=len(batch[1]))

    data = gl.data.Shapes(6, points=64, transform=[model.plan])
    batches = torch.utils.data.DataLoader(data, 4, collate_fn=gl.collate)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    logged = lightning.Trainer(accelerator="cpu", **quiet).validate(Module(), batches, verbose=False)[0]
    every = torch.nn.functional.cross_entropy(model.eval()(gl.collate([*data])[0]), data.labels)
    assert logged["loss"] == pytest.approx(float(every), rel=1e-4)
    # Clouds of equal size count as their points do.
    assert logged["plain"] == pytest.approx(float(every), rel=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_gpu_that_is_not_there_is_refused_by_name():
    plan = gl.Plan()
    plan.points(3)
    message = "'cuda'.*no GPU"
    with pytest.raises(ValueError, match=message):
        gl.load("modelnet40-small", device="cuda")
    with pytest.raises(ValueError, match=message):
        next(gl.training.ahead(plan, [gl.Cloud.of(torch.rand(5, 3))], "cuda"))
