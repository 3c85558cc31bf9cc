"""Schedules made of one building block, repeated every six slots, on the V placement.

A rank's block holds F, I and W (or a two-slot B) of both its chunks. Types are numbered by the way
the work passes the ranks: 0 forward up (first chunk), 1 forward down (second chunk), 2 backward up
(second chunk), 3 backward down (first chunk).
"""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Int64Array, Schedule
from conductor.problem.placement import stage_ranks
from conductor.schedules.v_blocks.kernels import greedy_order

PERIOD = 6
"""Slots of a block: one each for F, I and W of two chunks."""


def greedy_blocks(name: str, num_microbatches: int, offsets: Int64Array) -> Schedule:
    """V-Half's and V-Min's heuristic: blocks squeezed together at an unchanged peak, W in the gaps.

    Only the number of ranks and of micro-batches counts, not the costs.

    Args:
        name: of the schedule.
        num_microbatches: in a step.
        offsets: slot of each type's first micro-batch, shape (4, num_ranks).
    """
    kinds, types, microbatches = greedy_order(offsets, num_microbatches, PERIOD)
    return block_schedule(name, num_microbatches, kinds, types, microbatches)


def block_schedule(
    name: str, num_microbatches: int, kinds: Int64Array, types: Int64Array, microbatches: Int64Array
) -> Schedule:
    """A schedule of the kernels' output, each array of shape (num_ranks, actions of a rank).

    Args:
        name: of the schedule.
        num_microbatches: in a step.
        kinds: `Kind` of each action.
        types: type of each action in the blocks; it gives the chunk.
        microbatches: of each action.
    """
    num_ranks, size = kinds.shape
    ranks = np.arange(num_ranks)[:, None]
    second_chunk = (types == 1) | (types == 2)
    return Schedule.from_arrays(
        name=name,
        stage_ranks=stage_ranks("v", num_ranks, 2),
        num_microbatches=num_microbatches,
        kinds=kinds.ravel(),
        stages=np.where(second_chunk, 2 * num_ranks - 1 - ranks, ranks).ravel(),
        microbatches=microbatches.ravel(),
        rank_offsets=np.arange(num_ranks + 1) * size,
    )
