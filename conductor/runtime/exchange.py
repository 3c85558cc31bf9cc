"""The exchange: during a step, ranks ask others to do parts of their actions, and do parts of others'.

A rank that begins an action chooses lenders by the greedy rule of `conductor.migration`, from what the
others have told, and asks them. The threads of the links answer at once, also while the rank works: yes,
if the lender has promised nothing else and comes free in time. A promise is kept before the lender's next
action of its own, or inside its waits. Nothing is ever owed: what is refused, cancelled, late or lost the
borrower computes itself.

Nobody waits in a circle. A rank whose own action may borrow promises only to actions that began later, so
that who waits always began after whom he waits for; and every wait has a deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from conductor.ir.schedule import FloatArray
from conductor.migration.execution import Prepared
from conductor.migration.modules.lending import Decision, Lending
from conductor.migration.modules.request import Request
from conductor.migration.modules.serve import Returned, SliceStore, serve
from conductor.problem.kind import Kind
from conductor.runtime.exchange_board import Board
from conductor.runtime.exchange_help import Help, Promise, StepHelps
from conductor.runtime.exchange_links import ExchangeLinks, Packet, What
from conductor.runtime.exchange_units import Units
from conductor.runtime.faults import LOOK_S, Alarm
from conductor.runtime.links import Inbox

_VERDICT_S = 0.02
"""A lender that has not answered after so long is taken to have refused."""
_ROUNDS = 3
"""A rank asks again, others, when some have refused."""
_GRACE_NS = 5_000_000
_clock = time.perf_counter_ns


class Exchange:
    """One rank's end of the exchange.

    Args:
        name: of the exchange, the same on every rank.
        rank: this one.
        num_ranks: all of them.
        inbox: of the executor, which None wakes up.
        alarm: says whether a rank has failed.
        device: of the stages.
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
        self.rank, self._inbox, self._alarm = rank, inbox, alarm
        self.migration: Prepared | None = None
        self.report = StepHelps()
        self._lendings: Mapping[int, Lending] = {}
        self._units: Units | None = None
        self._changed = threading.Condition()
        self._early: list[tuple[int, Packet]] = []
        self._gone: set[int] = set()
        self._silent: set[int] = set()
        self._step = -1
        self._open = False
        self._numbers = 0
        self._promise: Promise | None = None
        self._serving: Promise | None = None
        self._helps: dict[int, Help] = {}
        self._posted: dict[int, Help] = {}
        self._results: dict[tuple[int, int], tuple[Tensor, ...] | None] = {}
        self._stores: dict[int, SliceStore] = {}
        self._storing = threading.Lock()
        self._returned: dict[int, list[Returned] | None] = {}
        self._incoming: dict[int, list[Returned]] = {}
        self._links = ExchangeLinks(
            name, rank, num_ranks, alarm.timeout_s, self._on_packet, self._on_broken, device
        )

    def close(self) -> None:
        """Ends the threads; other ranks go on without this one."""
        self._links.close()

    # The step, as the executor sees it.

    def set_migration(
        self,
        prepared: Prepared | None,
        lendings: Mapping[int, Lending] | None = None,
        units: Units | None = None,
    ) -> None:
        """What moves from the next step on; every rank calls it between the same two steps.

        Args:
            prepared: the plan in force with expected times and rules; None moves nothing.
            lendings: of this rank's stages, where their modules can move work.
            units: says which heads and columns of them move.
        """
        self.migration, self._lendings, self._units = prepared, lendings or {}, units
        for lending in self._lendings.values():
            lending.helper = None if prepared is None else self

    def begin_step(self, step: int, realised_ms: FloatArray | None) -> None:
        """Before the first action of a step in which work may move; every rank calls it.

        Args:
            step: number of it.
            realised_ms: of every action, program order, without its blocking send, where devices are
                emulated.
        """
        prepared = self.migration
        assert prepared is not None
        with self._changed:
            self._step, self._open = step, True
            self._board = Board(prepared)
            self._realised_ms = realised_ms
            self._origin_ns = _clock()
            self._first = int(prepared.program.rank_offsets[self.rank])
            self._finished: set[int] = set()
            self._running: tuple[int, int] | None = None
            self._busy_until_ns = 0
            self._may_borrow = self._is_idle = False
            self._helps, self._promise, self._serving = {}, None, None
            self._posted, self._results, self._owing = {}, {}, set[int]()
            self._mine: list[Help] = []
            self._posted_bytes, self._recent = 0, 1.0
            self.report = StepHelps()
            for rank in self._gone | self._silent:
                self._board.tell(rank, promised=True, borrows=False)
            early, self._early = self._early, []
            for sender, packet in early:
                self._handle(sender, packet)
        for lending in self._lendings.values():
            lending.version = step
        for lender, key, weights in self._units.weights() if self._units else ():
            self._links.send(
                lender, Packet(what=What.WEIGHTS, step=step, numbers=(*key, step), tensors=weights)
            )

    def idle(self) -> None:
        """The rank waits for something: others may know that it is free."""
        if not self._is_idle:
            self._is_idle = True
            self._tell()

    def start(self, index: int, start_ns: int) -> None:
        """The rank begins an action, its index in its part of the plan: asks for help with it."""
        board, action = self._board, self._first + index
        layout, costs = board.layout, board.costs
        expected_ns = int(1e6 * layout.duration_ms[action])
        movable = float(costs.movable[action])
        most = min(int(board.rules.most_parts[action]), costs.parts) if movable else 0
        with self._changed:
            self._is_idle = False
            self._running = start_ns - self._origin_ns, self.rank
            self._may_borrow = most > 0
            self._busy_until_ns = start_ns + expected_ns
            now = self._now_ms()
            board.started(self.rank, action, now, now + expected_ns / 1e6)
        self._start_ns, self._action, self._kind = start_ns, action, Kind(int(costs.kinds[action]))
        self._target_ns = (
            expected_ns if self._realised_ms is None else int(1e6 * self._realised_ms[action])
        )
        self._stage = int(costs.stages[action])
        self._mine = []
        self._tell()
        decision: Decision = {}
        if most > 0:
            decision = self._ask(most, movable, expected_ns)
            with self._changed:
                self._may_borrow = bool(self._mine)
        lending = self._lendings.get(self._stage)
        if lending is not None:
            lending.begin(decision, int(costs.units[action]))

    def finish(self, *, stretch: bool) -> None:
        """The rank has done its own part: waits for what lenders still owe, or does it itself.

        Args:
            stretch: emulated devices sleep the rest of their time here.
        """
        costs, action = self._board.costs, self._action
        for help_ in self._mine:
            if help_.outcome == "promised" and self._is_migratable:
                self._send(help_.lender, What.END, self._number_of(help_))
        share = float(costs.movable[action]) / costs.parts
        now = _clock()
        moved = sum(h.parts for h in self._mine if h.outcome in ("promised", "done"))
        local_ns = self._start_ns + int(self._target_ns * (1.0 - share * moved)) if stretch else now
        counted = {id(h) for h in self._mine if h.outcome in ("promised", "done")}
        with self._changed:
            while True:
                now = _clock()
                waits = [local_ns] if now < local_ns else []
                for help_ in self._mine:
                    if not stretch:
                        continue  # what was asked for has been taken by now
                    if help_.outcome == "promised":
                        deadline = help_.back_ns
                        if now >= deadline:
                            self._cancel(help_)
                        else:
                            waits.append(deadline)
                    elif help_.outcome == "done" and now < help_.back_ns:
                        waits.append(help_.back_ns)
                    if help_.outcome == "late" and id(help_) in counted:
                        # Its parts are computed here, from now on.
                        counted.remove(id(help_))
                        local_ns = max(local_ns, now) + int(self._target_ns * share * help_.parts)
                        waits.append(local_ns)
                if not waits:
                    break
                self._changed.wait((min(waits) - now) / 1e9)
            self.report.waited_ns += max(0, now - local_ns)
            whole = local_ns - self._start_ns
            moved = sum(h.parts for h in self._mine if id(h) in counted)
            whole = int(whole / max(1.0 - share * moved, 1e-6))
            self.report.whole_ns[action] = whole
            self._recent = whole / max(1e6 * self._board.layout.duration_ms[action], 1.0)
            self.report.helps += self._mine
            send_ms = float(self._board.layout.send_ms[action]) if stretch else 0.0
            if send_ms:
                self._changed.wait_for(lambda: False, send_ms / 1e3)
            self._running = None
            self._board.ended(self.rank, self._now_ms())
            self._board.tell(self.rank, promised=self._promise is not None, borrows=False)

    def serve(self) -> None:
        """Keeps what this rank has promised."""
        while True:
            with self._changed:
                promise, self._promise = self._promise, None
                self._serving = promise
                if promise is None:
                    return
                self._is_idle = False
                busy_ns = self._busy_ns(promise.action, promise.parts)
                self._busy_until_ns = max(_clock(), promise.ready_ns) + busy_ns
            self._tell()
            self._do(promise)
            with self._changed:
                self._serving = None
                self._posted_bytes = 0

    def end_step(self, describe: Callable[[], str]) -> None:
        """After the rank's last action: lends until all ranks have done theirs.

        Raises:
            RankError: a rank has failed.
        """
        self.idle()
        self._links.broadcast(Packet(what=What.FINISHED, step=self._step))
        deadline = time.monotonic() + self._alarm.timeout_s
        others = set(self._links.others)
        while True:
            self.serve()
            self.idle()
            with self._changed:
                if others <= self._finished:
                    self._open = False
                    break
                if self._promise is not None or self._changed.wait(LOOK_S):
                    continue
                gone = self._gone - self._finished
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
        self._collect(describe)

    def _collect(self, describe: Callable[[], str]) -> None:
        """Takes the sums of weight gradients back that lenders have, and adds them once."""
        if not self._owing:
            return
        deadline = time.monotonic() + self._alarm.timeout_s
        with self._changed:
            self._returned = dict.fromkeys(sorted(self._owing), None)
        for lender in sorted(self._owing):
            self._send(lender, What.COLLECT)
        while True:
            with self._changed:
                missing = [lender for lender, back in self._returned.items() if back is None]
                if not missing:
                    break
                self._changed.wait(LOOK_S)
            self._alarm.check(describe)
            if self._gone & set(missing) or time.monotonic() > deadline:
                raise ConnectionError(f"ranks {missing} do not give weight gradients back")
        back = [each for returned in self._returned.values() for each in returned or ()]
        for lending in self._lendings.values():
            lending.settle(back)

    # The way to the lenders, as a stage's modules see it (`Helper`).

    def post(self, request: Request) -> None:
        """Sends a request to a lender that has promised."""
        for help_ in self._mine:
            if help_.lender == request.lender and help_.outcome == "promised":
                help_.num_bytes += request.num_bytes
                self._posted[request.serial] = help_
                if request.kind is Kind.W:
                    self._owing.add(request.lender)
                numbers = (self._number_of(help_), *request.numbers())
                self._links.send(
                    help_.lender,
                    Packet(
                        what=What.POST, step=self._step, numbers=numbers, tensors=request.tensors
                    ),
                )
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

    # What a lender does.

    def _do(self, promise: Promise) -> None:
        """Serves one promise to its end."""
        begin_ns, costs = promise.free_ns or _clock(), self._board.costs
        emulated = self._realised_ms is not None
        busy_ns = self._busy_ns(promise.action, promise.parts)
        give_up_ns = max(begin_ns, promise.ready_ns) + 5 * busy_ns + 10**9
        if emulated:
            busy_ns = self._busy_ns(promise.action, promise.parts, realised=True)
        until_ns = max(begin_ns, promise.ready_ns) + busy_ns
        end_ns = begin_ns
        while True:
            with self._changed:
                now = _clock()
                if promise.is_cancelled:
                    return
                if now > give_up_ns:
                    break
                if not promise.posts:
                    left_ns = until_ns - now if emulated else 0
                    if promise.is_ended and left_ns <= 0:
                        break
                    wait_ns = left_ns if left_ns > 0 else give_up_ns - now
                    self._changed.wait(wait_ns / 1e9)
                    continue
                request = promise.posts.popleft()
            with self._storing:
                reply = serve(request, self._stores.get(promise.borrower))
            parts = ((), ()) if reply is None else (reply.tensors, reply.behind)
            for behind, tensors in enumerate(parts):
                if tensors or not behind:
                    numbers = promise.number, request.serial, behind, int(reply is None)
                    self._links.send(
                        promise.borrower,
                        Packet(what=What.RESULT, step=self._step, numbers=numbers, tensors=tensors),
                    )
            end_ns = _clock()
        back_ns = end_ns
        if emulated:
            # The emulated device is done on time; what the rank notices later is no time of it.
            end_ns = max(end_ns, until_ns)
            back_ns = end_ns + int(1e6 * (costs.latency_ms + costs.part_ms * promise.parts))
        self._send(promise.borrower, What.DONE, promise.number, begin_ns, end_ns, back_ns)

    def _busy_ns(self, action: int, parts: float, *, realised: bool = False) -> int:
        """What a help keeps this rank busy for: expected, or as the emulated device is now."""
        costs = self._board.costs
        part_ms = self._board.help_ms(action, self.rank)
        if realised and self._realised_ms is not None:
            kind, stage = costs.kinds[action], costs.stages[action]
            twin = costs.where[kind, costs.stand_in[stage, self.rank], costs.units[action]]
            twin = int(twin) if twin >= 0 else action
            factor = float(self._realised_ms[twin] / self._board.layout.duration_ms[twin])
            part_ms = (part_ms - costs.part_ms) * factor + costs.part_ms
        return int(1e6 * (costs.latency_ms + part_ms * parts))

    def _verdict(self, sender: int, packet: Packet) -> None:
        """Answers a request; on a thread of the links."""
        number, action, parts, ready_ns, within_ns, began = packet.numbers[:6]
        now = _clock()
        on_way_ns = now - packet.numbers[7]
        if 0 < on_way_ns < _VERDICT_S * 1e9:  # on clocks of two machines it may be anything
            ready_ns -= on_way_ns
        doing = self._running if self._may_borrow else None
        if self._serving is not None:
            doing = self._serving.began
        is_busy = self._running is not None or self._serving is not None
        free_ns = max(self._busy_until_ns - now, 0) if is_busy else 0
        if (
            not self._open
            or self._promise is not None
            or free_ns > within_ns
            or (doing is not None and (began, sender) <= doing)
        ):
            self._send(sender, What.STATE, *self._state())
            self._send(sender, What.REFUSE, number)
            return
        self._promise = Promise(
            borrower=sender, number=number, action=action, parts=parts / 1000.0,
            began=(began, sender), ready_ns=now + ready_ns, free_ns=0 if is_busy else now,
            is_ended=not packet.numbers[6],
        )  # fmt: skip
        busy_ns = self._busy_ns(action, parts / 1000.0)
        self._send(sender, What.ACCEPT, number, max(free_ns, ready_ns) + busy_ns)
        self._tell()
        self._inbox.put(None)

    # What a borrower does.

    def _ask(self, most: int, movable: float, expected_ns: int) -> Decision:
        """Chooses lenders and asks them, again at block boundaries while that is worth it; gives what moves.

        On an emulated device the first block's time tells what the action really takes; else what the last
        action took does, and the choice is made at once.
        """
        board, rules, start_ns = self._board, self._board.rules, self._start_ns
        inside = rules.postpone and self._realised_ms is not None
        whole_ns = self._target_ns if inside else int(expected_ns * self._recent)
        slow = whole_ns / expected_ns
        saved_ns = whole_ns * movable / board.costs.parts
        unmovable_ns = whole_ns * (1.0 - movable)
        is_news = abs(slow - 1.0) > rules.surprise
        for block in range(int(inside), max(rules.blocks - 1, 1)):
            spent_ns = whole_ns * block / rules.blocks
            _sleep_until(start_ns + int(spent_ns))
            left = most * (rules.blocks - block) // rules.blocks
            taken, end_ns = self._rounds(
                whole_ns - spent_ns, saved_ns, unmovable_ns / 2.0, left, inside
            )
            if taken or (block == int(inside) and is_news):
                with self._changed:
                    self._busy_until_ns = int(max(end_ns, *(h.end_ns for h in self._mine), 0))
                    end_ms = (self._busy_until_ns - self._origin_ns) / 1e6
                    board.expects(self.rank, end_ms, end_ms)
                    borrows = bool(taken)
                    board.tell(self.rank, promised=self._promise is not None, borrows=borrows)
                self._tell()
            if taken and self._units is not None and self._is_migratable:
                return self._units.assign(self._stage, self._kind, taken)[0]
            if taken or not inside or not (rules.recheck or is_news):
                break
        return {}

    def _rounds(
        self, whole_ns: float, saved_ns: float, half_ns: float, most: int, inside: bool
    ) -> tuple[list[tuple[int, int]], float]:
        """Asks lenders, and others where some refuse; gives (lender, parts) and when the rest is done."""
        taken: list[tuple[int, int]] = []
        refused: set[int] = set()
        began_ns = _clock()
        for _ in range(_ROUNDS):
            with self._changed:
                ready_ns = max(self._start_ns + half_ns - _clock(), 0.0)
                choice = self._choose(whole_ns, saved_ns, ready_ns, most, inside, refused)
            if not choice:
                break
            promised = self._request(choice, ready_ns, saved_ns)
            taken += [(lender, parts) for lender, parts in choice if lender in promised]
            refused |= {lender for lender, _ in choice} - promised
            moved = sum(parts for lender, parts in choice if lender in promised)
            whole_ns, most = whole_ns - saved_ns * moved, most - moved
            if len(promised) == len(choice):
                break
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
        ranks = self._board.ranks
        before = {rank: ranks[rank].pending for rank in refused}
        for rank in refused:
            self._board.tell(rank, promised=True, borrows=False)
        choice = self._board.decide(
            self.rank, self._now_ms(), whole_ns / 1e6, saved_ns / 1e6, half_ns / 1e6, most, inside
        )[1]
        for rank, pending in before.items():
            ranks[rank].pending = pending
        return choice

    def _request(
        self, choice: Sequence[tuple[int, int]], half_ns: float, saved_ns: float
    ) -> set[int]:
        """Asks lenders and waits a moment for what they say; gives those that promise."""
        parts = [float(q) for _, q in choice]
        if self._units is not None and self._is_migratable:
            parts = list(self._units.assign(self._stage, self._kind, choice)[1])
        asked = []
        for (lender, _), really in zip(choice, parts, strict=True):
            if really <= 0.0:
                continue
            help_ = Help(
                action=self._action, borrower=self.rank, lender=lender, parts=really,
                decided_ns=_clock(),
            )  # fmt: skip
            with self._changed:
                self._numbers += 1
                number = self._numbers
                self._helps[number] = help_
                free_ns = max(1e6 * (self._board.ranks[lender].free_ms - self._now_ms()), 0.0)
            within_ns = max(free_ns, half_ns) + saved_ns * really / 2.0
            asked.append(help_)
            self._send(
                lender, What.REQUEST, number, self._action, int(1000 * really), int(half_ns),
                int(within_ns), self._start_ns - self._origin_ns, int(self._is_migratable), _clock(),
            )  # fmt: skip
        limit = time.monotonic() + _VERDICT_S
        with self._changed:
            while (
                any(h.outcome == "asked" for h in asked) and (left := limit - time.monotonic()) > 0
            ):
                self._changed.wait(left)
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
        self._silent.add(help_.lender)
        self._board.tell(help_.lender, promised=True, borrows=False)
        number = self._number_of(help_)
        self._helps.pop(number, None)
        self._send(help_.lender, What.CANCEL, number)

    def _await(self, serial: int, behind: int) -> tuple[Tensor, ...] | None:
        help_ = self._posted.get(serial)
        with self._changed:
            while (serial, behind) not in self._results:
                if help_ is None or help_.outcome != "promised":
                    return None
                left_ns = help_.back_ns - _clock()
                if left_ns <= 0:
                    self._cancel(help_)
                    return None
                self._changed.wait(left_ns / 1e9)
            result = self._results[serial, behind]
            if result is not None:
                del self._results[serial, behind]
            return result

    # Messages.

    def _on_packet(self, sender: int, packet: Packet) -> None:
        if packet.what is What.COLLECT:
            self._give_back(sender, packet.step)
            return
        with self._changed:
            if packet.step > self._step:
                self._early.append((sender, packet))
            elif packet.step == self._step:
                self._handle(sender, packet)

    def _give_back(self, borrower: int, step: int) -> None:
        """Answers with the sums of weight gradients that this rank has for another."""
        with self._storing:
            store = self._stores.get(borrower)
            found = [] if store is None else store.give_back()
        for back in found:
            tensors = (torch.tensor(back.serials), *back.gradients)
            packet = Packet(what=What.RETURNED, step=step, numbers=(1, *back.key), tensors=tensors)
            self._links.send(borrower, packet)
        self._links.send(borrower, Packet(what=What.RETURNED, step=step))

    def _handle(self, sender: int, packet: Packet) -> None:
        what, numbers, board = packet.what, packet.numbers, self._board
        self._silent.discard(sender)
        if what is What.STATE:
            self._learn(sender, numbers)
            return
        if what is What.REQUEST:
            self._verdict(sender, packet)
        elif what is What.FINISHED:
            self._finished.add(sender)
        elif what is What.RETURNED:
            self._take_back(sender, packet)
        elif what is What.WEIGHTS:
            stage, block, first, stop, version = numbers[:5]
            store = self._stores.setdefault(sender, SliceStore())
            with self._storing:
                store.put((stage, block, first, stop), version, packet.tensors)
            self._hold(0)
        elif what in (What.POST, What.END, What.CANCEL):
            for promise in (self._promise, self._serving):
                if promise and (promise.borrower, promise.number) == (sender, numbers[0]):
                    self._follow(promise, packet)
        elif (help_ := self._helps.get(numbers[0])) is not None:
            if what is What.ACCEPT:
                help_.outcome = "promised"
                help_.end_ns = _clock() + numbers[1]
                board.tell(sender, promised=True, borrows=False)
            elif what is What.REFUSE:
                help_.outcome = "refused"
            elif what is What.DONE:
                help_.outcome = "done"
                help_.start_ns, help_.end_ns, help_.back_ns = numbers[1:4]
            elif what is What.RESULT:
                help_.num_bytes += sum(t.nbytes for t in packet.tensors)
                _, serial, behind, refused = numbers[:4]
                self._results[serial, behind] = None if refused else tuple(packet.tensors)
        self._changed.notify_all()

    def _follow(self, promise: Promise, packet: Packet) -> None:
        """What a borrower says to a lender that has promised."""
        if packet.what is What.POST:
            promise.posts.append(Request.from_numbers(packet.numbers[1:19], packet.tensors))
            self._hold(sum(t.nbytes for t in packet.tensors))
        elif packet.what is What.END:
            promise.is_ended = True
        else:
            promise.is_cancelled = True
            if promise is self._promise:
                self._promise = None

    def _hold(self, num_bytes: int) -> None:
        """Counts what others have here."""
        self._posted_bytes += num_bytes
        held = self._posted_bytes + sum(store.held_bytes for store in self._stores.values())
        self.report.peak_bytes = max(self.report.peak_bytes, held)

    def _take_back(self, lender: int, packet: Packet) -> None:
        """Keeps a sum of gradients; the last message of a lender has none."""
        sums = self._incoming.setdefault(lender, [])
        if not packet.numbers[0]:
            self._returned[lender] = self._incoming.pop(lender)
            return
        stage, block, first, stop = packet.numbers[1:5]
        serials, *gradients = packet.tensors
        sums.append(
            Returned(
                key=(stage, block, first, stop), serials=tuple(serials.tolist()),
                gradients=tuple(gradients),
            )
        )  # fmt: skip

    def _learn(self, sender: int, numbers: Sequence[int]) -> None:
        """What a rank tells of itself."""
        action, running, end_ns, free_ns, promised, borrows = numbers[:6]
        board, now = self._board, self._now_ms()
        if action >= 0 and board.is_waiting(action):
            board.started(sender, action, now, now + end_ns / 1e6)
        elif not running:
            board.ended(sender, now)
        board.expects(sender, now + end_ns / 1e6, now + free_ns / 1e6)
        board.tell(sender, promised=bool(promised), borrows=bool(borrows))

    def _state(self) -> tuple[int, ...]:
        """Where this rank stands: its action, when that ends, when it is free, what it owes and is owed."""
        promise, now = self._promise, _clock()
        is_busy = self._running is not None or self._serving is not None
        free_ns = end_ns = max(self._busy_until_ns - now, 0) if is_busy else 0
        if promise is not None:
            free_ns = max(free_ns, promise.ready_ns - now)
            free_ns += self._busy_ns(promise.action, promise.parts)
        borrows = self._running is not None and any(h.outcome == "promised" for h in self._mine)
        action = self._board.ranks[self.rank].action
        running = self._board.is_running(self.rank)
        return action, int(running), end_ns, free_ns, int(promise is not None), int(borrows)

    def _tell(self) -> None:
        """Tells all others where this rank stands."""
        with self._changed:
            packet = Packet(what=What.STATE, step=self._step, numbers=self._state())
            self._links.broadcast(packet)

    def _on_broken(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            if self._step >= 0:
                self._board.tell(rank, promised=True, borrows=False)
            for help_ in self._helps.values():
                if help_.lender == rank and help_.outcome in ("asked", "promised"):
                    help_.outcome = "late"
            for promise in (self._promise, self._serving):
                if promise is not None and promise.borrower == rank:
                    promise.is_cancelled = True
            if self._promise is not None and self._promise.is_cancelled:
                self._promise = None
            self._changed.notify_all()
        self._inbox.put(None)

    def _send(self, rank: int, what: What, *numbers: int) -> None:
        self._links.send(rank, Packet(what=what, step=self._step, numbers=numbers))

    def _number_of(self, help_: Help) -> int:
        return next((n for n, h in self._helps.items() if h is help_), -1)

    @property
    def _is_migratable(self) -> bool:
        return self._stage in self._lendings

    def _now_ms(self) -> float:
        return (_clock() - self._origin_ns) / 1e6


def _sleep_until(moment_ns: int) -> None:
    left_ns = moment_ns - _clock()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
