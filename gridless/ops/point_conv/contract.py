"""Contract of a backend of the point convolution: arguments and functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from gridless.ops.point_conv.edge_function import EdgeFunction

# Gradients of features, weight and bias; and of the coordinates of sources and targets.
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
CoordGradients = tuple[Tensor | None, Tensor | None]


@dataclass(eq=False)
class Neighbours:
    """Edges in both directions, with the coordinates that give edge values n_m. Contiguous, and on one device.

    Row i of `splits` lists the sources of target i, row j of `back_splits` the targets of source j. `back_splits` and
    `back_source` are None if no gradient needs them.
    """

    splits: Tensor  # (S' + 1)
    source: Tensor  # (E) int32
    back_splits: Tensor | None  # (S + 1)
    back_source: Tensor | None  # (E) int32
    source_coords: Tensor  # (S, D)
    target_coords: Tensor  # (S', D)
    function: EdgeFunction
    # Cache of a backend, for its next call.
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def back(self) -> tuple[Tensor, Tensor]:
        """The transposed edges, which must be there."""
        assert self.back_splits is not None
        assert self.back_source is not None
        return self.back_splits, self.back_source


class PointConvBackend(Protocol):
    """Functions of `cpu/` and `gpu/`.

    Features are (S, Q), weights (M, Q, P), or (M, C) depthwise: Theta(m) is then the diagonal matrix of row m, and all
    of this holds as it is. Edge values are made on the fly and never stored; sums are kept in the compute dtype:
    float64 for float64 features, float32 for all others. Gradients that are not needed are None.
    """

    def conv(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, near: Neighbours, transform_first: bool
    ) -> tuple[Tensor, Tensor]:
        """out (S', P) in the dtype of the features, inverse (S') in the compute dtype.

        `inverse` is 1 / W of each target, 0 where W is 0; an empty tensor (0) where the function does not normalise.
        """
        ...

    def conv_backward(
        self, grad: Tensor, features: Tensor, weight: Tensor, inverse: Tensor, near: Neighbours,
        need_features: bool, need_weight: bool, need_bias: bool,
    ) -> Gradients:  # fmt: skip
        """Gradients of features (S, Q), weight (M, Q, P) and bias (P), from that of the result (S', P).

        One gather over the transposed edges, B[j, m] = sum over i of n_m(i, j) grad[i], then dF = sum of
        B[:, m] Theta(m)^T and dTheta(m) = F^T B[:, m]. The same for both orders.
        """
        ...

    def conv_coords_backward(
        self, grad: Tensor, features: Tensor, weight: Tensor, inverse: Tensor, near: Neighbours,
        need_source: bool, need_target: bool,
    ) -> CoordGradients:  # fmt: skip
        """Gradients of the coordinates of sources (S, D) and targets (S', D), in their dtype.

        With c_m = <grad[i], F[j] Theta(m)>, a = sum of c_m p_m and D_i = sum over the row of a w / W:
        dL/dv = sum of c_m (w / W) dp_m/dv + (a - D_i if normalise else a) / W dw/dv;
        targets gather +dL/dv / radius over the edges, sources -dL/dv / radius over the transposed ones.
        """
        ...

    def edge_sums(self, near: Neighbours) -> tuple[Tensor, Tensor]:
        """Sums (S', M) of the edge values in the dtype of the coordinates, and `inverse` as of `conv`."""
        ...

    def edge_sums_backward(
        self, grad: Tensor, sums: Tensor, inverse: Tensor, near: Neighbours, need_source: bool, need_target: bool
    ) -> CoordGradients:
        """`conv_coords_backward` with c_m = grad[i, m] of the sums (S', M), so that D_i = <grad[i], sums[i]>."""
        ...
