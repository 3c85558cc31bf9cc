"""The simple model of moving work: a share of every forward and backward can move, at a price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from conductor.errors import InvalidSpecError
from conductor.problem.kind import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleModel:
    """A share of an action can move in equal parts; a lender pays for the way.

    An action of expected time `E` of which `q` parts move takes its rank `E (1 - movable q / parts)`. The
    lender starts when it is free, but not before half of the share that cannot move has passed; it is
    busy for `latency_ms + part_ms q` and its own time for the parts; the result takes another
    `latency_ms + part_ms q`. The action ends when both ends are there.

    Attributes:
        movable: share that can move, for F and I.
        movable_weight: share that can move, for W and for the W in a B.
        latency_ms: of one message.
        part_ms: transfer time of one part, each way.
        parts: the movable share is cut into so many equal parts.
        lender_time: what the parts of a borrower's action take a lender. `own`: as its own action of that
            kind; uneven stages mean uneven ranks. `borrower`: as they take the borrower; uneven stages
            mean uneven work (a heavy head), as heavy wherever it is done.
        source: where the numbers come from.
    """

    movable: float = 0.6
    movable_weight: float = 0.0
    latency_ms: float = 0.05
    part_ms: float = 0.01
    parts: int = 32
    lender_time: Literal["own", "borrower"] = "own"
    source: str = "the paper's setting with transfers paid for"

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpecError: names the field and what is wrong with it.
        """
        for name in ("movable", "movable_weight"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidSpecError(f"{name} is a share in [0, 1], not {getattr(self, name)!r}")
        for name in ("latency_ms", "part_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InvalidSpecError(f"{name} must be a number of at least 0, not {value!r}")
        if self.lender_time not in ("own", "borrower"):
            raise InvalidSpecError(f"lender_time is own or borrower, not {self.lender_time!r}")
        if self.parts < 1:
            raise InvalidSpecError(f"parts must be at least 1, not {self.parts!r}")

    def share(self, kind: Kind) -> float:
        """The share of an action of this kind that can move."""
        if kind is Kind.W:
            return self.movable_weight
        if kind is Kind.B:
            return min(self.movable, self.movable_weight)
        return self.movable
