"""What a policy that decides during the step gives the runtime. The runtime knows no learned scheduler: `cli`
joins them.

All times are milliseconds since this rank began the step. The header of every message carries one more number
for a policy: the *realised* time of the action whose result the message is, on the sender's clock, from its
start to its end (nanoseconds, as an integer). What was *expected* of that action the receiver knows itself,
from the spec and the plan that all ranks share.
"""

from __future__ import annotations

from typing import Protocol

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.runtime.dispatch import Arrival


class RankPolicy(Protocol):
    """Decides for one rank, from what that rank knows. Actions are positions in the rank's part of the plan."""

    @property
    def patience_ms(self) -> float:
        """After so long without an action or a message `decide` is to be told that it has timed out."""

    def begin(self) -> None:
        """A step begins: nothing has run, nothing has come."""

    def arrived(self, message: Arrival, time_ms: float, realised_ms: float) -> None:
        """A message from another rank is there: at any time, also while an action runs.

        Args:
            message: what it is.
            time_ms: when it came; never later than the next decision.
            realised_ms: of the sender's action, from the header.
        """

    def decide(self, now_ms: float, *, timed_out: bool = False) -> int | None:
        """The action to run now, which then counts as started; None: wait for the next message.

        It always respects inputs and the memory limit, and never runs one twice.

        Args:
            now_ms: the time; no action is running.
            timed_out: nothing has happened for `patience_ms`: an action that could run but was left waiting
                is run now. None then means that none could, and only a message can change that.
        """

    def ended(self, realised_ms: float) -> None:
        """The action that `decide` gave has ended; so long it kept the rank busy."""


class Policy(Protocol):
    """Makes the deciders of a plan. It may be given other plans between two steps."""

    def runs(self, plan: Schedule) -> Schedule:
        """The plan as it is to be set on every rank: full backwards parted into I and W, micro-batches in
        order."""

    def for_rank(self, spec: PipelineSpec, plan: Schedule, rank: int) -> RankPolicy:
        """The decider of one rank.

        Args:
            spec: expected times, links, memory.
            plan: what `runs` gave.
            rank: for whom.
        """
