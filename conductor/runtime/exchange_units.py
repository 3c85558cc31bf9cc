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
    """

    lendings: Mapping[int, Lending]
    parts: int
    held: Held = field(default_factory=dict)

    def assign(
        self, stage: int, kind: Kind, choice: Sequence[tuple[int, int]]
    ) -> tuple[Decision, Sequence[float]]:
        """What moves of each block for (lender, parts) pairs, and the parts that this really is."""
        decision: dict[tuple[int, Kind], list[Part]] = {}
        moved = dict.fromkeys((lender for lender, _ in choice), 0.0)
        ranges = self._ranges(stage)
        if kind is Kind.W:  # attention has no weights that move
            ranges = {block: found for block, found in ranges.items() if found[1] is not None}
        for block, (units, held) in ranges.items():
            end, found = units, []
            for lender, parts in choice:
                count = round(parts * units / self.parts)
                if held is not None:
                    first, end = held.get(lender, (0, 0))
                    count = min(count, end - first)
                count = min(count, end)
                if count > 0:
                    found.append(Part(lender=lender, first=end - count, stop=end))
                    moved[lender] += count / units
                    end -= count
            if found:
                decision[block, kind] = sorted(found, key=lambda part: part.first)
        really = [self.parts * share / max(len(ranges), 1) for share in moved.values()]
        return decision, really

    def weights(self) -> Iterator[tuple[int, tuple[int, int, int, int], tuple[Tensor, ...]]]:
        """Lender, key (stage, block, first column, one past the last) and weights of all held slices."""
        for stage, lending in self.lendings.items():
            for block, (_, held) in self._ranges(stage).items():
                for lender, (first, stop) in (held or {}).items():
                    yield (
                        lender,
                        (stage, block, first, stop),
                        tuple(lending.slice_weights(block, first, stop)),
                    )

    def _ranges(self, stage: int) -> dict[int, tuple[int, dict[int, tuple[int, int]] | None]]:
        """Of each block that can move: its units, and for an MLP the columns that lenders hold."""
        found: dict[int, tuple[int, dict[int, tuple[int, int]] | None]] = {}
        for index, block in enumerate(self.lendings[stage].blocks):
            if block.units is None:
                continue
            if block.piece is Piece.HEADS:
                found[index] = block.units, None
            elif stage in self.held:
                end, held = block.units, {}
                for lender, share in self.held[stage]:
                    first = max(end - round(share * block.units), 0)
                    held[lender] = first, end
                    end = first
                found[index] = block.units, held
        return found
