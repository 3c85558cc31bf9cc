"""The borrower: asks for help with the rank's own action, and takes what comes of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from torch import Tensor

from conductor.migration.modules.lending import Decision, Lending
from conductor.migration.modules.request import Request
from conductor.problem.kind import Kind
from conductor.runtime.exchange.help import Help
from conductor.runtime.exchange.links import Packet, What
from conductor.runtime.exchange.station import VERDICT_S, Station, clock
from conductor.runtime.exchange.units import Units
from conductor.runtime.exchange.weights import Slices

_ROUNDS = 3
"""A rank asks again, others, when some have refused."""
_GRACE_NS = 5_000_000


class Borrower:
    """What others do for one rank; also the `Helper` of its stages' modules.

    Args:
        station: of this rank.
        slices: of its stages that others hold.

    Attributes:
        lendings: of this rank's stages, where their modules can move work.
        units: says which heads and columns of them move.
    """

    def __init__(self, station: Station, slices: Slices) -> None:
        self._station, self._slices = station, slices
        self.lendings: Mapping[int, Lending] = {}
        self.units: Units | None = None
        self._numbers = 0
        self.begin_step()

    def begin_step(self) -> None:
        """Before the first action of a step."""
        self._helps: dict[int, Help] = {}
        self._posted: dict[int, Help] = {}
        self._results: dict[tuple[int, int], tuple[Tensor, ...] | None] = {}
        self._mine: list[Help] = []
        self._is_asking = False
        self._pace = 1.0

    @property
    def waits(self) -> bool:
        """Whether the rank's action waits for lenders, or asks some just now."""
        return self._is_asking or self.is_settled

    @property
    def is_settled(self) -> bool:
        """Whether the action has lenders; it asks nobody else then."""
        return not self._is_asking and any(h.outcome == "promised" for h in self._mine)

    def start(self, action: int, start_ns: int) -> None:
        """The rank begins an action, a program index: asks for help with it."""
        station = self._station
        board = station.board
        costs = board.costs
        movable = float(costs.movable[action])
        most = min(int(board.rules.most_parts[action]), costs.parts) if movable else 0
        expected_ns = station.expected_ns(action)
        self._start_ns, self._action = start_ns, action
        self._kind, self._stage = Kind(int(costs.kinds[action])), int(costs.stages[action])
        self._target_ns, self._taking_ns = station.target_ns(action), 0
        with station.changed:
            self._mine = []
            station.running_since_ns = start_ns
            station.busy_until_ns = start_ns + expected_ns
            now = station.now_ms()
            board.started(station.rank, action, now, now + expected_ns / 1e6)
        station.tell()
        decision = self._ask(most, movable, expected_ns) if most > 0 else {}
        lending = self.lendings.get(self._stage)
        if lending is not None:
            lending.begin(decision, int(costs.units[action]))

    def finish(self, *, stretch: bool) -> None:
        """The rank has done its own part: waits for what lenders still owe, or does it itself.

        Args:
            stretch: emulated devices sleep the rest of their time here.
        """
        station, action = self._station, self._action
        board, report = station.board, station.report
        for help_ in self._mine:
            if help_.outcome == "promised" and self._can_post:
                station.send(help_.lender, What.END, help_.number)
        share = float(board.costs.movable[action]) / board.costs.parts
        with station.changed:
            if stretch:
                whole_ns = self._stretch(share)
            else:
                # What lenders did is not known in parts of time: only actions without help tell.
                whole_ns = clock() - self._start_ns
                report.waited_ns += self._taking_ns
            if stretch or not self._mine:
                report.whole_ns[action] = whole_ns
                self._pace = whole_ns / max(station.expected_ns(action), 1)
            report.helps += self._mine
            self._mine = []
            send_ms = float(board.layout.send_ms[action]) if stretch else 0.0
            if send_ms:
                station.changed.wait_for(lambda: False, send_ms / 1e3)
            station.running_since_ns = None
            board.ended(station.rank, station.now_ms())
            board.tell(station.rank, promised=station.promise is not None, borrows=False)

    def _stretch(self, share: float) -> int:
        """Sleeps until an emulated action is over; gives what all of it would have taken here."""
        station = self._station
        counted = [h for h in self._mine if h.outcome in ("promised", "done")]
        local_ns = self._start_ns + int(self._target_ns * (1.0 - share * _parts(counted)))
        back_ns = 0
        while True:
            now = clock()
            waits = [local_ns] if now < local_ns else []
            for help_ in self._mine:
                if help_.outcome == "promised":
                    if now >= help_.back_ns:
                        self._cancel(help_)
                    else:
                        waits.append(help_.back_ns)
                elif help_.outcome == "done":
                    back_ns = max(back_ns, help_.back_ns)
                if help_.outcome in ("late", "refused") and help_ in counted:
                    # Its parts are computed here, from now on.
                    counted.remove(help_)
                    local_ns = max(local_ns, now) + int(self._target_ns * share * help_.parts)
                    waits.append(local_ns)
            if now < back_ns:
                waits.append(back_ns)
            if not waits:
                break
            station.changed.wait((min(waits) - now) / 1e9)
        station.report.waited_ns += max(0, now - local_ns)
        own_ns = (local_ns - self._start_ns) / max(1.0 - share * _parts(counted), 1e-6)
        return int(own_ns) + now - max(local_ns, back_ns)

    # The way to the lenders, as a stage's modules see it (`Helper`).

    def post(self, request: Request) -> None:
        """Sends a request to a lender that has promised."""
        for help_ in self._mine:
            if help_.lender == request.lender and help_.outcome == "promised":
                help_.num_bytes += request.num_bytes
                self._posted[request.serial] = help_
                if request.kind is Kind.W:
                    self._slices.owing.add(request.lender)
                station = self._station
                numbers = (help_.number, *request.numbers())
                packet = Packet(
                    what=What.POST, step=station.step, numbers=numbers, tensors=request.tensors
                )
                station.links.send(help_.lender, packet)
                return

    def take(self, serial: int) -> tuple[Tensor, ...] | None:
        """The result of a request, or None where it does not come in time."""
        return self._await(serial, 0)

    def take_behind(self, serial: int) -> tuple[Tensor, ...] | None:
        """What follows behind a result, or None where it does not come in time."""
        return self._await(serial, 1)

    def is_void(self, serial: int) -> bool:
        """Whether the lender certainly never does a request: it was refused, or not even sent."""
        return serial not in self._posted or self._results.get((serial, 0), ()) is None

    def _await(self, serial: int, behind: int) -> tuple[Tensor, ...] | None:
        began_ns, key = clock(), (serial, behind)
        with self._station.changed:
            self._wait_for(key)
            self._taking_ns += clock() - began_ns
            result = self._results.get(key)
            if result is not None:
                del self._results[key]
            return result

    def _wait_for(self, key: tuple[int, int]) -> None:
        """Until a result is there, or its help is over."""
        help_ = self._posted.get(key[0])
        while key not in self._results and help_ is not None and help_.outcome == "promised":
            left_ns = help_.back_ns - clock()
            if left_ns <= 0:
                self._cancel(help_)
            else:
                self._station.changed.wait(left_ns / 1e9)

    # Who is asked.

    def _ask(self, most: int, movable: float, expected_ns: int) -> Decision:
        """Chooses lenders and asks them, again at block boundaries while that is worth it; gives what moves.

        On an emulated device the first block's time tells what the action really takes; else what the last
        action took does, and the choice is made at once.
        """
        station = self._station
        board, rules = station.board, station.board.rules
        inside = rules.postpone and station.is_emulated
        whole_ns = float(self._target_ns) if inside else expected_ns * self._pace
        slow = whole_ns / expected_ns
        saved_ns = whole_ns * movable / board.costs.parts
        unmovable_ns = whole_ns * (1.0 - movable)
        is_news = abs(slow - 1.0) > rules.surprise
        for block in range(int(inside), max(rules.blocks - 1, 1)):
            spent_ns = whole_ns * block / rules.blocks
            _sleep_until(self._start_ns + int(spent_ns))
            left = most * (rules.blocks - block) // rules.blocks
            taken, end_ns = self._rounds(
                whole_ns - spent_ns, saved_ns, unmovable_ns / 2.0, left, inside
            )
            if taken or (block == int(inside) and is_news):
                with station.changed:
                    ends = [end_ns, *(h.end_ns for h in self._mine if h.outcome == "promised")]
                    station.busy_until_ns = int(max(ends))
                    end_ms = (station.busy_until_ns - station.origin_ns) / 1e6
                    board.expects(station.rank, end_ms, end_ms)
                    board.tell(
                        station.rank, promised=station.promise is not None, borrows=bool(taken)
                    )
                station.tell()
            if taken and self.units is not None and self._can_post:
                return self.units.assign(self._stage, self._kind, taken)[0]
            if taken or not inside or not (rules.recheck or is_news):
                break
        return {}

    def _rounds(
        self, whole_ns: float, saved_ns: float, half_ns: float, most: int, inside: bool
    ) -> tuple[list[tuple[int, int]], float]:
        """Asks lenders, and others where some refuse; gives (lender, parts) and when the rest is done."""
        changed = self._station.changed
        taken: list[tuple[int, int]] = []
        refused: set[int] = set()
        began_ns = clock()
        for _ in range(_ROUNDS):
            with changed:
                ready_ns = max(self._start_ns + half_ns - clock(), 0.0)
                choice = self._choose(whole_ns, saved_ns, ready_ns, most, inside, refused)
                self._is_asking = bool(choice)
            if not choice:
                break
            promised = self._request(choice, ready_ns, saved_ns)
            taken += [(lender, parts) for lender, parts in choice if lender in promised]
            refused |= {lender for lender, _ in choice} - promised
            moved = sum(parts for lender, parts in choice if lender in promised)
            whole_ns, most = whole_ns - saved_ns * moved, most - moved
            if len(promised) == len(choice):
                break
        self._is_asking = False
        return taken, began_ns + whole_ns

    def _choose(
        self,
        whole_ns: float,
        saved_ns: float,
        half_ns: float,
        most: int,
        inside: bool,
        refused: set[int],
    ) -> list[tuple[int, int]]:
        """Lenders and their parts by the greedy rule, without those that have refused."""
        station = self._station
        board, ranks = station.board, station.board.ranks
        before = {rank: ranks[rank].pending for rank in refused}
        for rank in refused:
            board.tell(rank, promised=True, borrows=False)
        choice = board.decide(
            station.rank, station.now_ms(), whole_ns / 1e6, saved_ns / 1e6, half_ns / 1e6, most,
            inside,
        )[1]  # fmt: skip
        for rank, pending in before.items():
            ranks[rank].pending = pending
        return choice

    def _request(
        self, choice: Sequence[tuple[int, int]], half_ns: float, saved_ns: float
    ) -> set[int]:
        """Asks lenders and waits a moment for what they say; gives those that promise."""
        station = self._station
        parts = [float(q) for _, q in choice]
        if self.units is not None and self._can_post:
            parts = list(self.units.assign(self._stage, self._kind, choice)[1])
        asked = []
        for (lender, _), really in zip(choice, parts, strict=True):
            if really <= 0.0:
                continue
            with station.changed:
                self._numbers += 1
                help_ = Help(
                    number=self._numbers, action=self._action, borrower=station.rank,
                    lender=lender, parts=really, decided_ns=clock(),
                )  # fmt: skip
                self._helps[help_.number] = help_
                free_ms = station.board.ranks[lender].free_ms - station.now_ms()
                has_promised = station.promise is not None
            within_ns = max(1e6 * free_ms, half_ns) + saved_ns * really / 2.0
            asked.append(help_)
            station.send(
                lender, What.REQUEST, help_.number, self._action, int(1000 * really), int(half_ns),
                int(within_ns), int(not self._can_post), clock(), int(has_promised),
            )  # fmt: skip
        limit = time.monotonic() + VERDICT_S
        with station.changed:
            while (
                any(h.outcome == "asked" for h in asked) and (left := limit - time.monotonic()) > 0
            ):
                station.changed.wait(left)
            for help_ in asked:
                if help_.outcome == "asked":
                    self._cancel(help_)
                    help_.outcome = "refused"
                elif help_.outcome == "promised":
                    help_.back_ns = help_.end_ns + int(saved_ns * help_.parts) + _GRACE_NS
            self._mine += asked
            return {help_.lender for help_ in asked if help_.outcome == "promised"}

    def _cancel(self, help_: Help) -> None:
        """Gives up a help; whatever comes of it later is dropped."""
        help_.outcome = "late"
        station = self._station
        station.silent.add(help_.lender)
        station.board.tell(help_.lender, promised=True, borrows=False)
        self._helps.pop(help_.number, None)
        station.send(help_.lender, What.CANCEL, help_.number)

    # What lenders say.

    def hear(self, lender: int, packet: Packet) -> None:
        """A lender's answer, result or end."""
        what, numbers = packet.what, packet.numbers
        help_ = self._helps.get(numbers[0])
        if help_ is None:
            return
        if what is What.ACCEPT:
            help_.outcome = "promised"
            help_.end_ns = clock() + numbers[1]
            self._station.board.tell(lender, promised=True, borrows=False)
        elif what is What.REFUSE:
            help_.outcome = "refused"
        elif what is What.DONE:
            help_.outcome = "done"
            help_.start_ns, help_.end_ns, help_.back_ns = numbers[1:4]
        elif what is What.RESULT:
            help_.num_bytes += sum(t.nbytes for t in packet.tensors)
            _, serial, behind, refused = numbers[:4]
            self._results[serial, behind] = None if refused else tuple(packet.tensors)
            if refused and help_.outcome == "promised":  # no weights, or no room
                help_.outcome = "refused"
                self._station.send(lender, What.CANCEL, help_.number)

    def lost(self, rank: int) -> None:
        """A rank is gone: what it owes does not come."""
        for help_ in self._helps.values():
            if help_.lender == rank and help_.outcome in ("asked", "promised"):
                help_.outcome = "late"

    @property
    def _can_post(self) -> bool:
        """Whether the modules of the running action's stage can move work."""
        return self._stage in self.lendings


def _parts(helps: Sequence[Help]) -> float:
    return sum(help_.parts for help_ in helps)


def _sleep_until(moment_ns: int) -> None:
    left_ns = moment_ns - clock()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
