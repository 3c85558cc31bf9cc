"""What the exact solver says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec

Status = Literal["optimal", "feasible", "interrupted", "infeasible"]
"""`optimal`: proved. `feasible`: out of time. `interrupted`: stopped by Ctrl-C. `infeasible`: no order of
these placements fits in memory; `memory_shortfalls` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running solve is.

    Attributes:
        value_ms: of the best schedule so far.
        bound_ms: no schedule is better.
        elapsed_s: since the start.
    """

    value_ms: float
    bound_ms: float
    elapsed_s: float

    @property
    def gap(self) -> float:
        """What the best schedule may be from the optimum, as a share of its value."""
        return relative_gap(self.value_ms, self.bound_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalResult:
    """The best schedule found, and what is proved about it.

    Attributes:
        schedule: None when infeasible.
        spec: on the schedule's stages; as given when infeasible.
        status: see `Status`.
        value_ms: what was minimised, of the schedule: its makespan or its stage span.
        makespan_ms: of the schedule.
        bound_ms: no schedule on any of the placements has a lower value. It leaves aside what a model of
            separate actions can't express: overlapping pairs and sequence splits.
        wall_s: time spent.
    """

    schedule: Schedule | None
    spec: PipelineSpec
    status: Status
    value_ms: float
    makespan_ms: float
    bound_ms: float
    wall_s: float

    @property
    def gap(self) -> float:
        """What the schedule may be from the optimum, as a share of its value; 0 is proved."""
        return relative_gap(self.value_ms, self.bound_ms)


def relative_gap(value_ms: float, bound_ms: float) -> float:
    """Distance of a value from its bound as a share of the value; inf without a finite value."""
    if value_ms == bound_ms:
        return 0.0
    return 1.0 - bound_ms / value_ms if value_ms < float("inf") else float("inf")
