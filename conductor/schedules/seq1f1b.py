"""Seq1F1B: 1F1B on the sequence splits of micro-batches."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.schedules.alternation import alternate
from conductor.schedules.info import ScheduleInfo


def seq1f1b(num_ranks: int, num_microbatches: int, num_splits: int = 4) -> Schedule:
    """1F1B whose unit is a part of the sequence: splits go forward first to last, backward last to
    first.

    A split counts as `1 / num_splits` of the micro-batch's time and memory (under causal attention
    later splits really take longer).

    >>> from conductor.ir.draw import draw
    >>> print(draw(seq1f1b(2, 2, num_splits=2)))
    rank 0 | F0   F0.1 F1             B0.1----- F1.1 B0-------      B1.1----- B1-------
    rank 1 |      F0   F0.1 B0.1----- F1   B0------- F1.1 B1.1----- B1-------

    Source: Sun et al., "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language
    Model Training", NAACL 2025.
    """
    ranks = np.arange(num_ranks)
    units = num_microbatches * num_splits
    backward, number = alternate(num_ranks - 2 - ranks + num_splits, units)
    split = number % num_splits
    return Schedule.from_arrays(
        name="seq1f1b",
        stage_ranks=stage_ranks("sequential", num_ranks),
        num_microbatches=num_microbatches,
        num_splits=num_splits,
        kinds=np.where(backward, Kind.B, Kind.F).ravel(),
        stages=ranks.repeat(2 * units),
        microbatches=(number // num_splits).ravel(),
        splits=np.where(backward, num_splits - 1 - split, split).ravel(),
        rank_offsets=np.arange(num_ranks + 1) * 2 * units,
    )


INFOS = (
    ScheduleInfo(
        name="seq1f1b",
        build=lambda spec, _: seq1f1b(spec.num_ranks, spec.num_microbatches),
        placement="sequential",
        by_name_only=True,
        summary="1F1B on n = 4 sequence splits of each micro-batch",
        memory="1 + (p - 1) / n",
        formula="(p - 1)(F + I + W) / n",
        source="Sun et al., NAACL 2025",
    ),
)
