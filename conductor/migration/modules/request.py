"""A unit of moved work: what a lender is asked, and what it answers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from conductor.migration.modules.core import DEFAULT, Settings
from conductor.problem.kind import Kind

Shapes = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Shape and dtype of each tensor of a message."""


class Piece(IntEnum):
    """What moves."""

    HEADS = 0
    """Core attention of whole KV groups. No weights."""
    SLICE = 1
    """Columns of the hidden dimension of an MLP, with their weights."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One part of one block, in one action. Everything that the lender needs but a slice's weights.

    Tensors of a request, and of its reply; those behind the bar come behind the result, and only if
    `keep` is set. B batch, T and S lengths of queries and keys, H query heads and G KV groups that move,
    E and V widths of a head, D width, U columns that move (two of each U tensor with a gate):

    | piece, kind | request | reply |
    | --- | --- | --- |
    | HEADS, F | q (B,H,T,E), k (B,G,S,E), v (B,G,S,V), mask? | output (B,H,T,V), log-sum-exp (B,H,T)? |
    | HEADS, I | the same, output, log-sum-exp?, its gradient | gradients of q, k, v |
    | SLICE, F | x (..., D) | partial sum (..., D) bar inner (..., U) |
    | SLICE, I | gradient (..., D), inner (..., U) | partial gradient (..., D) bar gradients of inner |
    | SLICE, W | x, gradient (N, D), hidden (N, U), gradients of inner (N, U) | nothing: it is an answer |

    Attributes:
        serial: never used twice by a rank.
        piece: what moves.
        kind: F, I or W; the recomputation of a checkpointed block is F.
        stage: of the borrower.
        block: index of the block in its stage (see `Migratable.blocks`).
        microbatch: of the action.
        lender: rank that is asked.
        first: first KV group or column that moves.
        stop: one past the last.
        tensors: contiguous, without a graph.
        keep: whether the reply has tensors behind the bar.
        has_mask: whether there is a mask among the tensors.
        attention: how it is computed.
        activation: of an MLP, an index of `activation.ACTIVATIONS`.
        gated: whether the MLP has a gate, and so two inner tensors.
        version: of the weights.
    """

    serial: int
    piece: Piece
    kind: Kind
    stage: int
    block: int
    microbatch: int
    lender: int
    first: int
    stop: int
    tensors: tuple[Tensor, ...]
    keep: bool = False
    has_mask: bool = False
    attention: Settings = DEFAULT
    activation: int = 0
    gated: bool = False
    version: int = 0

    @property
    def num_bytes(self) -> int:
        """Of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def numbers(self) -> list[int]:
        """All but the tensors, as whole numbers, to send ahead of them."""
        causal, scale, flash, several = self.attention
        return [
            self.serial, self.piece, self.kind, self.stage, self.block, self.microbatch,
            self.lender, self.first, self.stop, self.keep, self.has_mask, causal,
            scale is not None, _bits(scale or 0.0), flash + 2 * several, self.activation,
            self.gated, self.version,
        ]  # fmt: skip

    @classmethod
    def from_numbers(cls, numbers: Sequence[int], tensors: Sequence[Tensor]) -> Request:
        """What `numbers` told, with the tensors that came behind."""
        (
            serial, piece, kind, stage, block, microbatch, lender, first, stop,
            keep, has_mask, causal, has_scale, scale, flash, activation,
            gated, version,
        ) = numbers  # fmt: skip
        return cls(
            serial=serial, piece=Piece(piece), kind=Kind(kind), stage=stage, block=block,
            microbatch=microbatch, lender=lender, first=first, stop=stop, tensors=tuple(tensors),
            keep=bool(keep), has_mask=bool(has_mask),
            attention=Settings(
                bool(causal), _float(scale) if has_scale else None, bool(flash & 1), bool(flash & 2)
            ),
            activation=activation, gated=bool(gated), version=version,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """What a lender answers: the result, and what follows behind it."""

    tensors: tuple[Tensor, ...] = ()
    behind: tuple[Tensor, ...] = ()


def reply_shapes(request: Request) -> tuple[Shapes, Shapes]:
    """Shapes of a reply's tensors, and of those behind, before it comes."""
    columns = request.stop - request.first
    first = request.tensors[0]
    if request.piece is Piece.HEADS:
        query, key, value = request.tensors[:3]
        if request.kind is Kind.I:
            return _shapes(query, key, value), ()
        out = ((*query.shape[:-1], value.shape[-1]), query.dtype)
        batch, heads, length, _ = query.shape
        precise = torch.float64 if query.dtype == torch.float64 else torch.float32
        sums = (((batch, heads, length), precise),) if request.attention.flash else ()
        return (out, *sums), ()
    if request.kind is Kind.W:
        return (), ()
    inner = ((*first.shape[:-1], columns), first.dtype)
    return _shapes(first), (inner,) * (1 + request.gated) if request.keep else ()


def _shapes(*tensors: Tensor) -> Shapes:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
