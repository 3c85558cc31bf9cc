"""Splits full backwards into two, so that the search can move their halves apart."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind


def split_backward(schedule: Schedule) -> Schedule:
    """The schedule with I, W in the place of every B: never later, at the same memory.

    A schedule without B comes back as it is, and so does one with overlapping pairs, or whose I or W
    would leave micro-batch order (it has both forms on one stage).
    """
    is_full = schedule.kinds == Kind.B
    if not is_full.any() or schedule.overlaps.any():
        return schedule
    source = np.repeat(np.arange(schedule.num_actions), np.where(is_full, 2, 1))
    is_second = np.concatenate([[False], source[1:] == source[:-1]])
    kinds = schedule.kinds[source].copy()
    kinds[is_full[source]] = Kind.I
    kinds[is_second] = Kind.W
    streams = schedule.stages[source] * len(Kind) + kinds
    by_stream = np.lexsort((np.arange(len(source)), streams))
    back = np.diff(schedule.microbatches[source][by_stream]) < 0
    if np.any(back & (np.diff(streams[by_stream]) == 0)):
        return schedule
    return Schedule.from_arrays(
        name=f"{schedule.name}+split",
        stage_ranks=schedule.stage_ranks,
        num_microbatches=schedule.num_microbatches,
        num_splits=schedule.num_splits,
        kinds=kinds,
        stages=schedule.stages[source],
        microbatches=schedule.microbatches[source],
        splits=schedule.splits[source],
        rank_offsets=np.searchsorted(source, schedule.rank_offsets),
    )
