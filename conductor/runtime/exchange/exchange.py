"""The exchange: during a step, ranks ask others to do parts of their actions, and do parts of others'.

A rank that begins an action chooses lenders by the greedy rule of `conductor.migration`, from what the
others have told, and asks them (`borrower`). The threads of the links answer at once, also while
the rank works: yes, if the lender has promised nothing else and comes free in time. A promise is kept
before the lender's next action of its own, or inside its waits (`lender`). Nothing is ever owed:
what is refused, cancelled, late or lost the borrower computes itself. Weight gradients that a lender sums
up come back at the end of the step (`weights`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from conductor.ir.schedule import FloatArray
from conductor.migration.execution import Prepared
from conductor.migration.modules.lending import Lending
from conductor.runtime.exchange.borrower import Borrower
from conductor.runtime.exchange.help import StepHelps
from conductor.runtime.exchange.lender import Lender
from conductor.runtime.exchange.links import ExchangeLinks, Packet, What
from conductor.runtime.exchange.station import Station, clock
from conductor.runtime.exchange.units import Units
from conductor.runtime.exchange.weights import Slices
from conductor.runtime.faults import LOOK_S, Alarm
from conductor.runtime.links import Inbox


class Exchange:
    """One rank's end of the exchange, as the executor sees it.

    Args:
        name: of the exchange, the same on every rank.
        rank: this one.
        num_ranks: all of them.
        inbox: of the executor, which None wakes up.
        alarm: says whether a rank has failed.
        device: of the stages.

    Attributes:
        migration: the plan in force with expected times and rules; None moves nothing.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        num_ranks: int,
        inbox: Inbox,
        alarm: Alarm,
        device: torch.device,
    ) -> None:
        self._alarm = alarm
        self.migration: Prepared | None = None
        self._early: list[tuple[int, Packet]] = []
        self._finished: set[int] = set()
        self._is_idle = False
        self._station = Station(rank, inbox)
        self._station.tell = self._tell
        self._slices = Slices(self._station, alarm)
        self._borrower = Borrower(self._station, self._slices)
        self._lender = Lender(self._station, self._slices, self._borrower)
        self._station.links = ExchangeLinks(
            name, rank, num_ranks, alarm.timeout_s, self._on_packet, self._on_broken, device
        )

    @property
    def report(self) -> StepHelps:
        """What the last step's helps came to."""
        return self._station.report

    def close(self) -> None:
        """Ends the threads; other ranks go on without this one."""
        self._station.links.close()

    def set_migration(
        self,
        prepared: Prepared | None,
        lendings: Mapping[int, Lending] | None = None,
        units: Units | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        """What moves from the next step on; every rank calls it between the same two steps.

        Args:
            prepared: the plan in force with expected times and rules; None moves nothing.
            lendings: of this rank's stages, where their modules can move work.
            units: says which heads and columns of them move.
            limit_bytes: most bytes of others that this rank holds: slices of weights with their
                gradients, requests and replies. What is more is refused. None is no limit.
        """
        self.migration = prepared
        self._borrower.lendings, self._borrower.units = lendings or {}, units
        self._lender.limit_bytes = self._slices.limit_bytes = limit_bytes
        self._slices.drop()
        for lending in self._borrower.lendings.values():
            lending.helper = None if prepared is None else self._borrower

    def begin_step(self, step: int, realised_ms: FloatArray | None) -> None:
        """Before the first action of a step in which work may move; every rank calls it.

        Args:
            step: number of it.
            realised_ms: of every action, program order, without its blocking send, where devices are
                emulated.
        """
        prepared, station = self.migration, self._station
        assert prepared is not None
        with station.changed:
            station.begin_step(step, prepared, realised_ms)
            self._first = int(prepared.program.rank_offsets[station.rank])
            self._finished, self._is_idle = set(), False
            self._borrower.begin_step()
            self._lender.begin_step()
            early, self._early = self._early, []
            for sender, packet in early:
                self._handle(sender, packet)
        self._slices.begin_step(self._borrower.lendings.values(), self._borrower.units)

    def idle(self) -> None:
        """The rank waits for something: others may know that it is free."""
        if not self._is_idle:
            self._is_idle = True
            self._tell()

    def start(self, index: int, start_ns: int) -> None:
        """The rank begins an action, its index in its part of the plan: asks for help with it."""
        self._is_idle = False
        self._borrower.start(self._first + index, start_ns)

    def finish(self, *, stretch: bool) -> None:
        """The rank has done its own part: waits for what lenders still owe, or does it itself.

        Args:
            stretch: emulated devices sleep the rest of their time here.
        """
        self._borrower.finish(stretch=stretch)

    def serve(self) -> None:
        """Keeps what this rank has promised."""
        if self._station.promise is not None:
            self._is_idle = False
            self._lender.serve()

    def end_step(self, describe: Callable[[], str]) -> None:
        """After the rank's last action: lends until all ranks have done theirs.

        Raises:
            RankError: a rank has failed.
        """
        self.idle()
        station = self._station
        station.links.broadcast(Packet(what=What.FINISHED, step=station.step))
        deadline = time.monotonic() + self._alarm.timeout_s
        others = set(station.links.others)
        while True:
            self.serve()
            self.idle()
            with station.changed:
                if others <= self._finished:
                    station.is_open = False
                    break
                if self._station.promise is not None or station.changed.wait(LOOK_S):
                    continue
                gone = station.gone - self._finished
            self._alarm.check(describe)
            if gone:
                time.sleep(LOOK_S)  # the cause is often told a moment later
                self._alarm.check(describe)
                raise ConnectionError(f"rank {min(gone)} is gone")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"ranks {sorted(others - self._finished)} have not finished the step after"
                    f" {self._alarm.timeout_s:g} s"
                )
        self._slices.collect(self._borrower.lendings.values(), describe)

    # Messages.

    def _on_packet(self, sender: int, packet: Packet) -> None:
        if packet.what is What.COLLECT:
            self._slices.give_back(sender, packet.step)
            return
        with self._station.changed:
            if packet.step > self._station.step:
                self._early.append((sender, packet))
            elif packet.step == self._station.step:
                self._handle(sender, packet)

    def _handle(self, sender: int, packet: Packet) -> None:
        what, station, lender = packet.what, self._station, self._lender
        station.silent.discard(sender)
        if what is What.STATE:
            self._learn(sender, packet.numbers)
            return
        if what is What.REQUEST:
            lender.answer(sender, packet)
        elif what is What.FINISHED:
            self._finished.add(sender)
        elif what is What.RETURNED:
            self._slices.take_back(sender, packet)
        elif what is What.WEIGHTS:
            self._slices.put(sender, packet)
            lender.measure()
        elif what in (What.POST, What.END, What.CANCEL):
            for promise in lender.owed:
                if (promise.borrower, promise.number) == (sender, packet.numbers[0]):
                    lender.follow(promise, packet)
        else:
            self._borrower.hear(sender, packet)
        station.changed.notify_all()

    def _learn(self, sender: int, numbers: Sequence[int]) -> None:
        """What a rank tells of itself."""
        action, running, end_ns, free_ns, promised, borrows = numbers[:6]
        board, now = self._station.board, self._station.now_ms()
        if action >= 0 and board.is_waiting(action):
            board.started(sender, action, now, now + end_ns / 1e6)
        elif not running:
            board.ended(sender, now)
        board.expects(sender, now + end_ns / 1e6, now + free_ns / 1e6)
        board.tell(sender, promised=bool(promised), borrows=bool(borrows))
        if borrows:
            self._lender.settled(sender)

    def _state(self) -> tuple[int, ...]:
        """Where this rank stands: its action, when that ends, when it is free, what it owes and is owed."""
        station, promise, now = self._station, self._station.promise, clock()
        free_ns = end_ns = self._lender.free_ns(now)
        if promise is not None:
            free_ns = max(free_ns, promise.ready_ns - now)
            free_ns += station.busy_ns(promise.action, promise.parts)
        borrows = station.running_since_ns is not None and self._borrower.is_settled
        action = station.board.ranks[station.rank].action
        running = station.board.is_running(station.rank)
        return action, int(running), end_ns, free_ns, int(promise is not None), int(borrows)

    def _tell(self, rank: int | None = None) -> None:
        """Tells all others, or one, where this rank stands."""
        station = self._station
        with station.changed:
            packet = Packet(what=What.STATE, step=station.step, numbers=self._state())
            if rank is None:
                station.links.broadcast(packet)
            else:
                station.links.send(rank, packet)

    def _on_broken(self, rank: int) -> None:
        station = self._station
        with station.changed:
            station.gone.add(rank)
            if station.step >= 0:
                station.board.tell(rank, promised=True, borrows=False)
            self._borrower.lost(rank)
            self._lender.lost(rank)
            station.changed.notify_all()
        station.inbox.put(None)
