"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.schedules.info import ScheduleInfo


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Every rank does all its forwards, then all its backwards, in micro-batch order.

    >>> from conductor.ir.draw import draw
    >>> print(draw(gpipe(3, 4)))
    rank 0 | F0 F1 F2 F3                   B0--- B1--- B2--- B3---
    rank 1 |    F0 F1 F2 F3          B0--- B1--- B2--- B3---
    rank 2 |       F0 F1 F2 F3 B0--- B1--- B2--- B3---

    Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism", NeurIPS 2019.
    """
    size = 2 * num_microbatches
    return Schedule.from_arrays(
        name="gpipe",
        stage_ranks=stage_ranks("sequential", num_ranks),
        num_microbatches=num_microbatches,
        kinds=np.tile(np.repeat([Kind.F, Kind.B], num_microbatches), num_ranks),
        stages=np.repeat(np.arange(num_ranks), size),
        microbatches=np.tile(np.arange(num_microbatches), 2 * num_ranks),
        rank_offsets=np.arange(num_ranks + 1) * size,
    )


INFOS = (
    ScheduleInfo(
        name="gpipe",
        build=lambda spec, _: gpipe(spec.num_ranks, spec.num_microbatches),
        placement="sequential",
        summary="all forwards, then all backwards",
        memory="m",
        formula="(p - 1)(F + I + W)",
        source="Huang et al., NeurIPS 2019",
    ),
)
