"""What the action in progress moves, and to whom: between the executor and the modules of a stage."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from conductor.errors import CannotMoveError
from conductor.migration.modules.request import Piece, Request
from conductor.migration.modules.serve import Returned
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

    @property
    def columns(self) -> slice:
        """Of an MLP."""
        return slice(self.first, self.stop)


Decision = Mapping[tuple[int, Kind], Sequence[Part]]
"""The parts that move of each block (its index in the stage) in F, I and W; what is absent stays.

What a full backward B moves counts for its I.
"""


HOME = -1
"""In place of a lender: the rank itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Done:
    """A piece of a block that is done.

    Attributes:
        part: which.
        tensors: its result.
        serial: of the request whose reply it is; None where it was computed here.
    """

    part: Part
    tensors: tuple[Tensor, ...]
    serial: int | None = None


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


class Block(Protocol):
    """A block of a stage that can move work."""

    name: str
    piece: Piece

    @property
    def units(self) -> int | None:
        """KV groups, or columns of the hidden dimension; None before the first run tells."""

    def width(self, kind: Kind, units: int) -> float:
        """Numbers for each token that a request for so many units and its reply have together."""

    def add_gradients(self, part: Part, gradients: Sequence[Tensor]) -> None:
        """Adds gradients of a part's weights to those of the parameters."""

    def slice_weights(self, part: Part) -> tuple[Tensor, ...]:
        """Copies of a part's weights."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unsettled:
    """Weight gradients that a lender may or may not have added to its sum.

    Attributes:
        block: index of the block.
        part: that was asked for.
        compute: gives its gradients.
    """

    block: int
    part: Part
    compute: Callable[[Part], tuple[Tensor, ...]]


class Lending:
    """One per stage. The executor sets it before each action, the stage's modules read it.

    With `helper` None the modules run as they did before they were converted. With a helper, but
    nothing to move, they only keep what a backward needs in order to move.

    Args:
        stage: of the pipeline.

    Attributes:
        stage: of the pipeline.
        blocks: of the stage, in the order of its forward; a block's index is its place.
        helper: the way to the lenders, or None.
        microbatch: of the action in progress.
        unsettled: weight gradients in doubt, by the serial of their request.
    """

    _serials = itertools.count()  # of all stages together

    def __init__(self, stage: int = 0) -> None:
        self.stage = stage
        self.blocks: list[Block] = []
        self.helper: Helper | None = None
        self._version = 0
        self.microbatch = -1
        self.unsettled: dict[int, Unsettled] = {}
        self._owed: set[int] = set()
        self._decision: Decision = {}

    @property
    def version(self) -> int:
        """Of the weights. Lenders of another version refuse.

        Raises:
            RuntimeError: it changes while weight gradients are with lenders: `settle` comes first.
        """
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        if version != self._version and (self._owed or self.unsettled):
            raise RuntimeError("weight gradients of the last version are still with lenders")
        self._version = version

    def begin(self, decision: Decision, microbatch: int) -> None:
        """Before an action: what it moves. An empty decision keeps everything."""
        self._decision, self.microbatch = decision, microbatch

    def moves(self, block: int) -> bool:
        """Whether any part of a block moves now."""
        return any(self._decision.get((block, kind)) for kind in Kind)

    def parts(self, block: int, kind: Kind) -> Sequence[Part]:
        """The parts of a block that move now, in order.

        Raises:
            CannotMoveError: a part is empty, beyond the block, or overlaps another.
        """
        parts = self._decision.get((block, kind), ())
        if kind is Kind.I and not parts:
            parts = self._decision.get((block, Kind.B), ())
        end = 0
        for part in parts:
            units = self.blocks[block].units
            if not end <= part.first < part.stop <= (units or 0):
                raise CannotMoveError(
                    f"of {self.blocks[block].name!r}, which has {units} KV groups or columns,"
                    f" {part.first} to {part.stop} cannot move (what is before {end} has moved)"
                )
            end = part.stop
        return parts

    def split(
        self,
        block: int,
        kind: Kind,
        ask: Callable[[Part, int], Request],
        compute: Callable[[Part], tuple[Tensor, ...]],
    ) -> list[Done]:
        """Does a block's work, here and at lenders, and returns the pieces in order.

        Requests leave first, the rank's own pieces are computed meanwhile, then the results are taken;
        what does not come is computed here.

        Args:
            block: index of the block.
            kind: F, I or W.
            ask: makes the request for a part, given its serial.
            compute: does a part here.
        """
        units = self.blocks[block].units
        assert units is not None
        helper = self.helper
        parts = () if helper is None else self.parts(block, kind)
        if helper is None or not parts:
            part = Part(lender=HOME, first=0, stop=units)
            return [Done(part=part, tensors=compute(part))]
        serials = {}
        for part in parts:
            serials[part.first] = serial = next(self._serials)
            helper.post(ask(part, serial))
        done = []
        ends = [0, *(part.stop for part in parts)]
        starts = [*(part.first for part in parts), units]
        for first, stop in zip(ends, starts, strict=True):
            if first < stop:
                part = Part(lender=HOME, first=first, stop=stop)
                done.append(Done(part=part, tensors=compute(part)))
        for part in parts:
            serial = serials[part.first]
            tensors = helper.take(serial)
            if tensors is not None:
                if kind is Kind.W:
                    self._owed.add(serial)
                done.append(Done(part=part, tensors=tensors, serial=serial))
            elif kind is Kind.W and not helper.is_void(serial):
                self.unsettled[serial] = Unsettled(block=block, part=part, compute=compute)
            else:
                done.append(Done(part=part, tensors=compute(part)))
        done.sort(key=lambda piece: piece.part.first)
        return done

    def take_behind(self, serial: int) -> tuple[Tensor, ...] | None:
        """What a lender sends behind its result."""
        return None if self.helper is None else self.helper.take_behind(serial)

    def slice_weights(self, block: int, first: int, stop: int) -> tuple[Tensor, ...]:
        """Copies of the weights of some columns of a block, for a lender's `SliceStore`."""
        return self.blocks[block].slice_weights(Part(lender=HOME, first=first, stop=stop))

    def settle(self, returned: Iterable[Returned]) -> None:
        """Adds what the lenders have summed up to the gradients, and computes what they have not done.

        Once per optimizer step, when all its actions have run, with every `Returned` of this stage;
        those of other stages are passed over. They are added in the order given.

        Raises:
            RuntimeError: a lender's sum has gradients that were not asked for, or lacks some that it
                had acknowledged.
        """
        for back in returned:
            stage, block, first, stop = back.key
            if stage != self.stage:
                continue
            unknown = set(back.serials) - self._owed - set(self.unsettled)
            if unknown:
                raise RuntimeError(f"gradients of requests {sorted(unknown)} were counted already")
            self._owed.difference_update(back.serials)
            for serial in back.serials:
                self.unsettled.pop(serial, None)
            self.blocks[block].add_gradients(
                Part(lender=HOME, first=first, stop=stop), back.gradients
            )
        if self._owed:
            raise RuntimeError(f"gradients of requests {sorted(self._owed)} were not given back")
        for serial in sorted(self.unsettled):
            late = self.unsettled.pop(serial)
            self.blocks[late.block].add_gradients(late.part, late.compute(late.part))
