"""Program: a schedule on a spec, as the arrays that every kernel reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conductor.errors import InvalidScheduleError
from conductor.ir.schedule import BoolArray, FloatArray, Int8Array, Int32Array, Int64Array, Schedule
from conductor.ir.validate import validate
from conductor.problem.kind import KIND_RULES, Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.kernels import join_overlapping, link_inputs, topological_order
from conductor.simulator.ready_first.kernels import ReadyTables, ready_tables

MAX_INPUTS = 5
"""Columns of the input tables: a backward waits for up to three actions (two and its neighbour split),
and a forward that overlaps with it for those and its own two."""
MAX_RULES = max(len(rule.inputs) for rule in KIND_RULES.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A schedule on a spec, encoded. Arrays of length `n` are in program order.

    Attributes:
        rank_offsets: int64, shape (num_ranks + 1,); rank r owns `[offsets[r], offsets[r + 1])`.
        ranks: int32, shape (n,).
        kinds: int8, shape (n,).
        stages: int32, shape (n,).
        microbatches: int32, shape (n,).
        units: int32, shape (n,); micro-batch and sequence split in one number.
        inputs: int32, shape (n, MAX_INPUTS); indices of the actions it waits for, -1 is none.
            The order of its own rank is not among them.
        input_lag_ms: float64, shape (n, MAX_INPUTS); transfer time after that input's end.
        outputs: int32, shape (n, MAX_INPUTS); the reverse of `inputs`, -1 is none.
        output_lag_ms: float64, shape (n, MAX_INPUTS).
        duration_ms: float64, shape (n,); expected, without what a blocking send adds.
        send_ms: float64, shape (n,); what a blocking send adds to the action (0 when transfers overlap).
        allocated: float64, shape (n,); memory taken when it starts.
        freed: float64, shape (n,); memory given back when it ends.
        memory_limits: float64, shape (num_ranks,); inf is no limit.
        streams: int32, shape (n,); index of its (stage, kind) among those of all ranks. A stream keeps
            its program order in every execution: that is the micro-batch order.
        order: int32, shape (n,); a topological order of static execution (ranks ascending, each as far
            as it can go, in rounds).
        overlaps: bool, shape (n,); see `Schedule.overlaps`.
        overlap_factor: see `PipelineSpec`.
    """

    rank_offsets: Int64Array
    ranks: Int32Array
    kinds: Int8Array
    stages: Int32Array
    microbatches: Int32Array
    units: Int32Array
    inputs: Int32Array
    input_lag_ms: FloatArray
    outputs: Int32Array
    output_lag_ms: FloatArray
    duration_ms: FloatArray
    send_ms: FloatArray
    allocated: FloatArray
    freed: FloatArray
    memory_limits: FloatArray
    streams: Int32Array
    order: Int32Array
    overlaps: BoolArray
    overlap_factor: float

    @property
    def num_actions(self) -> int:
        """Number of actions over all ranks."""
        return len(self.ranks)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_offsets) - 1

    def ready_tables(self) -> ReadyTables:
        """What the ready-first kernels read."""
        tables: ReadyTables = ready_tables(
            self.rank_offsets, self.ranks, self.streams, self.inputs, self.outputs,
            self.output_lag_ms, self.allocated, self.freed, self.memory_limits, self.overlaps,
        )  # fmt: skip
        return tables

    def busy_ms(self, durations_ms: npt.ArrayLike) -> FloatArray:
        """What each action keeps its rank busy for: its duration and a blocking send.

        A forward that overlaps with the backward behind it takes the pair's whole time, the backward
        none; `Timeline` shows both side by side.

        Args:
            durations_ms: shape (draws, n) or (n,).

        Returns:
            Shape (draws, n).
        """
        busy = np.atleast_2d(np.asarray(durations_ms, np.float64)) + self.send_ms
        if self.overlaps.any():
            first = np.flatnonzero(self.overlaps)
            busy[:, first] = (busy[:, first] + busy[:, first + 1]) * self.overlap_factor
            busy[:, first + 1] = 0.0
        return np.ascontiguousarray(busy)


def _rule_table() -> Int32Array:
    """KIND_RULES as int32, shape (kinds, MAX_RULES, 2): bit mask of kinds, stage offset."""
    table = np.zeros((len(Kind), MAX_RULES, 2), np.int32)
    for kind, rule in KIND_RULES.items():
        for slot, need in enumerate(rule.inputs):
            table[kind, slot] = (sum(1 << other for other in need.kinds), need.stage_offset)
    return table


