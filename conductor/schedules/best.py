"""The best of several orders by expected times."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.info import Objective
from conductor.schedules.memory import check_memory
from conductor.simulator.kernels import static_starts
from conductor.simulator.program import encode


def score_ms(spec: PipelineSpec, schedule: Schedule, objective: Objective) -> float:
    """Makespan, or longest span of a rank, in static execution with expected durations."""
    program = encode(spec, schedule)
    busy = program.busy_ms(program.duration_ms)[0]
    ends = busy + static_starts(
        program.order, program.rank_offsets, program.ranks, program.inputs,
        program.input_lag_ms, busy,
    )  # fmt: skip
    if objective == "makespan":
        return float(ends.max())
    first, last = program.rank_offsets[:-1], program.rank_offsets[1:] - 1
    return float(np.max(ends[last] - (ends[first] - busy[first])))


def best_of(spec: PipelineSpec, schedules: Iterable[Schedule], objective: Objective) -> Schedule:
    """The one with the least score among those within the memory limits; the first of equals.

    Raises:
        DoesNotFitError: none is within the limits; says what the most frugal one misses.
    """
    fitting, refusals = [], []
    for schedule in schedules:
        try:
            check_memory(spec, schedule)
        except DoesNotFitError as refusal:
            refusals.append(refusal)
        else:
            fitting.append(schedule)
    if not fitting:
        raise min(refusals, key=lambda refusal: refusal.missing_memory or 0.0)
    return min(fitting, key=lambda schedule: score_ms(spec, schedule, objective))
