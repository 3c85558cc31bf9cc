"""The functions between the matrices of an MLP, and their gradients as autograd has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_aten: Any = torch.ops.aten
_FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "silu": (functional.silu, _aten.silu_backward),
    "gelu": (functional.gelu, _aten.gelu_backward),
    "gelu_tanh": (
        partial(functional.gelu, approximate="tanh"),
        partial(_aten.gelu_backward, approximate="tanh"),
    ),
    "relu": (functional.relu, lambda grad, x: _aten.threshold_backward(grad, x, 0)),
}
ACTIVATIONS = tuple(_FUNCTIONS)


def hidden_of(inner: Sequence[Tensor], activation: int) -> Tensor:
    """The hidden activations of an MLP, (..., U), from its inner ones: one, or gate and up."""
    forward, _ = _FUNCTIONS[ACTIVATIONS[activation]]
    hidden = forward(inner[0])
    return hidden * inner[1] if len(inner) == 2 else hidden


def inner_gradients(
    inner: Sequence[Tensor], grad_hidden: Tensor, activation: int
) -> tuple[Tensor, ...]:
    """The gradients of the inner activations."""
    forward, backward = _FUNCTIONS[ACTIVATIONS[activation]]
    if len(inner) == 1:
        return (backward(grad_hidden, inner[0]),)
    gate, up = inner
    return backward(grad_hidden * up, gate), grad_hidden * forward(gate)
