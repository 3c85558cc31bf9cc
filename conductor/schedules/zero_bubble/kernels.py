"""The zero-bubble heuristic, compiled. One call makes one plan for one setting of its three knobs."""

from __future__ import annotations

import numba
import numpy as np

F, I, W = 0, 1, 2  # noqa: E741 - the values of `Kind`


@numba.njit(cache=True)
def plan(cost, link, memory, freed_at_input, limit, num_microbatches, overfill, skip, greedy):
    """One plan. Stages are ranks here; every stage gets `3 * num_microbatches` actions.

    Args:
        cost: shape (3, stages), of F, I and W.
        link: shape (stages - 1,), between a stage and the next.
        memory: shape (stages,), of one micro-batch.
        freed_at_input: share that I frees; W frees the rest.
        limit: shape (stages,); at least `memory`.
        num_microbatches: of the step.
        overfill: whether warm-up forwards stop before they would delay the first backward.
        skip: whether a stage that leads the next by two forwards may leave one out.
        greedy: whether a W fills a gap that it overruns although the stage is not the idlest.

    Returns:
        kinds and microbatches in program order, and the order of placement as program indices (a
        topological order).
    """
    stages = len(memory)
    m = num_microbatches
    kinds = np.empty(3 * m * stages, np.int8)
    microbatches = np.empty(3 * m * stages, np.int32)
    placed = np.empty(3 * m * stages, np.int32)
    end = np.empty((2, stages, m))
    clock = np.zeros(stages)
    held = np.zeros(stages)
    bubble = np.zeros(stages + 1)  # the last is the largest of the others
    done = np.zeros((3, stages), np.int64)
    filled = np.zeros(stages + 1, np.int64)  # actions of each stage; the last is their sum
    state = (kinds, microbatches, placed, end, clock, held, bubble, done, filled)
    costs = (cost, link, memory, freed_at_input, limit)

    extra = _warmup(state, costs, m, overfill)
    for s in range(stages):
        for _ in range(extra[s]):
            _place(state, costs, F, s)
    for s in range(stages - 1, -1, -1):
        _place(state, costs, I, s)

    wanted = np.empty(stages, np.bool_)
    for _ in range(1, m):
        for s in range(stages - 1, -1, -1):
            wanted[s] = _wants_forward(state, costs, m, s, skip)
            if s + 1 < stages:
                wanted[s] &= wanted[s + 1]
        for s in range(stages):
            if wanted[s]:
                _make_room(state, costs, s)
                _fill_gap(state, costs, s, _arrival(state, costs, F, s), greedy)
                _place(state, costs, F, s)
        for s in range(stages - 1, -1, -1):
            _fill_gap(state, costs, s, _arrival(state, costs, I, s), greedy)
            while s == 0 and done[F, s] == m and done[W, s] < done[I, s]:
                _place(state, costs, W, s)
            _place(state, costs, I, s)
    for s in range(stages):
        while done[W, s] < m:
            _place(state, costs, W, s)
    return kinds, microbatches, placed


@numba.njit(cache=True)
def _warmup(state, costs, m, overfill):
    """Places the first forward everywhere; how many more each stage does before its first backward."""
    clock, held = state[4], state[5]
    cost, link, memory, limit = costs[0], costs[1], costs[2], costs[4]
    stages = len(clock)
    for s in range(stages):
        _place(state, costs, F, s)
    extra = np.zeros(stages, np.int64)
    backward_end = clock[stages - 1] + cost[I, stages - 1]
    for s in range(stages - 2, -1, -1):
        arrival = backward_end + link[s]
        now, used = clock[s], held[s] + memory[s]
        while extra[s] + 1 < m and used <= limit[s]:
            if (now + cost[F, s] > arrival) if overfill else (now >= arrival):
                break
            extra[s] += 1
            now += cost[F, s]
            used += memory[s]
        backward_end = max(now, arrival) + cost[I, s]
    for s in range(1, stages):
        while extra[s] > 0 and extra[s] >= extra[s - 1] and extra[s] + 1 < m:
            extra[s] -= 1
    return extra


@numba.njit(cache=True)
def _wants_forward(state, costs, m, s, skip):
    """Whether a stage does a forward before its next backward."""
    clock, held, bubble, done = state[4], state[5], state[6], state[7]
    cost, link, memory, freed_at_input, limit = costs
    if done[F, s] == m:
        return False
    if not skip or s + 1 == len(clock) or done[F, s] < done[F, s + 1] + 2:
        return True
    due = clock[s + 1] + cost[F, s] + cost[I, s] + link[s]
    if clock[s] >= due:
        return False
    now, used = clock[s], held[s] + memory[s]
    for _ in range(done[I, s] - done[W, s]):
        if used <= limit[s]:
            break
        now += cost[W, s]
        used -= (1.0 - freed_at_input) * memory[s]
    if now + cost[F, s] <= due:
        return True
    return due - clock[s] > bubble[-1] - bubble[s]


@numba.njit(cache=True)
def _make_room(state, costs, s):
    """Does pending W until one more forward fits: the last I has left enough of them."""
    held, done = state[5], state[7]
    while held[s] + costs[2][s] > costs[4][s] and done[W, s] < done[I, s]:
        _place(state, costs, W, s)


@numba.njit(cache=True)
def _arrival(state, costs, kind, s):
    """When the next action of a kind on a stage has its input."""
    end, done = state[3], state[7]
    link = costs[1]
    index = done[kind, s]
    if kind == F:
        return end[F, s - 1, index] + link[s - 1] if s > 0 else 0.0
    if s + 1 == end.shape[1]:
        return end[F, s, index]
    return end[I, s + 1, index] + link[s]


@numba.njit(cache=True)
def _fill_gap(state, costs, s, arrival, greedy):
    """Does pending W while the stage would wait."""
    clock, bubble, done = state[4], state[6], state[7]
    while done[W, s] < done[I, s] and clock[s] + costs[0][W, s] <= arrival:
        _place(state, costs, W, s)
    gap = arrival - clock[s]
    if done[W, s] < done[I, s] and gap > 0 and (greedy or gap > bubble[-1] - bubble[s]):
        _place(state, costs, W, s)


@numba.njit(cache=True)
def _place(state, costs, kind, s):
    """Puts the next action of a kind on a stage, as early as it goes."""
    kinds, microbatches, placed, end, clock, held, bubble, done, filled = state
    cost, _, memory, freed_at_input, _ = costs
    m = end.shape[2]
    index = done[kind, s]
    start = clock[s]
    if kind != W:
        start = max(start, _arrival(state, costs, kind, s))
        if done[F, s] > 0:
            bubble[s] += start - clock[s]
            bubble[-1] = max(bubble[-1], bubble[s])
    clock[s] = start + cost[kind, s]
    if kind != W:
        end[kind, s, index] = clock[s]
    if kind == F:
        held[s] += memory[s]
    else:
        share = freed_at_input if kind == I else 1.0 - freed_at_input
        held[s] -= share * memory[s]
    slot = 3 * m * s + filled[s]
    kinds[slot] = kind
    microbatches[slot] = index
    placed[filled[-1]] = slot
    done[kind, s] = index + 1
    filled[s] += 1
    filled[-1] += 1
