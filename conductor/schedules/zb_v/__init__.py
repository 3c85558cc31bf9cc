"""ZB-V: the zero-bubble heuristic on the V placement, at any memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.info import Objective, ScheduleInfo
from conductor.schedules.kernels import times_of_plan
from conductor.schedules.memory import planning_limits, too_little
from conductor.schedules.ticks import in_ticks
from conductor.schedules.zb_v.kernels import plan


def zb_v(
    spec: PipelineSpec,
    *,
    name: str = "zb-v",
    held_microbatches: int | None = None,
    objective: Objective = "makespan",
) -> Schedule:
    """Stages go up the ranks and come back down, so a rank's two stages meet both ends of the pipeline.

    Two knobs are tried, and each plan again with the idle time that the ranks of the last one had. By
    stage span and on even stages the order is that of the published program. By makespan, uneven
    stages are planned a second time as if each had the median times.

    Args:
        spec: on the V placement, two stages a rank.
        name: of the schedule.
        held_microbatches: most micro-batches (of both its stages) that a rank holds; the spec's limits
            count too. None: only those.
        objective: what the plans are compared by.

    Raises:
        DoesNotFitError: a rank cannot hold one micro-batch.

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024; the heuristic of
    its program. Limits that leave that stuck: ours.
    """
    m, num_ranks = spec.num_microbatches, spec.num_ranks
    ranks = np.array(stage_ranks("v", num_ranks, 2))
    memory, limits = spec.per_stage("activation_memory"), planning_limits(spec, held_microbatches)
    both = memory[:num_ranks] + memory[:num_ranks - 1:-1]
    if np.any(both > limits):
        rank = int(np.argmax(both - limits))
        raise too_little(name, rank, float(both[rank]), float(spec.memory_limits[rank]))
    busy, lag = in_ticks(spec)
    freed = memory * spec.freed_at_backward_input
    room = np.stack([memory, freed, limits[ranks], np.append(lag, 0.0)])
    beats = [busy]
    if objective == "makespan" and np.any(busy != busy[:, :1]):
        beats.append(np.repeat(np.median(busy, axis=1, keepdims=True), 2 * num_ranks, axis=1))
    best = None
    for beat in beats:
        for actions in _plans(np.concatenate([beat, room]), m):
            makespan, span = times_of_plan(actions, ranks, busy, lag)
            score = (makespan, span) if objective == "makespan" else (span,)
            if best is None or score < best[0]:
                best = score, actions
    assert best is not None
    kinds, microbatches, stages, _ = best[1]
    return Schedule.from_arrays(
        name=name,
        stage_ranks=ranks,
        num_microbatches=m,
        kinds=kinds,
        stages=stages,
        microbatches=microbatches,
        rank_offsets=np.arange(num_ranks + 1) * 6 * m,
    )


def _plans(given: FloatArray, num_microbatches: int) -> Iterator[Int32Array]:
    """Plans of both knobs, repeated as long as the largest idle time of a rank falls."""
    for fill_backward, fill_forward in product((True, False), repeat=2):
        allowed, least = np.zeros(given.shape[1] // 2), np.inf
        while True:
            for cautious in (False, True):
                actions, complete, bubble = plan(
                    given, num_microbatches, fill_backward, fill_forward, cautious, allowed
                )
                if complete:
                    break
            yield actions
            if bubble.max() >= least:
                break
            least = bubble.max()
            allowed = least - bubble


def _info(name: str, memory: str, ranks_held: int | None) -> ScheduleInfo:
    return ScheduleInfo(
        name=name,
        build=lambda spec, objective: zb_v(
            spec,
            name=name,
            held_microbatches=None if ranks_held is None else ranks_held * spec.num_ranks,
            objective=objective,
        ),
        placement="v",
        stages_per_rank=2,
        summary=f"zero-bubble heuristic on a V of two stages a rank, memory {memory}",
        memory=memory,
        source="Qi et al., NeurIPS 2024",
    )


INFOS = (
    _info("zb-v", "p", 1),
    _info("zb-v-2p", "2p", 2),
    _info("zb-v-any", "the spec's limit", None),
)
