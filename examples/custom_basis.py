"""Write your own basis: the fixed functions whose learned combination is the kernel of a convolution.

A basis is any object with `dim`, `size`, a call from vectors (..., D) to values (..., M), and `description()`. `Even`
describes itself to the compiled kernels. `Rings` cannot, and runs in plain torch.

python examples/custom_basis.py
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import gridless as gl
from gridless.nn.basis import Description
from gridless.ops.point_conv.edge_function import MONOMIALS


@dataclass(frozen=True)
class Even:
    """Monomials 1, x^2, y^2, z^2: kernels that are symmetric along each axis. Every backend runs them."""

    dim: int = 3

    @property
    def size(self) -> int:
        return 1 + self.dim

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(vector[..., :1]), vector.square()], -1)

    def description(self) -> Description:
        """Returns M rows of D exponents, flattened."""
        rows = [[0] * self.dim] + [[2 * (a == b) for b in range(self.dim)] for a in range(self.dim)]
        return Description(MONOMIALS, tuple(float(e) for row in rows for e in row))


@dataclass(frozen=True)
class Rings:
    """Cosines cos(pi k |v|), k = 0 to size - 1: kernels of the distance alone. No compiled kernel supports them."""

    size: int = 4
    dim: int = 3

    def __call__(self, vector: Tensor) -> Tensor:
        distance = vector.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
        return torch.cos(math.pi * distance * torch.arange(self.size, dtype=vector.dtype, device=vector.device))

    def description(self) -> None:
        return None


@torch.no_grad()
def main(argv: list[str] | None = None) -> tuple[float, float]:
    torch.manual_seed(0)
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 0.3)
    coords, _ = gl.data.Shapes(8, points=512)[7]
    geometry = plan(coords)
    features = torch.randn(len(coords), 8)

    even = gl.nn.PointConv(near, 8, 16, basis=Even())
    fast = even(features, geometry)  # the compiled kernel
    with gl.use_backend("reference"):
        slow = even(features, geometry)  # the reference in torch
    difference = float((fast - slow).abs().max())
    print(f"{even}\n  compiled and reference differ by {difference:.1e}")

    # A kernel of the distance alone is invariant to rotations of the cloud.
    rings = gl.nn.PointConv(near, 8, 16, basis=Rings())
    rotation = torch.linalg.qr(torch.randn(3, 3)).Q
    with gl.use_backend("reference"):
        change = float((rings(features, geometry) - rings(features, plan(coords @ rotation.T))).abs().max())
    print(f"{rings}\n  rotating the cloud changes the features by {change:.1e}")

    try:
        rings(features, geometry)
    except Exception as error:
        print(f"  outside the reference: {error}")
    return difference, change


if __name__ == "__main__":
    main()
