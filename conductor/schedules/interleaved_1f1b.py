"""Interleaved 1F1B: several chunks a rank, micro-batches in rounds."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.alternation import alternate
from conductor.schedules.info import Objective, ScheduleInfo


def interleaved_1f1b(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Rounds of micro-batches pass all chunks of a rank in turn, one forward one backward in the
    middle.

    Any micro-batch count goes: `m` micro-batches make `max(1, m // num_ranks)` rounds of equal
    size, the first rounds one longer where that does not divide. With `m` a multiple of `num_ranks`
    this is Megatron-LM's order, with `m` a multiple of the rounds that of
    `torch.distributed.pipelining`.

    >>> from conductor.ir.draw import draw
    >>> print(draw(interleaved_1f1b(2, 3)))
    rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2     2B0----     2B1----     2B2---- 0B0---- 0B1---- 0B2----
    rank 1 |     1F0 1F1 1F2 3F0 3B0---- 3F1 3B1---- 3F2 3B2---- 1B0---- 1B1---- 1B2----

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2.2; unequal rounds: ours.
    """
    sizes = round_sizes(num_ranks, num_microbatches)
    chunks, microbatches = _rounds(sizes, num_chunks)
    ranks = np.arange(num_ranks)
    warmup = 2 * (num_ranks - 1 - ranks) + (num_chunks - 1) * int(sizes[0])
    backward, number = alternate(warmup, num_chunks * num_microbatches)
    chunk = np.where(backward, num_chunks - 1 - chunks[number], chunks[number])
    return Schedule.from_arrays(
        name="interleaved-1f1b",
        stage_ranks=stage_ranks("loop", num_ranks, num_chunks),
        num_microbatches=num_microbatches,
        kinds=np.where(backward, Kind.B, Kind.F).ravel(),
        stages=(chunk * num_ranks + ranks[:, None]).ravel(),
        microbatches=microbatches[number].ravel(),
        rank_offsets=np.arange(num_ranks + 1) * number.shape[1],
    )


def round_sizes(num_ranks: int, num_microbatches: int) -> Int64Array:
    """Micro-batches of each round, longest first."""
    rounds = max(1, num_microbatches // num_ranks)
    sizes = np.full(rounds, num_microbatches // rounds)
    sizes[: num_microbatches % rounds] += 1
    return sizes


def _rounds(sizes: Int64Array, num_chunks: int) -> tuple[Int64Array, Int64Array]:
    """Chunk and micro-batch of each forward of a rank: round by round, chunk after chunk."""
    runs = np.repeat(sizes, num_chunks)
    chunk_of_run = np.tile(np.arange(num_chunks), len(sizes))
    first_of_run = np.repeat(np.cumsum(sizes) - sizes, num_chunks)
    place = np.arange(runs.sum()) - np.repeat(np.cumsum(runs) - runs, runs)
    return np.repeat(chunk_of_run, runs), np.repeat(first_of_run, runs) + place


def _build(spec: PipelineSpec, _: Objective) -> Schedule:
    chunks = spec.num_stages // spec.num_ranks
    return interleaved_1f1b(spec.num_ranks, spec.num_microbatches, chunks)


INFOS = (
    ScheduleInfo(
        name="interleaved-1f1b",
        build=_build,
        placement="loop",
        stages_per_rank=2,
        any_stages_per_rank=True,
        summary="1F1B on v stages a rank, micro-batches in rounds",
        memory="p + (p - 1) / v",
        formula="(p - 1)(F + I + W) / v",
        source="Narayanan et al., SC 2021",
    ),
)
