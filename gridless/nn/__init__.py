"""Layers over the ops. A layer is given names of a plan's lines, and finds the results in the geometry."""

from gridless.nn.basis import Basis, GaussianBumps, KernelPoints, Monomials
from gridless.nn.blocks import (
    Bottleneck,
    Dense,
    DownBlock,
    DropPath,
    ResBlock,
    UpBlock,
    WideBlock,
)
from gridless.nn.choices import Choices
from gridless.nn.conv import DepthwiseConv, FeaturelessConv, PointConv
from gridless.nn.events import (
    DownConv,
    EventConv,
    InceptionBlock,
    Last,
    LeakyCount,
    LeakyMean,
    LeakySum,
    PolarityConv,
    VoxelConv,
    VoxelMean,
    VoxelMerge,
)
from gridless.nn.maxima import MaxBlock, MaxDown, MaxLevel, PointwiseBlock, Surroundings
from gridless.nn.norm import BatchNorm, synchronise
from gridless.nn.pool import MaxPool, MeanPool, Spread
from gridless.nn.taps import TapConv

__all__ = [
    "Basis",
    "BatchNorm",
    "Bottleneck",
    "Choices",
    "Dense",
    "DepthwiseConv",
    "DownBlock",
    "DownConv",
    "DropPath",
    "EventConv",
    "FeaturelessConv",
    "GaussianBumps",
    "InceptionBlock",
    "KernelPoints",
    "Last",
    "LeakyCount",
    "LeakyMean",
    "LeakySum",
    "MaxBlock",
    "MaxDown",
    "MaxLevel",
    "MaxPool",
    "MeanPool",
    "Monomials",
    "PointConv",
    "PointwiseBlock",
    "PolarityConv",
    "ResBlock",
    "Spread",
    "Surroundings",
    "TapConv",
    "UpBlock",
    "VoxelConv",
    "VoxelMean",
    "VoxelMerge",
    "WideBlock",
    "synchronise",
]
