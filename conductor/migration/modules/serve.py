"""What a lender computes, and what it holds: slices of others' weights, and gradients of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from conductor.errors import CannotMoveError
from conductor.migration.modules.core import attend, attend_backward
from conductor.migration.modules.request import Piece, Reply, Request
from conductor.migration.modules.slices import (
    Weights,
    columns_of,
    slice_backward,
    slice_forward,
    slice_weight_gradients,
)
from conductor.problem.kind import Kind

SliceKey = tuple[int, int, int, int]
"""Stage, block, first column, one past the last."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    version: int
    weights: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...] | None = None
    serials: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Returned:
    """The gradients of one slice that a lender has summed up since the weights came.

    Attributes:
        key: of the slice.
        serials: of the requests whose gradients are in the sum.
        gradients: of the slice's weights, in their order.
    """

    key: SliceKey
    serials: tuple[int, ...]
    gradients: tuple[Tensor, ...]


class SliceStore:
    """What a lender holds for one borrower. Not for several threads at once."""

    def __init__(self) -> None:
        self._held: dict[SliceKey, _Held] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of weights and gradients."""
        return sum(
            tensor.nbytes
            for held in self._held.values()
            for tensor in (*held.weights, *(held.gradients or ()))
        )

    def reserved_bytes(self, *, but: SliceKey | None = None) -> int:
        """Bytes of the weights and of gradients of all of them, without those of one slice."""
        return 2 * sum(
            tensor.nbytes
            for key, held in self._held.items()
            if key != but
            for tensor in held.weights
        )

    def put(self, key: SliceKey, version: int, weights: Sequence[Tensor]) -> None:
        """Takes in weights, in place of those of an older version.

        Raises:
            CannotMoveError: the older ones' gradients have not been given back.
        """
        if key in self._held and self._held[key].serials:
            raise CannotMoveError(f"gradients of slice {key} have not been given back")
        self._held[key] = _Held(version=version, weights=tuple(weights))

    def drop(self) -> None:
        """Forgets everything, gradients too: the borrower is gone, or needs the slices no more."""
        self._held.clear()

    def give_back(self) -> list[Returned]:
        """The sums of all slices, which start anew: once per optimizer step."""
        given = []
        for key, held in self._held.items():
            if held.gradients is not None:
                given.append(
                    Returned(key=key, serials=tuple(held.serials), gradients=held.gradients)
                )
                held.gradients, held.serials = None, []
        return given

    def find(self, request: Request) -> tuple[_Held, slice] | None:
        """The slice that has a request's columns, in its version, and where they are in it."""
        for (stage, block, first, stop), held in self._held.items():
            if (
                (stage, block, held.version) == (request.stage, request.block, request.version)
                and first <= request.first
                and request.stop <= stop
            ):
                return held, slice(request.first - first, request.stop - first)
        return None


@torch.no_grad()
def serve(request: Request, store: SliceStore | None = None) -> Reply | None:
    """Does what a request asks, or refuses with None: weights that are missing or of another version.

    Depends on nothing but its arguments. It changes the store only for W, whose gradients it adds.
    """
    if request.piece is Piece.HEADS:
        return _serve_heads(request)
    found = None if store is None else store.find(request)
    if found is None:
        return None
    held, columns = found
    if request.kind is Kind.W:
        _add_gradients(held, columns, request)
        return Reply()
    return _serve_slice(request, columns_of(held.weights, columns, gated=request.gated))


def _serve_heads(request: Request) -> Reply:
    query, key, value, *rest = request.tensors
    mask = rest.pop(0) if request.has_mask else None
    if request.kind is Kind.F:
        return Reply(tensors=attend(query, key, value, mask, request.attention))
    *kept, grad = rest
    return Reply(
        tensors=attend_backward(grad, query, key, value, mask, tuple(kept), request.attention)
    )


def _serve_slice(request: Request, held: Weights) -> Reply:
    first, *inner = request.tensors
    weights = tuple(weight.to(first.dtype) for weight in held)
    if request.kind is Kind.F:
        result, behind, _ = slice_forward(first, weights, request.activation, gated=request.gated)
    else:
        result, behind = slice_backward(
            first, inner, weights, request.activation, gated=request.gated, dtype=first.dtype
        )
    return Reply(tensors=(result,), behind=behind if request.keep else ())


def _add_gradients(held: _Held, columns: slice, request: Request) -> None:
    x, grad, hidden, *inner_grads = request.tensors
    if held.gradients is None:
        held.gradients = tuple(torch.zeros_like(weight) for weight in held.weights)
    sums = columns_of(held.gradients, columns, gated=request.gated)
    biased = len(held.weights) > 2 + request.gated
    grads = slice_weight_gradients(x, grad, hidden, inner_grads, biased=biased)
    for total, each in zip(sums, grads, strict=True):
        total += each.to(total.dtype)
    held.serials.append(request.serial)
