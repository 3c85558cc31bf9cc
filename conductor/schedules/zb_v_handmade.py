"""Hand-made ZB-V: the figure's pattern, whatever the costs."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.schedules.info import ScheduleInfo

F, I, W = Kind.F, Kind.I, Kind.W
OUTER, INNER = 0, 1
"""The rank's stage on the way up, and its stage on the way down."""


def zb_v_handmade(num_ranks: int, num_microbatches: int) -> Schedule:
    """ZB-V for F = I = W, written down rank by rank.

    It is made for `2 * num_ranks - 1` micro-batches or more; with fewer, the others are left out.

    >>> from conductor.ir.draw import draw
    >>> print(draw(zb_v_handmade(3, 3)))
    rank 0 | 0F0 0F1 0F2         5F0 5I0 5W0 5F1 5I1 5W1 5F2 5I2 5W2 0I0 0W0     0I1 0W1     0I2 0W2
    rank 1 |     1F0 1F1 1F2 4F0     4F1 4I0 4W0 4F2 4I1 4W1 1I0 1W0 4I2 4W2 1I1 1W1     1I2 1W2
    rank 2 |         2F0 3F0 2F1 3F1 2F2 3F2 3I0 3W0 2I0 2W0 3I1 3W1 2I1 2W1 3I2 3W2 2I2 2W2

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, ZB-V.
    """
    rows = [_row(num_ranks, num_microbatches, rank) for rank in range(num_ranks)]
    kinds, chunks, microbatches = np.concatenate(rows, axis=1)
    ranks = np.repeat(np.arange(num_ranks), 6 * num_microbatches)
    return Schedule.from_arrays(
        name="zb-v-handmade",
        stage_ranks=stage_ranks("v", num_ranks, 2),
        num_microbatches=num_microbatches,
        kinds=kinds,
        stages=np.where(chunks == OUTER, ranks, 2 * num_ranks - 1 - ranks),
        microbatches=microbatches,
        rank_offsets=np.arange(num_ranks + 1) * 6 * num_microbatches,
    )


def _row(num_ranks: int, num_microbatches: int, rank: int) -> Int64Array:
    """Kind, chunk and micro-batch of a rank's actions, shape (3, n)."""
    p, total = num_ranks, max(num_microbatches, 2 * num_ranks - 1)
    behind = p - rank
    inner = [(F, INNER), (I, INNER), (W, INNER)]
    steady = [(I, OUTER), (W, OUTER), *inner]
    with_forward = total - (2 * p - 1 - rank)
    steps = [
        *[(F, OUTER)] * (2 * behind - 1),
        *[(F, INNER), (F, OUTER)] * rank,
        *inner * behind,
        *[(F, OUTER), *steady] * with_forward,
        *steady * (total - p - with_forward),
        *[(I, OUTER), (I, INNER)] * rank,
        *[(I, OUTER), (W, OUTER)] * behind,
        *[(W, INNER)] * rank,
        *[(W, OUTER)] * rank,
    ]
    kinds, chunks = np.array(steps, np.int64).T
    microbatches = np.empty_like(kinds)
    for kind in (F, I, W):
        for chunk in (OUTER, INNER):
            microbatches[(kinds == kind) & (chunks == chunk)] = np.arange(total)
    return np.stack([kinds, chunks, microbatches])[:, microbatches < num_microbatches]


INFOS = (
    ScheduleInfo(
        name="zb-v-handmade",
        build=lambda spec, _: zb_v_handmade(spec.num_ranks, spec.num_microbatches),
        placement="v",
        stages_per_rank=2,
        summary="ZB-V as its figure shows it, whatever the costs",
        memory="p",
        formula="(p - 1)F / 2 where F = I = W",
        source="Qi et al., NeurIPS 2024",
    ),
)
