"""What moving a piece of a block costs: compute, bytes, messages, memory at the lender."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conductor.migration.blocks.hardware import Link
from conductor.migration.blocks.shape import ModelShape
from conductor.problem.kind import Kind

CORE_BACKWARD = 2.5
"""Core attention's backward over its forward: five matrix products for two, scores made anew."""

PIECES = ("heads", "projections", "mlp", "weights")
HEADS, PROJECTIONS, MLP, WEIGHTS = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What can move of one block (attention or MLP of one layer) in one kind of action.

    What a lender gives back is complete: whatever the rank's own backward needs of the moved part
    follows behind the result, on the link but not in the block's time. So every action chooses its
    lenders anew, and activations stay where the stage is.

    Attributes:
        name: one of `PIECES`.
        kind: F, I or W.
        before_ms: of the block, before the piece can leave (q, k, v must be there).
        movable_ms: of the block, that can move.
        after_ms: of the block, behind it.
        parts: equal parts that the movable time is cut into.
        in_bytes: to the lender, whatever moves.
        in_part_bytes: to the lender, with each part.
        back_bytes: from the lender, whatever moves.
        back_part_bytes: from the lender, with each part.
        behind_part_bytes: from the lender, behind the result.
        weight_part_bytes: weights of a part, sent to the lender once a step.
        gradient_part_bytes: gradients of a part, sent back once a step.
        messages: of one round trip, those behind it included.
    """

    name: str
    kind: Kind
    before_ms: float
    movable_ms: float
    after_ms: float
    parts: int
    in_bytes: float
    in_part_bytes: float
    back_bytes: float
    back_part_bytes: float
    behind_part_bytes: float
    weight_part_bytes: float
    gradient_part_bytes: float
    messages: int

    @property
    def alone_ms(self) -> float:
        """The block without help."""
        return self.before_ms + self.movable_ms + self.after_ms

    def block_ms(self, parts: int, link: Link) -> float:
        """The block when a lender of the same speed does some parts, on a free link."""
        if parts == 0:
            return self.alone_ms
        share = parts / self.parts
        remote = (
            link.ms(self.in_bytes + self.in_part_bytes * parts)
            + self.movable_ms * share
            + link.ms(self.back_bytes + self.back_part_bytes * parts)
            + 2.0 * link.latency_ms
        )
        return self.before_ms + max(self.movable_ms * (1.0 - share), remote) + self.after_ms

    def best_parts(self, link: Link) -> int:
        """The parts that make the block shortest, 0 where none does."""
        return min(range(self.parts + 1), key=lambda parts: (self.block_ms(parts, link), parts))

    def round_trip_bytes(self, parts: int) -> float:
        """Bytes on the link for a block with some parts moved, those behind the result included."""
        if parts == 0:
            return 0.0
        each = self.in_part_bytes + self.back_part_bytes + self.behind_part_bytes
        return self.in_bytes + self.back_bytes + each * parts

    def lender_bytes(self, parts: int) -> float:
        """Memory at the lender: messages of one block, weights and gradients of its parts."""
        held = self.weight_part_bytes + self.gradient_part_bytes
        return self.round_trip_bytes(parts) + held * parts


def pieces(shape: ModelShape, kind: Kind, layer_ms: float) -> Iterator[Piece]:
    """What can move of one layer's action that takes `layer_ms`; times are by operations.

    - heads: core attention of whole KV groups. F sends q, k, v and gets the output; I sends those, the
      output and its gradient, and gets the gradients of q, k, v. No weights.
    - projections: the same groups with their rows and columns of the projections. F sends x, gets a
      partial sum, then q, k, v and the output behind it; I sends the gradient of the block and q, k, v
      and the output, gets a partial gradient of x, then the gradients of q, k, v behind it.
    - mlp: slices. F sends x, gets a partial sum, then the inner activations; I sends the gradient and
      the inner activations, gets a partial gradient, then the inner gradients.
    - weights: the same slices' weight gradients. W sends x, the gradient, inner activations and inner
      gradients; nothing comes back but the gradients, once a step.
    """
    flops = shape.forward_flops()
    if kind is Kind.I:
        flops["core"] *= CORE_BACKWARD
    if kind is Kind.W:
        flops["core"] = 0.0
    total = sum(flops.values())
    ms = {name: layer_ms * value / total for name, value in flops.items()}
    x, group, kv = float(shape.activation_bytes), float(shape.group_bytes), float(shape.kv_bytes)
    inner = (
        (shape.matrices - 1.0) * shape.tokens * (shape.mlp_width // shape.parts) * shape.itemsize
    )
    qkv = group + 2.0 * kv
    if kind is Kind.W:
        yield Piece(
            name="weights", kind=kind, before_ms=ms["qkv"] + ms["out"], movable_ms=ms["mlp"],
            after_ms=0.0, parts=shape.parts, in_bytes=2.0 * x, in_part_bytes=2.0 * inner,
            back_bytes=0.0, back_part_bytes=0.0, behind_part_bytes=0.0, weight_part_bytes=0.0,
            gradient_part_bytes=shape.mlp_weight_bytes(), messages=4,
        )  # fmt: skip
        return
    forward = kind is Kind.F
    # Backward, the output projection comes first and q, k, v last.
    first, last = ("qkv", "out") if forward else ("out", "qkv")
    yield Piece(
        name="heads", kind=kind, before_ms=ms[first], movable_ms=ms["core"], after_ms=ms[last],
        parts=shape.kv_heads, in_bytes=0.0, in_part_bytes=qkv if forward else qkv + 2.0 * group,
        back_bytes=0.0, back_part_bytes=group if forward else qkv, behind_part_bytes=0.0,
        weight_part_bytes=0.0, gradient_part_bytes=0.0, messages=2,
    )  # fmt: skip
    yield Piece(
        name="projections", kind=kind, before_ms=0.0,
        movable_ms=ms["qkv"] + ms["core"] + ms["out"], after_ms=0.0, parts=shape.kv_heads,
        in_bytes=x, in_part_bytes=0.0 if forward else qkv + group, back_bytes=x,
        back_part_bytes=0.0, behind_part_bytes=qkv + group if forward else qkv,
        weight_part_bytes=shape.attention_weight_bytes(), gradient_part_bytes=0.0, messages=3,
    )  # fmt: skip
    yield Piece(
        name="mlp", kind=kind, before_ms=0.0, movable_ms=ms["mlp"], after_ms=0.0,
        parts=shape.parts, in_bytes=x, in_part_bytes=0.0 if forward else inner, back_bytes=x,
        back_part_bytes=0.0, behind_part_bytes=inner, weight_part_bytes=shape.mlp_weight_bytes(),
        gradient_part_bytes=0.0, messages=3,
    )  # fmt: skip
