"""Cuts: where to cut a chain of layers into stages so that the fullest rank has least to do, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.problem.placement import PlacementName

TOLERANCE = 1e-9

NODE_LIMIT = 200_000
"""Choices that the exact search looks at before it gives up on the proof."""


class OutOfNodesError(Exception):
    """The exact search met its limit: the answer so far may not be the best."""


@dataclass(slots=True, kw_only=True)
class CutSearch:
    """Searches cuts within capacities: depth first, rank by rank.

    A placement goes over the ranks in passes: one for `sequential`, one a stage of a rank for `loop`
    and `v` (every second one from the last rank to the first). With the borders between passes given,
    each rank moves each pass's front on by one stage. What the ranks to come can take at most says how
    much this one must take at least; fronts that failed once are not tried again. With v passes, p
    ranks and L layers there are at most L^(v-1) borders and p L^v fronts.

    Two passes are first tried with empty stages allowed. Then only the farthest second front counts
    for each first one, so that all borders are decided in O(p k L^2 log L), k the layers that fit in
    a rank: what that refuses needs no search.

    Attributes:
        loads: shape (resources, num_ranks, layers); what each layer costs a rank.
        placement: `sequential` cuts one stage a rank.
        stages_per_rank: number of passes.
        nodes: choices looked at so far.
    """

    loads: FloatArray
    placement: PlacementName
    stages_per_rank: int = 1
    nodes: int = 0
    _prefix: FloatArray = field(init=False)
    _least: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        """Sums up the loads."""
        zero = np.zeros((*self.loads.shape[:2], 1))
        self._prefix = np.concatenate([zero, np.cumsum(self.loads, axis=2)], axis=2)
        # what the ranks from r on have to carry at least, whichever of them gets a layer
        least = np.minimum.accumulate(self.loads[:, ::-1], axis=1)[:, ::-1]
        self._least = np.concatenate([zero, np.cumsum(least, axis=2)], axis=2)

    def find(self, capacity: FloatArray) -> tuple[int, ...] | None:
        """The first layer of each stage and the number of layers, or None where nothing fits.

        Args:
            capacity: shape (resources, num_ranks).

        Raises:
            OutOfNodesError: after `NODE_LIMIT` choices.
        """
        num_layers = self.loads.shape[2]
        passes = self.stages_per_rank
        room = self.loads.shape[1]
        if passes == 2 and not self._fits_with_empty_stages(capacity * (1.0 + 2.0 * TOLERANCE)):
            return None
        inner = itertools.combinations(range(room, num_layers - room + 1), passes - 1)
        capacity = capacity * (1.0 + TOLERANCE)
        middle = [num_layers * k / passes for k in range(1, passes)]
        borders = sorted(
            inner, key=lambda b: sum(abs(x - y) for x, y in zip(b, middle, strict=True))
        )
        for border in borders:
            edges = (0, *border, num_layers)
            if any(end - start < room for start, end in itertools.pairwise(edges)):
                continue
            found = self._within(edges, capacity)
            if found is not None:
                return found
        return None

    def _fits_with_empty_stages(self, capacity: FloatArray) -> bool:
        """Whether two passes fit where stages may have no layers; see the class."""
        num_layers = self.loads.shape[2]
        first = self._prefix
        second = first
        # farthest[m, i]: second front where the first pass ends at m and its front is at i
        farthest = np.full((num_layers + 1, num_layers + 1), -1)
        farthest[:, 0] = np.arange(num_layers + 1)
        if self.placement == "v":
            # counts layers from the end, and needs no border: the fronts have to meet
            second = first[:, :, -1:] - first[:, :, ::-1]
            farthest = np.where(np.arange(num_layers + 1) == 0, 0, -1)[None]
        for rank in range(self.loads.shape[1]):
            after = np.full_like(farthest, -1)
            for count in range(num_layers + 1):
                source = farthest[:, : num_layers + 1 - count]
                taken = first[:, rank, count:] - first[:, rank, : num_layers + 1 - count]
                left = capacity[:, rank, None] - taken
                fits = (source >= 0) & np.all(left >= 0.0, axis=0)
                if not np.any(left.min(axis=0) >= 0.0):
                    break
                reach = np.full_like(source, num_layers)
                for amounts, room in zip(second[:, rank], left, strict=True):
                    end = np.searchsorted(amounts, amounts[source] + room, side="right") - 1
                    reach = np.minimum(reach, end)
                np.maximum(after[:, count:], np.where(fits, reach, -1), out=after[:, count:])
            farthest = after
        if self.placement == "v":
            return bool(np.any(farthest[0] + np.arange(num_layers + 1) >= num_layers))
        return bool(np.any(np.diagonal(farthest) == num_layers))

    def _within(self, edges: tuple[int, ...], capacity: FloatArray) -> tuple[int, ...] | None:
        """Cuts with the borders of the passes given."""
        passes, num_ranks = self.stages_per_rank, self.loads.shape[1]
        steps = [-1 if self.placement == "v" and k % 2 else 1 for k in range(passes)]
        starts = tuple(edges[k] if steps[k] > 0 else edges[k + 1] for k in range(passes))
        ends = tuple(edges[k + 1] if steps[k] > 0 else edges[k] for k in range(passes))
        # what the ranks behind each one can take
        behind = np.zeros((len(capacity), num_ranks + 1))
        behind[:, :-1] = np.cumsum(capacity[:, ::-1], axis=1)[:, ::-1]
        failed: set[tuple[int, ...]] = set()
        chosen: list[tuple[int, ...]] = [starts]

        def fits_behind(rank: int, fronts: tuple[int, ...]) -> bool:
            if rank == num_ranks:
                return fronts == ends
            left = sum(
                abs(self._least[:, rank, end] - self._least[:, rank, front])
                for front, end in zip(fronts, ends, strict=True)
            )
            return bool(np.all(left <= behind[:, rank]))

        def go(rank: int, fronts: tuple[int, ...]) -> bool:
            if rank == num_ranks:
                return True
            if (rank, *fronts) in failed:
                return False
            for after in self._moves(rank, fronts, ends, steps, capacity[:, rank]):
                self.nodes += 1
                if self.nodes > NODE_LIMIT:
                    raise OutOfNodesError
                if fits_behind(rank + 1, after):
                    chosen.append(after)
                    if go(rank + 1, after):
                        return True
                    chosen.pop()
            failed.add((rank, *fronts))
            return False

        if not fits_behind(0, starts) or not go(0, starts):
            return None
        cuts = {front for fronts in chosen for front in fronts} | set(edges)
        return tuple(sorted(cuts))

    def _moves(
        self,
        rank: int,
        fronts: tuple[int, ...],
        ends: tuple[int, ...],
        steps: list[int],
        room: FloatArray,
    ) -> Iterator[tuple[int, ...]]:
        """Fronts after this rank's stages, the fullest first pass first."""
        if not fronts:
            yield ()
            return
        front, end, step = fronts[0], ends[0], steps[0]
        stay = self.loads.shape[1] - 1 - rank
        for count in range(abs(end - front) - stay, 0, -1):
            after = front + step * count
            left = room - abs(self._prefix[:, rank, after] - self._prefix[:, rank, front])
            if stay == 0 and after != end:
                break
            if np.all(left >= 0.0):
                for rest in self._moves(rank, fronts[1:], ends[1:], steps[1:], left):
                    yield (after, *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """The result of `best_cuts`.

    Attributes:
        cuts: first layer of each stage, then the number of layers.
        value: what was minimised.
        lower_bound: nothing is less; equal to `value` where that is proved.
    """

    cuts: tuple[int, ...]
    value: float
    lower_bound: float


def best_cuts(search: CutSearch, fixed: FloatArray, scale: FloatArray) -> Cuts | None:
    """Minimises x such that cuts fit within the capacities `fixed + x * scale`.

    Starts from even cuts, shifted while that helps, and halves the distance to a bound. Each split
    found says what it really needs; the last search, just below the best, proves that nothing needs
    less.

    Args:
        search: whose loads are split.
        fixed: shape (resources, num_ranks).
        scale: 1 for the resource that x counts for, 0 elsewhere; shape as `fixed`.

    Returns:
        None where no x is enough (or `NODE_LIMIT` ends the search for one).
    """
    counts = scale > 0.0

    def needed(cuts: tuple[int, ...]) -> float:
        return float((rank_loads(search, cuts) - fixed)[counts].max())

    def score(cuts: tuple[int, ...]) -> tuple[float, ...]:
        loads = rank_loads(search, cuts)
        excess = (loads - fixed * (1.0 + TOLERANCE))[~counts]
        return (
            max(0.0, float(excess.max(initial=0.0))),
            float((loads - fixed)[counts].max()),
            float((loads[counts] ** 2).sum()),
        )

    num_layers, num_stages = search.loads.shape[2], search.loads.shape[1] * search.stages_per_rank
    even = np.linspace(0, num_layers, num_stages + 1).round().astype(int)
    best = shift_cuts(tuple(even.tolist()), score)
    low = float(
        max(
            (search.loads[k].min(axis=0).sum() - fixed[k].sum()) / fixed.shape[1]
            for k in np.flatnonzero(counts.all(axis=1))
        )
    )
    try:
        if score(best)[0] > 0.0:
            found = search.find(fixed + scale * search.loads.sum())
            if found is None:
                return None
            best = found
        high = needed(best)
        while low < (below := high - 4.0 * TOLERANCE * max(1.0, abs(high))):
            middle = (low + below) / 2.0
            found = search.find(fixed + scale * middle)
            if found is None:
                low = middle
                found = search.find(fixed + scale * below)
            if found is None:
                break
            best, high = found, needed(found)
    except OutOfNodesError:
        if score(best)[0] > 0.0:
            return None
        return Cuts(cuts=best, value=needed(best), lower_bound=low)
    return Cuts(cuts=best, value=high, lower_bound=high)


def shift_cuts(cuts: tuple[int, ...], score: Callable[[tuple[int, ...]], Any]) -> tuple[int, ...]:
    """Shifts runs of neighbouring cuts by one layer while that lowers the score.

    A run passes a layer on from the stage in front of it to the one behind it, or back.

    Args:
        cuts: first layer of each stage, then the number of layers.
        score: of cuts; anything that compares.
    """
    best = score(cuts)
    is_better = True
    while is_better:
        is_better = False
        for first, last, step in itertools.product(
            range(1, len(cuts) - 1), range(1, len(cuts) - 1), (1, -1)
        ):
            if last < first:
                continue
            moved = tuple(cut + step * (first <= k <= last) for k, cut in enumerate(cuts))
            if min(end - start for start, end in itertools.pairwise(moved)) < 1:
                continue
            value = score(moved)
            if value < best:
                cuts, best, is_better = moved, value, True
    return cuts


def rank_loads(search: CutSearch, cuts: tuple[int, ...]) -> FloatArray:
    """Loads of each rank under cuts, shape (resources, num_ranks)."""
    sums = np.zeros(search.loads.shape[:2])
    for stage, (start, end) in enumerate(itertools.pairwise(cuts)):
        rank = rank_of(search.placement, search.loads.shape[1], stage)
        sums[:, rank] += search.loads[:, rank, start:end].sum(axis=1)
    return sums


def rank_of(placement: PlacementName, num_ranks: int, stage: int) -> int:
    """The rank of a stage; one stage a rank for `sequential`."""
    lap, at = divmod(stage, num_ranks)
    return num_ranks - 1 - at if placement == "v" and lap % 2 else at
