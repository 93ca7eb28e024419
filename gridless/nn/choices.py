"""The design choices of a point network as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gridless.nn.basis import Basis, KernelPoints, Monomials
from gridless.ops.point_conv.checks import FALLOFFS
from gridless.plan import Name, Plan

BASES = ("monomials", "kernel points")
SAMPLERS = ("rejection", "farthest", "approximate farthest", "random")


@dataclass(frozen=True)
class Choices:
    """Basis, neighbourhood, fall-off and sampler of a point network. The defaults are the paper's.

    Args:
        order: the highest total order of the monomials.
        basis: "monomials", or "kernel points", the Gaussian bumps of `gl.nn.KernelPoints`.
        nearest: so many nearest neighbours in place of a ball, and twice as many when down-sampling. Vectors are still
            divided by the ball's radius.
        limit: keep so many nearest neighbours of a ball at most, and twice as many when down-sampling. Rejection uses
            the whole ball. Without normalisation the few clouds with hundreds of neighbours decide the statistics of
            their batch.
        falloff: "linear", 1 - |vector|, or None for equal weights.
        normalise: divide each row by the sum of its weights.
        sampler: "rejection" with the level's ball; or so many points of each cloud: "farthest",
            "approximate farthest" (along the ball's edges) or "random".
        fraction: points that a sampler other than rejection keeps at each level.
        self_edge: whether a point is its own neighbour.
    """

    order: int = 2
    basis: str = "monomials"
    nearest: int | None = None
    limit: int | None = None
    falloff: str | None = "linear"
    normalise: bool = True
    sampler: str = "rejection"
    fraction: float = 0.25
    self_edge: bool = True

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("basis", self.basis, BASES),
            ("sampler", self.sampler, SAMPLERS),
            ("falloff", self.falloff, FALLOFFS),
            ("normalise", self.normalise, (True, False)),
            ("self_edge", self.self_edge, (True, False)),
        ):
            if value not in allowed:
                raise ValueError(f"Choices: {name} is {value!r}. Choose one of {', '.join(map(repr, allowed))}.")
        if self.nearest is not None and self.limit is not None:
            raise ValueError("Choices: nearest and limit exclude each other. Give one of them.")
        if isinstance(self.order, bool) or not isinstance(self.order, int) or self.order < 0:
            raise ValueError(f"Choices: order is {self.order!r}. Give a whole number of at least 0.")
        if isinstance(self.fraction, bool) or not 0 < self.fraction <= 1:
            raise ValueError(f"Choices: fraction is {self.fraction!r}. Give a number above 0 and up to 1.")
        # A whole number would be a count of points to the samplers.
        object.__setattr__(self, "fraction", float(self.fraction))
        if self.sampler == "rejection" and self.fraction != 0.25:
            raise ValueError(f"Choices: fraction is {self.fraction}, but rejection has none. Leave it out.")
        if self.basis != "monomials" and self.order != 2:
            raise ValueError(f"Choices: order is {self.order}, but {self.basis} have no order. Leave it out.")

    @classmethod
    def of(cls, choices: Choices | Mapping[str, Any] | None) -> Choices:
        """The choices themselves, or those of a mapping of names to values; None is the paper's."""
        return choices if isinstance(choices, Choices) else cls(**(choices or {}))

    def changes(self) -> dict[str, Any]:
        """Choices that differ from the paper's, by name."""
        paper = Choices()
        return {name: value for name, value in asdict(self).items() if value != getattr(paper, name)}

    def search(self, plan: Plan, source: Name, target: Name, radius: float) -> Name:
        """The neighbourhoods of `target` in `source`, as a line of the plan; `radius` is the ball's."""
        # A point is among its nearest neighbours: one more is searched if its own edge is dropped.
        factor, own = 1 if source == target else 2, int(not self.self_edge)
        if self.nearest is not None:
            edges = plan.nearest(source, target, factor * self.nearest + own)
        else:
            limit = None if self.limit is None else factor * self.limit + own
            edges = plan.ball(source, target, radius, limit)
        return edges if self.self_edge else plan.without_self(edges)

    def sample(self, plan: Plan, cloud: Name, radius: float) -> Name:
        """The points that the next level keeps, as a line of the plan."""
        return _SAMPLE[self.sampler](plan, cloud, radius, self.fraction)

    def conv(self, dim: int, radius: float) -> dict[str, Any]:
        """The arguments of a convolution over neighbourhoods of this radius."""
        basis: Basis = Monomials(dim, self.order) if self.basis == "monomials" else KernelPoints(dim)
        return {"basis": basis, "falloff": self.falloff, "normalise": self.normalise, "radius": radius}


NAMES = tuple(entry.name for entry in fields(Choices))

_SAMPLE: dict[str, Callable[[Plan, Name, float, float], Name]] = {
    "rejection": lambda plan, cloud, radius, _: plan.rejection_sample(plan.ball(cloud, cloud, radius)),
    "farthest": lambda plan, cloud, _, size: plan.farthest_sample(cloud, size),
    "approximate farthest": lambda plan, cloud, radius, size: plan.farthest_sample(
        cloud, size, near=plan.ball(cloud, cloud, radius)
    ),
    "random": lambda plan, cloud, _, size: plan.random_sample(cloud, size),
}
