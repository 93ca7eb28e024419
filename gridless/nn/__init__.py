"""Layers over the ops. A layer is given names of a plan's lines, and finds the results in the geometry."""

from gridless.nn.basis import Basis, GaussianBumps, KernelPoints, Monomials
from gridless.nn.conv import FeaturelessConv, PointConv

__all__ = ["Basis", "FeaturelessConv", "GaussianBumps", "KernelPoints", "Monomials", "PointConv"]
