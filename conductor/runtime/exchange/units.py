"""Which heads and columns of a stage's blocks move, when so many parts of an action shall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from conductor.migration.modules.lending import Decision, Lending, Part
from conductor.migration.modules.request import Piece
from conductor.problem.kind import Kind

Held = Mapping[int, Sequence[tuple[int, float]]]
"""Of each stage, the lenders that hold columns of its MLPs, and which share of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units (KV groups, columns) of this rank's stages, as parts of an action.

    Every block that can move moves the same share: attention its last heads, an MLP the last of the
    columns that the lender holds.

    Attributes:
        lendings: of this rank's stages.
        parts: of an action's movable share.
        held: columns at lenders; none means that only heads move.
        only_weights: columns move in W alone; in F and I heads do.
    """

    lendings: Mapping[int, Lending]
    parts: int
    held: Held = field(default_factory=dict)
    only_weights: bool = False

    def assign(
        self, stage: int, kind: Kind, choice: Sequence[tuple[int, int]]
    ) -> tuple[Decision, Sequence[float]]:
        """What moves of each block for (lender, parts) pairs, and the parts that this really is."""
        decision: dict[tuple[int, Kind], list[Part]] = {}
        moved = dict.fromkeys((lender for lender, _ in choice), 0.0)
        blocks = [
            (block, units, held)
            for block, units, held in self._blocks(stage)
            if (kind is not Kind.W if held is None else kind is Kind.W or not self.only_weights)
        ]
        for block, units, held in blocks:
            end, found = units, []
            for lender, parts in choice:
                first, stop = (0, end) if held is None else held.get(lender, (0, 0))
                of = units if held is None else stop - first
                count = min(round(parts * of / self.parts), stop - first)
                if count > 0:
                    found.append(Part(lender=lender, first=stop - count, stop=stop))
                    moved[lender] += count / of
                    end = stop - count
            if found:
                decision[block, kind] = sorted(found, key=lambda part: part.first)
        really = [self.parts * share / max(len(blocks), 1) for share in moved.values()]
        return decision, really

    def weights(self) -> Iterator[tuple[int, tuple[int, int, int, int], tuple[Tensor, ...]]]:
        """Lender, key (stage, block, first column, one past the last) and weights of all held slices."""
        for stage, lending in self.lendings.items():
            for block, _, held in self._blocks(stage):
                for lender, (first, stop) in (held or {}).items():
                    weights = tuple(lending.slice_weights(block, first, stop))
                    yield lender, (stage, block, first, stop), weights

    def lender_bytes(self, tokens: Mapping[int, int]) -> tuple[dict[int, int], int]:
        """What a plan with these units has lenders hold.

        Args:
            tokens: of a micro-batch of each stage, times the bytes of a number.

        Returns:
            The weights at each lender and as much again for their gradients; and the largest request with its
            reply, of which a lender has two at most.
        """
        weights: dict[int, int] = {}
        for lender, _, tensors in self.weights():
            weights[lender] = weights.get(lender, 0) + 2 * sum(t.nbytes for t in tensors)
        largest = 0
        for stage, lending in self.lendings.items():
            for block, units, held in self._blocks(stage):
                most = max((stop - first for first, stop in (held or {0: (0, units)}).values()))
                only = held is not None and self.only_weights
                for kind in (Kind.W,) if only else (Kind.F, Kind.I, Kind.W):
                    width = lending.blocks[block].width(kind, most)
                    largest = max(largest, int(tokens[stage] * width))
        return weights, largest

    def _blocks(self, stage: int) -> Iterator[tuple[int, int, dict[int, tuple[int, int]] | None]]:
        """Index and units of each block that can move, and for an MLP the columns that lenders hold."""
        for index, block in enumerate(self.lendings[stage].blocks):
            if block.units is None:
                continue
            if block.piece is Piece.HEADS:
                yield index, block.units, None
            elif stage in self.held:
                end, held = block.units, {}
                for lender, share in self.held[stage]:
                    first = max(end - round(share * block.units), 0)
                    held[lender] = first, end
                    end = first
                yield index, block.units, held
