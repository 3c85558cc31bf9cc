"""What the search minimises."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.simulator.simulate import simulate

SearchObjective = Literal["makespan", "stage-span", "mean", "p95"]
"""Makespan or stage span with the expected durations; mean or 95th percentile of the makespan over
draws."""

TAIL_SHARE = {"makespan": 0.0, "stage-span": 0.0, "mean": 0.0, "p95": 0.05}
"""Share of draws above the objective; 0 is the mean."""


def objective_value(
    spec: PipelineSpec,
    schedule: Schedule,
    objective: SearchObjective,
    durations_ms: npt.ArrayLike | None = None,
) -> float:
    """The objective of a schedule, in milliseconds.

    Args:
        spec: expected times; a rank-level profile is split over the schedule's stages.
        schedule: complete.
        objective: see `SearchObjective`.
        durations_ms: shape (draws, n), program order; None is one draw of the expected durations.

    Raises:
        InvalidScheduleError: the schedule is incomplete or deadlocks.
    """
    simulation = simulate(spec, schedule, durations_ms)
    if objective == "stage-span":
        return float(simulation.stage_span_ms.mean())
    if objective == "p95":
        return float(np.quantile(simulation.makespan_ms, 1.0 - TAIL_SHARE["p95"]))
    return float(simulation.makespan_ms.mean())
