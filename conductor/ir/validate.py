"""Validation: a schedule is complete, ordered, free of deadlock and within memory."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from conductor.errors import DeadlockError, InvalidScheduleError
from conductor.ir.action import Action
from conductor.ir.draw import draw_around
from conductor.ir.replay import needs, replay
from conductor.ir.schedule import FloatArray, Schedule
from conductor.problem.kind import KIND_RULES, Kind
from conductor.problem.spec import PipelineSpec


def validate(schedule: Schedule, spec: PipelineSpec | None = None) -> None:
    """Checks that a schedule can run, and with a spec that it fits it.

    Every stage does F and either B or I and W exactly once for each micro-batch (and split), on
    its own rank; each kind goes in micro-batch order, splits forward for F and back for B and I;
    no ranks wait for each other; the memory of no rank is exceeded.

    Raises:
        InvalidScheduleError: names rank, step and action, and draws the place.
        DeadlockError: the same, and names the ranks that wait for each other.
        InvalidSpecError: the spec gives other stages than the schedule has.
    """
    if spec is not None:
        _check_sizes(schedule, spec)
    _check_ranges(schedule)
    _check_complete(schedule)
    _check_streams(schedule)
    _check_progress(schedule)
    if spec is not None:
        _check_memory(schedule, spec)


def _fault(
    schedule: Schedule,
    rank: int,
    step: int,
    problem: str,
    *,
    also: Collection[int] = (),
    error: type[InvalidScheduleError] = InvalidScheduleError,
) -> InvalidScheduleError:
    drawing = draw_around(schedule, rank, step, also=also)
    return error(f"rank {rank}, step {step}: {problem}\n{drawing}")


def _fault_at(schedule: Schedule, index: int, problem: str) -> InvalidScheduleError:
    """A fault of the action at a program-order index."""
    rank = int(np.searchsorted(schedule.rank_offsets, index, side="right")) - 1
    step = index - int(schedule.rank_offsets[rank])
    return _fault(schedule, rank, step, f"{schedule.action(index)} {problem}")


def _check_sizes(schedule: Schedule, spec: PipelineSpec) -> None:
    for what, has, wants in (
        ("ranks", schedule.num_ranks, spec.num_ranks),
        ("micro-batches", schedule.num_microbatches, spec.num_microbatches),
    ):
        if has != wants:
            raise InvalidScheduleError(f"the schedule has {has} {what}, but the spec has {wants}")
    spec.on_stages(schedule.stage_ranks)


def _check_ranges(schedule: Schedule) -> None:
    num_ranks = schedule.num_ranks
    for stage, rank in enumerate(schedule.stage_ranks):
        if not 0 <= rank < num_ranks:
            raise InvalidScheduleError(
                f"stage {stage} is on rank {rank}, but the schedule has {num_ranks} ranks"
            )
    for what, numbers, count in (
        ("stage", schedule.stages, schedule.num_stages),
        ("micro-batch", schedule.microbatches, schedule.num_microbatches),
        ("split", schedule.splits, schedule.num_splits),
    ):
        wrong = np.flatnonzero((numbers < 0) | (numbers >= count))
        if len(wrong):
            raise _fault_at(
                schedule, int(wrong[0]), f"is on a {what} that is not in 0 to {count - 1}"
            )
    ranks = np.repeat(np.arange(num_ranks), np.diff(schedule.rank_offsets))
    wrong = np.flatnonzero(np.asarray(schedule.stage_ranks)[schedule.stages] != ranks)
    if len(wrong):
        owner = schedule.stage_ranks[schedule.stages[wrong[0]]]
        raise _fault_at(schedule, int(wrong[0]), f"belongs on rank {owner}, which has its stage")
    backward_follows = np.isin(schedule.kinds[1:], (Kind.I, Kind.B)) & (np.diff(ranks) == 0)
    pairs = (schedule.kinds == Kind.F) & np.append(backward_follows, [False])[: len(ranks)]
    wrong = np.flatnonzero(schedule.overlaps & ~pairs)
    if len(wrong):
        raise _fault_at(schedule, int(wrong[0]), "cannot overlap: that takes an F before an I or B")


def _check_complete(schedule: Schedule) -> None:
    """F once, and B once or I and W once."""
    shape = (len(Kind), schedule.num_stages, schedule.num_microbatches, schedule.num_splits)
    where = np.full(shape, -1)
    keys = (schedule.kinds, schedule.stages, schedule.microbatches, schedule.splits)
    where[keys] = np.arange(schedule.num_actions)
    twice = np.flatnonzero(where[keys] != np.arange(schedule.num_actions))
    if len(twice):
        raise _fault_at(schedule, int(where[tuple(key[twice[0]] for key in keys)]), "stands twice")
    has = where >= 0
    both = np.argwhere(has[Kind.B] & (has[Kind.I] | has[Kind.W]))
    if len(both):
        index = int(where[(Kind.B, *both[0])])
        raise _fault_at(schedule, index, "does what an I or a W of its micro-batch does too")
    for kind, missing in (
        (Kind.F, ~has[Kind.F]),
        (Kind.B, ~(has[Kind.B] | has[Kind.I] | has[Kind.W])),
        (Kind.I, has[Kind.W] & ~has[Kind.I]),
        (Kind.W, has[Kind.I] & ~has[Kind.W]),
    ):
        if missing.any():
            stage, microbatch, split = (int(number) for number in np.argwhere(missing)[0])
            rank = schedule.stage_ranks[stage]
            start, end = schedule.rank_offsets[rank : rank + 2]
            later = (
                (schedule.stages[start:end] == stage)
                & (schedule.kinds[start:end] == kind)
                & (schedule.microbatches[start:end] > microbatch)
            )
            step = int(np.argmax(later)) if later.any() else int(end - start)
            unit = (microbatch, split)
            or_both = f" (or {Action(stage, Kind.I, *unit)} and {Action(stage, Kind.W, *unit)})"
            raise _fault(
                schedule, rank, step,
                f"{Action(stage, kind, *unit)}{or_both if kind == Kind.B else ''} is missing",
            )  # fmt: skip


def _check_streams(schedule: Schedule) -> None:
    """Each kind of each stage in micro-batch order."""
    steps = np.array([KIND_RULES[kind].split_step for kind in Kind])[schedule.kinds]
    ranks_of_units = (
        schedule.microbatches.astype(np.int64) * schedule.num_splits - steps * schedule.splits
    )
    unordered = steps == 0  # its splits may go in any order
    ranks_of_units[unordered] = schedule.microbatches[unordered]
    stream = schedule.stages * len(Kind) + schedule.kinds
    by_stream = np.argsort(stream, kind="stable")
    back = (np.diff(stream[by_stream]) == 0) & (np.diff(ranks_of_units[by_stream]) < 0)
    if back.any():
        at = int(np.flatnonzero(back)[0])
        before = schedule.action(int(by_stream[at]))
        raise _fault_at(
            schedule,
            int(by_stream[at + 1]),
            f"is out of micro-batch order: it comes after {before}",
        )


def _check_progress(schedule: Schedule) -> None:
    """No deadlock: follows who waits for whom until a rank comes up again."""
    starts, rows = replay(schedule), schedule.rows
    stuck = [rank for rank, row in enumerate(rows) if len(starts[rank]) < len(row)]
    if not stuck:
        return
    done = {action for row, times in zip(rows, starts, strict=True) for action in row[: len(times)]}
    rank, path, notes = stuck[0], [], []
    while rank not in path:
        path.append(rank)
        step = len(starts[rank])
        joined = bool(schedule.overlaps[schedule.rank_offsets[rank] + step])
        action, source = next(
            (action, need)
            for action in rows[rank][step : step + 1 + joined]
            for need in needs(schedule, action)
            if not done.intersection(need)
        )
        owner = schedule.stage_ranks[source[0].stage]
        waited = next(other for other in source if other in rows[owner])
        notes.append(f"{action} on rank {rank} waits for {waited} on rank {owner}")
        rank = owner
    first = path.index(rank)
    cycle = path[first:]
    who = (
        f"rank {rank} waits for itself"
        if len(cycle) == 1
        else f"ranks {', '.join(map(str, sorted(cycle)))} wait for each other"
    )
    raise _fault(
        schedule, rank, len(starts[rank]), f"deadlock: {who}: {', '.join(notes[first:])}",
        also=cycle, error=DeadlockError,
    )  # fmt: skip


def _check_memory(schedule: Schedule, spec: PipelineSpec) -> None:
    limits = spec.memory_limits
    spec = spec.on_stages(schedule.stage_ranks)
    memory = spec.per_stage("activation_memory")[schedule.stages] / schedule.num_splits
    change = _memory_changes(spec)[schedule.kinds] * memory
    for rank in range(schedule.num_ranks):
        held = np.cumsum(change[schedule.rank_offsets[rank] : schedule.rank_offsets[rank + 1]])
        missing = held.max(initial=0.0) - limits[rank]
        if missing > 1e-9 * max(1.0, limits[rank]):
            step = int(np.argmax(held > limits[rank] * (1 + 1e-9) + 1e-9))
            raise _fault(
                schedule, rank, step,
                f"memory is exceeded: the rank needs {held.max():g} at its peak, its limit is"
                f" {limits[rank]:g}, {missing:g} is missing",
            )  # fmt: skip


def _memory_changes(spec: PipelineSpec) -> FloatArray:
    """Share of a stage's activation memory that each kind adds (F) or frees, shape (kinds,)."""
    changes = np.zeros(len(Kind))
    changes[Kind.F] = 1.0
    changes[Kind.I] = -spec.freed_at_backward_input
    changes[Kind.W] = spec.freed_at_backward_input - 1.0
    changes[Kind.B] = -1.0
    return changes
