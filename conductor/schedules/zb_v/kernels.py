"""The ZB-V heuristic, compiled. One call makes one plan for one setting of its knobs.

Rank r of p holds stages `r` (here: its outer stage) and `2 * p - 1 - r` (inner). Forwards go up the
ranks through the outer stages and come down through the inner ones; backwards go up through the
inner stages and come down through the outer ones.
"""

from __future__ import annotations

import numba
import numpy as np

F, I, W = 0, 1, 2  # the values of `Kind`

# Rows of `given`, one column a stage; rows F, I and W are the busy times, LIMIT is the rank's.
MEMORY, FREED_BY_I, LIMIT, LAG = 3, 4, 5, 6
# Rows of `now`, one column a rank, and one more for the largest bubble. PENDING is the memory that
# pending W will free, ALLOWED a bubble that the rank may have at least.
CLOCK, HELD, PENDING, BUBBLE, ALLOWED = 0, 1, 2, 3, 4
# Rows of `count`: actions of each kind, one column a stage; then one column a rank: program index of
# the next action (the last column counts all that are placed), I and W done on both stages.
NEXT, ALL_I, ALL_W = 3, 4, 5
# Rows of `actions`. PLACED holds program indices in the order of placement; QUEUE the stages of a
# rank's I, from its first program index on.
KIND, MICROBATCH, STAGE, PLACED, QUEUE = 0, 1, 2, 3, 4


@numba.njit(cache=True)
def plan(given, num_microbatches, fill_backward, fill_forward, cautious, allowed):
    """One plan; every rank gets `6 * num_microbatches` actions.

    Args:
        given: shape (7, stages): busy times of F, I and W, memory of a micro-batch, what of it I
            frees, memory limit of the rank (at least a micro-batch of both stages), lag to the
            next stage.
        num_microbatches: of the step.
        fill_backward: whether a W may overrun the gap before an I that goes up.
        fill_forward: whether a W may overrun the gap before an F that goes up.
        cautious: whether an F that goes up leaves room for all that have to come down. Such a plan
            never gets stuck.
        allowed: shape (ranks,); idle time that a rank may have at least, from an earlier plan.

    Returns:
        actions, shape (4, n): kind, micro-batch and stage in program order, and the order of
        placement as program indices (a topological order); whether all were placed; idle time of
        each rank between its first and last action.
    """
    m, ranks = num_microbatches, given.shape[1] // 2
    actions = np.empty((5, 6 * m * ranks), np.int32)
    end = np.empty((2, 2 * ranks, m))
    now = np.zeros((5, ranks + 1))
    now[ALLOWED, :-1] = allowed
    count = np.zeros((6, 2 * ranks), np.int64)
    count[NEXT, :ranks] = np.arange(ranks) * 6 * m

    _warmup(given, now, count, end, actions, cautious)
    before = 0
    while before < count[NEXT, -1]:
        before = count[NEXT, -1]
        _backwards(given, now, count, end, actions, fill_backward)
        _forwards(given, now, count, end, actions, fill_forward, cautious)
    for r in range(ranks):
        while count[ALL_W, r] < count[ALL_I, r]:
            _place_weight(given, now, count, end, actions, r)
    return actions[:4], count[NEXT, -1] == actions.shape[1], now[BUBBLE, :-1]


@numba.njit(cache=True)
def _warmup(given, now, count, end, actions, cautious):
    """Forwards before the first backward."""
    ranks, m = given.shape[1] // 2, end.shape[2]
    for r in range(ranks):
        _place(given, now, count, end, actions, F, r)
    # The first micro-batch comes down; ranks that wait for it begin others, all ranks above too.
    for r in range(ranks - 1, -1, -1):
        inner = 2 * ranks - 1 - r
        while (
            r < ranks - 1
            and count[F, r] < m
            and now[HELD, r] + (1 + r) * (given[MEMORY, r] + given[MEMORY, inner])
            <= given[LIMIT, r]
            and now[CLOCK, r] + given[F, r] <= end[F, inner - 1, 0] + given[LAG, inner - 1]
        ):
            before = count[NEXT, -1]
            for upper in range(r + 1):
                if _can_forward(given, now, count, end, upper, cautious):
                    _place(given, now, count, end, actions, F, upper)
            if count[NEXT, -1] == before:
                break
        if _can_forward(given, now, count, end, inner, cautious):
            _place(given, now, count, end, actions, F, inner)
    # Each rank catches up with the one before it.
    up = True
    for r in range(1, ranks):
        inner = 2 * ranks - 1 - r
        failed = 0
        while failed < 2 and (
            count[F, r] + count[F, inner] < count[F, r - 1] + count[F, inner + 1]
            or count[F, inner] <= count[F, inner + 1] < m
        ):
            before = count[NEXT, -1]
            for lower in range(ranks - 1, r - 1, -1):
                stage = lower if up else 2 * ranks - 1 - lower
                if _can_forward(given, now, count, end, stage, cautious):
                    _place(given, now, count, end, actions, F, stage)
            failed = failed + 1 if count[NEXT, -1] == before else 0
            up = not up


@numba.njit(cache=True)
def _backwards(given, now, count, end, actions, fill):
    """At most one I on each rank: those that come down first, then those that go up."""
    ranks, m = given.shape[1] // 2, end.shape[2]
    down = np.empty(ranks, np.bool_)
    for r in range(ranks):
        inner = 2 * ranks - 1 - r
        down[r] = count[I, r] < count[I, inner] and (count[I, inner] == m or _ready(count, I, r))
    for r in range(ranks - 1, -1, -1):
        if down[r] and _ready(count, I, r):
            _fill_gap(given, now, count, end, actions, I, r, True)
            _place(given, now, count, end, actions, I, r)
    for r in range(ranks):
        inner = 2 * ranks - 1 - r
        if not down[r] and _ready(count, I, inner):
            _fill_gap(given, now, count, end, actions, I, inner, fill)
            _place(given, now, count, end, actions, I, inner)


