"""Instance: a pipeline with a plan to start from, as the arrays of the compiled environment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conductor.errors import DoesNotFitError, InvalidScheduleError
from conductor.ir.schedule import FloatArray, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.rl.kernels import Arrays, plan_times
from conductor.simulator.program import Program, encode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """A pipeline with a plan.

    Attributes:
        spec: at the level of the plan's stages.
        plan: the given plan with every full backward as I and W, so that a policy may part them, and each
            kind of a stage in micro-batch order.
        program: the plan on the spec; all durations of this instance are in its order.
        arrays: what the kernels read.
    """

    spec: PipelineSpec
    plan: Schedule
    program: Program
    arrays: Arrays

    @classmethod
    def of(cls, spec: PipelineSpec, plan: Schedule) -> Instance:
        """Joins a spec and a plan.

        Raises:
            InvalidScheduleError: the plan has sequence splits or overlapping pairs, or isn't one for the spec.
            DoesNotFitError: some rank's memory holds less than one micro-batch.
        """
        if plan.num_splits > 1 or plan.overlaps.any():
            raise InvalidScheduleError(
                f"{plan.name} splits sequences or overlaps actions, which the learned scheduler does not"
            )
        plan = in_microbatch_order(split_backwards(plan))
        spec = spec.on_stages(plan.stage_ranks)
        program = encode(spec, plan)
        arrays = _arrays(spec, plan, program)
        short = np.flatnonzero(arrays.held > arrays.limits + 1e-9 * (1.0 + arrays.held))
        if len(short):
            rank = int(short[0])
            raise DoesNotFitError(
                f"rank {rank} needs {arrays.held[rank]:g} for one micro-batch,"
                f" its limit is {arrays.limits[rank]:g}"
            )
        return cls(spec=spec, plan=plan, program=program, arrays=arrays)

    @property
    def stages_per_rank(self) -> int:
        """Stages of the rank that has most."""
        return int(self.arrays.local_stages.shape[1])

    @property
    def num_slots(self) -> int:
        """Choices of a decision: F, I, W for each stage of a rank, and wait."""
        return 3 * self.stages_per_rank + 1


def split_backwards(plan: Schedule) -> Schedule:
    """The plan with every full backward as I, W."""
    full = plan.kinds == Kind.B
    if not full.any():
        return plan
    times = 1 + full.astype(np.int64)
    kinds = np.repeat(plan.kinds, times)
    first = np.cumsum(times) - times
    kinds[first[full]] = Kind.I
    kinds[first[full] + 1] = Kind.W
    return Schedule.from_arrays(
        name=plan.name,
        stage_ranks=plan.stage_ranks,
        num_microbatches=plan.num_microbatches,
        kinds=kinds,
        stages=np.repeat(plan.stages, times),
        microbatches=np.repeat(plan.microbatches, times),
        rank_offsets=np.concatenate([[0], np.cumsum(times)])[plan.rank_offsets],
    )


def in_microbatch_order(plan: Schedule) -> Schedule:
    """The plan with the actions of each stage and kind in micro-batch order: the n-th is micro-batch n.

    Micro-batches are alike until they run, so every input is still in time. (Orders that mix B with I and W
    may finish a later micro-batch first.)
    """
    streams = plan.stages * np.int64(len(Kind)) + plan.kinds
    by_stream = np.argsort(streams, kind="stable")
    microbatches = np.empty_like(plan.microbatches)
    microbatches[by_stream] = np.tile(
        np.arange(plan.num_microbatches), plan.num_actions // plan.num_microbatches
    )
    return replace(plan, microbatches=microbatches)


def _arrays(spec: PipelineSpec, plan: Schedule, program: Program) -> Arrays:
    stage_ranks = np.asarray(plan.stage_ranks)
    num_local = np.bincount(stage_ranks, minlength=plan.num_ranks)
    local_stages = np.full((plan.num_ranks, num_local.max()), -1, np.int32)
    local_index = np.zeros(plan.num_stages, np.int32)
    for rank in range(plan.num_ranks):
        stages = np.flatnonzero(stage_ranks == rank)
        local_stages[rank, : len(stages)] = stages
        local_index[stages] = np.arange(len(stages))
    streams = plan.stages * np.int32(3) + plan.kinds
    actions = np.empty((plan.num_stages * 3, plan.num_microbatches), np.int32)
    actions[streams, plan.microbatches] = np.arange(plan.num_actions, dtype=np.int32)
    expected: FloatArray = program.busy_ms(program.duration_ms)[0]
    unit = np.bincount(program.ranks, expected, plan.num_ranks) / plan.num_microbatches
    arrays = Arrays(
        rank_offsets=program.rank_offsets,
        ranks=program.ranks,
        inputs=program.inputs,
        input_lags=program.input_lag_ms,
        outputs=program.outputs,
        order=program.order,
        allocated=program.allocated,
        freed=program.freed,
        limits=program.memory_limits,
        local_stages=local_stages,
        actions=actions,
        streams=streams.astype(np.int32),
        slots=(local_index[plan.stages] * 3 + plan.kinds).astype(np.int32),
        microbatches=plan.microbatches,
        expected=expected,
        unit=np.where(unit > 0.0, unit, 1.0),
        scale=float(unit.max()) or 1.0,
        held=np.bincount(stage_ranks, spec.per_stage("activation_memory"), plan.num_ranks),
        plan_start=expected,
        plan_ready=expected,
        plan_latest=expected,
    )
    start, ready, latest = plan_times(arrays, expected)
    return arrays._replace(plan_start=start, plan_ready=ready, plan_latest=latest)
