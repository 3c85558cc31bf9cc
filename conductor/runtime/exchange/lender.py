"""The lender: promises help while it works, and keeps its promises between its own actions."""

from __future__ import annotations

from math import prod

from torch import Tensor

from conductor.migration.modules.request import Request, reply_shapes
from conductor.runtime.exchange.borrower import Borrower
from conductor.runtime.exchange.help import Promise
from conductor.runtime.exchange.links import Packet, What
from conductor.runtime.exchange.station import VERDICT_S, Station, clock
from conductor.runtime.exchange.weights import Slices


class Lender:
    """What one rank does for others.

    Args:
        station: of this rank.
        slices: of others that it holds.
        borrower: of this rank.

    Attributes:
        limit_bytes: tensors of others, weights and all, that it holds at most; None is no limit.
    """

    def __init__(self, station: Station, slices: Slices, borrower: Borrower) -> None:
        self._station, self._slices, self._borrower = station, slices, borrower
        self.limit_bytes: int | None = None
        self._message_bytes = 0

    def begin_step(self) -> None:
        """Before the first action of a step."""
        self._message_bytes = 0

    @property
    def owed(self) -> tuple[Promise, ...]:
        """What it has promised."""
        return tuple(
            each for each in (self._station.promise, self._station.serving) if each is not None
        )

    def free_ns(self, now: int) -> int:
        """How long until it is done with what it does; 0 where it does nothing."""
        station = self._station
        is_busy = station.running_since_ns is not None or station.serving is not None
        return max(station.busy_until_ns - now, 0) if is_busy else 0

    def answer(self, sender: int, packet: Packet) -> None:
        """Promises help or refuses it; on a thread of the links, also while the rank works.

        Nobody waits in a circle. Who asks may wait for what the lender does now, so that must not wait, in
        turn, for who asks. The lender's own action does not if it waits for nobody. The action that it serves
        has other lenders, perhaps, but asks no more when it is settled; so it can lead back only to a rank
        that had promised something before it asked, and such a rank says so.
        """
        station, now = self._station, clock()
        number, action, milliparts, ready_ns, within_ns, is_ended, sent_ns, has_promised = (
            packet.numbers[:8]
        )
        parts = milliparts / 1000.0
        on_way_ns = now - sent_ns
        if 0 < on_way_ns < VERDICT_S * 1e9:  # on clocks of two machines it may be anything
            ready_ns -= on_way_ns
        serving, is_running = station.serving, station.running_since_ns is not None
        free_ns = self.free_ns(now)
        may_circle = self._borrower.waits or (
            serving is not None and (bool(has_promised) or not serving.is_settled)
        )
        if not station.is_open or station.promise is not None or free_ns > within_ns or may_circle:
            station.tell(sender)
            station.send(sender, What.REFUSE, number)
            return
        is_busy = is_running or serving is not None
        station.promise = Promise(
            borrower=sender, number=number, action=action, parts=parts, ready_ns=now + ready_ns,
            free_ns=0 if is_busy else now, is_ended=bool(is_ended), is_settled=bool(is_ended),
        )  # fmt: skip
        done_ns = max(free_ns, ready_ns) + station.busy_ns(action, parts)
        station.send(sender, What.ACCEPT, number, done_ns)
        station.tell()
        station.inbox.put(None)

    def serve(self) -> None:
        """Keeps what this rank has promised."""
        station = self._station
        while True:
            with station.changed:
                promise, station.promise = station.promise, None
                station.serving = promise
                if promise is None:
                    return
                busy_ns = station.busy_ns(promise.action, promise.parts)
                station.busy_until_ns = max(clock(), promise.ready_ns) + busy_ns
            station.tell()
            self._keep(promise)
            with station.changed:
                station.serving = None
                self._let_go(promise, promise.num_bytes)

    def follow(self, promise: Promise, packet: Packet) -> None:
        """What a borrower says to a lender that has promised."""
        if packet.what is What.POST:
            request = Request.from_numbers(packet.numbers[1:19], packet.tensors)
            shapes = (shape for each in reply_shapes(request) for shape in each)
            size = request.num_bytes + sum(prod(shape) * dtype.itemsize for shape, dtype in shapes)
            # Who posts again has taken what it was given before.
            self._let_go(promise, promise.done_bytes)
            promise.done_bytes = 0
            if self._hold(promise, size):
                promise.posts.append((request, size))
            else:
                self._reply(promise, request.serial, 0, None)
        elif packet.what is What.END:
            promise.is_ended = True
        else:
            self._cancel(promise)

    def lost(self, rank: int) -> None:
        """A rank is gone: nothing is owed to it."""
        for promise in self.owed:
            if promise.borrower == rank:
                self._cancel(promise)

    def settled(self, borrower: int) -> None:
        """An action that has lenders asks for no more."""
        for promise in self.owed:
            if promise.borrower == borrower:
                promise.is_settled = True

    def _cancel(self, promise: Promise) -> None:
        station, promise.is_cancelled = self._station, True
        if promise is station.promise:
            station.promise = None
            self._let_go(promise, promise.num_bytes)

    def _keep(self, promise: Promise) -> None:
        """Serves one promise to its end."""
        station = self._station
        begin_ns, costs = promise.free_ns or clock(), station.board.costs
        busy_ns = station.busy_ns(promise.action, promise.parts)
        give_up_ns = max(begin_ns, promise.ready_ns) + 5 * busy_ns + 10**9
        until_ns = 0
        if station.is_emulated:
            busy_ns = station.busy_ns(promise.action, promise.parts, realised=True)
            until_ns = max(begin_ns, promise.ready_ns) + busy_ns
        end_ns = begin_ns
        while True:
            with station.changed:
                now = clock()
                if promise.is_cancelled:
                    return
                if now > give_up_ns:
                    break
                if not promise.posts:
                    left_ns = until_ns - now
                    if promise.is_ended and left_ns <= 0:
                        break
                    station.changed.wait((left_ns if left_ns > 0 else give_up_ns - now) / 1e9)
                    continue
                request, size = promise.posts.popleft()
            reply = self._slices.serve(promise.borrower, request)
            with station.changed:
                self.measure()
                promise.done_bytes += size
            if reply is None:
                self._reply(promise, request.serial, 0, None)
                continue
            for behind, tensors in enumerate((reply.tensors, reply.behind)):
                if tensors or not behind:
                    self._reply(promise, request.serial, behind, tensors)
            end_ns = clock()
        back_ns = end_ns
        if station.is_emulated:
            # The emulated device is done on time; what the rank notices later is no time of it.
            end_ns = max(end_ns, until_ns)
            back_ns = end_ns + int(1e6 * (costs.latency_ms + costs.part_ms * promise.parts))
        station.send(promise.borrower, What.DONE, promise.number, begin_ns, end_ns, back_ns)

    def _reply(
        self, promise: Promise, serial: int, behind: int, tensors: tuple[Tensor, ...] | None
    ) -> None:
        numbers = promise.number, serial, behind, int(tensors is None)
        self._station.links.send(
            promise.borrower,
            Packet(
                what=What.RESULT, step=self._station.step, numbers=numbers, tensors=tensors or ()
            ),
        )

    def _hold(self, promise: Promise, num_bytes: int) -> bool:
        """Counts a request and its reply, unless that is more than this rank may hold."""
        most = self._message_bytes + num_bytes + self._slices.reserved_bytes
        if self.limit_bytes is not None and most > self.limit_bytes:
            return False
        promise.num_bytes += num_bytes
        self._message_bytes += num_bytes
        self.measure()
        return True

    def _let_go(self, promise: Promise, num_bytes: int) -> None:
        promise.num_bytes -= num_bytes
        self._message_bytes -= num_bytes

    def measure(self) -> None:
        """What others have here now."""
        report, held = self._station.report, self._message_bytes + self._slices.held_bytes
        report.peak_bytes = max(report.peak_bytes, held)
