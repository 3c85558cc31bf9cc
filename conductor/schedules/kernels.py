"""Times of a plan, compiled: what the heuristics choose among their plans by."""

from __future__ import annotations

import numba
import numpy as np

F, I, W = 0, 1, 2  # the values of `Kind`


@numba.njit(cache=True)
def times_of_plan(actions, stage_ranks, busy, lag):
    """Makespan and longest span of a rank when every action starts as early as it can.

    Args:
        actions: int32, shape (4, n): kind (F, I or W), micro-batch and stage of each action, and a
            topological order of them.
        stage_ranks: rank of each stage.
        busy: shape (3, stages).
        lag: shape (stages - 1,), between a stage and the next.
    """
    num_stages = len(stage_ranks)
    num_ranks = stage_ranks.max() + 1
    end = np.empty((2, num_stages, actions[1].max() + 1))
    clock = np.zeros(num_ranks)
    first = np.full(num_ranks, -1.0)
    for i in actions[3]:
        kind, microbatch, stage = actions[0, i], actions[1, i], actions[2, i]
        rank = stage_ranks[stage]
        start = clock[rank]
        if kind == F and stage > 0:
            start = max(start, end[F, stage - 1, microbatch] + lag[stage - 1])
        elif kind == I and stage + 1 < num_stages:
            start = max(start, end[I, stage + 1, microbatch] + lag[stage])
        if first[rank] < 0.0:
            first[rank] = start
        clock[rank] = start + busy[kind, stage]
        if kind != W:
            end[kind, stage, microbatch] = clock[rank]
    return clock.max(), (clock - first).max()
