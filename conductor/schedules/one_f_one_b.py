"""1F1B: one forward, one backward in turn."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.schedules.alternation import alternate
from conductor.schedules.info import ScheduleInfo


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Rank r does `p - 1 - r` forwards, then one forward and one backward in turn, then backwards.

    >>> from conductor.ir.draw import draw
    >>> print(draw(one_f_one_b(3, 4)))
    rank 0 | F0 F1 F2             B0--- F3 B1---    B2---    B3---
    rank 1 |    F0 F1       B0--- F2 B1--- F3 B2---    B3---
    rank 2 |       F0 B0--- F1 B1--- F2 B2--- F3 B3---

    Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021
    (PipeDream-Flush).
    """
    ranks = np.arange(num_ranks)
    backward, number = alternate(num_ranks - 1 - ranks, num_microbatches)
    return Schedule.from_arrays(
        name="1f1b",
        stage_ranks=stage_ranks("sequential", num_ranks),
        num_microbatches=num_microbatches,
        kinds=np.where(backward, Kind.B, Kind.F).ravel(),
        stages=ranks.repeat(2 * num_microbatches),
        microbatches=number.ravel(),
        rank_offsets=np.arange(num_ranks + 1) * 2 * num_microbatches,
    )


INFOS = (
    ScheduleInfo(
        name="1f1b",
        build=lambda spec, _: one_f_one_b(spec.num_ranks, spec.num_microbatches),
        placement="sequential",
        summary="one forward, one backward in turn",
        memory="p",
        formula="(p - 1)(F + I + W)",
        source="Narayanan et al., ICML 2021",
    ),
)
