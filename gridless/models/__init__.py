"""The networks: sizes are functions, and every network can be rebuilt from its `config`, a dict of plain values."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, get_type_hints

from torch import nn

# Every network class that a config may name, and every ready-made size: name -> module.
CLASSES: dict[str, str] = {
    "EventResNet": "gridless.models.events",
    "PointResNet": "gridless.models.points",
    "PointResNetPlus": "gridless.models.points",
    "PointUNet": "gridless.models.points",
    "PointUNetPlus": "gridless.models.points",
}
SIZES: dict[str, str] = {
    "point_resnet_large": "gridless.models.points",
    "point_resnet_small": "gridless.models.points",
    "point_resnet_plus": "gridless.models.points",
    "point_unet": "gridless.models.points",
    "point_unet_plus": "gridless.models.points",
    "event_resnet": "gridless.models.events",
    "n_mnist": "gridless.models.events",
    "mnist_dvs": "gridless.models.events",
    "cifar10_dvs": "gridless.models.events",
    "n_caltech101": "gridless.models.events",
    "asl_dvs": "gridless.models.events",
    "n_cars": "gridless.models.events",
}

__all__ = [
    "EventResNet",
    "PointResNet",
    "PointResNetPlus",
    "PointUNet",
    "PointUNetPlus",
    "asl_dvs",
    "build",
    "cifar10_dvs",
    "event_resnet",
    "mnist_dvs",
    "n_caltech101",
    "n_cars",
    "n_mnist",
    "point_resnet_large",
    "point_resnet_plus",
    "point_resnet_small",
    "point_unet",
    "point_unet_plus",
]

if TYPE_CHECKING:
    from gridless.models.events import EventResNet as EventResNet
    from gridless.models.events import asl_dvs as asl_dvs
    from gridless.models.events import cifar10_dvs as cifar10_dvs
    from gridless.models.events import event_resnet as event_resnet
    from gridless.models.events import mnist_dvs as mnist_dvs
    from gridless.models.events import n_caltech101 as n_caltech101
    from gridless.models.events import n_cars as n_cars
    from gridless.models.events import n_mnist as n_mnist
    from gridless.models.points import PointResNet as PointResNet
    from gridless.models.points import PointResNetPlus as PointResNetPlus
    from gridless.models.points import PointUNet as PointUNet
    from gridless.models.points import PointUNetPlus as PointUNetPlus
    from gridless.models.points import point_resnet_large as point_resnet_large
    from gridless.models.points import point_resnet_plus as point_resnet_plus
    from gridless.models.points import point_resnet_small as point_resnet_small
    from gridless.models.points import point_unet as point_unet
    from gridless.models.points import point_unet_plus as point_unet_plus


def build(config: dict[str, Any]) -> nn.Module:
    """The network that a config describes: {"model": a class or size by name, and its arguments}."""
    arguments = dict(config)
    name = arguments.pop("model", None)
    if name not in CLASSES and name not in SIZES:
        raise ValueError(f"unknown model {name!r}: choose one of {', '.join([*SIZES, *CLASSES])}")
    make = __getattr__(name)
    try:
        return make(**arguments)
    except TypeError as error:
        kind = make if isinstance(make, type) else get_type_hints(make)["return"]
        raise TypeError(f"model {name}: {error}: its settings are {', '.join(signature(kind).parameters)}") from None


def __getattr__(name: str) -> Any:
    module = CLASSES.get(name) or SIZES.get(name)
    if module is None:
        raise AttributeError(f"module 'gridless.models' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
