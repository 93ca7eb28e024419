"""A step of the user's own, captured as graphs. Without a GPU a graph is replayed by running the step again."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys

import pytest
import torch
from small_run import shapes
from streams import stream
from torch.nn.functional import cross_entropy

import gridless as gl
from gridless import models
from gridless.training import Clouds, Loader, Recipe, StepCounter, captured
from gridless.training.step import make_step

pytestmark = pytest.mark.slow

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Replayed:
    """A graph that is kept as Python: the step runs again, and its results go to where they first were."""

    def __init__(self, run, result):
        self.run, self.result = run, result

    def replay(self) -> None:
        new = []
        captured._each(self.run(), lambda t: new.append(t) or t)
        captured._each(self.result, lambda t: t.copy_(new.pop(0)))


@pytest.fixture
def graphs(monkeypatch):
    if DEVICE == "cpu":

        def record(run):
            first = run()
            result = captured._each(first, torch.clone)
            return first, Replayed(run, result), result

        monkeypatch.setattr(captured, "_captures", lambda device: True)
        monkeypatch.setattr(captured, "_record", record)


@pytest.fixture
def unwritten():
    """Memory that nobody wrote is NaN."""
    if DEVICE == "cpu":
        torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def network():
    torch.manual_seed(0)
    model = models.point_resnet_small(3, width=8, dropout=0.0).double().to(DEVICE)
    for module in model.modules():
        if isinstance(module, gl.nn.BatchNorm):
            # Exact in float32, as which a kernel on the GPU is given it; small differences grow from step to step.
            module.eps = 1 / 1024
    return model


# Sums have another order in the kernels that know of padding.
CLOSE = {"rtol": 1e-6, "atol": 1e-8} if DEVICE == "cpu" else {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def batches() -> list:
    """Batches of different sizes: clouds of 30 to 64 points, batches of six, and two of four."""
    data, groups = shapes(48), []
    for k in range(11):
        some = [(5 * k + i) % 48 for i in range(4 if k > 8 else 6)]
        clouds = [data.points[i, : 30 + (7 * i + 11 * k) % 35].double() for i in some]
        groups.append((gl.Cloud.of(clouds).to(DEVICE), data.labels[some].to(DEVICE)))
    return groups


def a_step(model, optimiser):
    def step(geometry, labels):
        logits = model(geometry)
        loss = cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return {"loss": loss, "logits": (logits,)}

    return step


# Rates that float32 holds exactly, as on the device; a small eps would make much of gradients that are rounding.
OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 1 / 16, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 1 / 256, eps=1e-3, fused=True),
}


def trained(batches, optimise, wrap, between=lambda k, optimiser: None):
    """Losses and logits of each batch, and the weights at the end."""
    model = network()
    optimiser = optimise(model.parameters())
    step, results = wrap(a_step(model, optimiser), model.plan), []
    for k, (clouds, labels) in enumerate(batches):
        between(k, optimiser)
        result = step(model.plan(clouds), labels)
        results += [result["loss"].detach(), result["logits"][0].detach()]
    return [*results, *(p.detach() for p in model.parameters())], step


def assert_same(batches, optimise, make_between=lambda: lambda k, optimiser: None):
    plain, _ = trained(batches, optimise, lambda step, plan: step, make_between())
    values, step = trained(batches, optimise, gl.capture, make_between())
    for one, other in zip(values, plain, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    return step


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_captured_step_does_what_the_step_does(graphs, batches, name):
    """Whatever the sizes of its batches, the smaller last ones included."""
    step = assert_same(batches, OPTIMISERS[name])
    assert step.graphs == 2


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_graph_that_nobody_has_any_more_does_not_end_the_capture_of_another(batches):
    _, last = trained(batches, OPTIMISERS["sgd"], gl.capture)
    last.itself = last  # only the collector can free it
    old, often = [last], gc.get_threshold()
    del last

    def wrap(step, plan):
        def dropping(geometry, labels):
            if torch.cuda.is_current_stream_capturing():
                old.clear()
            return step(geometry, labels)

        return gl.capture(dropping, plan)

    gc.set_threshold(1)
    try:
        trained(batches, OPTIMISERS["sgd"], wrap)
    finally:
        gc.set_threshold(*often)
    assert not old


EVENT_NETWORKS = {
    "voxel": lambda **options: models.event_resnet(3, (16, 16), head="voxel", **options),
    "window": lambda **options: models.event_resnet(3, (16, 16), head="voxel", duration=1500, **options),
    "stream": lambda **options: models.event_resnet(3, (16, 16), head="stream", **options),
    "counts": lambda **_: models.EventCounts(3, (16, 16), width=4, levels=1, decay_times=(500.0, 900.0), dropout=0.0),
}


@pytest.mark.parametrize("name", EVENT_NETWORKS)
def test_a_network_of_events_is_captured_for_recordings_of_any_size(graphs, unwritten, name):
    """Some recordings have no event and fire nothing. The loss is the network's own, if it has one."""
    sizes = [(90, 60, 0), (70, 80, 40), (95, 20, 70), (30, 60, 50), (88, 91, 3), (60, 60, 60), (80, 0, 75), (0, 1, 2)]
    sizes += [(85, 93, 20), (400, 90, 80), (50, 70, 60)]
    recordings = [stream(n, (16, 16), 2000, seed=k).to(DEVICE) for k, n in enumerate(sizes)]
    labels = torch.tensor([2, 0, 1], device=DEVICE)
    runs = []
    for wrap in (lambda step, plan: step, gl.capture):
        torch.manual_seed(0)
        options = {"width": 4, "levels": 2, "pooled": 0, "decay_time": 800.0, "threshold": 0.9, "dropout": 0.0}
        model = EVENT_NETWORKS[name](**options, reset=-1.0).double().to(DEVICE)
        for module in model.modules():
            if isinstance(module, gl.nn.BatchNorm):
                module.eps = 1 / 1024
        optimiser = torch.optim.SGD(model.parameters(), 1 / 64)

        def run(geometry, labels, model=model, optimiser=optimiser):
            if hasattr(model, "loss"):
                loss, logits = model.loss(geometry, labels)
            else:
                logits = model(geometry)
                loss = cross_entropy(logits, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss, logits

        step = wrap(run, model.plan)
        results = [step(model.plan(events), labels) for events in recordings]
        last = model.plan(recordings[9])[list(model.plan.steps)[-1]]
        assert len(last) > 5
        runs.append([t.detach() for pair in results for t in pair] + [p.detach() for p in model.parameters()])
    assert step.graphs == 1
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("form", ["scan", "edges"])
def test_a_recipe_captures_what_can_be(form):
    settings = Recipe(data="glyphs", model={"model": "event_resnet", "classes": 3, "sensor": [16, 16], "form": form})
    model = settings.make_model().to(DEVICE)
    assert (make_step(settings, model, settings.make_optimiser(model), None).captured is not None) == (form == "scan")


def test_edges_of_events_are_refused_by_name(graphs):
    model = models.event_resnet(3, (16, 16), width=4, levels=1, pooled=0, form="edges").to(DEVICE)
    step = gl.capture(lambda geometry: model(geometry), model.plan)
    with pytest.raises(TypeError, match=r"N01.*edges of events.*form='scan'"):
        step(model.plan(stream((20,), (16, 16)).to(DEVICE)))


@pytest.mark.parametrize("planned", ["one by one", "ahead"])
def test_a_network_over_points_is_captured_for_scans_of_any_size(graphs, planned):
    """Features and labels travel with the points; padding adds nothing to the loss. A scan that is larger than those
    before it is captured anew."""
    generator = torch.Generator().manual_seed(0)
    scans = []
    for n in (60, 75, 50, 66, 71, 58, 70, 64, 140, 90, 61):
        features = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        points = torch.rand(n, 3, generator=generator, dtype=torch.float64)
        scans.append(gl.Cloud.of(points, features=features, part=torch.arange(n) % 4))
    runs = []
    for wrap in (lambda step, plan: step, gl.capture):
        torch.manual_seed(0)
        model = models.point_unet(4, width=8, levels=2, radius=0.3, dropout=0.0, in_channels=2).double().to(DEVICE)
        for module in model.modules():
            if isinstance(module, gl.nn.BatchNorm):
                module.eps = 1 / 1024
        optimiser = torch.optim.SGD(model.parameters(), 1 / 64)

        def run(geometry, model=model, optimiser=optimiser):
            cloud = geometry["X0"]
            real = cloud.example < cloud.num_examples
            each = cross_entropy(model(cloud.rows["features"], geometry), cloud.rows["part"], reduction="none")
            loss = torch.where(real, each, 0.0).sum() / real.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss

        step = wrap(run, model.plan)
        geometries = (model.plan(scan.to(DEVICE)) for scan in scans)
        if planned == "ahead":
            geometries = gl.training.ahead(model.plan, scans, DEVICE)
        losses = [step(geometry).detach() for geometry in geometries]
        assert len(losses) == len(scans)
        runs.append([*losses, *(p.detach() for p in model.parameters())])
    assert step.graphs == 1
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_several_inputs_are_planned_ahead():
    plan = gl.Plan()
    left, right = (plan.events((16, 16), name=name) for name in ("left", "right"))
    given = [{"left": stream((20, n), (16, 16)), "right": stream((n, 5), (16, 16))} for n in (0, 7)]
    for geometry, events in zip(gl.training.ahead(plan, given, DEVICE), given, strict=True):
        for name, one in ((left, events["left"]), (right, events["right"])):
            assert geometry[name].device.type == DEVICE
            assert torch.equal(geometry[name].time.cpu(), one.time)


def test_a_mistake_in_what_is_planned_ahead_is_raised_where_it_is_used():
    plan = network().plan
    given = iter([gl.Cloud.of(torch.rand(30, 3)), "not a cloud"])
    ahead = gl.training.ahead(plan, given, DEVICE)
    assert len(next(ahead)["X0"]) == 30
    with pytest.raises(AttributeError, match="'str'"):
        next(ahead)


def test_rates_follow_their_schedule_and_what_is_written_by_hand(graphs, batches):
    def between():
        schedules = {}

        def change(k, optimiser):
            if k == 0:
                schedules[0] = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
            elif k == 9:
                optimiser.param_groups[0]["lr"] = 1 / 1024
            else:
                schedules[0].step()

        return change

    assert_same(batches, OPTIMISERS["adamw"], between)


def test_other_settings_of_an_optimiser_must_stay(graphs, batches):
    def between(k, optimiser):
        if k == 3:
            optimiser.param_groups[0]["momentum"] = 0.5

    with pytest.raises(ValueError, match=r"momentum.*0\.9.*0\.5"):
        trained(batches, OPTIMISERS["sgd"], gl.capture, between)


def test_a_state_that_is_loaded_is_the_one_that_is_used(graphs, batches):
    def between():
        saved = {}

        def change(k, optimiser):
            if k == 2:
                saved["state"] = copy.deepcopy(optimiser.state_dict())
            if k == 8:
                optimiser.load_state_dict(saved["state"])

        return change

    assert_same(batches, OPTIMISERS["adamw"], between)


def test_batches_of_a_loader_need_no_plan(graphs):
    data = shapes(58).to(DEVICE)
    data = Clouds(data.points.double(), data.labels)
    weights = []
    for wrap in (lambda step: step, gl.capture):
        model = network()
        run = a_step(model, torch.optim.SGD(model.parameters(), 1 / 64))
        step = wrap(lambda batch, run=run: run(batch.geometry, batch.labels))
        for batch in Loader(data, model.plan, 6):
            step(batch)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert step.graphs == 2
    torch.testing.assert_close(*weights, **CLOSE)


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU a graph is captured")
def test_on_the_cpu_the_function_is_called_with_what_was_given(batches):
    clouds, labels = batches[0]
    plan = network().plan
    geometry = plan(clouds)
    step = gl.capture(lambda *given: given, plan)
    for _ in range(10):
        first, second = step(geometry, labels)
        assert first is geometry
        assert second is labels


def test_mistakes_are_named(graphs, batches):
    model = network()
    clouds, labels = batches[0]
    geometry = model.plan(clouds)
    step = gl.capture(lambda geometry, *tensors: None, model.plan)
    with pytest.raises(TypeError, match=r"gl\.capture.*\(tuple\)"):
        step((geometry, labels))
    with pytest.raises(TypeError, match=r"gl\.capture.*\(Geometry, list\)"):
        step(geometry, labels.tolist())
    with pytest.raises(ValueError, match=r"gl.capture\(step, model.plan\)"):
        gl.capture(lambda *given: None)(geometry, labels)
    with pytest.raises(ValueError, match=r"gl.capture\(step, model.plan\)"):
        gl.capture(lambda *given: None, gl.Plan())(geometry, labels)
    with pytest.raises(ValueError, match=r"gl.capture.*bucket="):
        step(gl.collate([model.plan(one) for one in clouds.examples], bucket="power_of_two"), labels)
    for rows in range(8):
        step(geometry, torch.zeros(rows, device=DEVICE))
    with pytest.raises(ValueError, match=r"gl\.capture.* 8 .*label=label"):
        step(geometry, torch.zeros(8, device=DEVICE))


READS_BACK = """
import torch, gridless as gl
model = gl.models.point_resnet_small(3, width=8).cuda()
step = gl.capture(lambda geometry: float(model(geometry).sum()), model.plan)
for _ in range(10):
    step(model.plan(torch.rand(64, 3, device="cuda")))
"""


@pytest.mark.skipif(DEVICE == "cpu", reason="graphs are for CUDA devices")
def test_a_step_that_reads_back_is_refused_with_the_reason():
    # In a process of its own: torch's random numbers do not survive a graph that failed.
    run = subprocess.run([sys.executable, "-c", READS_BACK], capture_output=True, text=True, timeout=200)
    assert run.returncode
    assert "captured" in run.stderr
    assert ".item()" in run.stderr


def test_lightning_counts_captured_steps(graphs, batches, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.model = network()
            self.captured = gl.capture(self.step, self.model.plan)

        def configure_optimizers(self):
            self.optimiser = torch.optim.SGD(self.model.parameters(), 0.01)
            return StepCounter(self.optimiser)

        def step(self, geometry, labels):
            return a_step(self.model, self.optimiser)(geometry, labels)["loss"]

        def training_step(self, batch, number):
            self.log("loss", self.optimizers().step(lambda: self.captured(*batch)))

    module = Module()
    planned = [(module.model.plan(clouds.cpu()), labels.cpu()) for clouds, labels in batches]
    loader = torch.utils.data.DataLoader(planned, batch_size=None)
    saved = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=8, save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="auto", devices=1, logger=False, callbacks=[saved], enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    assert trainer.global_step == 2 * len(batches)
    assert len([*tmp_path.glob("*.ckpt")]) == 2 * len(batches) // 8
    assert module.captured.graphs == 2
    assert torch.isfinite(trainer.callback_metrics["loss"])


class VoxelNet(torch.nn.Module):
    """Convolutions over taps at two sizes of voxels, down and up, with normalisation and a mean of each cloud."""

    def __init__(self):
        super().__init__()
        plan = self.plan = gl.Plan()
        voxels = self.voxels = plan.voxels(plan.points(dim=3), 0.25)
        coarse = plan.coarser_voxels(voxels)
        down = plan.taps(voxels, coarse, 2, 2, 0)
        self.convs = torch.nn.ModuleList(
            [
                gl.nn.TapConv(plan.taps(voxels, voxels), 3, 8),
                gl.nn.TapConv(down, 8, 16),
                gl.nn.TapConv(plan.taps(coarse, coarse), 16, 16),
                gl.nn.TapConv(plan.transpose(down), 16, 8),
            ]
        )
        self.norm, self.pool = gl.nn.BatchNorm(8, voxels, eps=1 / 1024, relu="after"), gl.nn.MeanPool(voxels)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, geometry):
        x = geometry[self.voxels].coords
        for conv in self.convs:
            x = conv(x, geometry)
        return self.head(self.pool(self.norm(x, geometry), geometry))


def test_a_captured_step_over_voxels_does_what_the_step_does(graphs):
    def run(wrap):
        torch.manual_seed(0)
        model = VoxelNet().double().to(DEVICE)
        step, results = wrap(a_step(model, torch.optim.SGD(model.parameters(), 1 / 16)), model.plan), []
        for k in range(10):
            clouds = [torch.rand(30 + (7 * i + 11 * k) % 35, 3, dtype=torch.float64) for i in range(3)]
            result = step(model.plan(gl.Cloud.of(clouds).to(DEVICE)), torch.arange(3, device=DEVICE) % 2)
            results += [result["loss"].detach().clone(), result["logits"][0].detach().clone()]
        return [*results, *(p.detach() for p in model.parameters())], step

    plain, _ = run(lambda step, plan: step)
    values, step = run(gl.capture)
    assert step.graphs >= 1
    for one, other in zip(values, plain, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
