"""The slow, obvious simulator that the kernels must equal, float for float.

It reads the spec and the schedule as objects and looks at everything again at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import KIND_RULES, Kind
from conductor.problem.spec import PipelineSpec

_ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTimes:
    """What the reference computes; lists in program order.

    Attributes:
        start_ms: start of each action (the second of an overlapping pair stands at the pair's end).
        end_ms: end of each action.
        sequence: program indices, rank after rank, in the order in which they ran.
        peak_memory: of each rank.
    """

    start_ms: list[float]
    end_ms: list[float]
    sequence: list[int]
    peak_memory: list[float]


class _Step:
    """One execution: what is known of every action, and what has happened so far."""

    def __init__(
        self, spec: PipelineSpec, schedule: Schedule, durations_ms: Sequence[float] | None
    ) -> None:
        self.spec = spec = spec.on_stages(schedule.stage_ranks)
        self.actions = [action for row in schedule.rows for action in row]
        self.rows = [
            list(range(start, end))
            for start, end in zip(
                schedule.rank_offsets[:-1].tolist(),
                schedule.rank_offsets[1:].tolist(),
                strict=True,
            )
        ]
        self.ranks = [rank for rank, row in enumerate(self.rows) for _ in row]
        self.num_splits = schedule.num_splits
        self.index = {action: i for i, action in enumerate(self.actions)}
        self.paired = {i for i, overlaps in enumerate(schedule.overlaps.tolist()) if overlaps}
        self.second = {i + 1 for i in self.paired}
        self.busy = self._busy(durations_ms)
        self.start: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self.free = [0.0] * schedule.num_ranks
        self.memory = [0.0] * schedule.num_ranks
        self.peak = [0.0] * schedule.num_ranks
        self.sequence: list[list[int]] = [[] for _ in self.rows]

    def _busy(self, durations_ms: Sequence[float] | None) -> list[float]:
        share = 1.0 / self.num_splits
        busy = []
        for i, action in enumerate(self.actions):
            expected = float(self.spec.duration_ms[action.kind, action.stage]) * share
            duration = expected if durations_ms is None else float(durations_ms[i])
            busy.append(duration + self._send(action) * share)
        for first in self.paired:
            busy[first] = (busy[first] + busy[first + 1]) * self.spec.overlap_factor
            busy[first + 1] = 0.0
        return busy

    def _send(self, action: Action) -> float:
        """A blocking sender pays its link; at the ends of the pipeline, the only one it has."""
        links = self.spec.link_ms.tolist()
        if not (self.spec.blocking_transfers and KIND_RULES[action.kind].sends and links):
            return 0.0
        link = action.stage if action.kind is Kind.F else action.stage - 1
        return float(links[min(max(link, 0), len(links) - 1)])

    def inputs(self, i: int) -> list[tuple[int, float]]:
        """The actions that action i waits for, each with its transfer time."""
        action = self.actions[i]
        rule = KIND_RULES[action.kind]
        found = []
        for need in rule.inputs:
            stage = action.stage + need.stage_offset
            if not 0 <= stage < self.spec.num_stages:
                continue
            lag = 0.0
            if need.stage_offset and not self.spec.blocking_transfers:
                lag = float(self.spec.link_ms[min(stage, action.stage)])
            for kind in need.kinds:
                source = self.index.get(Action(stage, kind, action.microbatch, action.split))
                if source is not None:
                    found.append((source, lag))
        split = action.split + rule.split_step
        if rule.split_step and 0 <= split < self.num_splits:
            found.append((self.index[action._replace(split=split)], 0.0))
        if i in self.paired:
            found += [(source, lag) for source, lag in self.inputs(i + 1) if source != i]
        return found

    def arrival(self, i: int) -> float | None:
        """When the last input of action i is there; None while one of them has not started."""
        latest = 0.0
        for source, lag in self.inputs(i):
            if source not in self.end:
                return None
            latest = max(latest, self.end[source] + lag)
        return latest

    def allocated(self, i: int) -> float:
        action = self.actions[i]
        memory = float(self.spec.per_stage("activation_memory")[action.stage])
        return KIND_RULES[action.kind].allocates * (memory * (1.0 / self.num_splits))

    def freed(self, i: int) -> float:
        action = self.actions[i]
        at_input = self.spec.freed_at_backward_input
        share = {Kind.F: 0.0, Kind.I: at_input, Kind.W: 1.0 - at_input, Kind.B: 1.0}[action.kind]
        memory = float(self.spec.per_stage("activation_memory")[action.stage])
        return share * (memory * (1.0 / self.num_splits))

    def run(self, i: int, time: float) -> None:
        """Runs action i, and the one that overlaps with it."""
        rank = self.ranks[i]
        for j in (i, i + 1) if i in self.paired else (i,):
            self.start[j] = time
            time += self.busy[j]
            self.end[j] = self.free[rank] = time
            self.sequence[rank].append(j)
            self.memory[rank] += self.allocated(j)
            self.peak[rank] = max(self.peak[rank], self.memory[rank])
            self.memory[rank] -= self.freed(j)

    def plan_peak(self, row: list[int]) -> float:
        memory = peak = 0.0
        for i in row:
            memory += self.allocated(i)
            peak = max(peak, memory)
            memory -= self.freed(i)
        return peak

    def fits(self, i: int, left: list[int], limit: float) -> bool:
        """Whether action i may start now and the rest of the plan, in its order, still fits."""
        if self.allocated(i) == 0.0:
            return True
        memory = self.memory[self.ranks[i]]
        if memory + self.allocated(i) > limit:
            return False
        for k in left[: left.index(i)]:
            memory += self.allocated(k)
            if memory + self.allocated(i) > limit:
                return False
            memory -= self.freed(k)
        return True

    def candidates(self, left: list[int], limit: float) -> list[tuple[int, float]]:
        """The actions at the head of their stream that may start, each with its arrival."""
        heads: dict[tuple[int, Kind], int] = {}
        for i in left:
            heads.setdefault((self.actions[i].stage, self.actions[i].kind), i)
        found = []
        for i in heads.values():
            arrival = self.arrival(i)
            if arrival is None or i in self.second:
                continue
            if i in self.paired and i + 1 not in heads.values():
                continue
            if self.fits(i, left, limit):
                found.append((i, arrival))
        return found

    def times(self) -> ReferenceTimes:
        n = range(len(self.actions))
        return ReferenceTimes(
            start_ms=[self.start[i] for i in n],
            end_ms=[self.end[i] for i in n],
            sequence=[i for row in self.sequence for i in row],
            peak_memory=self.peak,
        )


def static_reference(
    spec: PipelineSpec, schedule: Schedule, durations_ms: Sequence[float] | None = None
) -> ReferenceTimes:
    """Static execution: each rank strictly in schedule order.

    Args:
        spec: expected times, links and memory.
        schedule: a schedule that `validate` accepts.
        durations_ms: in program order; None takes the expected ones.
    """
    step = _Step(spec, schedule, durations_ms)
    rows = [list(row) for row in step.rows]
    while any(rows):
        for rank, row in enumerate(rows):
            if not row:
                continue
            arrival = step.arrival(row[0])
            if arrival is not None:
                step.run(row[0], max(step.free[rank], arrival))
                del row[: 2 if row[0] in step.paired else 1]
    return step.times()


def ready_first_reference(
    spec: PipelineSpec, schedule: Schedule, durations_ms: Sequence[float] | None = None
) -> ReferenceTimes:
    """Ready-first execution: a rank whose next action is not ready runs the first later one that is.

    Actions of one stage and kind keep their order. Of all ranks, the one that can start something first
    goes first; ties go to the lower rank. A forward that overtakes must leave the rest of the plan, in
    its order, within the memory limit. So the first action of the plan that is left over all ranks can
    always run, and nothing hangs. (A plan above the limit raises the limit to its own peak.)

    Args:
        spec: expected times, links and memory.
        schedule: a schedule that `validate` accepts.
        durations_ms: in program order; None takes the expected ones.
    """
    step = _Step(spec, schedule, durations_ms)
    rows = [list(row) for row in step.rows]
    limits = [
        max(float(limit), step.plan_peak(row)) * _ROUNDING
        for limit, row in zip(step.spec.memory_limits, rows, strict=True)
    ]
    while any(rows):
        events = []
        for rank, row in enumerate(rows):
            found = step.candidates(row, limits[rank])
            if found:
                time = max(step.free[rank], min(arrival for _, arrival in found))
                events.append((time, rank, min(i for i, arrival in found if arrival <= time)))
        time, rank, i = min(events)
        step.run(i, time)
        for j in (i, i + 1) if i in step.paired else (i,):
            rows[rank].remove(j)
    return step.times()
