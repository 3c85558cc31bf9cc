"""`MigratableAttention`: core attention whose heads can move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from conductor.errors import CannotMoveError
from conductor.migration.modules.core import Settings, attend, attend_backward
from conductor.migration.modules.lending import Lending, Part
from conductor.migration.modules.request import Piece, Request
from conductor.migration.modules.torch_shim import takes_flash
from conductor.problem.kind import Kind


class MigratableAttention(nn.Module):
    """`torch.nn.functional.scaled_dot_product_attention` as a module without parameters.

    Whole KV groups (a key and value head with the query heads that it serves) can move. Output and
    gradients are those of the function, bit for bit, whatever moves.

    Args:
        name: for messages.

    Attributes:
        units: KV groups; None before the first run tells.
        features: of all query heads together; None likewise.
    """

    piece = Piece.HEADS

    def __init__(self, name: str = "attention") -> None:
        super().__init__()
        self.name = name
        self.lending: Lending | None = None
        self.block = -1
        self.units: int | None = None
        self.features: int | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """As `scaled_dot_product_attention`: (batch, heads, length, width), in and out.

        Raises:
            CannotMoveError: a helper is set, and this call cannot be split.
        """
        lending = self.lending
        settings = Settings(is_causal, scale)
        if lending is not None and lending.helper is not None:
            device = query.device.type
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
                query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
            flash = takes_flash(query, key, value, attn_mask, causal=is_causal)
            cannot = self._cannot(query, key, attn_mask, dropout_p, settings, enable_gqa, flash)
            if cannot is None:
                self.units = key.shape[1]
                self.features = query.shape[1] * max(query.shape[-1], value.shape[-1])
                apply: Callable[..., Tensor] = _Attention.apply
                settings = settings._replace(flash=flash, several=key.shape[0] * key.shape[1] > 1)
                return apply(query, key, value, attn_mask, self, settings)
            if lending.moves(self.block):
                raise CannotMoveError(f"{self.name!r} cannot move heads: {cannot}")
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def width(self, kind: Kind, units: int) -> float:
        """At most so many numbers for each token have a request for so many groups and its reply together."""
        if kind is Kind.W or not self.features or not self.units:
            return 0
        # Queries, keys, values, output and sums; backward with the output's gradient and three more.
        return (5 if kind is Kind.F else 9) * self.features * units / self.units

    def slice_weights(self, part: Part) -> tuple[Tensor, ...]:
        """There are none."""
        return ()

    def add_gradients(self, part: Part, gradients: Sequence[Tensor]) -> None:
        """There are none."""

    def _cannot(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        dropout: float,
        settings: Settings,
        gqa: bool,
        flash: bool,
    ) -> str | None:
        """Why a call cannot be split with the same bits; None where it can."""
        reasons = {
            "it drops out weights": dropout > 0.0,
            "its tensors are not (batch, heads, length, width)": query.dim() != 4,
            "it is causal and has a mask": mask is not None and settings.causal,
            "its mask needs a gradient": mask is not None and mask.requires_grad,
            "it has fewer KV heads without enable_gqa": query.shape[-3] != key.shape[-3]
            and not gqa,
            "torch's flash kernel does not take it": not flash and query.device.type == "cpu",
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


class _Cut:
    """Takes a part's heads out of a tensor (batch, heads, ...), query heads and KV heads alike."""

    def __init__(self, part: Part, groups: int) -> None:
        self._part, self._groups = part, groups

    def __call__(self, tensor: Tensor) -> Tensor:
        each = tensor.shape[1] // self._groups
        return tensor[:, self._part.first * each : self._part.stop * each]

    def mask(self, mask: Tensor | None) -> Tensor | None:
        """The same for a mask, which may have no heads, or one for all."""
        if mask is None or mask.dim() < 3 or mask.shape[-3] == 1:
            return mask
        return self(mask if mask.dim() == 4 else mask[None])[(0,) * (4 - mask.dim())]


class _Attention(torch.autograd.Function):
    """Attention in pieces. What it saves does not depend on what moves, so checkpointing may recompute it
    under another decision.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        module: MigratableAttention,
        settings: Settings,
    ) -> Tensor:
        operands = (query, key, value)

        def compute(part: Part) -> tuple[Tensor, ...]:
            cut = _Cut(part, key.shape[1])
            return attend(cut(query), cut(key), cut(value), cut.mask(mask), settings)

        kept = _run(module, Kind.F, operands, mask, settings, compute, ())
        ctx.save_for_backward(*operands, mask, *kept)
        ctx.module, ctx.settings = module, settings
        return kept[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, *kept = ctx.saved_tensors
        operands, settings = (query, key, value), ctx.settings

        def compute(part: Part) -> tuple[Tensor, ...]:
            cut = _Cut(part, key.shape[1])
            return attend_backward(
                cut(grad), cut(query), cut(key), cut(value), cut.mask(mask),
                tuple(map(cut, kept)), settings,
            )  # fmt: skip

        grads = _run(ctx.module, Kind.I, operands, mask, settings, compute, (*kept, grad))
        return (*grads, None, None, None)


def _run(
    module: MigratableAttention,
    kind: Kind,
    operands: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    settings: Settings,
    compute: Callable[[Part], tuple[Tensor, ...]],
    others: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """All heads' results: each kind of tensor put together along the heads."""
    lending = module.lending
    assert lending is not None

    def ask(part: Part, serial: int) -> Request:
        cut = _Cut(part, operands[1].shape[1])
        some_mask = cut.mask(mask)
        masks = () if some_mask is None else (some_mask,)
        tensors = (*map(cut, operands), *masks, *map(cut, others))
        return Request(
            serial=serial, piece=Piece.HEADS, kind=kind, stage=lending.stage, block=module.block,
            microbatch=lending.microbatch, lender=part.lender, first=part.first, stop=part.stop,
            tensors=tuple(t.detach().contiguous() for t in tensors), has_mask=mask is not None,
            attention=settings,
        )  # fmt: skip

    done = lending.split(module.block, kind, ask, compute)
    if len(done) == 1:
        return done[0].tensors
    return tuple(
        torch.cat(pieces, dim=1) for pieces in zip(*(d.tensors for d in done), strict=True)
    )
