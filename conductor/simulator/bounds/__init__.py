"""Lower bounds on the makespan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.bounds.kernels import bound, bound_draws
from conductor.simulator.kernels import TOLERANCE
from conductor.simulator.program import Program, encode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounds:
    """Lower bounds on the makespan of every schedule for a spec.

    Attributes:
        rank_ms: float64, shape (num_ranks,). A rank can start no action before its inputs' earliest
            ends, does all its work, and after each action the longest chain that follows from it still
            remains (Jackson's preemptive one-machine bound).
        critical_path_ms: the longest chain of actions, where each stage does its micro-batches one
            after another, and a forward that finds memory full waits for the backward that frees it.
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
        _by_microbatch(program), program.inputs, program.input_lag_ms, program.outputs,
        program.output_lag_ms, program.ready_tables(), _room(spec, program, num_splits), busy,
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


def _by_microbatch(program: Program) -> Int32Array:
    """A topological order of split actions, one micro-batch after another."""
    down = np.where(program.kinds == Kind.F, program.stages, -program.stages)
    order = np.lexsort((down, program.kinds, program.microbatches))
    return order.astype(np.int32)


def _room(spec: PipelineSpec, program: Program, num_splits: int) -> Int32Array:
    """For each forward the I and the W that must end before it for want of memory.

    Forward number j of a stage (from 0) adds to what the j before it hold there and, as they came
    through them, on the rank's earlier stages. I frees a share of it and W the rest; no stage has had
    more W than I, nor more I than the rank's later stages.

    Returns:
        int32, shape (n, 2), -1 is none.
    """
    room = np.full((program.num_actions, 2), -1, np.int32)
    num_units = spec.num_microbatches * num_splits
    streams = np.argsort(program.streams, kind="stable").reshape(spec.num_stages, 3, num_units)
    size = spec.per_stage("activation_memory") / num_splits
    share = spec.freed_at_backward_input
    units = np.arange(num_units)
    for stage, rank in enumerate(spec.stage_ranks):
        limit = spec.memory_limits[rank] * (1.0 + TOLERANCE)
        earlier = [s for s in range(stage + 1) if spec.stage_ranks[s] == rank]
        for column, kind, held, freed_before in (
            (0, Kind.I, float(size[earlier].sum()), 0.0),
            (1, Kind.W, float(size[stage]), share),
        ):
            if held == 0.0 or freed_before == 1.0 or np.isinf(limit):
                continue
            needed = units + 1 - limit / held - freed_before * units
            number = np.ceil(needed / (1.0 - freed_before) - TOLERANCE).astype(np.int64)
            # A limit below one whole micro-batch cannot be kept: leave the bound alone there.
            waits = (number > 0) & ((number - 1) // num_splits < units // num_splits)
            room[streams[stage, Kind.F][waits], column] = streams[stage, kind][number[waits] - 1]
    return room


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
        (Kind.W, stages[::-1], num_splits - 1 - splits),
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
