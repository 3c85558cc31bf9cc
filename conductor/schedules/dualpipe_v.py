"""DualPipeV: V placement, each forward run together with a backward of the other way."""

from __future__ import annotations

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import BoolArray, Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.schedules.info import ScheduleInfo

UP, DOWN = 0, 1
"""The rank's first chunk, which micro-batches pass on the way up, and its second one."""

F, I, W, B = Kind.F, Kind.I, Kind.W, Kind.B


def dualpipe_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Eight phases a rank; in the middle an F up meets a B down, then an F down a B up.

    `Schedule.overlaps` marks the forwards that run together with the backward behind them.
    `PipelineSpec.overlap_factor` says what that saves (1: nothing).

    >>> from conductor.ir.draw import draw
    >>> print(draw(dualpipe_v(2, 4)))
    rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3+3B1----     3F2+0B0---- 3B2----     3F3+0B1---- 3B3---- 0I2 0W2 0I3 0W3
    rank 1 |     1F0 2F0 1F1 2F1 1F2 2B0---- 2F2+1B0---- 1F3+2B1---- 2F3+1B1---- 2B2---- 1B2----     2I3 1I3 2W3 1W3

    Raises:
        DoesNotFitError: fewer than `2 * num_ranks` micro-batches.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (DualPipe), and its "cut in half" form
    by Qi, Wan, Huang and Lin, 2025.
    """  # noqa: E501 - the drawing is as wide as the schedule
    if num_microbatches < 2 * num_ranks:
        raise DoesNotFitError(
            f"dualpipe-v takes {2 * num_ranks} micro-batches or more on {num_ranks} ranks, not"
            f" {num_microbatches}"
        )
    rows = [_rank_order(num_ranks, num_microbatches, rank) for rank in range(num_ranks)]
    columns = np.concatenate([columns for columns, _ in rows])
    stages = np.concatenate(
        [
            np.where(columns[:, 1] == UP, rank, 2 * num_ranks - 1 - rank)
            for rank, (columns, _) in enumerate(rows)
        ]
    )
    return Schedule.from_arrays(
        name="dualpipe-v",
        stage_ranks=stage_ranks("v", num_ranks, 2),
        num_microbatches=num_microbatches,
        kinds=columns[:, 0],
        stages=stages,
        microbatches=columns[:, 2],
        rank_offsets=np.cumsum([0, *(len(columns) for columns, _ in rows)]),
        overlaps=np.concatenate([overlaps for _, overlaps in rows]),
    )


def _rank_order(num_ranks: int, num_microbatches: int, rank: int) -> tuple[Int64Array, BoolArray]:
    """Kind, chunk and micro-batch of each action, shape (n, 3), and which forwards overlap.

    The zero-bubble form (I, and W later) fills the ends; in phase 6 the second half of the
    backwards has it. Each W is of the earliest I that has none.
    """
    ranks_after = num_ranks - 1 - rank
    rounds = num_microbatches - 2 * num_ranks + rank + 1
    steps = [
        *[(F, UP, False)] * (2 * ranks_after),
        *[(F, UP, False), (F, DOWN, False)] * (rank + 1),
        *[(I, DOWN, False), (W, DOWN, False), (F, DOWN, False)] * ranks_after,
        *[(F, UP, True), (B, DOWN, False), (F, DOWN, True), (B, UP, False)] * rounds,
        *[(B, DOWN, False), (F, DOWN, True), (B, UP, False)] * ranks_after,
        *[(B if i <= rank else I, (DOWN, UP)[i % 2], False) for i in range(2 * rank + 2)],
        *[(W, DOWN, False), (I, UP, False)] * ranks_after,
        *[(W, DOWN, False)] * (rank + 1),
    ]
    columns = np.array(steps, np.int64)
    kinds, chunks, overlaps = columns[:, 0], columns[:, 1], columns[:, 2].astype(np.bool_)
    if ranks_after == 0:  # the first pair of the last rank would only make the others wait longer
        overlaps[2 * num_ranks] = False
    numbers = np.empty_like(kinds)
    backward = (kinds == I) | (kinds == B)
    for chunk in (UP, DOWN):
        for stream in (kinds == F, backward):
            mine = stream & (chunks == chunk)
            numbers[mine] = np.arange(num_microbatches)
    chunks[kinds == W], numbers[kinds == W] = chunks[kinds == I], numbers[kinds == I]
    return np.stack([kinds, chunks, numbers], axis=1), overlaps


INFOS = (
    ScheduleInfo(
        name="dualpipe-v",
        build=lambda spec, _: dualpipe_v(spec.num_ranks, spec.num_microbatches),
        placement="v",
        stages_per_rank=2,
        summary="V placement, forwards overlap backwards; needs 2p micro-batches",
        memory="p + 1/2",
        formula="(p - 1)(F + 2I - W) / 2 without overlap, where F = I",
        source="DeepSeek-AI, 2024; Qi et al., 2025",
    ),
)
