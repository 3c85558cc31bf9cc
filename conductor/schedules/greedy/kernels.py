"""Greedy planning, compiled: ranks decide when they come free, in order of time."""

from __future__ import annotations

import numba
import numpy as np

F, I, W = 0, 1, 2  # the values of `Kind`

# Rows of `given`, the spec; rows F, I and W are the busy times.
MEMORY, FREED_BY_I, LIMIT, LAG = 3, 4, 5, 6


@numba.njit(cache=True)
def plan(given, num_microbatches, patience):
    """One plan. A rank that comes free takes an I, else an F that fits, else a W.

    Stages are ranks here; every rank gets `3 * num_microbatches` actions.

    Args:
        given: shape (7, ranks): busy times of F, I and W, memory of a micro-batch, what of it I
            frees, memory limit (at least one micro-batch), lag to the next rank.
        num_microbatches: of the step.
        patience: share of a W that must fit before the next arrival that the rank knows of.

    Returns:
        actions, shape (4, n): kind, micro-batch and rank in program order, and the order of
        placement as program indices (a topological order).
    """
    m, ranks = num_microbatches, given.shape[1]
    actions = np.empty((4, 3 * m * ranks), np.int32)
    arrival = np.full((2, ranks, m), np.inf)  # of the input of each F and I, once it is known
    arrival[F, 0] = 0.0
    done = np.zeros((3, ranks), np.int64)
    held = np.zeros(ranks)
    free = np.zeros(ranks)
    wake = np.zeros(ranks)  # when the rank decides next
    for number in range(actions.shape[1]):
        while True:
            r = np.argmin(wake)
            kind, now = _decide(given, arrival, done, held, wake[r], r, patience)
            if kind >= 0:
                break
            wake[r] = now
        index = done[kind, r]
        slot = 3 * m * r + done[F, r] + done[I, r] + done[W, r]
        actions[0, slot], actions[1, slot], actions[2, slot] = kind, index, r
        actions[3, number] = slot
        done[kind, r] += 1
        free[r] = now + given[kind, r]
        wake[r] = np.inf if done[W, r] == m else free[r]
        to = r
        if kind == F:
            held[r] += given[MEMORY, r]
            to = min(r + 1, ranks - 1)
            arrival[F if to > r else I, to, index] = free[r] + (given[LAG, r] if to > r else 0.0)
        elif kind == I:
            held[r] -= given[FREED_BY_I, r]
            if r > 0:
                to = r - 1
                arrival[I, to, index] = free[r] + given[LAG, to]
        else:
            held[r] -= given[MEMORY, r] - given[FREED_BY_I, r]
        if to != r:  # the neighbour may be waiting for just this
            wake[to] = min(wake[to], max(free[to], arrival[kind, to, index]))
    return actions


@numba.njit(cache=True)
def _decide(given, arrival, done, held, now, r, patience):
    """The kind that a free rank starts, or -1 and when to ask again."""
    m = arrival.shape[2]
    backward = arrival[I, r, done[I, r]] if done[I, r] < m else np.inf
    if backward <= now:
        return I, now
    forward = arrival[F, r, done[F, r]] if done[F, r] < m else np.inf
    pending = done[W, r] < done[I, r]
    fits = held[r] + given[MEMORY, r] <= given[LIMIT, r]
    if forward <= now and fits:
        return F, now
    following = min(backward, forward if fits else np.inf)
    if pending and (now + patience * given[W, r] <= following or (forward <= now and not fits)):
        return W, now
    return -1, following
