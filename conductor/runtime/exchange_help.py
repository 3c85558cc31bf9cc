"""A help: a request of one rank, a promise of another, and what a step's helps came to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from conductor.migration.modules.request import Request


@dataclass(slots=True, kw_only=True)
class Help:
    """A request for help, as its borrower sees it. Times are on the clock of `time.perf_counter_ns`.

    Attributes:
        action: program index.
        borrower: its rank.
        lender: rank that is asked.
        parts: of the action's movable share, that move.
        decided_ns: when it was asked for.
        outcome: `asked`, `promised`, `done`, `refused` or `late`.
        start_ns: from then on the lender was occupied.
        end_ns: until then; as long as it is only promised, when the lender expects to be done.
        back_ns: when the result is there; as long as it is only promised, when to give it up.
        num_bytes: of the tensors, there and back.
    """

    action: int
    borrower: int
    lender: int
    parts: float
    decided_ns: int
    outcome: str = "asked"
    start_ns: int = 0
    end_ns: int = 0
    back_ns: int = 0
    num_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Promise:
    """A help as its lender sees it."""

    borrower: int
    number: int
    action: int
    parts: float
    began: tuple[int, int]
    ready_ns: int
    free_ns: int
    posts: deque[Request] = field(default_factory=deque)
    is_ended: bool = False
    is_cancelled: bool = False


@dataclass(slots=True, kw_only=True)
class StepHelps:
    """What one step's helps came to, on one rank.

    Attributes:
        helps: that this rank asked for.
        whole_ns: of each of its actions, the time without help, as far as its own part tells.
        waited_ns: time that its actions waited for lenders.
        peak_bytes: most bytes of others' tensors and weights that it held.
    """

    helps: list[Help] = field(default_factory=list)
    whole_ns: dict[int, int] = field(default_factory=dict)
    waited_ns: int = 0
    peak_bytes: int = 0