@numba.njit(cache=True)
def _forwards(given, now, count, end, actions, fill, cautious):
    """At most one F on each rank; one that comes down goes before one that goes up."""
    ranks = given.shape[1] // 2
    for r in range(ranks):
        inner = 2 * ranks - 1 - r
        stage = inner if _ready(count, F, inner) else r
        if _can_forward(given, now, count, end, stage, cautious):
            while (
                now[HELD, r] + given[MEMORY, stage] > given[LIMIT, r]
                and count[ALL_W, r] < count[ALL_I, r]
            ):
                _place_weight(given, now, count, end, actions, r)
            _fill_gap(given, now, count, end, actions, F, stage, fill or stage == inner)
            _place(given, now, count, end, actions, F, stage)


@numba.njit(cache=True)
def _ready(count, kind, stage):
    """Whether the input of the next action of a kind on a stage has been placed."""
    index = count[kind, stage]
    if kind == F:
        return stage == 0 or count[F, stage - 1] > index
    return count[F, stage] > index and (stage + 1 == count.shape[1] or count[I, stage + 1] > index)


@numba.njit(cache=True)
def _can_forward(given, now, count, end, stage, cautious):
    """Whether a stage's next F has its input and fits once the pending W are done."""
    stages = given.shape[1]
    if count[F, stage] == end.shape[2] or not _ready(count, F, stage):
        return False
    inner = stages - 1 - stage
    rank = min(stage, inner)
    need = now[HELD, rank] - now[PENDING, rank] + given[MEMORY, stage]
    if cautious and stage == rank:
        need += (count[F, stage] - count[F, inner] + 1) * given[MEMORY, inner]
    return need <= given[LIMIT, stage]


@numba.njit(cache=True)
def _fill_gap(given, now, count, end, actions, kind, stage, overrun):
    """Does pending W while the rank would wait for a stage's next action of a kind."""
    r = min(stage, given.shape[1] - 1 - stage)
    if count[ALL_W, r] == count[ALL_I, r]:
        return
    arrival = _arrival(given, count, end, kind, stage)
    while (
        count[ALL_W, r] < count[ALL_I, r]
        and now[CLOCK, r] + given[W, _oldest(count, end, actions, r)] <= arrival
    ):
        _place_weight(given, now, count, end, actions, r)
    gap = arrival - now[CLOCK, r]
    if overrun and gap > 0 and count[ALL_W, r] < count[ALL_I, r]:
        if gap > max(now[BUBBLE, -1], now[ALLOWED, r]) - now[BUBBLE, r]:
            _place_weight(given, now, count, end, actions, r)


@numba.njit(cache=True)
def _arrival(given, count, end, kind, stage):
    """When a stage's next action of a kind has its input from the neighbour stage."""
    index = count[kind, stage]
    if kind == F:
        return end[F, stage - 1, index] + given[LAG, stage - 1] if stage > 0 else 0.0
    if stage + 1 == given.shape[1]:
        return end[F, stage, index]
    return end[I, stage + 1, index] + given[LAG, stage]


@numba.njit(cache=True)
def _place(given, now, count, end, actions, kind, stage):
    """Puts a stage's next F or I on its rank, as early as it goes."""
    r = min(stage, given.shape[1] - 1 - stage)
    start = max(now[CLOCK, r], _arrival(given, count, end, kind, stage))
    if count[F, r] > 0:
        now[BUBBLE, r] += start - now[CLOCK, r]
        now[BUBBLE, -1] = max(now[BUBBLE, -1], now[BUBBLE, r])
    now[CLOCK, r] = start + given[kind, stage]
    end[kind, stage, count[kind, stage]] = now[CLOCK, r]
    if kind == F:
        now[HELD, r] += given[MEMORY, stage]
    else:
        now[HELD, r] -= given[FREED_BY_I, stage]
        now[PENDING, r] += given[MEMORY, stage] - given[FREED_BY_I, stage]
        actions[QUEUE, 6 * end.shape[2] * r + count[ALL_I, r]] = stage
        count[ALL_I, r] += 1
    _record(count, actions, r, kind, stage)


@numba.njit(cache=True)
def _place_weight(given, now, count, end, actions, r):
    """Does the oldest pending W of a rank."""
    stage = _oldest(count, end, actions, r)
    count[ALL_W, r] += 1
    now[CLOCK, r] += given[W, stage]
    freed = given[MEMORY, stage] - given[FREED_BY_I, stage]
    now[HELD, r] -= freed
    now[PENDING, r] -= freed
    _record(count, actions, r, W, stage)


@numba.njit(cache=True)
def _record(count, actions, r, kind, stage):
    slot = count[NEXT, r]
    actions[KIND, slot] = kind
    actions[MICROBATCH, slot] = count[kind, stage]
    actions[STAGE, slot] = stage
    actions[PLACED, count[NEXT, -1]] = slot
    count[kind, stage] += 1
    count[NEXT, r] += 1
    count[NEXT, -1] += 1


@numba.njit(cache=True)
def _oldest(count, end, actions, r):
    """Stage of the oldest pending W of a rank."""
    return actions[QUEUE, 6 * end.shape[2] * r + count[ALL_W, r]]
