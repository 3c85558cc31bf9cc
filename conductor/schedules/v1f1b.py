"""V1F1B: 1F1B on the V placement, whole backwards, two thirds of the memory."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.schedules.info import ScheduleInfo
from conductor.schedules.v_blocks import PERIOD, block_schedule
from conductor.schedules.v_blocks.kernels import fused_order


def v1f1b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Blocks of two F and two B on the V placement, pulled together at an unchanged peak.

    The order does not look at costs.

    >>> from conductor.ir.draw import draw
    >>> print(draw(v1f1b(2, 3)))
    rank 0 | 0F0 0F1 0F2 3F0 3B0---- 3F1 3B1----     0B0---- 3F2 3B2----     0B1----         0B2----
    rank 1 |     1F0 2F0 1F1 2F1     2B0---- 1B0---- 1F2 2F2 2B1---- 1B1---- 2B2---- 1B2----

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024 (V-shape
    building blocks without a split backward).
    """
    types, microbatches = fused_order(_offsets(num_ranks), num_microbatches, PERIOD)
    kinds = np.where(types < 2, Kind.F, Kind.B)
    return block_schedule("v1f1b", num_microbatches, kinds, types, microbatches)


def _offsets(num_ranks: int) -> Int64Array:
    """First slot of each type on each rank, shape (4, num_ranks).

    A backward takes two slots. Three idle slots after every third one keep the block's six slots
    distinct on every rank.
    """
    p, rank = num_ranks, np.arange(num_ranks)
    place = np.arange(2 * p)
    pauses = (place + -(p + 2) % 3) // 3 + (p % 3 == 0)
    backwards = 2 * p + 2 * place + 3 * pauses
    return np.stack([rank, 2 * p - 1 - rank, backwards[:p], backwards[: p - 1 : -1]])


INFOS = (
    ScheduleInfo(
        name="v1f1b",
        build=lambda spec, _: v1f1b(spec.num_ranks, spec.num_microbatches),
        placement="v",
        stages_per_rank=2,
        summary="1F1B on the V placement at two thirds of its memory",
        memory="floor(2p / 3) + 1",
        formula="about 5 (p - 1)(F + I + W) / 6 where F = I = W",
        source="Qi et al., NeurIPS 2024",
    ),
)
