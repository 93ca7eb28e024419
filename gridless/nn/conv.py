"""Point convolutions as layers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from gridless.kernels.launch import compile_once
from gridless.nn.basis import Basis, Monomials
from gridless.ops.point_conv import compile_ahead, featureless_conv, point_conv
from gridless.ops.point_conv.checks import FALLOFFS
from gridless.ops.point_conv.order import ORDERS
from gridless.plan import Name
from gridless.structures import Geometry, expect_geometry


class Convolution(nn.Module):
    """Base of the convolutions: the names of their edges, and the values of an edge."""

    def __init__(
        self, edges: Name, channels: tuple[int, ...], basis: Basis | None, falloff: str | None, normalise: bool,
        bias: bool, radius: float | None, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        kind = type(self).__name__
        if not isinstance(edges, Name) or edges.kind != "edges":
            raise TypeError(f"{kind}: edges must be the name of edges of a plan, such as plan.ball(...), not {edges!r}")
        if falloff not in FALLOFFS:
            raise ValueError(f"{kind}: falloff must be 'linear' or None, not {falloff!r}")
        if not isinstance(basis, Basis | None):
            raise TypeError(f"{kind}: basis must be one such as gl.nn.Monomials(3, 2), not {basis!r}")
        if basis is not None and basis.dim != edges.dim:
            raise ValueError(
                f"{kind}: {edges} has {edges.dim} dimensions, but {basis!r} has {basis.dim}. Use another basis."
            )
        if radius is None:
            radius = edges.radius
        if radius is None:
            raise ValueError(f"{edges} has no radius. Pass radius=, the scale of its vectors.")
        self.edges, self.radius = edges, float(radius)
        self.basis = Monomials(edges.dim, 2) if basis is None else basis
        self.falloff, self.normalise = falloff, normalise
        self.weight = nn.Parameter(torch.empty(self.basis.size, *channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels[-1], device=device, dtype=dtype)) if bias else None
        self.reset_parameters()
        LAYERS[edges.plan].add(self)

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        LAYERS[self.edges.plan].add(self)

    def _fans(self) -> tuple[int, int]:
        """Fan-in and fan-out of the weight, for its initialisation."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        bound = (6 / sum(self._fans())) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def compile_ahead(self, geometry: Geometry, needs_features: bool = True) -> None:
        """Tells what this layer will launch, see `gridless.ops.point_conv.compile_ahead`.

        `needs_features`: whether its features get a gradient.
        """

    def _geometry(self, geometry: Geometry) -> tuple:
        expect_geometry(geometry)
        edges = self.edges
        source, target = geometry[edges.source].coords, geometry[edges.target].coords
        if source.is_cuda and not torch.compiler.is_compiling():
            compile_layers_once(edges.plan, geometry, self.weight)
        return geometry[edges], source, target, self.radius, self.basis, self.falloff, self.normalise

    def _values_repr(self) -> str:
        normalised = ", normalise=False" if not self.normalise else ""
        return f"{self.basis}, radius={self.radius:g}, falloff={self.falloff!r}{normalised}"


