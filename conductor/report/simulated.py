"""Entries made by simulating schedules, with and without migration."""

from __future__ import annotations

import numpy as np

from conductor.ir.helps import Helps
from conductor.ir.schedule import Schedule
from conductor.migration.blocks import execution as blocks
from conductor.migration.blocks.costs import PIECES
from conductor.migration.blocks.plan import BlockPlan
from conductor.migration.execution import run
from conductor.migration.model import SimpleModel
from conductor.migration.plan import MigrationPlan, plan_migration
from conductor.problem.spec import PipelineSpec
from conductor.report.entry import Entry, size_of
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
    """The same with the best migration found under the simple model (`SimpleModel`).

    Raises:
        InvalidSpecError: the spec gives other stages than the schedule has.
        InvalidScheduleError: the schedule is incomplete or deadlocks.
    """
    return planned(plan_migration(spec, [schedule], model=SimpleModel()), title=title)


def planned(plan: MigrationPlan | BlockPlan, *, title: str) -> Entry:
    """A step of a plan in which ranks with slack do parts of others' actions.

    With the per-block model a help is of one block of an action; when it was decided is not kept, so that
    it counts from the start of the lender's work.
    """
    moved: tuple[str, ...] = ()
    if isinstance(plan, BlockPlan):
        base, block_run = plan.prepared.base, blocks.run(plan.prepared)
        starts, ends = block_run.start_ms, block_run.end_ms
        actions, lenders, pieces, parts = block_run.helps[:, :4].T.astype(np.int32)
        totals = plan.prepared.pieces.parts
        helps = Helps(
            actions=actions, lenders=lenders, parts=parts, of_parts=int(totals.max()),
            decided_ms=block_run.helps[:, 4], start_ms=block_run.helps[:, 4],
            end_ms=block_run.helps[:, 5],
        )  # fmt: skip
        moved = tuple(
            f"{part} of {totals[piece]} parts, {PIECES[piece]}"
            for part, piece in zip(parts.tolist(), pieces.tolist(), strict=True)
        )
    else:
        base, step = plan.prepared, run(plan.prepared)
        starts, ends = step.start_ms, step.end_ms
        helps = Helps(
            actions=step.help_action, lenders=step.help_lender, parts=step.help_parts,
            of_parts=plan.prepared.costs.parts, decided_ms=step.help_decided_ms,
            start_ms=step.help_start_ms, end_ms=step.help_end_ms,
        )  # fmt: skip
    result = Timeline.measured(base.spec, plan.schedule, starts, ends)
    return Entry(
        title=title,
        note=f"{size_of(result)}, expected durations, {plan.execution} execution, work moved between ranks",
        timeline=result,
        lower_bound_ms=lower_bounds(
            result.spec, num_splits=plan.schedule.num_splits
        ).balanced_work_ms,
        helps=helps,
        pieces=moved,
    )
