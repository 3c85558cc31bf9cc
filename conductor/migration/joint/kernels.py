"""Compiled annealing over the order of each rank and the planner's knobs of each action."""

from __future__ import annotations

import numba
import numpy as np

from conductor.migration.kernels import make_log, make_state, run


@numba.njit(cache=True)
def mean_makespan(layout, costs, rules, state, log, durations, factors, limit_ms):
    """Mean makespan over draws, or inf once it cannot stay below the limit.

    Half of the draws decide early: a candidate whose first half is 2 % above the limit is given up.
    """
    draws = len(durations)
    total = 0.0
    for draw in range(draws):
        total += run(layout, costs, rules, state, log, durations[draw], factors[draw])
        done = draw + 1
        if total == np.inf or total > limit_ms * draws:
            return np.inf
        if 2 * done == draws and total > 1.02 * limit_ms * done:
            return np.inf
    return total / draws


@numba.njit(cache=True)
def may_move(layout, rows, streams, place, target):
    """Whether the action at `place` may stand at `target`, as far as its own rank can tell.

    A stream keeps its order, and an action stays behind its inputs.
    """
    i = rows[place]
    low, high = min(place, target), max(place, target)
    for k in range(low, high + 1):
        other = rows[k]
        if other == i:
            continue
        if streams[other] == streams[i]:
            return False
        early, late = (other, i) if target < place else (i, other)
        for slot in range(layout.inputs.shape[1]):
            if layout.inputs[late, slot] == early:
                return False
    return True


@numba.njit(cache=True)
def shift(rows, place, target):
    """Moves the action at `place` to `target` among its rank's actions."""
    i = rows[place]
    step = 1 if target > place else -1
    for k in range(place, target, step):
        rows[k] = rows[k + step]
    rows[target] = i


@numba.njit(cache=True)
def settle(layout, rows, rank):
    """Tells the event loop the order of a rank; whether the rank's memory suffices for it."""
    first, last = layout.rank_offsets[rank], layout.rank_offsets[rank + 1]
    work = 0.0
    memory = 0.0
    for k in range(first, last):
        i = rows[k]
        layout.priority[i] = k - first
        layout.work_before_ms[i] = work
        work += layout.duration_ms[i] + layout.send_ms[i]
        memory += layout.allocated[i]
        if memory > layout.limits[rank]:
            return False
        memory -= layout.freed[i]
    return True


@numba.njit(cache=True)
def later(rules, streams, stream, i, moved_ms):
    """Moves the latest start of one action, or of all actions of its stream."""
    if stream < 0:
        rules.latest_start_ms[i] += moved_ms
        return
    for k in range(len(streams)):
        if streams[k] == stream:
            rules.latest_start_ms[k] += moved_ms


@numba.njit(cache=True)
def anneal(
    layout, costs, rules, rows, streams, durations, factors, chances, reach, warmth, start_ms
):
    """Anneals in place; leaves the best found in `rows` and `rules`.

    Args:
        rows: actions of each rank in order; `layout.stream_actions` itself where execution is static,
            else the ranks' priorities.
        streams: stream of each action that keeps its order.
        chances: random numbers in [0, 1), shape (steps, 5).
        reach: places that an action moves at most.
        warmth: first temperature, as a share of the makespan; it falls linearly to zero.
        start_ms: mean makespan of what is there.

    Returns:
        Mean makespan of the best.
    """
    n = len(layout.ranks)
    num_ranks = len(layout.rank_streams) - 1
    state = make_state(n, num_ranks, len(layout.stream_offsets) - 1)
    log = make_log(n)
    current = best = start_ms
    best_rows = rows.copy()
    best_latest = rules.latest_start_ms.copy()
    best_parts = rules.most_parts.copy()
    steps = len(chances)
    for step in range(steps):
        chance = chances[step]
        temperature = warmth * start_ms * (1.0 - step / steps)
        limit = current - temperature * np.log(max(chance[0], 1e-12))
        place = int(chance[1] * n)
        i = rows[place]
        rank = layout.ranks[i]
        target = place
        old_parts = rules.most_parts[i]
        moved_ms, stream = 0.0, -1
        allowed = True
        if chance[2] < 0.5:
            far = 1 + int(chance[3] * reach)
            target = place - far if chance[4] < 0.5 else place + far
            if not layout.rank_offsets[rank] <= target < layout.rank_offsets[rank + 1]:
                continue
            if not may_move(layout, rows, streams, place, target):
                continue
            shift(rows, place, target)
            allowed = settle(layout, rows, rank)
        elif chance[2] < 0.9:
            moved_ms = 0.1 * start_ms * chance[4] * chance[4] * (2.0 * chance[3] - 1.0)
            stream = -1 if chance[2] < 0.75 else streams[i]
            later(rules, streams, stream, i, moved_ms)
        else:
            rules.most_parts[i] = (
                int(chance[3] * (costs.parts + 1)) if chance[4] < 0.5 else costs.parts
            )
        value = np.inf
        if allowed:
            value = mean_makespan(layout, costs, rules, state, log, durations, factors, limit)
        if value <= limit and value < np.inf:
            current = value
            if value < best:
                best = value
                best_rows[:] = rows
                best_latest[:] = rules.latest_start_ms
                best_parts[:] = rules.most_parts
        else:
            if moved_ms != 0.0:
                later(rules, streams, stream, i, -moved_ms)
            rules.most_parts[i] = old_parts
            if target != place:
                shift(rows, target, place)
                settle(layout, rows, rank)
    rows[:] = best_rows
    rules.latest_start_ms[:] = best_latest
    rules.most_parts[:] = best_parts
    for rank in range(num_ranks):
        settle(layout, rows, rank)
    return best
