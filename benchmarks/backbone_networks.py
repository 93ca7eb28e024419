"""The networks of benchmarks/backbones.py: where their files are, how they are built, and how a scan goes in.

The files are other projects' own. `load` imports one file of a clone without the `__init__` files above it, which would
import far more than the network needs. Names of packages that only register or configure are replaced (`stubs`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Network:
    """A published configuration of a network.

    Args:
        title: name and size, as shown.
        clone: folder of the repository.
        module: the file, as a module that starts in the clone.
        name: class.
        options: arguments of the class.
        channels: features of a voxel.
        call: (model, cells, features) -> one row for each output, in an order that the cells fix.
        sides: of a voxel, in metres.
        low, high: range of the scan that is used, in metres.
        is_float32: the network switches autocast off.
    """

    title: str
    clone: str
    module: str
    name: str
    options: dict[str, Any]
    channels: int
    call: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    sides: tuple[float, float, float] = (0.05, 0.05, 0.05)
    low: tuple[float, float, float] = (-1e3, -1e3, -1e3)
    high: tuple[float, float, float] = (1e3, 1e3, 1e3)
    is_float32: bool = field(default=False)

    def voxels(self, scan: np.ndarray, limit: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Cells (n, 3) int64 from 0, and features (n, channels): the `limit` voxels that are nearest to the sensor."""
        low, high = np.float32(self.low), np.float32(self.high)
        inside = torch.from_numpy(scan[((scan >= low) & (scan < high)).all(1)])
        origin = inside.amin(0) if self.low[0] <= -1e3 else torch.tensor(self.low)
        cells = ((inside - origin) / torch.tensor(self.sides)).floor().long().unique(dim=0)
        centres = (cells + 0.5) * torch.tensor(self.sides) + origin
        if limit is not None:
            nearest = centres.norm(dim=1).argsort(stable=True)[:limit].sort().values
            cells, centres = cells[nearest], centres[nearest]
        rest = torch.randn(len(cells), self.channels - 3, generator=torch.Generator().manual_seed(2))
        return cells, torch.cat([centres / 20, rest], 1)


