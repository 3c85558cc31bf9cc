"""What the roles of one rank in the exchange share during a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from conductor.ir.schedule import FloatArray
from conductor.migration.execution import Prepared
from conductor.runtime.exchange.board import Board
from conductor.runtime.exchange.help import Promise, StepHelps
from conductor.runtime.exchange.links import ExchangeLinks, Packet, What
from conductor.runtime.links import Inbox

clock = time.perf_counter_ns
VERDICT_S = 0.02
"""A lender that has not answered after so long is taken to have refused."""


class Station:
    """One rank's place in the exchange.

    Args:
        rank: this one.
        inbox: of the executor, which None wakes up.

    Attributes:
        changed: guards everything here and in the roles; told of every change.
        links: to all others, once they are open.
        tell: says to all others, or to one, where this rank stands.
        gone: ranks whose links broke.
        silent: ranks that did not keep a promise, until they speak again.
        step: number of it.
        is_open: whether the step is in progress.
        running_since_ns: when the rank's own action began; None while it runs none.
        busy_until_ns: when the rank expects to be done with what it does.
        promise: that it has not begun to keep.
        serving: that it keeps now.
        report: what the step's helps came to.
    """

    links: ExchangeLinks
    tell: Callable[..., None]
    board: Board

    def __init__(self, rank: int, inbox: Inbox) -> None:
        self.rank, self.inbox = rank, inbox
        self.changed = threading.Condition()
        self.gone: set[int] = set()
        self.silent: set[int] = set()
        self.step, self.is_open = -1, False
        self.running_since_ns: int | None = None
        self.busy_until_ns = 0
        self.promise: Promise | None = None
        self.serving: Promise | None = None
        self.report = StepHelps()

    def begin_step(self, step: int, prepared: Prepared, realised_ms: FloatArray | None) -> None:
        """As `Exchange.begin_step`."""
        self.step, self.is_open = step, True
        self.board, self._realised_ms = Board(prepared), realised_ms
        self.origin_ns = clock()
        self.running_since_ns, self.busy_until_ns = None, 0
        self.promise = self.serving = None
        self.report = StepHelps()
        for rank in self.gone | self.silent:
            self.board.tell(rank, promised=True, borrows=False)

    @property
    def is_emulated(self) -> bool:
        """Whether devices are emulated: actions take given times."""
        return self._realised_ms is not None

    def expected_ns(self, action: int) -> int:
        """What an action is expected to take."""
        return int(1e6 * self.board.layout.duration_ms[action])

    def target_ns(self, action: int) -> int:
        """What it takes on an emulated device; what is expected elsewhere."""
        if self._realised_ms is None:
            return self.expected_ns(action)
        return int(1e6 * self._realised_ms[action])

    def busy_ns(self, action: int, parts: float, *, realised: bool = False) -> int:
        """What a help keeps this rank busy for: expected, or as the emulated device is now."""
        costs = self.board.costs
        part_ms = self.board.help_ms(action, self.rank)
        if realised and self._realised_ms is not None:
            kind, stage = costs.kinds[action], costs.stages[action]
            twin = costs.where[kind, costs.stand_in[stage, self.rank], costs.units[action]]
            twin = int(twin) if twin >= 0 else action
            factor = self.target_ns(twin) / self.expected_ns(twin)
            part_ms = (part_ms - costs.part_ms) * factor + costs.part_ms
        return int(1e6 * (costs.latency_ms + part_ms * parts))

    def now_ms(self) -> float:
        """Since the step began."""
        return (clock() - self.origin_ns) / 1e6

    def send(self, rank: int, what: What, *numbers: int) -> None:
        """Sends a message without tensors."""
        self.links.send(rank, Packet(what=what, step=self.step, numbers=numbers))
