"""The zero-bubble heuristic at any memory limit: ZB-1p, ZB-2p and what the spec allows."""

from __future__ import annotations

from itertools import product

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.choice import beats, best_plan
from conductor.schedules.info import Objective, ScheduleInfo
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

    All settings of the heuristic's three knobs are tried. By stage span the order is that of the
    published program (with the true costs of each stage).

    >>> from conductor.ir.draw import draw
    >>> spec = PipelineSpec(
    ...     num_ranks=3, num_microbatches=5, forward_ms=1, backward_input_ms=1, backward_weight_ms=1
    ... )
    >>> print(draw(zero_bubble(spec, held_microbatches=3)))
    rank 0 | F0 F1 F2       I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    rank 1 |    F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    rank 2 |       F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4
    >>> print(draw(zero_bubble(spec, held_microbatches=6)))
    rank 0 | F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
    rank 1 |    F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
    rank 2 |       F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    Args:
        spec: with one stage a rank, in order.
        name: of the schedule.
        held_microbatches: most micro-batches of the largest stage that a rank holds; the spec's
            limits count too. None: only those.
        objective: what the plans are compared by.

    Raises:
        DoesNotFitError: a rank cannot hold one micro-batch.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024; the heuristic of its program.
    """
    memory, limits = spec.per_stage("activation_memory"), planning_limits(spec, held_microbatches)
    if np.any(memory > limits):
        rank = int(np.argmax(memory - limits))
        raise too_little(name, rank, float(memory[rank]), float(spec.memory_limits[rank]))
    busy, lag = in_ticks(spec)
    freed = memory * spec.freed_at_backward_input
    room = np.stack([memory, freed, limits, np.append(lag, 0.0)])
    plans = (
        plan(np.concatenate([beat, room]), spec.num_microbatches, *knobs)
        for beat, *knobs in product(beats(busy, objective), *3 * [(True, False)])
    )
    return best_plan(plans, name=name, spec=spec, busy=busy, lag=lag, objective=objective)


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
    _info("zb-2p", "2p", 2, "(p - 1)F"),
    _info("zb", "the spec's limit", None, ""),
)
