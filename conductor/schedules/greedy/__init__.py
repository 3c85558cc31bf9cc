"""Greedy: each rank, when it comes free, takes the most urgent action that is ready."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.choice import best_plan
from conductor.schedules.greedy.kernels import plan
from conductor.schedules.info import Objective, ScheduleInfo
from conductor.schedules.memory import planning_limits, too_little
from conductor.schedules.ticks import in_ticks

PATIENCE = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a W that must fit before the next known arrival; all are tried."""


def greedy(spec: PipelineSpec, objective: Objective = "makespan") -> Schedule:
    """A backward for the input if one is ready, else a forward that fits, else a W.

    What a dynamic scheduler would do at run time, written down for the expected durations. Strong
    where memory holds fewer micro-batches than there are ranks, and on uneven ranks.

    >>> from conductor.ir.draw import draw
    >>> spec = PipelineSpec(
    ...     num_ranks=3, num_microbatches=4, memory_limit=2,
    ...     forward_ms=1, backward_input_ms=1, backward_weight_ms=1,
    ... )
    >>> print(draw(greedy(spec)))
    rank 0 | F0 F1          I0 W0 I1 F2 W1 F3       I2 W2 I3 W3
    rank 1 |    F0 F1    I0 W0 I1 W1    F2    F3 I2 W2 I3 W3
    rank 2 |       F0 I0 F1 I1 W0 W1       F2 I2 F3 I3 W2 W3

    Args:
        spec: with one stage a rank, in order.
        objective: what the plans are compared by.

    Raises:
        DoesNotFitError: a rank cannot hold one micro-batch.

    Source: ours; the order of kinds is that of the zero-bubble scheduler in the Conductor paper.
    """
    memory, limits = spec.per_stage("activation_memory"), planning_limits(spec, None)
    if np.any(memory > limits):
        rank = int(np.argmax(memory - limits))
        raise too_little("greedy", rank, float(memory[rank]), float(spec.memory_limits[rank]))
    busy, lag = in_ticks(spec)
    freed = memory * spec.freed_at_backward_input
    given = np.concatenate([busy, [memory, freed, limits, np.append(lag, 0.0)]])
    plans = (plan(given, spec.num_microbatches, patience) for patience in PATIENCE)
    return best_plan(plans, name="greedy", spec=spec, busy=busy, lag=lag, objective=objective)


INFOS = (
    ScheduleInfo(
        name="greedy",
        build=greedy,
        placement="sequential",
        summary="what is ready first: I, else F, else W, within memory",
        memory="the spec's limit",
        source="ours",
    ),
)
