"""Weights of slices at lenders, and their gradients, which come back once a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import torch

from conductor.migration.modules.lending import Lending
from conductor.migration.modules.request import Reply, Request
from conductor.migration.modules.serve import Returned, SliceStore, serve
from conductor.problem.kind import Kind
from conductor.runtime.exchange.links import Packet, What
from conductor.runtime.exchange.station import Station
from conductor.runtime.exchange.units import Units
from conductor.runtime.faults import LOOK_S, Alarm


class Slices:
    """Slices of others that this rank holds, and those of its own that others hold.

    Args:
        station: of this rank.
        alarm: says whether a rank has failed.

    Attributes:
        limit_bytes: weights of others, with their gradients, that it takes at most.
        owing: lenders that may have weight gradients of this rank.
    """

    def __init__(self, station: Station, alarm: Alarm) -> None:
        self._station, self._alarm = station, alarm
        self.limit_bytes: int | None = None
        self.owing: set[int] = set()
        self._stores: dict[int, SliceStore] = {}
        self._closed: dict[int, int] = {}
        self._lock = threading.Lock()
        self._returned: dict[int, list[Returned] | None] = {}
        self._incoming: dict[int, list[Returned]] = {}

    # At the lender.

    @property
    def held_bytes(self) -> int:
        """Of others' weights here, and of their gradients."""
        return sum(store.held_bytes for store in self._stores.values())

    @property
    def reserved_bytes(self) -> int:
        """The same, with room for the gradients of all of them."""
        return sum(store.reserved_bytes() for store in self._stores.values())

    def put(self, borrower: int, packet: Packet) -> None:
        """Takes weights in, if there is room for them and their gradients; else requests are refused."""
        stage, block, first, stop, version = packet.numbers[:5]
        key = stage, block, first, stop
        with self._lock:
            store = self._stores.setdefault(borrower, SliceStore())
            others = sum(each.reserved_bytes(but=key) for each in self._stores.values())
            size = 2 * sum(tensor.nbytes for tensor in packet.tensors)
            if self.limit_bytes is None or others + size <= self.limit_bytes:
                store.put(key, version, packet.tensors)

    def drop(self) -> None:
        """Forgets all: others hold other slices from now on, or none."""
        with self._lock:
            for store in self._stores.values():
                store.drop()

    def serve(self, borrower: int, request: Request) -> Reply | None:
        """Does a request, or refuses; a weight gradient also once its step's sums have been given back."""
        with self._lock:
            if request.kind is Kind.W and request.version <= self._closed.get(borrower, -1):
                return None
            return serve(request, self._stores.get(borrower))

    def give_back(self, borrower: int, step: int) -> None:
        """Answers with the sums of weight gradients that this rank has for another; on a link's thread."""
        links = self._station.links
        with self._lock:
            self._closed[borrower] = step
            store = self._stores.get(borrower)
            found = [] if store is None else store.give_back()
        for back in found:
            tensors = (torch.tensor(back.serials), *back.gradients)
            numbers = (1, *back.key)
            links.send(
                borrower, Packet(what=What.RETURNED, step=step, numbers=numbers, tensors=tensors)
            )
        links.send(borrower, Packet(what=What.RETURNED, step=step))

    # At the borrower.

    def begin_step(self, lendings: Iterable[Lending], units: Units | None) -> None:
        """Sends the weights of the slices that others hold, as they are in this step."""
        step = self._station.step
        self.owing = set()
        for lending in lendings:
            lending.version = step
        for lender, key, weights in units.weights() if units else ():
            numbers = (*key, step)
            self._station.links.send(
                lender, Packet(what=What.WEIGHTS, step=step, numbers=numbers, tensors=weights)
            )

    def collect(self, lendings: Iterable[Lending], describe: Callable[[], str]) -> None:
        """Takes the sums of weight gradients back that lenders have, and adds each once.

        Raises:
            ConnectionError: they do not come.
            RankError: a rank has failed.
        """
        if not self.owing:
            return
        station, alarm = self._station, self._alarm
        deadline = time.monotonic() + alarm.timeout_s
        with station.changed:
            self._returned = dict.fromkeys(sorted(self.owing), None)
        for lender in sorted(self.owing):
            station.send(lender, What.COLLECT)
        while True:
            with station.changed:
                missing = [lender for lender, back in self._returned.items() if back is None]
                if not missing:
                    break
                station.changed.wait(LOOK_S)
            alarm.check(describe)
            if station.gone & set(missing) or time.monotonic() > deadline:
                raise ConnectionError(f"ranks {missing} do not give weight gradients back")
        back = [each for returned in self._returned.values() for each in returned or ()]
        station.report.returned = sum(len(each.serials) for each in back)
        for lending in lendings:
            lending.settle(back)

    def take_back(self, lender: int, packet: Packet) -> None:
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
