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
        formula="",
        source="Qi et al., NeurIPS 2024",
    ),
)
