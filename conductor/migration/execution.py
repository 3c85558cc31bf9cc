"""Execution of a schedule whose ranks lend each other compute: what is moved, and how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from conductor.errors import DeadlockError, InvalidScheduleError
from conductor.ir.schedule import BoolArray, FloatArray, Int32Array, Int64Array, Schedule
from conductor.migration import kernels
from conductor.migration.model import SimpleModel
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.kernels import TOLERANCE
from conductor.simulator.program import Program, encode

Execution = Literal["static", "ready-first"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MigrationRules:
    """How ranks decide. Arrays are in program order; None is the same for every action.

    Attributes:
        max_lenders: of one action, 1 to 4.
        min_gain: share of an action's time that a help must save, each lender's own.
        max_candidates: lenders looked at for an action, those that are free first.
        blocks: an action has so many blocks; at the end of each its rank knows the elapsed time. 1 is
            no look inside an action.
        surprise: share by which an action must be slower or faster than expected at its first block
            boundary to be news.
        recheck: every block boundary is a decision, news or not.
        postpone: decide at the first block boundary instead of the action's start: its true time is
            known then, but less of it can move.
        most_parts: int32, shape (n,): cap on the parts of each action that move.
        latest_start_ms: shape (n,): when each action must start lest the plan's makespan grows
            (`latest_starts` of a plan).
        delay_share: a lender may come late to its next action by this share of how much more the
            borrower is late, both against `latest_start_ms`; 0 is never.
        patience_ms: an action that starts so much before its latest start asks for no help.
        least_gain: shape (n,): `min_gain` of each action.
        priority: int32, shape (n,): with ready-first execution, of a rank's ready actions that with the
            smallest goes first; None is the schedule's order.
    """

    max_lenders: int = 2
    min_gain: float = 0.02
    max_candidates: int = 8
    blocks: int = 1
    surprise: float = 0.05
    recheck: bool = False
    postpone: bool = False
    most_parts: Int32Array | int | None = None
    latest_start_ms: FloatArray | None = None
    delay_share: float = 0.0
    patience_ms: float = math.inf
    least_gain: FloatArray | None = None
    priority: Int32Array | None = None

    def with_(self, **changes: Any) -> MigrationRules:
        """A copy with other values."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A schedule ready to run with migration: the arrays of the compiled event loop."""

    spec: PipelineSpec
    schedule: Schedule
    program: Program
    layout: kernels.Layout
    costs: kernels.Costs
    rules: kernels.Rules

    def with_rules(self, rules: MigrationRules) -> Prepared:
        """The same under other rules."""
        return replace(
            self,
            layout=_prioritised(self.layout, rules.priority),
            rules=_rules(rules, self.program.num_actions, self.costs.parts),
        )

    def realise(self, durations_ms: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray]:
        """What the event loop takes of realised durations, shape (draws, n) or (n,).

        Returns:
            The time of each action without its blocking send, and realised over expected time (1 where
            nothing is expected), both of shape (draws, n).
        """
        expected = self.program.duration_ms
        durations = np.asarray(expected if durations_ms is None else durations_ms, np.float64)
        own, expected = _own_ms(self.program, durations), self.layout.duration_ms
        return own, np.divide(own, expected, out=np.ones_like(own), where=expected > 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MigrationRun:
    """One step with migration.

    Attributes:
        makespan_ms: end of the last action.
        start_ms: shape (n,), program order.
        end_ms: shape (n,): when the last part of the action is there (and sent, if sends block).
        moved: int32, shape (n,): parts of each action that moved.
        help_action: shape (helps,): the action helped, in the order of the decisions.
        help_lender: rank that helps.
        help_parts: parts that it does.
        help_decided_ms: when it was decided.
        help_start_ms: from then on the lender is occupied.
        help_end_ms: until then.
    """

    makespan_ms: float
    start_ms: FloatArray
    end_ms: FloatArray
    moved: Int32Array
    help_action: Int32Array
    help_lender: Int32Array
    help_parts: Int32Array
    help_decided_ms: FloatArray
    help_start_ms: FloatArray
    help_end_ms: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MigrationDraws:
    """Many steps with migration.

    Attributes:
        makespan_ms: shape (draws,).
        helps: int64, shape (draws,): migrations in a step.
        moved_share: shape (draws,): work that moved, as a share of all expected work.
    """

    makespan_ms: FloatArray
    helps: Int64Array
    moved_share: FloatArray


def prepare(
    spec: PipelineSpec,
    schedule: Schedule,
    *,
    model: SimpleModel | None = None,
    rules: MigrationRules | None = None,
    execution: Execution = "static",
) -> Prepared:
    """Encodes a schedule for execution with migration.

    Args:
        spec: the problem, or its rank-level profile.
        schedule: the order of each rank; with `ready-first` only a priority.
        model: what moves and what it costs.
        rules: how ranks decide.
        execution: as in `conductor.simulator.simulate`.

    Raises:
        InvalidScheduleError: as `encode`, or overlapping pairs are to leave the plan.
    """
    model = model or SimpleModel()
    if execution == "ready-first" and schedule.overlaps.any():
        raise InvalidScheduleError(
            f"{schedule.name!r} runs pairs of actions together: with migration it runs static only"
        )
    spec = spec.on_stages(schedule.stage_ranks)
    program = encode(spec, schedule)
    prepared = Prepared(
        spec=spec,
        schedule=schedule,
        program=program,
        layout=_layout(program, static=execution == "static"),
        costs=_costs(spec, schedule, program, model),
        rules=_rules(MigrationRules(), program.num_actions, model.parts),
    )
    return prepared.with_rules(rules or MigrationRules())


def run(prepared: Prepared, durations_ms: npt.ArrayLike | None = None) -> MigrationRun:
    """One step.

    Args:
        prepared: of `prepare`.
        durations_ms: realised durations, shape (n,); None is the expected ones. A lender's own time for
            parts of an action varies as its own action of that kind and micro-batch does.

    Raises:
        DeadlockError: ranks wait for each other for ever.
    """
    durations, factors = prepared.realise(durations_ms)
    state, log = _buffers(prepared)
    makespan = kernels.run(
        prepared.layout, prepared.costs, prepared.rules, state, log, durations[0], factors[0]
    )
    return finished(prepared, makespan, log)


def finished(prepared: Prepared, makespan: float, log: kernels.Log) -> MigrationRun:
    """What an event loop has left in its log.

    Raises:
        DeadlockError: ranks wait for each other for ever.
    """
    check_progress(prepared, np.array([makespan]))
    count = int(log.num_helps[0])
    return MigrationRun(
        makespan_ms=float(makespan),
        start_ms=log.start_ms,
        end_ms=log.end_ms,
        moved=log.moved,
        help_action=log.help_action[:count],
        help_lender=log.help_lender[:count],
        help_parts=log.help_parts[:count],
        help_decided_ms=log.help_decided_ms[:count],
        help_start_ms=log.help_start_ms[:count],
        help_end_ms=log.help_end_ms[:count],
    )


def run_draws(prepared: Prepared, durations_ms: npt.ArrayLike) -> MigrationDraws:
    """Many steps, one for each row of realised durations, shape (draws, n).

    Raises:
        DeadlockError: ranks wait for each other for ever.
    """
    durations, factors = prepared.realise(durations_ms)
    moved = np.zeros((len(durations), 2), np.int64)
    work = np.zeros(len(durations))
    makespans = kernels.run_draws(
        prepared.layout, prepared.costs, prepared.rules, durations, factors, moved, work
    )
    check_progress(prepared, makespans)
    total = prepared.program.duration_ms.sum()
    return MigrationDraws(makespan_ms=makespans, helps=moved[:, 1], moved_share=work / total)


def latest_starts(prepared: Prepared) -> FloatArray:
    """When each action must start, shape (n,), lest the makespan of the expected step grows.

    Orders and helps are those of the step with expected durations.
    """
    layout = prepared.layout
    state, log = _buffers(prepared)
    durations, factors = prepared.realise(None)
    makespan = kernels.run(
        layout, prepared.costs, prepared.rules, state, log, durations[0], factors[0]
    )
    check_progress(prepared, np.array([makespan]))
    starts = np.concatenate([log.start_ms, log.help_start_ms[: log.num_helps[0]]])
    by_start = np.argsort(-starts, kind="stable")
    latest: FloatArray = kernels.latest_starts(layout, prepared.costs, log, makespan, by_start)
    return latest


def _buffers(prepared: Prepared) -> tuple[kernels.State, kernels.Log]:
    layout, n = prepared.layout, prepared.program.num_actions
    streams = len(layout.stream_offsets) - 1
    return kernels.make_state(n, len(layout.rank_streams) - 1, streams), kernels.make_log(n)


def check_progress(prepared: Prepared, makespans: FloatArray) -> None:
    """Raises DeadlockError where a makespan is inf: ranks wait for each other."""
    if not np.isfinite(makespans).all():
        raise DeadlockError(
            f"the order of {prepared.schedule.name!r} cannot be executed: ranks wait for each other"
        )


def _layout(program: Program, *, static: bool) -> kernels.Layout:
    """The program as streams: one a rank, or one a rank, stage and kind."""
    n, num_ranks = program.num_actions, program.num_ranks
    if static:
        streams = program.ranks.astype(np.int32)
        rank_streams = np.arange(num_ranks + 1)
    else:
        keys = program.ranks.astype(np.int64) * (int(program.streams.max()) + 1) + program.streams
        unique, streams = np.unique(keys, return_inverse=True)
        owners = unique // (int(program.streams.max()) + 1)
        rank_streams = np.searchsorted(owners, np.arange(num_ranks + 1))
    allocating = np.zeros(num_ranks, np.int64)
    for rank in range(num_ranks):
        own = slice(*program.rank_offsets[rank : rank + 2])
        allocating[rank] = len(np.unique(program.streams[own][program.allocated[own] > 0.0]))
    counts = np.bincount(streams, minlength=int(rank_streams[-1]))
    layout = kernels.Layout(
        ranks=program.ranks,
        inputs=program.inputs,
        input_lag_ms=program.input_lag_ms,
        outputs=program.outputs,
        output_lag_ms=program.output_lag_ms,
        duration_ms=_own_ms(program, program.duration_ms)[0],
        send_ms=np.where(_paired(program), 0.0, program.send_ms),
        allocated=program.allocated,
        freed=program.freed,
        limits=np.maximum(program.memory_limits, _planned_peaks(program)) * (1.0 + TOLERANCE),
        looks_ahead=(allocating > 1) & np.isfinite(program.memory_limits),
        rank_offsets=program.rank_offsets,
        priority=np.zeros(n, np.int32),
        rank_streams=rank_streams.astype(np.int32),
        stream_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        stream_actions=np.argsort(streams, kind="stable").astype(np.int32),
        stream_of=streams.astype(np.int32),
        work_before_ms=np.zeros(n),
        static=static,
    )
    return _prioritised(layout, None)


def _prioritised(layout: kernels.Layout, priority: Int32Array | None) -> kernels.Layout:
    """The layout with another order among a rank's ready actions; None is the schedule's."""
    n = len(layout.ranks)
    before, place = np.zeros(n), np.zeros(n, np.int32)
    expected = layout.duration_ms + layout.send_ms
    for first, last in zip(layout.rank_offsets[:-1], layout.rank_offsets[1:], strict=True):
        own = np.arange(first, last)
        if priority is not None:
            own = own[np.argsort(priority[first:last], kind="stable")]
        before[own[1:]] = np.cumsum(expected[own])[:-1]
        place[own] = np.arange(last - first)
    return layout._replace(priority=place, work_before_ms=before)


def _planned_peaks(program: Program) -> FloatArray:
    """The highest memory of each rank when it does its actions in order, shape (num_ranks,)."""
    peaks = np.zeros(program.num_ranks)
    for rank, (start, end) in enumerate(
        zip(program.rank_offsets[:-1], program.rank_offsets[1:], strict=True)
    ):
        allocated, freed = program.allocated[start:end], program.freed[start:end]
        held = np.cumsum(allocated) - np.cumsum(freed) + freed
        peaks[rank] = held.max(initial=0.0)
    return peaks


def _paired(program: Program) -> BoolArray:
    """Whether an action is one of an overlapping pair, shape (n,)."""
    paired = program.overlaps.copy()
    paired[1:] |= program.overlaps[:-1]
    return paired


def _own_ms(program: Program, durations_ms: FloatArray) -> FloatArray:
    """What actions take without a blocking send, shape (draws, n); the first of an overlapping pair
    takes the pair's whole time."""
    own = np.atleast_2d(durations_ms)
    first = np.flatnonzero(program.overlaps)
    if len(first):
        own, busy = own.copy(), program.busy_ms(durations_ms)
        own[:, first], own[:, first + 1] = busy[:, first], busy[:, first + 1]
    return np.ascontiguousarray(own)


def _costs(
    spec: PipelineSpec, schedule: Schedule, program: Program, model: SimpleModel
) -> kernels.Costs:
    """The model on a schedule. A lender runs a borrower's stage as its own of the same turn."""
    ranks = np.asarray(schedule.stage_ranks)
    own = [np.flatnonzero(ranks == rank) for rank in range(spec.num_ranks)]
    turn = np.array(
        [int(np.flatnonzero(own[rank] == stage)[0]) for stage, rank in enumerate(ranks)]
    )
    stand_in = np.array(
        [
            [stages[min(turn[stage], len(stages) - 1)] for stages in own]
            for stage in range(len(ranks))
        ],
        np.int32,
    )
    units = schedule.microbatches * np.int32(schedule.num_splits) + schedule.splits
    where = np.full(
        (len(Kind), len(ranks), schedule.num_microbatches * schedule.num_splits), -1, np.int32
    )
    where[schedule.kinds, schedule.stages, units] = np.arange(schedule.num_actions)
    movable = np.array([model.share(kind) for kind in Kind])[schedule.kinds]
    movable[_paired(program)] = 0.0
    runs_as = stand_in
    if model.lender_time == "borrower":
        runs_as = np.broadcast_to(np.arange(len(ranks))[:, None], stand_in.shape)
    return kernels.Costs(
        movable=movable,
        stand_in=stand_in,
        lend_ms=np.ascontiguousarray(spec.duration_ms[:, runs_as] / schedule.num_splits),
        where=where,
        kinds=schedule.kinds,
        stages=schedule.stages,
        units=units.astype(np.int32),
        latency_ms=model.latency_ms,
        part_ms=model.part_ms,
        parts=model.parts,
    )


def _rules(rules: MigrationRules, n: int, parts: int) -> kernels.Rules:
    def each(value: npt.ArrayLike | None, default: float) -> FloatArray:
        return np.broadcast_to(
            np.asarray(default if value is None else value, np.float64), (n,)
        ).copy()

    return kernels.Rules(
        most_parts=each(rules.most_parts, parts).astype(np.int32),
        latest_start_ms=each(rules.latest_start_ms, 0.0),
        delay_share=rules.delay_share,
        patience_ms=rules.patience_ms,
        least_gain=each(rules.least_gain, rules.min_gain),
        max_lenders=min(rules.max_lenders, kernels.MAX_LENDERS),
        max_candidates=rules.max_candidates,
        blocks=rules.blocks,
        surprise=rules.surprise,
        recheck=rules.recheck and rules.blocks > 1,
        postpone=rules.postpone and rules.blocks > 1,
    )
