"""V-Half: the V placement at half the activation memory of 1F1B."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.schedules.info import ScheduleInfo
from conductor.schedules.v_blocks import greedy_blocks


def v_half(num_ranks: int, num_microbatches: int) -> Schedule:
    """Two stages a rank, there and back; F goes up in steps of two slots, so memory is even over
    ranks.

    The order does not look at costs; `v-half-cost` does, at the same memory.

    >>> from conductor.ir.draw import draw
    >>> print(draw(v_half(2, 3)))
    rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 0I0 3W1 0W0 3F2 3I2 0I1 3W2 0I2 0W1 0W2
    rank 1 |     1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2I2 1I2 2W1 2W2 1W1 1W2

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024.
    """
    p, rank = num_ranks, np.arange(num_ranks)
    delay = 3 if p % 2 == 0 else 0
    offsets = np.array(
        [
            2 * rank,
            3 * p - 2 - rank,
            3 * p - 1 + 2 * rank + delay,
            6 * p - 2 - rank + delay,
        ]
    )
    return greedy_blocks("v-half", num_microbatches, offsets)


INFOS = (
    ScheduleInfo(
        name="v-half",
        build=lambda spec, _: v_half(spec.num_ranks, spec.num_microbatches),
        placement="v",
        stages_per_rank=2,
        summary="V placement at half the memory of 1F1B; ignores costs",
        memory="floor(p / 2) + 1",
        formula="about (p - 1)(F + I + W) / 2 where F = I = W",
        source="Qi et al., NeurIPS 2024",
    ),
)
