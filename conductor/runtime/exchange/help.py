"""A help: a request of one rank, a promise of another, and what a step's helps came to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from conductor.migration.modules.request import Request


@dataclass(slots=True, kw_only=True)
class Help:
    """A request for help, as its borrower sees it. Times are on the clock of `time.perf_counter_ns`.

    Attributes:
        number: of the help, at its borrower.
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

    number: int
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
    """A help as its lender sees it.

    Attributes:
        borrower: who asked for it.
        number: of the help, there.
        action: program index.
        parts: of the action's movable share.
        ready_ns: not before then.
        free_ns: when it was asked for, where the lender was free; else 0.
        posts: requests that wait, with the bytes that they and their replies take.
        num_bytes: of these, of the one in progress and of the last one done.
        done_bytes: of the last one done.
        is_ended: no more requests follow.
        is_settled: the action asks nobody else any more.
        is_cancelled: the borrower has given it up.
    """

    borrower: int
    number: int
    action: int
    parts: float
    ready_ns: int
    free_ns: int
    posts: deque[tuple[Request, int]] = field(default_factory=deque)
    num_bytes: int = 0
    done_bytes: int = 0
    is_ended: bool = False
    is_settled: bool = False
    is_cancelled: bool = False


@dataclass(slots=True, kw_only=True)
class StepHelps:
    """What one step's helps came to, on one rank.

    Attributes:
        helps: that this rank asked for.
        whole_ns: of each of its actions, the time without help, as far as its own part tells.
        waited_ns: time that its actions waited for lenders.
        peak_bytes: most bytes of others' tensors and weights that it held.
        returned: requests for weight gradients whose sums came back.
    """

    helps: list[Help] = field(default_factory=list)
    whole_ns: dict[int, int] = field(default_factory=dict)
    waited_ns: int = 0
    peak_bytes: int = 0
    returned: int = 0
