"""A lender in the same process, which may refuse, be late, or lose what it is asked: for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from conductor.migration.modules.request import Reply, Request
from conductor.migration.modules.serve import Returned, SliceStore, serve

Fate = Literal["served", "refused", "late", "lost", "behind lost"]
"""Late: done by the lender, but too late. Lost: never got there."""


class LoopbackHelper:
    """Lenders that serve at once, each with a store of its own.

    Args:
        fate: what becomes of a request; None serves all.
    """

    def __init__(self, fate: Callable[[Request], Fate] | None = None) -> None:
        self.stores: dict[int, SliceStore] = {}
        self.requests: list[Request] = []
        self._fate = fate
        self._replies: dict[int, tuple[Fate, Reply | None]] = {}

    def store(self, lender: int) -> SliceStore:
        """What a lender holds."""
        return self.stores.setdefault(lender, SliceStore())

    def post(self, request: Request) -> None:
        """Serves it, unless its fate is another."""
        fate = "served" if self._fate is None else self._fate(request)
        self.requests.append(request)
        done = fate in ("served", "late", "behind lost")
        reply = serve(request, self.store(request.lender)) if done else None
        self._replies[request.serial] = fate, reply

    def take(self, serial: int) -> tuple[Tensor, ...] | None:
        """The result, if it is there."""
        fate, reply = self._replies[serial]
        return None if reply is None or fate == "late" else reply.tensors

    def take_behind(self, serial: int) -> tuple[Tensor, ...] | None:
        """What follows it."""
        fate, reply = self._replies.pop(serial)
        return None if reply is None or fate == "behind lost" else reply.behind

    def is_void(self, serial: int) -> bool:
        """A refusal is certain; of the late and the lost nobody knows."""
        fate, reply = self._replies[serial]
        return fate == "refused" or (fate == "served" and reply is None)

    def give_back(self) -> list[Returned]:
        """The gradients of all lenders, by rank."""
        return [back for rank in sorted(self.stores) for back in self.stores[rank].give_back()]
