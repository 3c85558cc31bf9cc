"""The zero-bubble heuristic, compiled. One call makes one plan for one setting of its knobs."""

from __future__ import annotations

import numba
import numpy as np

F, I, W = 0, 1, 2  # the values of `Kind`

# Rows of `now`, what a stage has come to; with one column more for the largest bubble.
CLOCK, HELD, BUBBLE = 0, 1, 2
# Rows of `done`: actions placed of each kind, and the program index of the next; there with one
# column more for the number of actions placed.
NEXT = 3
# Rows of `given`, the spec; rows F, I and W are the busy times.
MEMORY, FREED_BY_I, LIMIT, LAG = 3, 4, 5, 6


@numba.njit(cache=True)
def plan(given, num_microbatches, overfill, skip, greedy):
    """One plan. Stages are ranks here; every stage gets `3 * num_microbatches` actions.

    Args:
        given: shape (7, stages): busy times of F, I and W, memory of a micro-batch, what of it I
            frees, memory limit (at least one micro-batch), lag to the next stage.
        num_microbatches: of the step.
        overfill: whether warm-up forwards stop before they would delay the first backward.
        skip: whether a stage that leads the next by two forwards may leave one out.
        greedy: whether a W fills a gap that it overruns although the stage is not the idlest.

    Returns:
        actions, shape (4, n): kind, micro-batch and stage in program order, and the order of placement
        as program indices (a topological order).
    """
    stages = given.shape[1]
    m = num_microbatches
    actions = np.empty((4, 3 * m * stages), np.int32)
    end = np.empty((2, stages, m))
    now = np.zeros((3, stages + 1))
    done = np.zeros((4, stages + 1), np.int64)
    done[NEXT, :-1] = np.arange(stages) * 3 * m

    extra = _warmup(given, now, done, end, actions, m, overfill)
    for s in range(stages):
        for _ in range(extra[s]):
            _place(given, now, done, end, actions, F, s)
    for s in range(stages - 1, -1, -1):
        _place(given, now, done, end, actions, I, s)

    wanted = np.empty(stages, np.bool_)
    for _ in range(1, m):
        for s in range(stages - 1, -1, -1):
            wanted[s] = _wants_forward(given, now, done, m, s, skip)
            if s + 1 < stages:
                wanted[s] &= wanted[s + 1]
        for s in range(stages):
            if wanted[s]:
                _make_room(given, now, done, end, actions, s)
                _fill_gap(given, now, done, end, actions, F, s, greedy)
                _place(given, now, done, end, actions, F, s)
        for s in range(stages - 1, -1, -1):
            _fill_gap(given, now, done, end, actions, I, s, greedy)
            while s == 0 and done[F, s] == m and done[W, s] < done[I, s]:
                _place(given, now, done, end, actions, W, s)
            _place(given, now, done, end, actions, I, s)
    for s in range(stages):
        while done[W, s] < m:
            _place(given, now, done, end, actions, W, s)
    return actions


@numba.njit(cache=True)
def _warmup(given, now, done, end, actions, m, overfill):
    """Places the first forwards; how many more each stage does before its first backward."""
    stages = given.shape[1]
    for s in range(stages):
        _place(given, now, done, end, actions, F, s)
    extra = np.zeros(stages, np.int64)
    backward_end = now[CLOCK, stages - 1] + given[I, stages - 1]
    for s in range(stages - 2, -1, -1):
        arrival = backward_end + given[LAG, s]
        clock, held = now[CLOCK, s], now[HELD, s] + given[MEMORY, s]
        while extra[s] + 1 < m and held <= given[LIMIT, s]:
            if (clock + given[F, s] > arrival) if overfill else (clock >= arrival):
                break
            extra[s] += 1
            clock += given[F, s]
            held += given[MEMORY, s]
        backward_end = max(clock, arrival) + given[I, s]
    for s in range(1, stages):
        while extra[s] > 0 and extra[s] >= extra[s - 1] and extra[s - 1] + 1 < m:
            extra[s] -= 1
    return extra


@numba.njit(cache=True)
def _wants_forward(given, now, done, m, s, skip):
    """Whether a stage does a forward before its next backward."""
    if done[F, s] == m:
        return False
    if not skip or s + 1 == given.shape[1] or done[F, s] < done[F, s + 1] + 2:
        return True
    clock = now[CLOCK, s]
    due = now[CLOCK, s + 1] + given[F, s] + given[I, s] + given[LAG, s]
    if clock >= due:
        return False
    after_room, held = clock, now[HELD, s] + given[MEMORY, s]
    for _ in range(done[I, s] - done[W, s]):
        if held <= given[LIMIT, s]:
            break
        after_room += given[W, s]
        held -= given[MEMORY, s] - given[FREED_BY_I, s]
    if after_room + given[F, s] <= due:
        return True
    return due - clock > now[BUBBLE, -1] - now[BUBBLE, s]


@numba.njit(cache=True)
def _make_room(given, now, done, end, actions, s):
    """Does pending W until one more forward fits: the last I has left enough of them."""
    while now[HELD, s] + given[MEMORY, s] > given[LIMIT, s] and done[W, s] < done[I, s]:
        _place(given, now, done, end, actions, W, s)


@numba.njit(cache=True)
def _fill_gap(given, now, done, end, actions, kind, s, greedy):
    """Does pending W while the stage would wait for its next action of a kind."""
    if done[W, s] == done[I, s]:
        return
    arrival = _arrival(given, done, end, kind, s)
    while done[W, s] < done[I, s] and now[CLOCK, s] + given[W, s] <= arrival:
        _place(given, now, done, end, actions, W, s)
    gap = arrival - now[CLOCK, s]
    if done[W, s] < done[I, s] and gap > 0:
        if greedy or gap > now[BUBBLE, -1] - now[BUBBLE, s]:
            _place(given, now, done, end, actions, W, s)


@numba.njit(cache=True)
def _arrival(given, done, end, kind, s):
    """When the next action of a kind on a stage has its input from another stage."""
    index = done[kind, s]
    if kind == F:
        return end[F, s - 1, index] + given[LAG, s - 1] if s > 0 else 0.0
    return end[I, s + 1, index] + given[LAG, s] if s + 1 < end.shape[1] else 0.0


@numba.njit(cache=True)
def _place(given, now, done, end, actions, kind, s):
    """Puts the next action of a kind on a stage, as early as it goes."""
    start, index = now[CLOCK, s], done[kind, s]
    if kind != W:
        start = max(start, _arrival(given, done, end, kind, s))
        if done[F, s] > 0:
            now[BUBBLE, s] += start - now[CLOCK, s]
            now[BUBBLE, -1] = max(now[BUBBLE, -1], now[BUBBLE, s])
        end[kind, s, index] = start + given[kind, s]
    now[CLOCK, s] = start + given[kind, s]
    if kind == F:
        now[HELD, s] += given[MEMORY, s]
    elif kind == I:
        now[HELD, s] -= given[FREED_BY_I, s]
    else:
        now[HELD, s] -= given[MEMORY, s] - given[FREED_BY_I, s]
    slot = done[NEXT, s]
    actions[0, slot] = kind
    actions[1, slot] = index
    actions[2, slot] = s
    actions[3, done[NEXT, -1]] = slot
    done[kind, s] = index + 1
    done[NEXT, s] += 1
    done[NEXT, -1] += 1