class PointConv(Convolution):
    """F' = sum over m of N(m) F Theta(m) + bias, over the edges of one line of a plan.

    features (S, in_channels) to (S', out_channels). `edges` names a line that makes edges; the vectors are divided by
    its radius (or by `radius`, for searches that have none). The basis is `Monomials(dim, 2)` unless given; see
    `gl.point_conv` for `falloff`, `normalise` and `order`. The weight (M, in_channels, out_channels) begins
    uniform within +-sqrt(6 / (M (in_channels + out_channels))), the bias at zero; both are made on `device` and of
    `dtype`.
    """

    def __init__(
        self,
        edges: Name,
        in_channels: int,
        out_channels: int,
        basis: Basis | None = None,
        falloff: str | None = "linear",
        normalise: bool = True,
        bias: bool = True,
        order: str | None = None,
        radius: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if order not in (None, *ORDERS):
            raise ValueError(f"PointConv: order must be one of {', '.join(ORDERS)} or None, not {order!r}")
        super().__init__(edges, (in_channels, out_channels), basis, falloff, normalise, bias, radius, device, dtype)
        self.in_channels, self.out_channels, self.order = in_channels, out_channels, order

    def _fans(self) -> tuple[int, int]:
        terms, *channels = self.weight.shape
        return terms * channels[0], terms * channels[1]

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        return point_conv(features, self.weight, self.bias, *self._geometry(geometry), order=self.order)

    def compile_ahead(self, geometry: Geometry, needs_features: bool = True) -> None:
        compile_ahead(
            self.weight, self.bias, *self._geometry(geometry), order=self.order, needs_features=needs_features
        )

    def extra_repr(self) -> str:
        return f"{self.edges}, {self.in_channels}, {self.out_channels}, {self._values_repr()}"


class DepthwiseConv(Convolution):
    """The convolution in which each channel has weights of its own: F'_ic = sum over m, j of n_m(i, j) F_jc theta_mc.

    features (S, channels) to (S', channels): M weights a channel, in place of a matrix for each of the M terms. The
    weight (M, channels) begins uniform within +-sqrt(3 / M), the bias at zero. Arguments as in `PointConv`.
    """

    def __init__(
        self,
        edges: Name,
        channels: int,
        basis: Basis | None = None,
        falloff: str | None = "linear",
        normalise: bool = True,
        bias: bool = True,
        radius: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(edges, (channels,), basis, falloff, normalise, bias, radius, device, dtype)
        self.channels = channels

    def _fans(self) -> tuple[int, int]:
        return self.basis.size, self.basis.size

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        return point_conv(features, self.weight, self.bias, *self._geometry(geometry))

    def compile_ahead(self, geometry: Geometry, needs_features: bool = True) -> None:
        compile_ahead(self.weight, self.bias, *self._geometry(geometry), needs_features=needs_features)

    def extra_repr(self) -> str:
        return f"{self.edges}, {self.channels}, {self._values_repr()}"


class FeaturelessConv(Convolution):
    """The first convolution of a cloud without features: the sums of the edge values of each target, times Theta.

    geometry to (S', out_channels). The weight (M, out_channels) begins uniform within +-sqrt(6 / (M + out_channels)).
    The other arguments are those of `PointConv`.
    """

    def __init__(
        self,
        edges: Name,
        out_channels: int,
        basis: Basis | None = None,
        falloff: str | None = "linear",
        normalise: bool = True,
        bias: bool = True,
        radius: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(edges, (out_channels,), basis, falloff, normalise, bias, radius, device, dtype)
        self.out_channels = out_channels

    def _fans(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    def forward(self, geometry: Geometry) -> Tensor:
        return featureless_conv(self.weight, self.bias, *self._geometry(geometry))

    def extra_repr(self) -> str:
        return f"{self.edges}, {self.out_channels}, {self._values_repr()}"


# The layers of each plan: the first that runs on a GPU knows the sizes of all.
LAYERS: defaultdict[str, WeakSet[Any]] = defaultdict(WeakSet)


def compile_layers_once(plan: str, geometry: Geometry, weight: Tensor, *settings: Any, fixed: Any = None) -> None:
    """The kernels of all layers of a plan begin to compile together, when the first of them runs.

    `weight` is that of the first, and `settings` what else decides its kernels. Features of the layer `fixed` get no
    gradient.
    """
    device = weight.device
    autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    key = plan, device, weight.dtype, torch.is_grad_enabled(), autocast, *settings
    compile_once(key, lambda: compile_layers(plan, geometry, device, fixed))


def compile_layers(plan: str, geometry: Geometry, device: torch.device, fixed: Any = None) -> None:
    """Inside `compiling_ahead`: tells what the layers of a plan will launch, nearly in the order of its lines."""
    layers = [layer for layer in LAYERS[plan] if layer.edges in geometry and layer.weight.device == device]
    layers.sort(key=lambda layer: list(geometry).index(layer.edges))
    for layer in layers:
        layer.compile_ahead(geometry, layer is not fixed)
