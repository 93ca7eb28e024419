"""The networks that a config may name, and how they are rebuilt from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, get_type_hints

from torch import nn

from gridless.models import events, points
from gridless.models.tracking import CountTracker
from gridless.nn.choices import NAMES as CHOICES
from gridless.nn.choices import Choices

# Every network that a config may name: its classes, and ready-made sizes.
NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "CountTracker": CountTracker,
    "EventCounts": events.EventCounts,
    "EventResNet": events.EventResNet,
    "PointMaxNet": points.PointMaxNet,
    "PointResNet": points.PointResNet,
    "PointResNetPlus": points.PointResNetPlus,
    "PointUNet": points.PointUNet,
    "PointUNetPlus": points.PointUNetPlus,
    "asl_dvs": events.asl_dvs,
    "cifar10_dvs": events.cifar10_dvs,
    "event_resnet": events.event_resnet,
    "mnist_dvs": events.mnist_dvs,
    "n_caltech101": events.n_caltech101,
    "n_cars": events.n_cars,
    "n_mnist": events.n_mnist,
    "point_max_net": points.point_max_net,
    "point_resnet_large": points.point_resnet_large,
    "point_resnet_plus": points.point_resnet_plus,
    "point_resnet_small": points.point_resnet_small,
    "point_unet": points.point_unet,
    "point_unet_plus": points.point_unet_plus,
}


def build(config: dict[str, Any]) -> nn.Module:
    """The network that a config describes: {"model": a class or size by name, and its arguments}."""
    arguments = dict(config)
    name = arguments.pop("model", None)
    if name not in NETWORKS:
        raise ValueError(f"unknown model {name!r}. Choose one of {', '.join(NETWORKS)}.")
    make = NETWORKS[name]
    settings = list(signature(make).parameters)
    if "choices" in settings:
        # A recipe changes one of them at a time, beside the other settings.
        apart = {each: arguments.pop(each) for each in CHOICES if each in arguments}
        if apart:
            arguments["choices"] = {**Choices.of(arguments.get("choices")).changes(), **apart}
        settings += CHOICES
    try:
        return make(**arguments)
    except TypeError as error:
        kind = make if isinstance(make, type) else get_type_hints(make)["return"]
        known = dict.fromkeys([*signature(kind).parameters, *settings])
        raise TypeError(f"model {name}: {error}. Its settings are {', '.join(known)}.") from None


def task_of(config: Mapping[str, Any]) -> str | None:
    """The name of the task that the network of a config is made for; None of a network that is not of this package."""
    make: Any = NETWORKS.get(config.get("model", ""))
    kind = make if make is None or isinstance(make, type) else get_type_hints(make)["return"]
    return getattr(kind, "task", None)
