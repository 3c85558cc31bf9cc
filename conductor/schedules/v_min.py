"""V-Min: the V placement at the least activation memory, about a third of 1F1B's."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.schedules.info import ScheduleInfo
from conductor.schedules.v_blocks import greedy_blocks


def v_min(num_ranks: int, num_microbatches: int) -> Schedule:
    """Two stages a rank, there and back, each micro-batch as fast through the ranks as it can go.

    The order does not look at costs; `v-min-cost` does, at the same memory.

    >>> from conductor.ir.draw import draw
    >>> print(draw(v_min(2, 3)))
    rank 0 | 0F0 0F1     3F0 3I0 3W0     0I0 0W0 3F1 3I1 3W1 0F2 0I1 0W1 3F2 3I2 3W2     0I2 0W2
    rank 1 |     1F0 2F0         2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 2W2 1W2

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