def of_points(model: nn.Module, cells: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Networks of Pointcept, which take a dictionary."""
    cells = cells - cells.amin(0)
    offset = torch.tensor([len(cells)], device=cells.device)
    out = model({"coord": cells * 0.05, "grid_coord": cells, "feat": features, "offset": offset})
    return out if isinstance(out, torch.Tensor) else out.feat


def of_voxels(cells: torch.Tensor) -> torch.Tensor:
    """Rows (example, z, y, x) of detectors."""
    return torch.cat([torch.zeros_like(cells[:, :1]), cells.flip(1)], 1).int().contiguous()


def of_mmdet3d(model: nn.Module, cells: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    return model(features, of_voxels(cells), 1)


def of_pcdet(model: nn.Module, cells: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """The rows in lexicographic order: spconv's own order varies."""
    batch = {"voxel_features": features, "voxel_coords": of_voxels(cells), "batch_size": 1}
    out = model(batch)["encoded_spconv_tensor"]
    factors = torch.tensor([1 << 48, 1 << 32, 1 << 16, 1], device=cells.device)
    return out.features[(out.indices * factors).sum(1).argsort()]


ORDERS = ("z", "z-trans", "hilbert", "hilbert-trans")
PLAIN = {"enable_flash": False}
ENCODER = {"in_channels": 9, "order": ORDERS, "enc_mode": True}
NETWORKS = {
    "ptv3": Network(
        "PTv3", "", "PointTransformerV3.model", "PointTransformerV3", {"in_channels": 4} | PLAIN, 4, of_points
    ),
    "ptv3-flash": Network(
        "PTv3, flash_attn", "", "PointTransformerV3.model", "PointTransformerV3", {"in_channels": 4}, 4, of_points
    ),
    "spunet": Network(
        "SpUNet-v1m1",
        "Pointcept",
        "pointcept.models.sparse_unet.spconv_unet_v1m1_base",
        "SpUNetBase",
        {"in_channels": 4, "num_classes": 19},
        4,
        of_points,
    ),
    "centerpoint": Network(
        "CenterPoint, VoxelResBackBone8x",
        "OpenPCDet",
        "pcdet.models.backbones_3d.spconv_backbone",
        "VoxelResBackBone8x",
        {"model_cfg": {}, "input_channels": 5, "grid_size": np.array([1024, 1024, 40])},
        5,
        of_pcdet,
        (0.1, 0.1, 0.2),
        (-51.2, -51.2, -5),
        (51.2, 51.2, 3),
    ),
    "second": Network(
        "SECOND, SparseEncoder",
        "mmdetection3d",
        "mmdet3d.models.middle_encoders.sparse_encoder",
        "SparseEncoder",
        {"in_channels": 4, "sparse_shape": [41, 1600, 1408]},
        4,
        of_mmdet3d,
        (0.05, 0.05, 0.1),
        (0, -40, -3),
        (70.4, 40, 1),
        is_float32=True,
    ),
    "litept": Network(
        "LitePT-S", "Pointcept", "pointcept.models.litept.litept_v1", "LitePT", {"in_channels": 4}, 4, of_points
    ),
    "sonata": Network("Sonata", "sonata", "sonata.model", "PointTransformerV3", ENCODER | PLAIN, 9, of_points),
    "concerto": Network(
        "Concerto, base", "concerto", "concerto.model", "PointTransformerV3", ENCODER | PLAIN, 9, of_points
    ),
    "utonia": Network(
        "Utonia, bfloat16 attention",
        "utonia",
        "utonia.model",
        "PointTransformerV3",
        ENCODER | {"enc_channels": (54, 108, 216, 432, 576)},
        9,
        of_points,
    ),
}


class Registry:
    """Keeps the classes that a project registers by name."""

    def __init__(self) -> None:
        self.classes: dict[str, type] = {"BN1d": nn.BatchNorm1d}

    def register_module(self, name: str | None = None) -> Callable[[type], type]:
        return lambda cls: self._register_module(cls, name)

    def _register_module(self, module: type, name: str | None = None, force: bool = False) -> type:
        self.classes[name or module.__name__] = module
        return module

    def build(self, config: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        config = dict(config)
        return self.classes[config.pop("type")](*arguments, **config, **options)


def stub(name: str, **names: Any) -> None:
    """A module with these names, and the packages above it."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        dotted = ".".join(parts[:i])
        if dotted not in sys.modules:
            sys.modules[dotted] = ModuleType(dotted)
            sys.modules[dotted].__path__ = []
    vars(sys.modules[name]).update(names)


def stubs() -> None:
    """What Pointcept, Sonata and MMDetection3D import beside the network: registries, configuration and downloads."""
    pointcept, mmdet3d = Registry(), Registry()
    stub("pointcept.models.builder", MODELS=pointcept)
    stub("pointcept.engines.hooks", HookBase=object)
    if find_spec("huggingface_hub") is None:
        stub("huggingface_hub", hf_hub_download=None, PyTorchModelHubMixin=object)
    block = type("Block", (nn.Module,), {})

    def build_norm_layer(config: dict[str, Any], width: int) -> tuple[str, nn.Module]:
        return "norm", mmdet3d.build(config, width)

    stub("mmcv.cnn", build_conv_layer=mmdet3d.build, build_norm_layer=build_norm_layer)
    stub("mmcv.ops", points_in_boxes_all=None, three_interpolate=None, three_nn=None)
    stub("mmdet.models.losses", sigmoid_focal_loss=None, smooth_l1_loss=None)
    stub("mmdet.models.backbones.resnet", BasicBlock=block, Bottleneck=block)
    stub("mmengine.runner.amp", autocast=lambda enabled: torch.autocast("cuda", enabled=enabled))
    sys.modules["mmengine.runner"].amp = sys.modules["mmengine.runner.amp"]  # type: ignore[attr-defined]
    stub("mmengine.registry", MODELS=mmdet3d)
    stub("mmdet3d.registry", MODELS=mmdet3d)
    stub("mmdet3d.structures", BaseInstance3DBoxes=None)
    stub("mmdet3d.utils", OptConfigType=Any)


def load(network: Network, sources: Path) -> type:
    """The class of a network, from the unchanged file."""
    parts = network.module.split(".")
    for i in range(1, len(parts)):
        folder = sources.joinpath(network.clone, *parts[:i])
        stub(".".join(parts[:i]))
        sys.modules[".".join(parts[:i])].__path__ = [str(folder)]
    if network.clone == "mmdetection3d":
        folder = sources / "mmdetection3d/mmdet3d/models/layers"
        stub("mmdet3d.models.layers")
        layers = sys.modules["mmdet3d.models.layers"]
        layers.__path__ = [str(folder)]
        block = import_module("mmdet3d.models.layers.sparse_block")
        stub(
            layers.__name__,
            SparseBasicBlock=block.SparseBasicBlock,
            make_sparse_convmodule=block.make_sparse_convmodule,
        )
    return getattr(import_module(network.module), network.name)
