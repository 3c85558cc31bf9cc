"""Core attention on some heads: forward and backward without a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from conductor.migration.modules.torch_shim import flash_backward, flash_forward


class Settings(NamedTuple):
    """How attention is computed.

    Attributes:
        causal: `is_causal` of `scaled_dot_product_attention`.
        scale: its scale; None is the default.
        flash: whether it runs torch's flash kernel for CPUs, which gives a log-sum-exp.
        several: whether all of it, before it was split, has several KV heads or samples.
    """

    causal: bool = False
    scale: float | None = None
    flash: bool = False
    several: bool = False


DEFAULT = Settings()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, ...]:
    """The output, (B, H, T, V), and with flash the log-sum-exp of the scores, (B, H, T)."""
    causal, scale, flash, _ = settings
    if flash:
        with _threads(key, settings):
            result: tuple[Tensor, Tensor] = flash_forward(
                query, key, value, 0.0, causal, attn_mask=_additive(mask, query), scale=scale
            )
        return result
    gqa = query.shape[1] != key.shape[1]
    return (
        functional.scaled_dot_product_attention(
            query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=gqa
        ),
    )


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kept: tuple[Tensor, ...],
    settings: Settings,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value.

    Without flash the forward runs again: no other kernel gives what its backward needs.

    Args:
        grad: of the output.
        query: and the other operands as for `attend`.
        key: see there.
        value: see there.
        mask: see there.
        kept: what `attend` gave.
        settings: see there.
    """
    causal, scale, flash, _ = settings
    if flash:
        out, sums = kept
        with _threads(key, settings):
            grads: tuple[Tensor, Tensor, Tensor] = flash_backward(
                grad, query, key, value, out, sums, 0.0, causal,
                attn_mask=_additive(mask, query), scale=scale,
            )  # fmt: skip
        return grads
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    with torch.enable_grad():
        (again,) = attend(leaves[0], leaves[1], leaves[2], mask, settings)
    query_grad, key_grad, value_grad = torch.autograd.grad(again, leaves, grad)
    return query_grad, key_grad, value_grad


@contextmanager
def _threads(key: Tensor, settings: Settings) -> Iterator[None]:
    """One thread for one head of several: the kernel gives a thread to each, and all threads to one alone.

    The bits of its matrix products depend on that.
    """
    threads = torch.get_num_threads()
    if not settings.several or threads == 1 or key.shape[0] * key.shape[1] > 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _additive(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """What `scaled_dot_product_attention` makes of a boolean mask before it calls a kernel."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
