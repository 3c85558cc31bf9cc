"""Lower bounds on the makespan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.bounds.kernels import bound, bound_draws
from conductor.simulator.program import Program, encode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounds:
    """Lower bounds on the makespan of every schedule for a spec. Memory limits are left aside.

    Attributes:
        rank_ms: float64, shape (num_ranks,). A rank can start no action before its inputs' earliest
            ends, does all its work, and after each action the longest chain that follows from it still
            remains.
        critical_path_ms: the longest chain of actions, where each stage does its micro-batches one
            after another.
        balanced_work_ms: all work spread evenly over the ranks, what moving work could reach at best.
            The only one of the three that still holds when work moves between ranks.
    """

    rank_ms: FloatArray
    critical_path_ms: float
    balanced_work_ms: float

    @property
    def per_rank_ms(self) -> float:
        """The largest of `rank_ms`."""
        return float(self.rank_ms.max())

    @property
    def makespan_ms(self) -> float:
        """The best bound as long as work stays on its rank."""
        return max(self.per_rank_ms, self.critical_path_ms)


def lower_bounds(spec: PipelineSpec, *, num_splits: int = 1) -> Bounds:
    """Bounds for every schedule on the spec's placement, from expected durations.

    Args:
        spec: a schedule on another placement has the bounds of `spec.on_stages(...)`.
        num_splits: sequence splits of a micro-batch (Seq1F1B).
    """
    program = encode(spec, _all_forwards_first(spec, num_splits))
    # Every action may be part of an overlapping pair.
    busy = program.busy_ms(program.duration_ms)[0] * min(1.0, spec.overlap_factor)
    ranks, path = bound(
        program.order, program.inputs, program.input_lag_ms, program.outputs,
        program.output_lag_ms, program.ready_tables(), busy,
    )  # fmt: skip
    return Bounds(
        rank_ms=ranks,
        critical_path_ms=float(path),
        balanced_work_ms=float(busy.sum()) / program.num_ranks,
    )


def realised_bound(program: Program, durations_ms: npt.ArrayLike) -> FloatArray:
    """The per-rank bound on realised durations: what a clairvoyant order of these actions can't beat.

    It holds for every order in which each stage keeps the micro-batch order of each kind.

    Args:
        program: from `encode`.
        durations_ms: shape (draws, n) or (n,), program order.

    Returns:
        Shape (draws,).
    """
    bounds: FloatArray = bound_draws(
        program.order, program.inputs, program.input_lag_ms, program.outputs,
        program.output_lag_ms, program.ready_tables(), program.busy_ms(durations_ms),
    )  # fmt: skip
    return bounds


def _all_forwards_first(spec: PipelineSpec, num_splits: int) -> Schedule:
    """Every action, in an order that is free of deadlock on any placement.

    Backwards are split: a full backward's output comes no earlier than that of I alone.
    """
    stage_ranks = np.asarray(spec.stage_ranks)
    units = np.arange(spec.num_microbatches * num_splits)
    microbatches, splits = units // num_splits, units % num_splits
    stages = np.arange(spec.num_stages)
    blocks = [
        (Kind.F, stages, splits),
        (Kind.I, stages[::-1], num_splits - 1 - splits),
        (Kind.W, stages[::-1], splits),
    ]
    kind = np.repeat([block[0] for block in blocks], len(stages) * len(units))
    stage = np.concatenate([np.repeat(block[1], len(units)) for block in blocks])
    split = np.concatenate([np.tile(block[2], len(stages)) for block in blocks])
    microbatch = np.tile(microbatches, 3 * len(stages))
    order = np.argsort(stage_ranks[stage], kind="stable")
    return Schedule.from_arrays(
        name="all forwards first",
        stage_ranks=spec.stage_ranks,
        num_microbatches=spec.num_microbatches,
        num_splits=num_splits,
        kinds=kind[order],
        stages=stage[order],
        microbatches=microbatch[order],
        splits=split[order],
        rank_offsets=np.searchsorted(stage_ranks[stage][order], np.arange(spec.num_ranks + 1)),
    )
