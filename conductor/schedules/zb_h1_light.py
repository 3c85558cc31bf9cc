"""ZB-H1 light: 1F1B that keeps a few backwards for the weights to the end."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.schedules.info import ScheduleInfo

F, I, W, B = Kind.F, Kind.I, Kind.W, Kind.B


def zb_h1_light(num_ranks: int, num_microbatches: int) -> Schedule:
    """1F1B in which rank r leaves out the W of its first r micro-batches, and does them last.

    So every rank holds as much as the first. The other W stay with their I; split off only in the
    cool-down, where the rank before waits for the I.

    >>> from conductor.ir.draw import draw
    >>> print(draw(zb_h1_light(3, 4)))
    rank 0 | F0 F1 F2       B0--- F3 B1--- B2--- B3---
    rank 1 |    F0 F1    I0 F2 B1--- F3 I2 W0 I3 W2 W3
    rank 2 |       F0 I0 F1 I1 F2 B2--- F3 I3 W0 W1 W3

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, ZB-H1; the small form of its
    quick start.
    """
    rows = [_row(num_ranks, num_microbatches, rank) for rank in range(num_ranks)]
    columns = np.array([action for row in rows for action in row], np.int32)
    return Schedule.from_arrays(
        name="zb-h1-light",
        stage_ranks=stage_ranks("sequential", num_ranks),
        num_microbatches=num_microbatches,
        kinds=columns[:, 0],
        stages=np.repeat(np.arange(num_ranks), [len(row) for row in rows]),
        microbatches=columns[:, 1],
        rank_offsets=np.cumsum([0, *map(len, rows)]),
    )


def _row(num_ranks: int, num_microbatches: int, rank: int) -> list[tuple[Kind, int]]:
    """Kind and micro-batch of a rank's actions."""
    warmup = min(num_ranks - 1 - rank, num_microbatches)
    row = [(F, i) for i in range(warmup)]
    pending: list[int] = []
    for i in range(num_microbatches):
        if warmup + i < num_microbatches:
            row.append((F, warmup + i))
        fused = i >= rank and (rank == 0 or warmup + i + 1 < num_microbatches)
        row.append((B if fused else I, i))
        if not fused:
            pending.append(i)
            if i >= rank:
                row.append((W, pending.pop(0)))
    return row + [(W, i) for i in pending]


INFOS = (
    ScheduleInfo(
        name="zb-h1-light",
        build=lambda spec, _: zb_h1_light(spec.num_ranks, spec.num_microbatches),
        placement="sequential",
        summary="1F1B that keeps the first W of each rank to the end",
        memory="p",
        formula="(p - 1)(F + I - W)",
        source="Qi et al., ICLR 2024",
    ),
)
