"""What the action in progress moves, and to whom: between the executor and the modules of a stage."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from conductor.errors import CannotMoveError
from conductor.migration.modules.request import Request
from conductor.problem.kind import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """KV groups of an attention, or columns of an MLP, that one lender does.

    Attributes:
        lender: its rank.
        first: the first of them.
        stop: one past the last.
    """

    lender: int
    first: int
    stop: int


Decision = Mapping[tuple[int, Kind], Sequence[Part]]
"""The parts that move of each block (its index in the stage) in F, I and W; what is absent stays."""


class Helper(Protocol):
    """The way to the lenders. Nothing is ever owed: whatever does not come is computed at home."""

    def post(self, request: Request) -> None:
        """Sends a request, without waiting."""

    def take(self, serial: int) -> tuple[Tensor, ...] | None:
        """The result, when the rank has done its own part; None where it is refused, late or lost.

        It may wait as long as the lender is not overdue. After None the request is never taken again,
        and a late reply is dropped.
        """

    def take_behind(self, serial: int) -> tuple[Tensor, ...] | None:
        """What follows behind a result that was taken, asked for at most once; None as for `take`."""

    def is_void(self, serial: int) -> bool:
        """After a `take` of None: whether the lender certainly has not done it and never will."""


class Lending:
    """One per stage. The executor sets it before each action, the stage's modules read it.

    With `helper` None the modules run as they did before they were converted. With a helper, but
    nothing to move, they only keep what a backward needs in order to move.

    Args:
        stage: of the pipeline.
    """

    _serials = itertools.count()  # of all stages together

    def __init__(self, stage: int = 0) -> None:
        self.stage = stage
        self.helper: Helper | None = None
        self.version = 0
        self.microbatch = -1
        self.unsettled: dict[int, Any] = {}
        self._decision: Decision = {}

    def begin(self, decision: Decision, microbatch: int) -> None:
        """Before an action: what it moves. An empty decision keeps everything."""
        self._decision, self.microbatch = decision, microbatch

    def parts(self, block: int, kind: Kind, units: int) -> Sequence[Part]:
        """The parts of a block that move now, in order.

        Args:
            block: index in the stage.
            kind: F, I or W.
            units: KV groups or columns that there are.

        Raises:
            CannotMoveError: a part is empty, beyond the block, or overlaps another.
        """
        parts = self._decision.get((block, kind), ())
        end = 0
        for part in parts:
            if not end <= part.first < part.stop <= units:
                raise CannotMoveError(
                    f"block {block} of stage {self.stage} has parts 0 to {units}, of which"
                    f" {part.first} to {part.stop} cannot move behind {end}"
                )
            end = part.stop
        return parts

    def next_serial(self) -> int:
        """For a new request."""
        return next(self._serials)