_RULES = _rule_table()
_SPLIT_STEPS = np.array([KIND_RULES[kind].split_step for kind in Kind], np.int32)
_ALLOCATES = np.array([KIND_RULES[kind].allocates for kind in Kind])
_SENDS = np.array([KIND_RULES[kind].sends for kind in Kind])


def freed_shares(spec: PipelineSpec) -> FloatArray:
    """Share of a stage's activation memory that each kind frees when it ends, shape (kinds,)."""
    shares = np.zeros(len(Kind))
    shares[Kind.I] = spec.freed_at_backward_input
    shares[Kind.W] = 1.0 - spec.freed_at_backward_input
    shares[Kind.B] = 1.0
    return shares


def encode(spec: PipelineSpec, schedule: Schedule) -> Program:
    """Encodes a schedule on a spec.

    The spec is split over the schedule's stages when it is a rank-level profile.

    Raises:
        InvalidSpecError: the spec gives other stages than the schedule has.
        InvalidScheduleError: an input of some action is missing, or an action stands twice.
        DeadlockError: in program order some action can never start.
    """
    spec = spec.on_stages(schedule.stage_ranks)
    if schedule.num_microbatches != spec.num_microbatches:
        raise InvalidScheduleError(
            f"the schedule has {schedule.num_microbatches} micro-batches,"
            f" the spec {spec.num_microbatches}"
        )
    kinds, stages = schedule.kinds, schedule.stages
    units = schedule.microbatches * np.int32(schedule.num_splits) + schedule.splits
    stage_ranks = np.asarray(schedule.stage_ranks, np.int32)
    inputs, lags, outputs, output_lags, fault = link_inputs(
        kinds, stages, units, schedule.num_stages, schedule.num_microbatches * schedule.num_splits,
        schedule.num_splits, _RULES, _SPLIT_STEPS, MAX_INPUTS,
        np.zeros_like(spec.link_ms) if spec.blocking_transfers else spec.link_ms,
    )  # fmt: skip
    if fault:
        raise _explain(schedule)
    ranks = np.repeat(np.arange(schedule.num_ranks, dtype=np.int32), np.diff(schedule.rank_offsets))
    if not np.array_equal(stage_ranks[stages], ranks):
        raise _explain(schedule)
    overlapping = np.flatnonzero(schedule.overlaps)
    if len(overlapping):
        join_overlapping(overlapping, inputs, lags, outputs, output_lags)
    order, complete = topological_order(schedule.rank_offsets, inputs, outputs)
    if not complete:
        raise _explain(schedule)
    share = 1.0 / schedule.num_splits
    memory = spec.per_stage("activation_memory")[stages] * share
    return Program(
        rank_offsets=schedule.rank_offsets,
        ranks=ranks,
        kinds=kinds,
        stages=stages,
        microbatches=schedule.microbatches,
        units=units,
        inputs=inputs,
        input_lag_ms=lags,
        outputs=outputs,
        output_lag_ms=output_lags,
        duration_ms=spec.duration_ms[kinds, stages] * share,
        send_ms=blocking_send_ms(spec, kinds, stages) * share,
        allocated=_ALLOCATES[kinds] * memory,
        freed=freed_shares(spec)[kinds] * memory,
        memory_limits=spec.memory_limits,
        streams=stages * np.int32(len(Kind)) + kinds,
        order=order,
        overlaps=schedule.overlaps,
        overlap_factor=spec.overlap_factor,
    )


def blocking_send_ms(spec: PipelineSpec, kinds: Int8Array, stages: Int32Array) -> FloatArray:
    """What a blocking send adds to each action: F to the next stage, I and B to the previous one.

    The paper's simulator charges the ends of the pipeline too: they pay their only link. Zero where
    transfers overlap compute.
    """
    link = spec.link_ms
    if not spec.blocking_transfers or len(link) == 0:
        return np.zeros(len(kinds))
    target = np.where(kinds == Kind.F, stages, stages - 1)
    return np.where(_SENDS[kinds], link[np.clip(target, 0, len(link) - 1)], 0.0)


def _explain(schedule: Schedule) -> InvalidScheduleError:
    """The kernels only see that something is wrong; the validator says what."""
    try:
        validate(schedule)
    except InvalidScheduleError as error:
        return error
    raise AssertionError("the kernels refuse a schedule that the validator accepts")
