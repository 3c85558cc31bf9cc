"""Planning: every schedule that fits a spec, best first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from time import perf_counter

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import POOL, Objective, build
from conductor.simulator.bounds import lower_bounds
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A schedule that fits.

    Attributes:
        schedule: the order.
        spec: the spec on the schedule's stages.
        timeline: with the expected durations, in static execution.
        plan_ms: time that making the schedule took, with its compiled code loaded.
        lower_bound_ms: no order on this placement ends earlier.
    """

    schedule: Schedule
    spec: PipelineSpec
    timeline: Timeline
    plan_ms: float
    lower_bound_ms: float

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What fits a spec and what does not.

    Attributes:
        spec: what was planned for.
        candidates: best first; at least one.
        rejected: why each other schedule does not fit, by name.
    """

    spec: PipelineSpec
    candidates: tuple[Candidate, ...]
    rejected: Mapping[str, str]

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.candidates[0]


def plan(
    spec: PipelineSpec,
    *,
    schedules: Sequence[str] | None = None,
    objective: Objective = "makespan",
) -> Plan:
    """Makes every schedule that fits a spec.

    Args:
        spec: a rank-level profile is split over the stages of each schedule.
        schedules: names from `conductor schedules`; None is every one that
            need not be asked for by name.
        objective: what heuristics minimise and candidates are ordered by.

    Raises:
        InvalidSpecError: no schedule has one of these names.
        DoesNotFitError: none fits; says which rank misses how much memory, or what is wrong.
    """
    candidates: list[Candidate] = []
    rejected: dict[str, DoesNotFitError] = {}
    bounds: dict[tuple[tuple[int, ...], int], float] = {}
    for name in POOL if schedules is None else dict.fromkeys(schedules):
        _load_kernels(name)
        start = perf_counter()
        try:
            schedule = build(name, spec, objective=objective)
        except DoesNotFitError as error:
            rejected[name] = error
            continue
        plan_ms = 1000.0 * (perf_counter() - start)
        result = timeline(spec, schedule)
        placement = (schedule.stage_ranks, schedule.num_splits)
        if placement not in bounds:
            bounds[placement] = lower_bounds(
                result.spec, num_splits=schedule.num_splits
            ).makespan_ms
        candidates.append(
            Candidate(
                schedule=schedule.named(name),
                spec=result.spec,
                timeline=result,
                plan_ms=plan_ms,
                lower_bound_ms=bounds[placement],
            )
        )
    if not candidates:
        raise _nothing_fits(list(rejected.values()))
    candidates.sort(key=lambda candidate: _rank(candidate.timeline, objective))
    return Plan(
        spec=spec,
        candidates=tuple(candidates),
        rejected={name: str(error) for name, error in rejected.items()},
    )


def _rank(times: Timeline, objective: Objective) -> tuple[float, float]:
    """The objective; of equals, less memory comes first."""
    value = times.stage_span_ms if objective == "stage-span" else times.makespan_ms
    return value, float(times.peak_memory.max())


@cache
def _load_kernels(name: str) -> None:
    """Makes the schedule on a toy, so that its time is that of planning, not of loading code."""
    with suppress(DoesNotFitError):
        build(
            name,
            PipelineSpec(
                num_ranks=2, num_microbatches=4,
                forward_ms=1, backward_input_ms=1, backward_weight_ms=1,
            ),
        )  # fmt: skip


def _nothing_fits(rejected: Sequence[DoesNotFitError]) -> DoesNotFitError:
    """The reason of the schedule that misses least memory, or else the first reason."""
    if len(rejected) == 1:
        return rejected[0]
    nearest = min(
        rejected, key=lambda e: math.inf if e.missing_memory is None else e.missing_memory
    )
    return DoesNotFitError(f"no schedule fits: the nearest, {nearest}")
