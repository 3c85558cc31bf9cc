"""A slow, obvious execution with migration, float for float equal to the compiled event loop.

It looks at every rank for the next event and at every rank for a lender, keeps what happens in plain
objects, and splits an action by giving away one part after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from conductor.ir.schedule import FloatArray
from conductor.migration.execution import Prepared


@dataclass(slots=True, kw_only=True)
class Help:
    """Parts of an action that a lender does."""

    action: int
    lender: int
    parts: int
    decided_ms: float
    ready_ms: float
    expected_ready_ms: float
    start_ms: float = math.nan
    end_ms: float = math.nan


@dataclass(slots=True, kw_only=True)
class _Rank:
    doing: str = "idle"  # idle, help, run (to the next block boundary), end
    event_ms: float = math.inf
    action: int = -1
    free_ms: float = 0.0
    pending: Help | None = None
    helping: Help | None = None
    memory: float = 0.0
    block: int = 0
    local_ms: float = 0.0
    local_parts: int = 0


@dataclass(slots=True, kw_only=True)
class _Action:
    missing: int
    arrival_ms: float = 0.0
    status: str = "waiting"  # waiting, running, ended
    start_ms: float = math.nan
    end_ms: float = math.nan
    expected_end_ms: float = math.nan
    local_end_ms: float = math.nan
    back_ms: float = 0.0
    helps: list[Help] = field(default_factory=list)
    outstanding: int = 0

    @property
    def moved(self) -> int:
        return sum(entry.parts for entry in self.helps)


def split(
    lenders: Sequence[tuple[float, float, int]], whole_ms: float, saved_ms: float, parts: int
) -> tuple[float, list[int]]:
    """Gives parts one by one to the lender that would be back first, while that shortens the action.

    Args:
        lenders: (offset, time of a part, most parts) of each.
        whole_ms: the action's time without help.
        saved_ms: its rank's time for one part.
        parts: parts that can move.

    Returns:
        The action's time and the parts of each lender.
    """
    given = [0] * len(lenders)
    time = whole_ms
    while sum(given) < parts:
        back, lender = min(
            (offset + slope * (given[index] + 1) if given[index] < most else math.inf, index)
            for index, (offset, slope, most) in enumerate(lenders)
        )
        shorter = max(whole_ms - saved_ms * (sum(given) + 1), back)
        if shorter >= time:
            break
        time = shorter
        given[lender] += 1
    return time, given


class Knowledge:
    """Where every rank and action stands, and the greedy choice of lenders from that.

    Knows expected times only; the runtime keeps one on every rank, up to date by messages.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.layout = prepared.layout
        self.costs = prepared.costs
        self.rules = prepared.rules
        self.ranks = [_Rank() for _ in range(prepared.program.num_ranks)]
        self.actions = [_Action(missing=int((row >= 0).sum())) for row in self.layout.inputs]
        self.helps: list[Help] = []
        self.streams: list[list[int]] = [
            self.layout.stream_actions[start:end].tolist()
            for start, end in zip(
                self.layout.stream_offsets[:-1], self.layout.stream_offsets[1:], strict=True
            )
        ]

    def _heads(self, rank: int) -> list[int]:
        first, last = self.layout.rank_streams[rank : rank + 2]
        heads = [stream[0] for stream in self.streams[first:last] if stream]
        if self.layout.static:
            return heads
        return [i for i in heads if self._fits(rank, i)]

    def _fits(self, rank: int, i: int) -> bool:
        allocated, limit = self.layout.allocated, self.layout.limits[rank]
        held = self.ranks[rank].memory
        if allocated[i] == 0.0:
            return True
        overtaken = (
            [
                k
                for k in range(self.layout.rank_offsets[rank], i)
                if self.actions[k].status == "waiting"
            ]
            if self.layout.looks_ahead[rank]
            else []
        )
        if held + allocated[i] > limit:
            return False
        for k in overtaken:
            held += float(allocated[k])
            if held + allocated[i] > limit:
                return False
            held -= float(self.layout.freed[k])
        return True

    def _expected_start(self, i: int, now: float) -> float:
        layout = self.layout
        ready = self.actions[i].arrival_ms
        for source, lag in zip(
            layout.inputs[i].tolist(), layout.input_lag_ms[i].tolist(), strict=True
        ):
            if source < 0 or self.actions[source].status == "ended":
                continue
            if self.actions[source].status == "running":
                end = max(self.actions[source].expected_end_ms, now)
            else:
                rank = layout.ranks[source]
                head = self.streams[layout.stream_of[source]][0]
                end = (
                    max(self.ranks[rank].free_ms, now)
                    + float(layout.work_before_ms[source] - layout.work_before_ms[head])
                    + float(layout.duration_ms[source])
                    + float(layout.send_ms[source])
                )
            ready = max(ready, end + lag)
        return ready

    def _latest_return(self, rank: int, now: float, late_ms: float) -> float:
        times = [math.inf]
        for i in self._heads(rank):
            time = self._expected_start(i, now)
            spare = late_ms - (time - float(self.rules.latest_start_ms[i]))
            times.append(time + self.rules.delay_share * spare if spare > 0.0 else time)
        return min(times)

    def decide(
        self,
        rank: int,
        now: float,
        whole: float,
        saved: float,
        half: float,
        parts: int,
        inside: bool,
    ) -> tuple[float, list[tuple[int, int]]]:
        """Lenders and their parts for the rank's running action; arguments as of `kernels.decide`.

        Returns:
            The expected time until the action's work is done, here or there; (lender, parts) pairs.
        """
        i = self.ranks[rank].action
        room = self.rules.max_lenders - len(self.actions[i].helps)
        late = now - float(self.rules.latest_start_ms[i])
        if room <= 0 or parts <= 0 or saved <= 0.0 or -late > self.rules.patience_ms:
            return whole, []
        least = float(self.rules.least_gain[i]) * whole
        enough = whole - least
        latency = self.costs.latency_ms
        able: list[int] = []
        lines: list[tuple[float, float, int]] = []
        for lender in sorted(range(len(self.ranks)), key=lambda r: (self.ranks[r].free_ms, r)):
            state = self.ranks[lender]
            free = max(state.free_ms - now, 0.0)
            running = state.action >= 0 and self.actions[state.action].status == "running"
            if lender == rank or state.pending is not None:
                continue
            if inside and running and self.actions[state.action].outstanding:
                continue
            if free + 2.0 * latency > enough or len(able) == self.rules.max_candidates:
                break
            work = self._part_ms(i, lender)
            begin = max(free, half)
            offset = begin + 2.0 * latency
            span = self._latest_return(lender, now, late) - now - begin - latency
            if offset + work + self.costs.part_ms > enough or span < work:
                continue
            most = parts if span >= work * parts else int(span / work)
            able.append(lender)
            lines.append((offset, work + self.costs.part_ms, most))
        best: float = whole
        choice: list[tuple[int, int]] = []
        chosen: list[int] = []
        while len(chosen) < min(room, len(able)):
            most_ms, added = best - least, -1
            for index in range(len(able)):
                if index in chosen:
                    continue
                trial = [*chosen, index]
                time, given = split([lines[k] for k in trial], whole, saved, parts)
                if time < best and time <= most_ms and given[-1]:
                    best, added = time, index
                    choice = [(able[k], q) for k, q in zip(trial, given, strict=True)]
            if added < 0:
                break
            chosen.append(added)
        return best, choice

    def _part_ms(self, i: int, lender: int) -> float:
        """What a lender is expected to be busy for with one part, beyond the latency."""
        whole = float(self.costs.lend_ms[self.costs.kinds[i], self.costs.stages[i], lender])
        return whole * (float(self.costs.movable[i]) / self.costs.parts) + self.costs.part_ms

    def _free_after(self, entry: Help, now: float) -> float:
        work = self._part_ms(entry.action, entry.lender) * entry.parts
        return max(now, entry.expected_ready_ms) + self.costs.latency_ms + work


