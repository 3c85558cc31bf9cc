"""Time windows: how early each action can start, and how much must follow it.

Both look at the actions that must come before (after) on the same rank, and at the memory limit: to have
run `k` forwards a rank must have freed what does not fit, and that takes backwards. Where this gives the
order of two actions, it is an arc for the model. Source: heads and tails of the one-machine relaxation
(Carlier 1982) over predecessor sets (Brucker, Jurisch and Sievers 1994); the part about memory is ours.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import Int64Array
from conductor.optimal.instance import NO_LIMIT, Arc, Instance
from conductor.problem.kind import Kind

_MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """What holds for every order, in units.

    Attributes:
        heads: shape (n,); no start is earlier.
        tails: shape (n,); at least so much value comes after an action's end. Under `stage_span` it may
            be negative: a rank's own end counts from its first start.
        arcs: those of the instance, and those that memory implies.
        bound: no order's value is lower.
    """

    heads: Int64Array
    tails: Int64Array
    arcs: tuple[Arc, ...]
    bound: int


def find_windows(instance: Instance, *, stage_span: bool = False) -> Windows:
    """Tightens heads, tails and arcs until nothing changes."""
    n = instance.num_actions
    heads = np.zeros(n, np.int64)
    arcs = set(instance.arcs)
    exits = np.zeros(n, np.int64)
    if stage_span:
        exits = -_latest_first_starts(instance)[instance.ranks]
    tails = exits.copy()
    for _ in range(_MAX_ROUNDS):
        ahead = _Direction(instance, arcs, reverse=False)
        back = _Direction(instance, arcs, reverse=True)
        new_heads = ahead.earliest(heads, back)
        new_tails = back.earliest(tails, ahead)
        implied = ahead.implied_arcs() | {(b, a, lag) for a, b, lag in back.implied_arcs()}
        settled = (
            implied <= arcs
            and np.array_equal(new_heads, heads)
            and np.array_equal(new_tails, tails)
        )
        heads, tails = new_heads, new_tails
        arcs |= implied
        if settled:
            break
    longest = int((heads + instance.busy + tails).max())
    busiest = max(
        _one_machine(np.flatnonzero(instance.ranks == rank), heads, instance.busy, tails)
        for rank in range(instance.spec.num_ranks)
    )
    return Windows(heads=heads, tails=tails, arcs=tuple(sorted(arcs)), bound=max(longest, busiest))


def _latest_first_starts(instance: Instance) -> Int64Array:
    """The latest start of each rank's first action, shape (num_ranks,).

    Known where the forwards that it waits for are the first actions of their ranks, too.
    """
    firsts = instance.first_actions
    starts = instance.starts_of(instance.serial)
    anything = int(instance.busy.sum()) + sum(lag for _, _, lag in instance.arcs)
    known = set(firsts.tolist())
    latest = np.full(len(firsts), anything, np.int64)
    for rank, first in enumerate(firsts.tolist()):
        stages = range(int(instance.stages[first]))
        if known.issuperset(instance.index[Kind.F, list(stages), 0].tolist()):
            latest[rank] = starts[first]
    return latest


class _Direction:
    """The instance read forwards, or backwards in time (then what frees memory takes it).

    A stream is what one stage does of one kind, in order. What must come before an action is the first
    so many of each stream.
    """

    def __init__(self, instance: Instance, arcs: set[Arc], *, reverse: bool) -> None:
        self.instance = instance
        self.reverse = reverse
        self.chain = (Kind.W, Kind.I, Kind.F) if reverse else (Kind.F, Kind.I, Kind.W)
        self.taken = instance.freed if reverse else instance.allocated
        self.given = instance.allocated if reverse else instance.freed
        last = instance.spec.num_microbatches - 1
        self.position = last - instance.microbatches if reverse else instance.microbatches
        self.stream = instance.stages * len(self.chain) + instance.kinds
        self.streams = np.empty((instance.spec.num_stages * len(self.chain), last + 1), np.int64)
        self.streams[self.stream, self.position] = np.arange(instance.num_actions)
        self.rank_stages: list[list[int]] = [[] for _ in range(instance.spec.num_ranks)]
        for stage, rank in enumerate(instance.spec.stage_ranks):
            self.rank_stages[rank].append(stage)
        self.inputs: list[list[tuple[int, int]]] = [[] for _ in range(instance.num_actions)]
        for before, after, lag in arcs:
            if reverse:
                before, after = after, before
            self.inputs[after].append((before, lag))
        self.order = self._topological()
        self.before = np.zeros((instance.num_actions, len(self.streams)), np.int64)
        """How many actions of each stream must come before an action, shape (n, streams)."""
        for action in self.order:
            mine = self.before[action]
            for source, _ in self.inputs[action]:
                np.maximum(mine, self.before[source], out=mine)
                stream = self.stream[source]
                mine[stream] = max(mine[stream], self.position[source] + 1)

    def _topological(self) -> list[int]:
        missing = [len(sources) for sources in self.inputs]
        outputs: list[list[int]] = [[] for _ in self.inputs]
        for action, sources in enumerate(self.inputs):
            for source, _ in sources:
                outputs[source].append(action)
        order = [action for action, count in enumerate(missing) if not count]
        for action in order:
            for output in outputs[action]:
                missing[output] -= 1
                if not missing[output]:
                    order.append(output)
        return order

    def earliest(self, known: Int64Array, opposite: _Direction) -> Int64Array:
        """Earliest starts (least tails when reversed), no earlier than those known."""
        instance, busy = self.instance, self.instance.busy
        heads = known.copy()
        for action in self.order:
            head = int(heads[action])
            for source, lag in self.inputs[action]:
                head = max(head, int(heads[source] + busy[source]) + lag)
            rank = int(instance.ranks[action])
            counts = self.before[action]
            ahead = np.concatenate(
                [
                    self.streams[stream, : counts[stream]]
                    for stage in self.rank_stages[rank]
                    for stream in range(stage * 3, stage * 3 + 3)
                ]
            )
            releases, work = heads[ahead], busy[ahead]
            limit = int(instance.limits[rank])
            if limit < NO_LIMIT:
                held = int(self.taken[ahead].sum() - self.given[ahead].sum())
                excess = held + int(self.taken[action]) - limit
                if excess > 0:
                    release, more = self._room(action, excess, heads, opposite)
                    releases, work = np.append(releases, release), np.append(work, more)
            if len(work):
                by_release = np.argsort(releases)
                left = np.cumsum(work[by_release][::-1])[::-1]
                head = max(head, int((releases[by_release] + left).max()))
            heads[action] = head
        return heads

    def _room(
        self, action: int, excess: int, heads: Int64Array, opposite: _Direction
    ) -> tuple[int, int]:
        """Further work that the rank must have done to free `excess` before an action, and its release.

        The cheapest, in time for what it frees; the last piece may be a part of an action.
        """
        busy = self.instance.busy
        middle, last = self.chain[1:]
        pieces: list[tuple[float, int, int, int]] = []

        def offer(frees: int, work: int, opener: int) -> None:
            if frees > 0:
                pieces.append((work / frees, frees, work, int(heads[opener])))

        for stage in self.rank_stages[int(self.instance.ranks[action])]:
            streams = stage * 3
            started, halfway, finished = self.before[action, streams : streams + 3][
                list(self.chain)
            ]
            open_middle = self._may_precede(action, streams + middle, opposite)
            open_last = self._may_precede(action, streams + last, opposite)
            for position in range(finished, started):
                a, b = (
                    self.streams[streams + middle, position],
                    self.streams[streams + last, position],
                )
                in_a = int(self.given[a] - self.taken[a])
                in_b = int(self.given[b] - self.taken[b])
                if position < halfway:
                    if position < open_last:
                        offer(in_b, int(busy[b]), b)
                elif position < open_middle:
                    if position >= open_last:
                        offer(in_a, int(busy[a]), a)
                    elif in_a > 0 and in_b * int(busy[a]) <= in_a * int(busy[b]):
                        offer(in_a, int(busy[a]), a)
                        offer(in_b, int(busy[b]), a)
                    else:
                        offer(in_a + in_b, int(busy[a] + busy[b]), a)
        pieces.sort()
        total = 0
        for _, frees, work, _ in pieces:
            if frees >= excess:
                total += -(-work * excess // frees)
                break
            total += work
            excess -= frees
        return min((piece[3] for piece in pieces), default=0), total

    def _may_precede(self, action: int, stream: int, opposite: _Direction) -> int:
        """How many actions of a stream could come before an action."""
        count = self.streams.shape[1] - int(opposite.before[action, stream])
        return min(count, int(self.position[action])) if stream == self.stream[action] else count

    def implied_arcs(self) -> set[Arc]:
        """Orders of two actions of a rank that the memory limit forces.

        What has been freed of a stage is at most what has passed I there, and that at most what has passed
        I of any stage that comes earlier in the backward. So if only `n` had passed that I, a rank would
        still hold so much of what must come before an action; where that is too much, I number `n` must
        come before it, too.
        """
        arcs: set[Arc] = set()
        instance = self.instance
        for action in range(instance.num_actions):
            rank = int(instance.ranks[action])
            limit = int(instance.limits[rank])
            if limit == NO_LIMIT:
                continue
            counts = self.before[action].copy()
            counts[self.stream[action]] += 1
            stages = self.rank_stages[rank]
            if sum(self._held(stage, counts, 0) for stage in stages) <= limit:
                continue
            for gate in stages:
                behind = [stage for stage in stages if self.reverse or stage <= gate]
                passed = 0
                while sum(self._held(stage, counts, passed) for stage in behind) > limit:
                    passed += 1
                stream = gate * 3 + Kind.I
                if passed > counts[stream]:
                    arcs.add((int(self.streams[stream, passed - 1]), action, 0))
            arcs |= self._own_stage_arcs(action, limit)
        return arcs

    def _held(self, stage: int, counts: Int64Array, passed: int) -> int:
        """Least memory held of a stage if only so many have passed I there."""
        held = 0
        for kind in self.chain:
            stream = stage * 3 + kind
            action = self.streams[stream, 0]
            held += int(self.taken[action]) * max(int(counts[stream]), passed)
            held -= int(self.given[action]) * passed
        return held

    def _own_stage_arcs(self, action: int, limit: int) -> set[Arc]:
        """The last action of a chain that must be over before one more chain of its stage begins."""
        first, middle, last = self.chain
        if self.instance.kinds[action] != first:
            return set()
        streams = int(self.instance.stages[action]) * 3
        begun = int(self.position[action])
        half, whole = self.streams[streams + middle, 0], self.streams[streams + last, 0]
        in_half = int(self.given[half] - self.taken[half])
        in_whole = int(self.given[whole] - self.taken[whole])
        done = 0
        while (
            int(self.taken[action]) * (begun + 1)
            - in_half * (begun if in_half > 0 else done)
            - in_whole * done
            > limit
        ):
            done += 1
            if done > begun:
                return set()
        if done <= self.before[action, streams + last]:
            return set()
        return {(int(self.streams[streams + last, done - 1]), action, 0)}


def _one_machine(
    actions: Int64Array, heads: Int64Array, busy: Int64Array, tails: Int64Array
) -> int:
    """Best value of a rank's actions between their heads and tails, if they could be interrupted."""
    waiting = sorted(actions.tolist(), key=lambda action: -int(heads[action]))
    ready: list[tuple[int, int]] = []
    best = now = 0
    while waiting or ready:
        if not ready:
            now = max(now, int(heads[waiting[-1]]))
        while waiting and heads[waiting[-1]] <= now:
            action = waiting.pop()
            heapq.heappush(ready, (-int(tails[action]), int(busy[action])))
        urgency, left = heapq.heappop(ready)
        until = int(heads[waiting[-1]]) if waiting else now + left
        if now + left <= until:
            now += left
            best = max(best, now - urgency)
        else:
            heapq.heappush(ready, (urgency, left - (until - now)))
            now = until
    return best
