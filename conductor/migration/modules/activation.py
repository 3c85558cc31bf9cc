"""The functions between the matrices of an MLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
ACTIVATIONS = tuple(FUNCTIONS)


def hidden_of(inner: Sequence[Tensor], activation: int) -> Tensor:
    """The hidden activations of an MLP, (..., U), from its inner ones: one, or gate and up."""
    hidden = FUNCTIONS[ACTIVATIONS[activation]](inner[0])
    return hidden * inner[1] if len(inner) == 2 else hidden


def inner_gradients(
    inner: Sequence[Tensor], grad_hidden: Tensor, activation: int
) -> tuple[Tensor, ...]:
    """The gradients of the inner activations, as autograd has them."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inner]
        hidden = hidden_of(leaves, activation)
    return torch.autograd.grad(hidden, leaves, grad_hidden)
