"""The zero-bubble heuristic at any memory limit: ZB-1p, ZB-2p and what the spec allows."""

from __future__ import annotations

from itertools import product

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.info import Objective, ScheduleInfo
from conductor.schedules.kernels import times_of_plan
from conductor.schedules.memory import planning_limits, too_little
from conductor.schedules.ticks import in_ticks
from conductor.schedules.zero_bubble.kernels import plan


def zero_bubble(
    spec: PipelineSpec,
    *,
    name: str = "zb",
    held_microbatches: int | None = None,
    objective: Objective = "makespan",
) -> Schedule:
    """Fills the wait for gradients with backwards for the weights, as memory allows.

    All settings of the heuristic's three knobs are tried. By stage span and on even stages the order is
    that of the published program. By makespan, uneven stages are planned a second time as if each had
    the median times: the rules then keep a steadier beat, which is often the better plan.

    Args:
        spec: with one stage a rank, in order.
        name: of the schedule.
        held_microbatches: most micro-batches of the largest stage that a rank holds; the spec's limits
            count too. None: only those.
        objective: what the settings are compared by.

    Raises:
        DoesNotFitError: a rank cannot hold one micro-batch.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024; the heuristic of its program.
    """
    m, num_ranks = spec.num_microbatches, spec.num_ranks
    memory, limits = spec.per_stage("activation_memory"), planning_limits(spec, held_microbatches)
    if np.any(memory > limits):
        rank = int(np.argmax(memory - limits))
        raise too_little(name, rank, float(memory[rank]), float(spec.memory_limits[rank]))
    busy, lag = in_ticks(spec)
    room = np.stack([memory, memory * spec.freed_at_backward_input, limits, np.append(lag, 0.0)])
    beats = [busy]
    if objective == "makespan" and np.any(busy != busy[:, :1]):
        beats.append(np.repeat(np.median(busy, axis=1, keepdims=True), num_ranks, axis=1))
    best = None
    for beat, *knobs in product(beats, *3 * [(True, False)]):
        actions = plan(np.concatenate([beat, room]), m, *knobs)
        makespan, span = times_of_plan(actions, np.arange(num_ranks), busy, lag)
        score = (makespan, span) if objective == "makespan" else (span,)
        if best is None or score < best[0]:
            best = score, actions
    assert best is not None
    return Schedule.from_arrays(
        name=name,
        stage_ranks=range(num_ranks),
        num_microbatches=m,
        kinds=best[1][0],
        stages=best[1][2],
        microbatches=best[1][1],
        rank_offsets=np.arange(num_ranks + 1) * 3 * m,
    )


def _info(name: str, memory: str, ranks_held: int | None, formula: str) -> ScheduleInfo:
    return ScheduleInfo(
        name=name,
        build=lambda spec, objective: zero_bubble(
            spec,
            name=name,
            held_microbatches=None if ranks_held is None else ranks_held * spec.num_ranks,
            objective=objective,
        ),
        placement="sequential",
        summary=f"zero-bubble heuristic, memory {memory}",
        memory=memory,
        formula=formula,
        source="Qi et al., ICLR 2024",
    )


INFOS = (
    _info("zb-1p", "p", 1, "(p - 1)(F + I - W)"),
    _info("zb-2p", "2p", 2, "(p - 1)(F + I - 2W)"),
    _info("zb", "the spec's limit", None, ""),
)
