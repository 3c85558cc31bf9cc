"""Grouped interleaved: interleaved stages with the weight gradient split off and small groups."""

from __future__ import annotations

from math import gcd

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.best import best_of
from conductor.schedules.info import Objective, ScheduleInfo


def grouped_interleaved(
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int = 2,
    group: int | None = None,
    window: int | None = None,
) -> Schedule:
    """Groups of micro-batches pass the chunks of a rank in turn; W directly follows its I.

    Every action takes one slot of a three-slot beat (F, I, W), so the order follows from slot
    numbers. Memory falls with the group's size: useful sizes go from half the ranks to all of them.

    >>> from conductor.ir.draw import draw
    >>> print(draw(grouped_interleaved(2, 2)))
    rank 0 | 0F0 0F1 2F0 2F1     2I0 2W0     2I1 2W1 0I0 0W0 0I1 0W1
    rank 1 |     1F0 1F1 3F0 3I0 3W0 3F1 3I1 3W1 1I0 1W0 1I1 1W1

    Args:
        num_ranks: pipeline ranks.
        num_microbatches: any number.
        num_chunks: stages of a rank.
        group: micro-batches that pass a chunk before the rank turns to the next; by default
            `num_ranks`.
        window: micro-batches that a chunk waits for the next chunk's input, at least; by default
            half the ranks, more when one stage is much slower than the mean.

    Source: Wan et al., "PipeOffload: Improving Scalability of Pipeline Parallelism with Memory
    Optimization", ICML 2025 (GIS).
    """
    half = -(-num_ranks // 2)
    group = num_ranks if group is None else min(group, num_ranks)
    turns = -(-(half if window is None else window) // group)
    cycle = num_chunks // gcd(num_chunks, turns)
    chunk = np.arange(num_chunks)
    shift = 3 * turns * group * chunk + 3 * group * (chunk // cycle)
    member = np.arange(num_microbatches)
    entry = 3 * (member % group) + 3 * group * num_chunks * (member // group)
    ranks = np.arange(num_ranks)
    forward = ranks[:, None, None] + shift[:, None] + entry
    first_backward = shift[-1] + ranks + 3 * (num_ranks - 1 - ranks) + 1
    backward = first_backward[:, None, None] + shift[::-1, None] + entry
    slots = np.stack([forward, backward, backward + 1], axis=1).reshape(num_ranks, -1)
    order = np.argsort(slots, axis=1, kind="stable")
    kind, rest = np.divmod(order, num_chunks * num_microbatches)
    return Schedule.from_arrays(
        name="grouped-interleaved",
        stage_ranks=stage_ranks("loop", num_ranks, num_chunks),
        num_microbatches=num_microbatches,
        kinds=np.array([Kind.F, Kind.I, Kind.W])[kind].ravel(),
        stages=(rest // num_microbatches * num_ranks + ranks[:, None]).ravel(),
        microbatches=(rest % num_microbatches).ravel(),
        rank_offsets=np.arange(num_ranks + 1) * slots.shape[1],
    )


def _build(spec: PipelineSpec, objective: Objective) -> Schedule:
    """The best of up to `_GROUPS` useful group sizes."""
    p, chunks = spec.num_ranks, spec.num_stages // spec.num_ranks
    half, window = -(-p // 2), _window(spec)
    groups = sorted(set(np.linspace(p, half, _GROUPS).round().astype(int).tolist()), reverse=True)
    return best_of(
        spec,
        [grouped_interleaved(p, spec.num_microbatches, chunks, group, window) for group in groups],
        objective,
    )


_GROUPS = 6


def _window(spec: PipelineSpec) -> int:
    """Half the ranks, or more where the way through them is long against a stage's beat."""
    forward, backward, weight, _ = spec.duration_ms
    chunks = spec.num_stages // spec.num_ranks
    beat = (forward + backward + weight).max()
    way = max(forward.sum(), backward.sum()) / chunks
    half = -(-spec.num_ranks // 2)
    needed = spec.num_ranks if beat == 0.0 else int(np.ceil(way / beat))
    return min(max(half, needed), spec.num_ranks)


INFOS = (
    ScheduleInfo(
        name="grouped-interleaved",
        build=_build,
        placement="loop",
        stages_per_rank=2,
        any_stages_per_rank=True,
        summary="interleaved with W split off, in groups of p/2 to p micro-batches",
        memory="p, or 3p / 4 in groups of p / 2 (v = 2)",
        formula="(p - 1)(F + I) / v in groups of p",
        source="Wan et al., ICML 2025",
    ),
)
