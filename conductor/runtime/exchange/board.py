"""What a rank knows of all ranks during a step: told by messages, asked by the greedy choice of lenders."""

from __future__ import annotations

from conductor.migration.execution import Prepared
from conductor.migration.reference import Help, Knowledge

_TAKEN = Help(action=-1, lender=-1, parts=0, decided_ms=0.0, ready_ms=0.0, expected_ready_ms=0.0)
"""Stands for a promise whose details do not matter here."""


class Board(Knowledge):
    """Where all ranks stand. Times are milliseconds since this rank began the step, on its clock.

    Args:
        prepared: the plan in force, with expected times and rules.
    """

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        for rank in self.ranks:
            rank.free_ms = 0.0

    def started(self, rank: int, action: int, now: float, end_ms: float) -> None:
        """A rank has begun an action (program index) that it expects to end at `end_ms`."""
        self.ended(rank, now)
        state, begun = self.ranks[rank], self.actions[action]
        self.streams[self.layout.stream_of[action]].remove(action)
        begun.status, begun.start_ms = "running", now
        state.action = action
        state.memory += float(self.layout.allocated[action])
        self.expects(rank, end_ms, end_ms)

    def ended(self, rank: int, now: float) -> None:
        """The action that the rank was running, if any, has ended."""
        state = self.ranks[rank]
        if state.action < 0 or self.actions[state.action].status != "running":
            return
        i, layout = state.action, self.layout
        self.actions[i].status, self.actions[i].end_ms = "ended", now
        self.actions[i].outstanding = 0
        state.memory -= float(layout.freed[i])
        state.free_ms = now
        for target, lag in zip(
            layout.outputs[i].tolist(), layout.output_lag_ms[i].tolist(), strict=True
        ):
            if target < 0:
                break
            action = self.actions[target]
            action.missing -= 1
            action.arrival_ms = max(action.arrival_ms, now + lag)

    def expects(self, rank: int, end_ms: float, free_ms: float) -> None:
        """The rank expects its running action to end, and to be free after what it has promised."""
        state = self.ranks[rank]
        state.free_ms = free_ms
        if state.action >= 0 and self.actions[state.action].status == "running":
            self.actions[state.action].expected_end_ms = end_ms

    def tell(self, rank: int, *, promised: bool, borrows: bool) -> None:
        """Whether the rank has promised a help that it has not begun, and whether others help it."""
        state = self.ranks[rank]
        state.pending = _TAKEN if promised else None
        if state.action >= 0:
            self.actions[state.action].outstanding = int(borrows)

    def is_running(self, rank: int) -> bool:
        """Whether the rank runs an action of its own."""
        action = self.ranks[rank].action
        return action >= 0 and self.actions[action].status == "running"

    def is_waiting(self, action: int) -> bool:
        """Whether an action has not begun."""
        return self.actions[action].status == "waiting"

    def help_ms(self, action: int, lender: int) -> float:
        """What one part of an action is expected to keep a lender busy for, beyond the latency."""
        return self._part_ms(action, lender)
