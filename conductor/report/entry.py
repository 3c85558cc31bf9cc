"""Entry: one timeline of a report, and what a report shows beside its actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conductor.ir.helps import Helps
from conductor.ir.schedule import FloatArray, Int8Array, Int32Array
from conductor.simulator.idle import IdleCause
from conductor.simulator.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One timeline of a report.

    Attributes:
        title: what it is called, unlike the others.
        note: how it was made, in a few words.
        timeline: simulated or measured.
        lower_bound_ms: no makespan is below it; None is unknown.
        helps: migrations, or None.
        pieces: what each of them moves, where not all is alike.
    """

    title: str
    note: str
    timeline: Timeline
    lower_bound_ms: float | None = None
    helps: Helps | None = None
    pieces: tuple[str, ...] = ()

    @property
    def last_ms(self) -> float:
        """The end of all that is drawn."""
        helps_end = 0.0 if self.helps is None else float(self.helps.end_ms.max(initial=0.0))
        return max(self.timeline.makespan_ms, helps_end)

    @property
    def busy_ms(self) -> FloatArray:
        """Time that each rank works, for itself or for others; shape (num_ranks,)."""
        busy = self.timeline.busy_ms.copy()
        if self.helps is not None:
            np.add.at(busy, self.helps.lenders, self.helps.end_ms - self.helps.start_ms)
        return busy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdlePieces:
    """Stretches of time in which a rank idles, rank after rank, in order of time.

    Attributes:
        ranks: int32.
        start_ms: float64.
        end_ms: float64.
        causes: int8, `IdleCause`.
        actions: int32, program index of the action behind the gap; -1 after a rank's last one.
    """

    ranks: Int32Array
    start_ms: FloatArray
    end_ms: FloatArray
    causes: Int8Array
    actions: Int32Array


def idle_pieces(entry: Entry) -> IdlePieces:
    """Where ranks idle and why; helps for others are no idle time."""
    timeline, program = entry.timeline, entry.timeline.program
    gaps = timeline.idle_before_ms
    memory = gaps[:, IdleCause.MEMORY]
    edge = timeline.start_ms - memory
    last = np.zeros(program.num_ranks)
    np.maximum.at(last, program.ranks, timeline.end_ms)
    columns: list[tuple[Any, ...]] = []  # ranks, starts, ends, causes, actions
    for cause in (IdleCause.PREVIOUS_STAGE, IdleCause.NEXT_STAGE):
        found = np.flatnonzero(gaps[:, cause] > 0.0)
        columns.append(
            (program.ranks[found], edge[found] - gaps[found, cause], edge[found], cause, found)
        )
    found = np.flatnonzero(memory > 0.0)
    columns.append(
        (program.ranks[found], edge[found], timeline.start_ms[found], IdleCause.MEMORY, found)
    )
    idle = np.flatnonzero(last < timeline.makespan_ms)
    end = np.full(len(idle), timeline.makespan_ms)
    columns.append((idle, last[idle], end, IdleCause.NOTHING_LEFT, np.full(len(idle), -1)))
    rows = np.concatenate(
        [np.stack([np.broadcast_to(c, len(column[0])) for c in column]) for column in columns],
        axis=1,
    )
    if entry.helps is not None:
        rows = _without_helps(rows, entry.helps)
    # Rounding leaves gaps that are none.
    rows = rows[:, rows[2] - rows[1] > 1e-9 * timeline.makespan_ms]
    rows = rows[:, np.lexsort((rows[1], rows[0]))]
    return IdlePieces(
        ranks=rows[0].astype(np.int32),
        start_ms=rows[1],
        end_ms=rows[2],
        causes=rows[3].astype(np.int8),
        actions=rows[4].astype(np.int32),
    )


def _without_helps(rows: FloatArray, helps: Helps) -> FloatArray:
    """The pieces, less the time in which their rank helps others."""
    for lender, start, end in zip(helps.lenders, helps.start_ms, helps.end_ms, strict=True):
        cut = np.flatnonzero((rows[0] == lender) & (rows[1] < end) & (rows[2] > start))
        behind = rows[:, cut].copy()
        rows[2, cut] = start
        behind[1] = end
        rows = np.concatenate([rows, behind], axis=1)
        rows = rows[:, rows[2] > rows[1]]
    return rows


def memory_steps(timeline: Timeline, rank: int) -> tuple[FloatArray, FloatArray]:
    """A rank's memory over time: at each time the level changes to the one beside it."""
    program = timeline.program
    own = timeline.sequence[program.rank_offsets[rank] : program.rank_offsets[rank + 1]]
    times = np.stack((timeline.start_ms[own], timeline.end_ms[own]), axis=1).ravel()
    changes = np.stack((program.allocated[own], -program.freed[own]), axis=1).ravel()
    # Both of an overlapping pair start before either ends.
    order = np.argsort(times, kind="stable")
    order = order[changes[order] != 0.0]
    return times[order], np.cumsum(changes[order])


def size_of(timeline: Timeline) -> str:
    """Ranks, stages and micro-batches, in words."""
    schedule = timeline.schedule
    return (
        f"{schedule.num_ranks} ranks, {schedule.num_stages} stages,"
        f" {schedule.num_microbatches} micro-batches"
    )
