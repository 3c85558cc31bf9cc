"""Tensors of an MLP of which some columns may still be at a lender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conductor.migration.modules.lending import Done, Lending


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Tensors (..., U) of which some columns may be missing: at a lender, or lost.

    Attributes:
        tensors: one, or two with a gate.
        here: bool, shape (U,), on the CPU: the columns that are there.
        owed: pieces whose columns a lender sends behind its result.
    """

    tensors: tuple[Tensor, ...]
    here: Tensor
    owed: list[Done]

    @classmethod
    def of(cls, done: Sequence[Done], like: Tensor, count: int) -> Columns:
        """What the pieces of a block bring besides their first tensor.

        Args:
            done: by `Lending.split`.
            like: has the tokens, dtype and device.
            count: of tensors.
        """
        units = done[-1].part.stop
        owed = [piece for piece in done if len(piece.tensors) == 1]
        here = torch.ones(units, dtype=torch.bool)
        if len(done) == 1 and not owed:
            return cls(tensors=done[0].tensors[1:], here=here, owed=owed)
        tensors = tuple(like.new_empty(*like.shape[:-1], units) for _ in range(count))
        for piece in done:
            for whole, some in zip(tensors, piece.tensors[1:], strict=False):
                whole[..., piece.part.columns] = some
        for piece in owed:
            here[piece.part.columns] = False
        return cls(tensors=tensors, here=here, owed=owed)

    def complete(
        self,
        lending: Lending,
        compute: Callable[[slice], tuple[Tensor, ...]],
        finish: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = tuple,
    ) -> tuple[Tensor, ...]:
        """Takes what is owed, computes what is lost; all columns are there afterwards.

        Args:
            lending: of the stage.
            compute: what a lender would have sent of some columns.
            finish: makes all tensors' columns of that.
        """
        # Saved tensors may not change under autograd's eyes; `data` is out of its sight.
        here = self.here.data
        for piece in self.owed:
            assert piece.serial is not None
            behind = lending.take_behind(piece.serial)
            if behind is not None:
                self._put(piece.part.columns, finish(behind))
        self.owed.clear()
        if not here.all():
            missing = (~here).nonzero()
            columns = slice(int(missing[0]), int(missing[-1]) + 1)
            self._put(columns, finish(compute(columns)))
        return self.tensors

    def _put(self, columns: slice, tensors: Sequence[Tensor]) -> None:
        for whole, some in zip(self.tensors, tensors, strict=True):
            whole.data[..., columns] = some
        self.here.data[columns] = True
