"""Some columns of an MLP's hidden dimension: forward and backward without a graph.

The weights of U columns come as one tuple: the first matrices, (U, D), gate before up where there is a
gate; the second matrix, (D, U); then the first matrices' biases, (U,), where they have some.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from conductor.migration.modules.activation import hidden_of, inner_gradients

Weights = tuple[Tensor, ...]


def columns_of(weights: Sequence[Tensor], columns: slice, *, gated: bool) -> Weights:
    """Views of some columns' weights."""
    second = 1 + gated
    return (
        *[weight[columns] for weight in weights[:second]],
        weights[second][:, columns],
        *[bias[columns] for bias in weights[second + 1 :]],
    )


def inner_of(x: Tensor, weights: Weights, *, gated: bool) -> tuple[Tensor, ...]:
    """The inner activations, (..., U): one tensor, or gate and up."""
    second = 1 + gated
    biases = weights[second + 1 :] or (None,) * second
    return tuple(
        functional.linear(x, weight, bias)
        for weight, bias in zip(weights[:second], biases, strict=True)
    )


def slice_forward(
    x: Tensor, weights: Weights, activation: int, *, gated: bool, bias: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """The columns' part of the output, (..., D), their inner activations, and the hidden ones.

    Args:
        x: (..., D).
        weights: of the columns.
        activation: index of `ACTIVATIONS`.
        gated: whether there is a gate.
        bias: of the second matrix, where it is to be added here.
    """
    inner = inner_of(x, weights, gated=gated)
    hidden = hidden_of(inner, activation)
    return functional.linear(hidden, weights[1 + gated], bias), inner, hidden


def slice_backward(
    grad: Tensor,
    inner: Sequence[Tensor],
    weights: Weights,
    activation: int,
    *,
    gated: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The columns' part of the gradient of x, and the gradients of their inner activations.

    Args:
        grad: of the output, (..., D).
        inner: of the columns.
        weights: of the columns.
        activation: index of `ACTIVATIONS`.
        gated: whether there is a gate.
        dtype: of the gradient of x, in which gate's and up's are added, as under autocast.
    """
    grad_hidden = _times(grad, weights[1 + gated])
    grads = inner_gradients(inner, grad_hidden, activation)
    parts = [
        _times(each, weight).to(dtype)
        for each, weight in zip(grads, weights[: 1 + gated], strict=True)
    ]
    return parts[0] + parts[1] if gated else parts[0], grads


def slice_weight_gradients(
    x: Tensor, grad: Tensor, hidden: Tensor, inner_grads: Sequence[Tensor], *, biased: bool
) -> Weights:
    """The gradients of the columns' weights, in their order; all operands with tokens flat, (N, ...)."""
    firsts = tuple(each.t().mm(x) for each in inner_grads)
    biases = tuple(each.sum(0) for each in inner_grads) if biased else ()
    return (*firsts, grad.t().mm(hidden), *biases)


def flat(tensor: Tensor) -> Tensor:
    """With one dimension of tokens, (N, width)."""
    return tensor.reshape(-1, tensor.shape[-1])


def _times(grad: Tensor, weight: Tensor) -> Tensor:
    return flat(grad).mm(weight).reshape(*grad.shape[:-1], weight.shape[1])
