"""The best of a heuristic's plans."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.info import Objective
from conductor.schedules.kernels import times_of_plan


def beats(busy: FloatArray, objective: Objective) -> list[FloatArray]:
    """Times to plan with: the true ones, and by makespan on uneven stages the median ones too.

    As if all stages had the median times the rules keep a steadier beat, which is often the better
    plan. By stage span only the true ones count: that is the published choice.

    Args:
        busy: shape (3, num_stages).
        objective: what plans will be compared by.
    """
    if objective == "stage-span" or np.all(busy == busy[:, :1]):
        return [busy]
    return [busy, np.repeat(np.median(busy, axis=1, keepdims=True), busy.shape[1], axis=1)]


def best_plan(
    plans: Iterable[Int32Array],
    *,
    name: str,
    spec: PipelineSpec,
    busy: FloatArray,
    lag: FloatArray,
    objective: Objective,
) -> Schedule:
    """The plan with the least makespan (of equals, the least stage span), or the least stage span.

    Args:
        plans: at least one, each as `times_of_plan` takes it, with equally many actions a rank; the
            first of equals wins.
        name: of the schedule.
        spec: with the plans' stages.
        busy: shape (3, num_stages), of F, I and W.
        lag: shape (num_stages - 1,).
        objective: what to compare by.
    """
    ranks = np.array(spec.stage_ranks)

    def score(actions: Int32Array) -> tuple[float, ...]:
        makespan, span = times_of_plan(actions, ranks, busy, lag)
        return (makespan, span) if objective == "makespan" else (span,)

    kinds, microbatches, stages, _ = min(plans, key=score)
    return Schedule.from_arrays(
        name=name,
        stage_ranks=spec.stage_ranks,
        num_microbatches=spec.num_microbatches,
        kinds=kinds,
        stages=stages,
        microbatches=microbatches,
        rank_offsets=np.linspace(0, len(kinds), spec.num_ranks + 1).astype(np.int64),
    )
