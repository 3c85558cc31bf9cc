"""Entries made by simulating schedules, with and without migration."""

from __future__ import annotations

from conductor.ir.schedule import Schedule
from conductor.migration.execution import run
from conductor.migration.model import SimpleModel
from conductor.migration.plan import plan_migration
from conductor.problem.spec import PipelineSpec
from conductor.report.entry import Entry, Helps, size_of
from conductor.simulator.bounds import lower_bounds
from conductor.simulator.simulate import Execution, timeline
from conductor.simulator.timeline import Timeline


def simulated(
    spec: PipelineSpec, schedule: Schedule, *, title: str, execution: Execution = "static"
) -> Entry:
    """A schedule with the expected durations.

    Raises:
        InvalidSpecError: the spec gives other stages than the schedule has.
        InvalidScheduleError: the schedule is incomplete or deadlocks.
    """
    result = timeline(spec, schedule, execution=execution)
    bounds = lower_bounds(result.spec, num_splits=schedule.num_splits)
    return Entry(
        title=title,
        note=f"{size_of(result)}, expected durations, {execution} execution",
        timeline=result,
        lower_bound_ms=bounds.makespan_ms,
    )


def migrated(spec: PipelineSpec, schedule: Schedule, *, title: str) -> Entry:
    """The same with the best migration found: ranks with slack do parts of others' actions.

    Moved work takes the simple model's time (`SimpleModel`).

    Raises:
        InvalidSpecError: the spec gives other stages than the schedule has.
        InvalidScheduleError: the schedule is incomplete or deadlocks.
    """
    model = SimpleModel()
    plan = plan_migration(spec, [schedule], model=model)
    step = run(plan.prepared)
    result = Timeline.measured(spec, schedule, step.start_ms, step.end_ms)
    return Entry(
        title=title,
        note=f"{size_of(result)}, expected durations, {plan.execution} execution, work moved between ranks",
        timeline=result,
        lower_bound_ms=lower_bounds(result.spec, num_splits=schedule.num_splits).balanced_work_ms,
        helps=Helps(
            actions=step.help_action,
            lenders=step.help_lender,
            parts=step.help_parts,
            of_parts=model.parts,
            decided_ms=step.help_decided_ms,
            start_ms=step.help_start_ms,
            end_ms=step.help_end_ms,
        ),
    )
