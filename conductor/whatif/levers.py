"""What Conductor's own levers would give a traced job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.errors import DoesNotFitError, FormatError
from conductor.ir.schedule import FloatArray, Schedule
from conductor.migration.execution import MigrationRules, prepare, run_draws
from conductor.migration.model import SimpleModel
from conductor.planning.plan import plan
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.program import encode
from conductor.simulator.simulate import Execution, simulate
from conductor.whatif.profile import INPUT_SHARE, profile, traced_schedule
from conductor.whatif.whatif import Remedy, WhatIf


def lever_remedies(
    found: WhatIf, *, input_share: float = INPUT_SHARE, model: SimpleModel | None = None
) -> list[Remedy]:
    """Step times under another order, execution, partition, and with work moved.

    Every step of every replica is simulated with its own realised durations, under the traced order and
    under the lever. Orders are planned from mean durations within the traced order's memory. The slowest
    replica ends a step; what comes after the pipeline stays as it was.

    Args:
        found: from `analyse`.
        input_share: share of a full backward that is for the input, where the trace does not say.
        model: what migration moves and what it costs.

    Raises:
        FormatError: a step of the trace is not whole.
    """
    spec = profile(found.graph, input_share=input_share)
    steps = _Steps(
        found=found,
        spec=spec,
        table_ms=realised(found, spec, input_share),
        model=model or SimpleModel(),
    )
    traced = traced_schedule(found.graph.trace)
    base = steps.pipeline_ms(traced)
    best = _best_order(spec)
    even = steps.with_equal_stages()
    rest = float(found.replay_ms.mean()) - base

    def remedy(name: str, pipeline_ms: float) -> Remedy:
        return found.remedy(name, rest + pipeline_ms)

    remedies = [remedy("ready-first in the traced order", steps.pipeline_ms(traced, "ready-first"))]
    if best is not None:
        remedies += [
            remedy(f"order {best.name}", steps.pipeline_ms(best)),
            remedy(f"order {best.name}, ready-first", steps.pipeline_ms(best, "ready-first")),
            remedy(f"order {best.name}, migration", steps.pipeline_ms(best, migrates=True)),
        ]
    return [*remedies, remedy("equal stages in the traced order", even.pipeline_ms(traced))]


def _best_order(spec: PipelineSpec) -> Schedule | None:
    try:
        return plan(spec).best.schedule
    except DoesNotFitError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """Every step of every replica with its own durations."""

    found: WhatIf
    spec: PipelineSpec
    table_ms: FloatArray
    model: SimpleModel

    def pipeline_ms(
        self, schedule: Schedule, execution: Execution = "static", *, migrates: bool = False
    ) -> float:
        """Mean over steps of the slowest replica's makespan."""
        program = encode(self.spec, schedule)
        steps, replicas, *_ = self.table_ms.shape
        stages = program.stages
        table = self.table_ms
        if schedule.num_stages != self.spec.num_stages:
            # A rank's work is split evenly over its stages.
            shares = 1.0 / np.bincount(schedule.stage_ranks)
            table = table[..., list(schedule.stage_ranks), :]
            table = table * shares[list(schedule.stage_ranks)][:, None]
        durations = table[:, :, program.kinds, stages, program.microbatches]
        durations = np.ascontiguousarray(durations.reshape(steps * replicas, -1))
        if migrates:
            prepared = prepare(
                self.spec, schedule, model=self.model, rules=MigrationRules(), execution=execution
            )
            makespan = run_draws(prepared, durations).makespan_ms
        else:
            makespan = simulate(self.spec, schedule, durations, execution=execution).makespan_ms
        return float(makespan.reshape(steps, replicas).max(axis=1).mean())

    def with_equal_stages(self) -> _Steps:
        """The same with every stage's usual time at the mean of all.

        Usual is the median, which one slow replica does not move: what it costs is not the partition's.
        """
        usual = np.median(self.table_ms, axis=(0, 1, 4), keepdims=True)
        scale = np.divide(
            usual.mean(axis=3, keepdims=True), usual, out=np.ones_like(usual), where=usual > 0.0
        )
        return _Steps(
            found=self.found, spec=self.spec, table_ms=self.table_ms * scale, model=self.model
        )


def realised(found: WhatIf, spec: PipelineSpec, input_share: float) -> FloatArray:
    """Durations by step, replica, kind, stage and micro-batch; steps that miss an action are left out.

    Raises:
        FormatError: every step misses one.
    """
    trace = found.graph.trace
    mine = np.flatnonzero(trace.is_action)
    replicas, replica = np.unique(trace.dp_ranks[mine], return_inverse=True)
    shape = (
        len(found.graph.step_numbers), len(replicas), len(Kind), spec.num_stages, spec.num_microbatches
    )  # fmt: skip
    table: FloatArray = np.full(shape, np.nan)
    table[
        found.graph.step_index[mine], replica, trace.operations[mine], trace.stages[mine],
        trace.microbatches[mine],
    ] = found.own_ms[mine]  # fmt: skip
    full, for_input, for_weights = table[:, :, Kind.B], table[:, :, Kind.I], table[:, :, Kind.W]
    fused = ~np.isnan(full)
    for_input[fused] = input_share * full[fused]
    for_weights[fused] = (1.0 - input_share) * full[fused]
    full[~fused] = (for_input + for_weights)[~fused]
    whole = ~np.isnan(table).any(axis=(1, 2, 3, 4))
    if not whole.any():
        step, replica_index, kind, stage, microbatch = np.argwhere(np.isnan(table))[0]
        raise FormatError(
            f"{trace.name}: no step is whole: step {found.graph.step_numbers[step]} of data-parallel"
            f" rank {replicas[replica_index]} has no {stage}{Kind(kind).name}{microbatch}"
        )
    return np.ascontiguousarray(table[whole])