class Reference(Knowledge):
    """One step of a prepared schedule; `makespan_ms`, `actions` and `helps` hold the outcome."""

    def __init__(self, prepared: Prepared, durations_ms: FloatArray) -> None:
        super().__init__(prepared)
        own, factors = prepared.realise(durations_ms)
        self.durations: list[float] = own[0].tolist()
        self.factors: list[float] = factors[0].tolist()
        self.makespan_ms = self._run()

    def _run(self) -> float:
        for rank in range(len(self.ranks)):
            self._dispatch(rank, 0.0)
        while True:
            now, rank = min((state.event_ms, rank) for rank, state in enumerate(self.ranks))
            if now == math.inf:
                break
            step = {
                "idle": self._begin, "help": self._finish_help, "run": self._boundary,
                "end": self._finish,
            }[self.ranks[rank].doing]  # fmt: skip
            step(rank, now)
        if any(action.status != "ended" for action in self.actions):
            return math.inf
        return max(action.end_ms for action in self.actions)

    def _next(self, rank: int, now: float) -> None:
        choices = [
            (max(now, self.actions[i].arrival_ms), int(self.layout.priority[i]), i)
            for i in self._heads(rank)
            if self.actions[i].missing == 0
        ]
        time, _, action = min(choices, default=(math.inf, 0, -1))
        state = self.ranks[rank]
        state.doing, state.event_ms, state.action = "idle", time, action

    def _dispatch(self, rank: int, now: float) -> None:
        if self.ranks[rank].pending is not None:
            self._begin_help(rank, now)
        else:
            self.ranks[rank].free_ms = now
            self._next(rank, now)

    def _lend(
        self,
        rank: int,
        now: float,
        half: float,
        expected_half: float,
        choice: list[tuple[int, int]],
    ) -> int:
        i = self.ranks[rank].action
        for lender, parts in choice:
            entry = Help(
                action=i, lender=lender, parts=parts, decided_ms=now, ready_ms=now + half,
                expected_ready_ms=now + expected_half,
            )  # fmt: skip
            self.helps.append(entry)
            self.actions[i].helps.append(entry)
            state = self.ranks[lender]
            state.pending = entry
            state.free_ms = self._free_after(entry, max(state.free_ms, now))
            if state.doing == "idle":
                self._begin_help(lender, now)
        self.actions[i].outstanding += len(choice)
        return sum(parts for _, parts in choice)

    def _begin_help(self, lender: int, now: float) -> None:
        state = self.ranks[lender]
        entry, state.pending = state.pending, None
        assert entry is not None
        costs, i = self.costs, entry.action
        kind, stage = costs.kinds[i], costs.stages[i]
        twin = costs.where[kind, costs.stand_in[stage, lender], costs.units[i]]
        factor = self.factors[twin if twin >= 0 else i]
        work = float(costs.lend_ms[kind, stage, lender]) * factor
        share = float(costs.movable[i]) / costs.parts
        entry.start_ms = max(now, entry.ready_ms)
        entry.end_ms = (
            entry.start_ms + costs.latency_ms + (work * share + costs.part_ms) * entry.parts
        )
        state.free_ms = self._free_after(entry, now)
        state.helping, state.doing, state.event_ms = entry, "help", entry.end_ms

    def _begin(self, rank: int, now: float) -> None:
        state = self.ranks[rank]
        i = state.action
        action = self.actions[i]
        self.streams[self.layout.stream_of[i]].pop(0)
        action.status, action.start_ms = "running", now
        state.memory += float(self.layout.allocated[i])
        movable = float(self.costs.movable[i])
        expected, real = float(self.layout.duration_ms[i]), self.durations[i]
        send = float(self.layout.send_ms[i])
        local, time = real, expected
        limit = min(int(self.rules.most_parts[i]), self.costs.parts)
        state.block = 0
        action.expected_end_ms = now + expected + send
        if movable > 0.0 and limit > 0 and not self.rules.postpone:
            half = expected * (1.0 - movable) * 0.5
            saved = expected * movable / self.costs.parts
            time, choice = self.decide(rank, now, expected, saved, half, limit, False)
            if choice:
                moved = self._lend(rank, now, real * (1.0 - movable) * 0.5, half, choice)
                local = real * (1.0 - movable * moved / self.costs.parts)
                limit -= moved
        action.expected_end_ms = state.free_ms = now + time + send
        action.local_end_ms = now + local
        news = abs(self.factors[i] - 1.0) > self.rules.surprise
        if (
            self.rules.blocks > 1
            and movable > 0.0
            and (self.rules.postpone or self.rules.recheck or news)
        ):
            state.local_ms, state.local_parts = local, limit
            state.doing, state.event_ms = "run", now + local / self.rules.blocks
        else:
            state.doing = "end"
            state.event_ms = math.inf if action.outstanding else now + local + send

    def _boundary(self, rank: int, now: float) -> None:
        state = self.ranks[rank]
        i = state.action
        action = self.actions[i]
        blocks = self.rules.blocks - state.block
        state.block += 1
        slow, movable = self.factors[i], float(self.costs.movable[i])
        expected = float(self.layout.duration_ms[i])
        left = state.local_ms * (blocks - 1) / blocks
        parts = state.local_parts * (blocks - 1) // blocks
        saved = expected * slow * movable / self.costs.parts
        half = max(action.start_ms + expected * slow * (1.0 - movable) * 0.5 - now, 0.0)
        time, choice = self.decide(rank, now, left, saved, half, parts, True)
        if choice:
            moved = self._lend(rank, now, half, half, choice)
            left -= saved * moved
            parts -= moved
        state.local_ms, state.local_parts = left, parts
        action.local_end_ms = now + left
        action.expected_end_ms = now + time + float(self.layout.send_ms[i])
        state.free_ms = action.expected_end_ms
        if state.pending is not None:
            state.free_ms = self._free_after(state.pending, state.free_ms)
        again = (
            (self.rules.recheck or slow > 1.0 + self.rules.surprise) and blocks > 2 and parts > 0
        )
        if again and len(action.helps) < self.rules.max_lenders:
            state.doing, state.event_ms = "run", now + left / (blocks - 1)
        else:
            self._finish_local(rank)

    def _finish_local(self, rank: int) -> None:
        state = self.ranks[rank]
        action = self.actions[state.action]
        state.doing, state.event_ms = "end", math.inf
        if action.outstanding == 0:
            end = max(action.local_end_ms, action.back_ms)
            state.event_ms = end + float(self.layout.send_ms[state.action])

    def _finish_help(self, lender: int, now: float) -> None:
        entry = self.ranks[lender].helping
        assert entry is not None
        action = self.actions[entry.action]
        action.outstanding -= 1
        back = now + self.costs.latency_ms + self.costs.part_ms * entry.parts
        action.back_ms = max(action.back_ms, back)
        rank = int(self.layout.ranks[entry.action])
        if action.outstanding == 0 and self.ranks[rank].doing == "end":
            self._finish_local(rank)
        self._dispatch(lender, now)

    def _finish(self, rank: int, now: float) -> None:
        state = self.ranks[rank]
        i = state.action
        self.actions[i].status, self.actions[i].end_ms = "ended", now
        state.memory -= float(self.layout.freed[i])
        for target, lag in zip(
            self.layout.outputs[i].tolist(), self.layout.output_lag_ms[i].tolist(), strict=True
        ):
            if target < 0:
                continue
            action = self.actions[target]
            action.missing -= 1
            action.arrival_ms = max(action.arrival_ms, now + lag)
            other = int(self.layout.ranks[target])
            if other != rank and action.missing == 0 and self.ranks[other].doing == "idle":
                self._next(other, now)
        self._dispatch(rank, now)
