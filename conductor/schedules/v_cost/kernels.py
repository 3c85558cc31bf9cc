"""Compiled list scheduling of the V placement under a memory limit. One call makes one plan."""

from __future__ import annotations

import numba
import numpy as np

FORWARD_UP, FORWARD_DOWN, BACKWARD_UP, BACKWARD_DOWN, WEIGHT_UP, WEIGHT_DOWN = 0, 1, 2, 3, 4, 5


@numba.njit(cache=True)
def list_order(
    busy, lag, memory, freed_early, limits, num_microbatches,
    due, window, patience, most_up,
):  # fmt: skip
    """Plans in order of time: the rank that can start something first starts its most urgent action.

    What a rank starts is ready and fits in its memory. Of the actions it could start at that moment
    it takes the one due first; but when one that is due still earlier is known to arrive, it only
    starts what ends by then, or little later.

    A forward up only starts when the rank can hold, with it, all micro-batches that have not passed
    the last stage and one more forward down. Those that have passed it free their memory for certain:
    so the plan never gets stuck.

    Args:
        busy: F, I and W of each stage, shape (3, 2p).
        lag: from a stage to the next, shape (2p - 1,).
        memory: of a micro-batch on each stage, shape (2p,).
        freed_early: share of it that I frees.
        limits: memory of each rank, shape (p,); each at least the memory of its two stages.
        num_microbatches: m.
        due: when each action is due, by type, rank and micro-batch; shape (6, p, m).
        window: how much later than a rank's most urgent action another may be due that it starts first.
        patience: share of an action by which it may delay one that is due earlier.
        most_up: micro-batches whose first chunk a rank holds at most, shape (p,).

    Returns:
        Types and micro-batches, each of shape (p, 6m), the makespan, and the longest span of a rank.
    """
    m, p = num_microbatches, len(limits)
    types = np.empty((p, 6 * m), np.int64)
    microbatches = np.empty((p, 6 * m), np.int64)
    end = np.full((4, p, m), -1.0)
    done = np.zeros((6, p), np.int64)
    count = np.zeros(p, np.int64)
    clock, held, first_start = np.zeros(p), np.zeros(p), np.zeros(p)
    choice, start = np.full(p, -1, np.int64), np.full(p, np.inf)
    stale = np.ones(p, np.bool_)
    arrival, urgency = np.empty(6), np.empty(6)
    for _ in range(6 * m * p):
        rank = -1
        for r in range(p):
            if stale[r]:
                stale[r] = False
                _arrivals(r, busy, lag, memory, limits, most_up, m, end, done, held, clock, arrival)
                for t in range(6):
                    urgency[t] = due[t, r, done[t, r]] if done[t, r] < m else np.inf
                latest = urgency.min() + window
                for t in range(6):
                    if urgency[t] > latest:
                        arrival[t] = np.inf
                choice[r] = _choose(r, busy, patience, arrival, urgency)
                start[r] = np.inf if choice[r] < 0 else arrival[choice[r]]
            if start[r] < np.inf and (rank < 0 or start[r] < start[rank]):
                rank = r
        if rank < 0:
            return types, microbatches, np.inf, np.inf
        t = choice[rank]
        j = done[t, rank]
        stage = _stage(t, rank, p)
        if count[rank] == 0:
            first_start[rank] = start[rank]
        clock[rank] = start[rank] + busy[t // 2, stage]
        if t < 2:
            held[rank] += memory[stage]
        elif t < 4:
            held[rank] -= memory[stage] * freed_early
        else:
            held[rank] -= memory[stage] * (1.0 - freed_early)
        if t < 4:
            end[t, rank, j] = clock[rank]
        types[rank, count[rank]], microbatches[rank, count[rank]] = t, j
        count[rank] += 1
        done[t, rank] += 1
        stale[rank] = True
        neighbour = rank + 1 if t % 2 == 0 else rank - 1
        if t < 4 and 0 <= neighbour < p:
            stale[neighbour] = True
        if t == FORWARD_DOWN and rank == 0:
            stale[:] = True
    return types, microbatches, clock.max(), (clock - first_start).max()


@numba.njit(cache=True)
def _stage(t, rank, p):
    """Global stage of a type: the second chunk's is on the way down of F and up of I and W."""
    return rank if t in (FORWARD_UP, BACKWARD_DOWN, WEIGHT_DOWN) else 2 * p - 1 - rank


@numba.njit(cache=True)
def _arrivals(rank, busy, lag, memory, limits, most_up, m, end, done, held, clock, arrival):
    """When the next action of each type could start on a rank; inf where that is not known."""
    p = len(limits)
    first, second = rank, 2 * p - 1 - rank
    room = limits[rank] - held[rank]
    for t in range(6):
        arrival[t] = np.inf
        j = done[t, rank]
        if j == m:
            continue
        ready = np.inf
        if t == FORWARD_UP:
            passed = done[FORWARD_DOWN, 0]
            open_up = max(done[FORWARD_UP, rank] - passed, 0)
            open_down = max(done[FORWARD_DOWN, rank] - passed, 0)
            needed = (open_up + 1) * memory[first] + (open_down + 1) * memory[second]
            if (
                room < memory[first]
                or needed > limits[rank]
                or done[FORWARD_UP, rank] - done[WEIGHT_DOWN, rank] >= most_up[rank]
            ):
                continue
            if rank == 0:
                ready = 0.0
            elif end[t, rank - 1, j] >= 0.0:
                ready = end[t, rank - 1, j] + lag[first - 1]
        elif t == FORWARD_DOWN:
            if room < memory[second]:
                continue
            if rank == p - 1:
                if end[FORWARD_UP, rank, j] >= 0.0:
                    ready = end[FORWARD_UP, rank, j] + lag[first]
            elif end[t, rank + 1, j] >= 0.0:
                ready = end[t, rank + 1, j] + lag[second - 1]
        elif t == BACKWARD_UP:
            if rank == 0:
                if end[FORWARD_DOWN, rank, j] >= 0.0:
                    ready = end[FORWARD_DOWN, rank, j]
            elif end[t, rank - 1, j] >= 0.0:
                ready = end[t, rank - 1, j] + lag[second]
        elif t == BACKWARD_DOWN:
            if rank == p - 1:
                if end[BACKWARD_UP, rank, j] >= 0.0:
                    ready = end[BACKWARD_UP, rank, j] + lag[first]
            elif end[t, rank + 1, j] >= 0.0:
                ready = end[t, rank + 1, j] + lag[first]
        elif end[t - 2, rank, j] >= 0.0:
            ready = end[t - 2, rank, j]
        arrival[t] = max(ready, clock[rank])


@numba.njit(cache=True)
def _choose(rank, busy, patience, arrival, urgency):
    """The type that a rank starts next, or -1 when it knows of nothing it could start."""
    p = busy.shape[1] // 2
    now = arrival.min()
    if now == np.inf:
        return -1
    awaited = -1
    for t in range(6):
        if arrival[t] < np.inf and (awaited < 0 or urgency[t] < urgency[awaited]):
            awaited = t
    best = -1
    for t in range(6):
        if arrival[t] == now and (best < 0 or urgency[t] < urgency[best]):
            length = busy[t // 2, _stage(t, rank, p)]
            if now + (1.0 - patience) * length <= arrival[awaited]:
                best = t
    return best if best >= 0 else awaited
