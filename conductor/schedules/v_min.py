"""V-Min: the V placement at the least activation memory, about a third of 1F1B's."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.schedules.info import ScheduleInfo
from conductor.schedules.v_blocks import greedy_blocks


def v_min(num_ranks: int, num_microbatches: int) -> Schedule:
    """Two stages a rank, there and back, each micro-batch as fast through the ranks as it can go.

    The order does not look at costs; `v-min-cost` does, at the same memory.

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024.
    """
    p, rank = num_ranks, np.arange(num_ranks)
    delay = 2 if p % 3 == 0 else 0
    offsets = np.array(
        [
            rank,
            2 * p - 1 - rank,
            2 * p + rank + delay,
            4 * p - 1 - rank + delay,
        ]
    )
    return greedy_blocks("v-min", num_microbatches, offsets)


INFOS = (
    ScheduleInfo(
        name="v-min",
        build=lambda spec, _: v_min(spec.num_ranks, spec.num_microbatches),
        placement="v",
        stages_per_rank=2,
        summary="V placement at about a third of the memory of 1F1B; ignores costs",
        memory="floor((p + 4) / 3)",
        formula="about 2 (p - 1)(F + I + W) / 3 where F = I = W",
        source="Qi et al., NeurIPS 2024",
    ),
)
