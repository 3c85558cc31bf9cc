"""When something goes wrong on one rank, every rank ends with the reason, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from conductor.errors import RankError

LOOK_S = 0.5
"""A rank that waits longer than this looks whether another one has failed."""
GRACE_S = 1.0
"""How long a report waits for what the other ranks are doing."""


class Alarm:
    """A note in the ranks' store that a rank has failed, and what each rank was doing then.

    Args:
        store: any store of `torch.distributed`.
        name: of this alarm, the same on all ranks.
        rank: this rank in the pipeline's group.
        num_ranks: ranks of the group.
        timeout_s: longest wait for a message.
    """

    def __init__(self, store: Any, name: str, rank: int, num_ranks: int, timeout_s: float) -> None:
        self._store, self._name = store, name
        self.rank, self._num_ranks, self.timeout_s = rank, num_ranks, timeout_s

    def check(self, doing: Callable[[], str]) -> None:
        """Called while waiting.

        Raises:
            RankError: another rank has failed, or the store is out of reach.
        """
        try:
            if not self._store.check([self._key("failure")]):
                return
            reason = self._store.get(self._key("failure")).decode()
            self._store.set(self._key(f"rank {self.rank}"), doing())
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} lost the other ranks while it {doing()}: {error}"
            ) from None
        raise RankError(f"rank {self.rank}, which {doing()}, stops, as {reason}")

    def report_error(self, error: BaseException, doing: str, wake: Callable[[], None]) -> RankError:
        """Tells all ranks; gives the error to raise here, which says what each of them was doing.

        Args:
            error: what went wrong on this rank.
            doing: what this rank does, after "rank N".
            wake: makes the neighbours look, once they can find the reason.
        """
        # torch wraps what a module raises; the cause says more.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(cause, RankError):
            reason = str(cause)
        else:
            reason = f"rank {self.rank} {doing}: {type(cause).__name__}: {cause}"
        lines = [reason]
        try:
            # The first failure is the cause; those that follow from it do not replace it.
            first = self._store.compare_set(self._key("failure"), "", reason).decode()
            self._store.set(self._key(f"rank {self.rank}"), doing)
            wake()
            if first != reason and first not in reason:
                lines.append(f"after {first}")
            lines += self._others()
        except RuntimeError:
            lines.append("the other ranks cannot be told: their store is gone")
        return RankError("\n  ".join(lines))

    def _others(self) -> Sequence[str]:
        """What the other ranks say, or that they say nothing."""
        lines = []
        deadline = time.monotonic() + GRACE_S
        for rank in range(self._num_ranks):
            if rank == self.rank:
                continue
            key = self._key(f"rank {rank}")
            while not (known := self._store.check([key])) and time.monotonic() < deadline:
                time.sleep(0.02)
            says = self._store.get(key).decode() if known else "says nothing: busy, hung or gone"
            lines.append(f"rank {rank} {says}")
        return lines

    def _key(self, what: str) -> str:
        return f"{self._name}/{what}"
