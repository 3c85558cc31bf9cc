"""Who decides what a rank runs next in a step: the plan, or a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from conductor.runtime.dispatch import Arrival, Dispatcher
from conductor.runtime.policy import RankPolicy


class Order(Protocol):
    """Decides for one rank and one step. Times are of `time.perf_counter_ns`.

    Attributes:
        until_ns: after `choose` gave None: when to ask again though nothing has come; None is never.
    """

    until_ns: int | None

    def arrived(self, message: Arrival, time_ns: int, work_ms: float) -> None:
        """A message from another rank has come; its sender's action took `work_ms`."""

    def choose(self, now_ns: int) -> int | None:
        """The action to run now, or None to wait."""

    def ended(self, took_ns: int) -> None:
        """The action has ended."""


class PlannedOrder:
    """The plan's order, strictly or as a hint.

    Args:
        dispatcher: state of the step.
        patience_ns: how long each action may keep the rank waiting, from when its turn has come, before a
            later one may run; None is for ever.
    """

    def __init__(self, dispatcher: Dispatcher, patience_ns: Sequence[int] | None) -> None:
        self._dispatcher, self._patience_ns = dispatcher, patience_ns
        self._turn, self._patience_ends = -1, 0
        self.until_ns: int | None = None

    def arrived(self, message: Arrival, time_ns: int, work_ms: float) -> None:
        """As `Order`."""

    def choose(self, now_ns: int) -> int | None:
        """As `Order`."""
        if self._patience_ns is None:
            return self._dispatcher.choose(ahead=False)
        if self._dispatcher.planned != self._turn:
            self._turn = self._dispatcher.planned
            self._patience_ends = now_ns + self._patience_ns[self._turn]
        ahead = now_ns >= self._patience_ends
        self.until_ns = None if ahead else self._patience_ends
        return self._dispatcher.choose(ahead=ahead)

    def ended(self, took_ns: int) -> None:
        """As `Order`."""


class PolicyOrder:
    """A policy's.

    Args:
        decider: of this rank.
        begin_ns: when the step began.
    """

    def __init__(self, decider: RankPolicy, begin_ns: int) -> None:
        self._decider, self._begin_ns = decider, begin_ns
        self._timed_out = False
        self.until_ns: int | None = None
        decider.begin()

    def arrived(self, message: Arrival, time_ns: int, work_ms: float) -> None:
        """As `Order`."""
        self._decider.arrived(message, max(self._ms(time_ns), 0.0), work_ms)
        self.until_ns, self._timed_out = None, False

    def choose(self, now_ns: int) -> int | None:
        """As `Order`."""
        if self._timed_out:
            return None
        late = self._timed_out = self.until_ns is not None and now_ns >= self.until_ns
        action = self._decider.decide(self._ms(now_ns), timed_out=late)
        if action is not None or late:
            self.until_ns, self._timed_out = None, late and action is None
        elif self.until_ns is None:
            self.until_ns = now_ns + int(1e6 * self._decider.patience_ms)
        return action

    def ended(self, took_ns: int) -> None:
        """As `Order`."""
        self._decider.ended(took_ns / 1e6)

    def _ms(self, time_ns: int) -> float:
        return (time_ns - self._begin_ns) / 1e6
