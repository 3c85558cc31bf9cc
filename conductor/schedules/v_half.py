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
        memory="(p + 2) / 2",
        formula="about (p - 1)(F + I + W) / 2 where F = I = W",
        source="Qi et al., NeurIPS 2024",
    ),
)
