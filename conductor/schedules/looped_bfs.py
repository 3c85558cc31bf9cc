"""Looped breadth-first: all micro-batches through a chunk before the next chunk."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.info import Objective, ScheduleInfo


def looped_bfs(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """GPipe on several chunks a rank: every forward chunk by chunk, then every backward in reverse.

    >>> from conductor.ir.draw import draw
    >>> print(draw(looped_bfs(2, 3)))
    rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2             2B0---- 2B1---- 2B2---- 0B0---- 0B1---- 0B2----
    rank 1 |     1F0 1F1 1F2 3F0 3F1 3F2 3B0---- 3B1---- 3B2---- 1B0---- 1B1---- 1B2----

    Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023. Backwards run in
    micro-batch order, as everywhere in Conductor.
    """
    size = num_chunks * num_microbatches
    chunks = np.arange(num_chunks).repeat(num_microbatches)
    chunks = np.concatenate([chunks, chunks[::-1]])
    ranks = np.arange(num_ranks)[:, None]
    return Schedule.from_arrays(
        name="looped-bfs",
        stage_ranks=stage_ranks("loop", num_ranks, num_chunks),
        num_microbatches=num_microbatches,
        kinds=np.tile(np.repeat([Kind.F, Kind.B], size), num_ranks),
        stages=(chunks * num_ranks + ranks).ravel(),
        microbatches=np.tile(np.arange(num_microbatches), 2 * num_chunks * num_ranks),
        rank_offsets=np.arange(num_ranks + 1) * 2 * size,
    )


def _build(spec: PipelineSpec, _: Objective) -> Schedule:
    return looped_bfs(spec.num_ranks, spec.num_microbatches, spec.num_stages // spec.num_ranks)


INFOS = (
    ScheduleInfo(
        name="looped-bfs",
        build=_build,
        placement="loop",
        stages_per_rank=2,
        any_stages_per_rank=True,
        summary="all micro-batches through one of v stages a rank before the next",
        memory="m",
        formula="(p - 1)(F + I + W) / v",
        source="Lamy-Poirier, MLSys 2023",
    ),
)
