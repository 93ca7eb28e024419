"""Consecutive lines of a plan on the GPU, without a wait between them.

The numbers of edges and samples are known on the device only, and reading one back takes as long as a search. Therefore
each result gets the room per point that the last calls needed, and a quarter more. All sizes are read back once, at the
end, and the results are cut to them. If a result does not fit, the lines after it stop, and all run one by one, as in
the first call of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gridless.geometry import gpu_common as common
from gridless.geometry.ball import gpu as all_pairs
from gridless.geometry.ball import grid_gpu
from gridless.geometry.chain.cpu import PointChain
from gridless.geometry.checks import check_radius
from gridless.geometry.rejection import gpu as rejection
from gridless.structures import MAX_EDGES, Cloud, Edges

# Small results vary more.
_SPARE = 64
# A scan that does not fit takes twice the time, and scans vary: each call remembers this share of the room that earlier
# calls needed, up to this multiple of the last.
_FADES, _TIMES = 0.99, 4.0


def _more(now: float, before: float) -> float:
    return min(max(now, _FADES * before), _TIMES * now)


class Room(NamedTuple):
    """Capacity of a line: edges or samples of the batch, and samples of the largest example."""

    size: int
    most: int


@dataclass(eq=False)
class GpuChain:
    """The lines of a `Chain`: balls without a limit, and rejection sampling over them."""

    first: str
    names: list[str]
    lines: list[tuple[int, int, int]]  # is it a sample; its cloud; a cloud or edges, by their lines; 0 is the first
    radii: list[float]
    rows_of: dict[int, int]  # balls of samples whose rows are those of the ball that these were sampled by
    # By device: points of the cloud, and the `Room` of each line per point, in the last calls.
    needed: dict[torch.device, tuple[int, list[tuple[float, float]]]] = field(default_factory=dict)
    longest: int = common.LONGEST

    @classmethod
    def of(cls, chain: PointChain, rows_of: Mapping[str, str]) -> GpuChain:
        """`rows_of`: balls of samples, by name, and the balls that have their rows."""
        names, lines = [line.name for line in chain.lines], chain.table.tolist()
        at = {name: n for n, name in enumerate([chain.first, *names])}
        known = {at[name]: at[near] for name, near in rows_of.items() if name in at}
        known = {line: near for line, near in known.items() if lines[lines[line - 1][2] - 1][2] == near}
        return cls(chain.first, names, lines, chain.radii, known)

    def run(self, cloud: Cloud) -> dict[str, Any]:
        """Results of the lines by name; empty if the lines have to be run one by one."""
        last, needed = self.needed.get(cloud.device, (0, []))
        # A guess from a much smaller cloud might be for more memory than there is.
        if not 0 < len(cloud) <= 2 * last or cloud.padding or cloud.coords.requires_grad:
            return {}
        # The first search looks at one large example; others are looked at here.
        alone = common.alone(cloud) and len(cloud) > all_pairs.ALL_PAIRS
        largest = len(cloud) if alone else common.sizes(cloud, "ball: source")[1]
        rooms = [
            Room(min(int(1.25 * size * len(cloud)) + _SPARE, MAX_EDGES), int(1.25 * most * largest) + _SPARE)
            for size, most in needed
        ]
        results = self._at_once(cloud, largest, rooms)
        return {} if results is None else dict(zip(self.names, results[1:], strict=True))

    def remember(self, values: Mapping[str, Any]) -> None:
        """The sizes of all results, however they were found, in those of the cloud."""
        cloud = values[self.first]
        if len(cloud):
            largest = common.sizes(cloud, "plan")[1]
            results = [values[name] for name in self.names]
            most = [common.sizes(x, "plan")[1] if isinstance(x, Cloud) else 0 for x in results]
            now = [(len(x) / len(cloud), m / largest) for x, m in zip(results, most, strict=True)]
            _, before = self.needed.get(cloud.device, (0, now))
            needed = [(_more(*size), _more(*most)) for size, most in (zip(*line) for line in zip(now, before))]
            self.needed[cloud.device] = len(cloud), needed

    def _at_once(self, cloud: Cloud, most: int, rooms: list[Room]) -> list[Any] | None:
        """The cloud, whose largest example has `most` points, and what each line gives; None where there is no room."""
        # Samples are clouds with padding of a size that only the device knows; edges have the rows of those.
        results: list[Any] = [cloud]
        known: dict[int, rejection.Collected] = {}
        largest = [most]
        # Long rows are sorted by a kernel of their own, which is left out where there are none by far.
        longest = common.SHORT if self.longest <= common.SHORT // 2 else common.LONGEST
        totals = torch.empty((len(rooms), 4), dtype=torch.int64, device=cloud.device)
        ends: dict[int, Tensor] = {}
        grids: list[int] = []
        each = zip(self.lines, rooms, totals.unbind(0), strict=True)
        for line, ((sample, a, b), (room, most), total) in enumerate(each, 1):
            source, target = results[a], results[b]
            largest.append(most)
            if sample:
                marks = rejection.decide(source, target)
                at, splits = rejection.number(source, marks, total, room, most)
                known[line] = rejection.gather(source, marks, at, splits, room)
                results.append(Cloud.made(coords=known[line].coords, splits=splits).trusted())
                continue
            if line in self.rows_of:
                splits = known[b].row_splits
                neighbours = rejection.take(results[self.rows_of[line]], known[b], room)
            else:
                radius = check_radius("ball", self.radii[line - 1], cloud.coords.dtype)
                if largest[a] <= all_pairs.ALL_PAIRS:
                    counts, bits = all_pairs.test_pairs(source, target, radius, largest[a], largest[b])
                    splits = counts.cumsum(0)
                    ends[line - 1] = splits[-1:]
                    neighbours = all_pairs.fill(source, target, splits, bits, room, largest[b])
                else:
                    grids.append(line - 1)
                    grid = grid_gpu.begin(source, target, radius, None, total)
                    splits, neighbours = grid_gpu.fill(grid, room, longest)
            results.append(Edges.made(splits=splits, source=neighbours, num_source=0))
        if ends:
            numbers = torch.cat([totals.view(-1), *ends.values()]).tolist()
            sizes = [numbers[4 * n : 4 * n + 4] for n in range(len(rooms))]
            for n, edges in zip(ends, numbers[4 * len(rooms) :], strict=True):
                sizes[n][0] = edges
        else:
            sizes = totals.tolist()
        searched = [sizes[n] for n in grids]
        grid_gpu.check_points(max((size[3] for size in searched), default=0), cloud, cloud)
        # A local number, as another thread may run the same plan.
        longest_row = self.longest = max((size[2] for size in searched), default=0)
        return self._cut(results, known, rooms, sizes) if longest_row <= longest else None

    def _cut(
        self, results: list[Any], known: dict[int, rejection.Collected], rooms: list[Room], sizes: list[list[int]]
    ) -> list[Any] | None:
        """The results in the sizes that they have."""
        cut = results[:1]
        for line, ((sample, a, b), room, size) in enumerate(zip(self.lines, rooms, sizes, strict=True), 1):
            if sample:
                edges, count = divmod(size[0], 1 << 32)
                if count > room.size or size[2] > room.most:
                    return None
                known[line] = known[line].cut(count, len(cut[a]))._replace(edges=edges, sizes=(size[1], size[2]))
                cut.append(rejection.sampled(cut[a], cut[b], known[line]))
                continue
            total = known[b].edges if line in self.rows_of else size[0]
            if total > room.size:
                return None
            neighbours = results[line].source.narrow(0, 0, total)
            if line in self.rows_of:
                cut.append(rejection.edges_of_samples(cut[self.rows_of[line]], known[b], neighbours))
            else:
                splits = results[line].splits if b == 0 else results[line].splits.narrow(0, 0, len(cut[b]) + 1)
                edges = Edges.made(splits=splits, source=neighbours, num_source=len(cut[a]), symmetric=a == b)
                cut.append(edges.trusted())
        return cut
