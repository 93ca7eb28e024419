"""The networks: sizes are functions, and every network can be rebuilt from its `config`, a dict of plain values."""

from __future__ import annotations

from gridless.models.events import (
    EventCounts,
    EventResNet,
    asl_dvs,
    cifar10_dvs,
    event_resnet,
    mnist_dvs,
    n_caltech101,
    n_cars,
    n_mnist,
)
from gridless.models.networks import build
from gridless.models.points import (
    PointMaxNet,
    PointResNet,
    PointResNetPlus,
    PointUNet,
    PointUNetPlus,
    point_max_net,
    point_resnet_large,
    point_resnet_plus,
    point_resnet_small,
    point_unet,
    point_unet_plus,
)
from gridless.models.tracking import CountTracker

__all__ = [
    "CountTracker",
    "EventCounts",
    "EventResNet",
    "PointMaxNet",
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
    "point_max_net",
    "point_resnet_large",
    "point_resnet_plus",
    "point_resnet_small",
    "point_unet",
    "point_unet_plus",
]
