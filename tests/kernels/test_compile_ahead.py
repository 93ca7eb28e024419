"""Kernels of convolutions over taps that compile ahead are those that a step launches, as Triton tells them apart."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import gridless as gl
import gridless.compat.spconv.pytorch as spconv
from gridless.compat.spconv.pytorch import functional
from gridless.kernels import launch as launching
from gridless.nn import conv

ROOT = Path(__file__).resolve().parents[2]
PRECISIONS = ("ieee", "tf32", "float16", "float64", "autocast", "inference")

# A step of a small U-Net in a process without Triton's interpreter. Tensors are on the CPU and pretend to be on a GPU.
CODE = """
import gc
import sys
from contextlib import ExitStack
from unittest import mock

import torch

import gridless as gl
import gridless.compat.spconv.pytorch as spconv
from gridless.compat.spconv import constants
from gridless.compat.spconv.pytorch import ops
from gridless.geometry.voxels import gpu as voxels
from gridless.kernels import launch
from tests.compile_kernels import noted
SITES = torch.cartesian_prod(torch.zeros(1, dtype=torch.int32), *(torch.arange(6, dtype=torch.int32),) * 3)


class Plan(torch.nn.Module):
    def __init__(self):
        super().__init__()
        plan = self.plan = gl.Plan()
        fine = plan.voxels(plan.points(dim=3), 1.0)
        coarse = plan.coarser_voxels(fine)
        near, down, up = plan.taps(fine, fine), plan.taps(fine, coarse, 2, 2, 0), plan.taps(coarse, coarse)
        wide, even = plan.taps(fine, fine, 5), plan.taps(coarse, coarse, 2)
        back = plan.transpose(down)
        lines = (wide, 4, 32, True), (near, 32, 20, False), (down, 20, 64, True), (up, 64, 96, False)
        lines += (even, 96, 300, True), (back, 300, 7, True), (near, 7, 16, True)
        self.layers = torch.nn.ModuleList(gl.nn.TapConv(*line) for line in lines)

    def forward(self, features, geometry):
        for layer in self.layers:
            features = layer(features, geometry)
        return features


def spconv_network():
    return spconv.SparseSequential(
        spconv.SubMConv3d(4, 32, 5, bias=False, indice_key="wide"),
        spconv.SubMConv3d(32, 20, 3, indice_key="near"),
        spconv.SparseConv3d(20, 64, 2, 2, indice_key="down"),
        spconv.SubMConv3d(64, 96, 3, bias=False, indice_key="low"),
        spconv.SubMConv3d(96, 300, 2, indice_key="even"),
        spconv.SubMConv3d(300, 300, 1),
        spconv.SparseInverseConv3d(300, 7, 2, indice_key="down"),
        spconv.SparseConvTranspose3d(7, 16, 3, 2, bias=False, indice_key="new"),
    )


search = ops.find_neighbours


def on_cpu(*given, **named):
    # What a search launches is noted, and the result is that of the CPU.
    with mock.patch.object(torch.Tensor, "is_cuda", False):
        search(*given, **named)
        with gl.use_backend("cpu"):
            return search(*given, **named)


def check(kind, precision):
    torch.manual_seed(0)
    dtype = {"float16": torch.float16, "float64": torch.float64}.get(precision, torch.float32)
    features = torch.randn(len(SITES), 4, dtype=dtype)
    if kind == "plan":
        model = Plan().to(dtype)
        model.layers[1].weight.requires_grad_(precision != "float16")
        with gl.use_backend("cpu"):
            geometry = model.plan(SITES[:, 1:].float() + 0.5)
        run = lambda: model(features, geometry)
    else:
        model = spconv_network().to(dtype)
        run = lambda: model(spconv.SparseConvTensor(features, SITES, [6, 6, 6], 1)).features
    constants.SPCONV_ALLOW_TF32 = precision == "tf32"
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    torch.set_autocast_dtype("cpu", torch.bfloat16 if kind == "plan" else torch.float16)
    # `spconv` asks for autocast on a GPU by name, and takes float16 whatever its dtype.
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, precision == "autocast")
    ahead, grads = {}, precision != "inference"
    with ExitStack() as context:
        launches = context.enter_context(noted(ahead))
        for owner, name, value in (
            (torch.Tensor, "is_cuda", True),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (ops, "find_neighbours", on_cpu),
            (voxels, "_reading", lambda values: values.tolist),
        ):
            context.enter_context(mock.patch.object(owner, name, value))
        context.enter_context(torch.set_grad_enabled(grads))
        out = run()
        first = set(ahead)
        if grads:
            out.float().sum().backward()
    begun = ("ops.tap_conv", "kernels.tf32", *(["geometry.voxels"] if kind == "spconv" else []))
    launched = {key for key in launches if key[0].startswith(begun)}
    names = {key[0].rpartition(".")[-1] for key in launched}
    assert names >= {"_keys", "_count", "_tiles", "_conv"}, names
    assert grads == (names >= {"_weight", "_total", "_count_pairs", "_place_pairs"}), names
    assert kind == "plan" or names >= {"_insert", "_search", "_seeing"}, names
    assert first == set(ahead), "all begin when the first layer runs"
    for what, keys in (("not ahead", launched - first), ("not launched", first - launched)):
        assert not keys, (kind, precision, what, sorted(keys))


for precision in sys.argv[2:]:
    check(sys.argv[1], precision)
    # The next network is as in a new process.
    gc.collect()
    launch._begun.clear()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plan", "spconv"])
def test_what_compiles_ahead_is_what_a_step_launches(kind):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", CODE, kind, *PRECISIONS]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


def test_layers_are_known_while_they_live():
    plan = gl.Plan()
    voxels = plan.voxels(plan.points(dim=3), 1.0)
    makers = lambda: gl.nn.TapConv(plan.taps(voxels, voxels), 2, 3), lambda: spconv.SubMConv3d(2, 3, 3)
    for make, known in zip(makers, (conv.LAYERS[voxels.plan], functional.LAYERS), strict=True):
        before = len(known)
        layer = make()
        others = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
        assert all(one in known for one in (layer, *others))
        del layer, others
        assert len(known) == before


def test_nothing_compiles_ahead_on_a_cpu(monkeypatch):
    monkeypatch.setattr(launching, "TOGETHER", True)
    monkeypatch.setattr(launching, "_begun", set())
    plan = gl.Plan()
    voxels = plan.voxels(plan.points(dim=3), 1.0)
    layer = gl.nn.TapConv(plan.taps(voxels, voxels), 2, 3)
    sites = torch.cartesian_prod(*(torch.arange(3),) * 4).int()
    layer(torch.randn(27, 2), plan(sites[:27, 1:].float()))
    spconv.SubMConv3d(2, 3, 3)(spconv.SparseConvTensor(torch.randn(81, 2), sites, [3, 3, 3], 3))
    assert not launching._begun
