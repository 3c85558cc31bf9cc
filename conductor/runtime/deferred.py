"""Linear layers that put off their weight gradients, so that a backward can be split in I and W.

The native split of `torch.distributed.pipelining` walks the autograd graph twice, frees nothing in I,
breaks on views and recomputes checkpointed layers several times. Here the backward of a linear layer
gives the gradient of its input and queues the gradients of its weight and bias; W runs the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Pending(Protocol):
    """Weight gradients that are not computed yet."""

    def held(self) -> Sequence[Tensor]:
        """The tensors that they need."""

    def gradients(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Each parameter with its gradient."""


class WeightQueue:
    """Weight gradients that a stage's backward has put off, between one I and its W."""

    def __init__(self) -> None:
        self._pending: list[Pending] = []

    def add(self, pending: Pending) -> None:
        """Queues the gradients of a layer, or of several."""
        self._pending.append(pending)

    def held(self) -> list[Tensor]:
        """The tensors that wait for W."""
        return [tensor for pending in self._pending for tensor in pending.held()]

    def take(self) -> Callable[[], None]:
        """What W has to run for everything queued so far (the `dw_builder` of a `PipelineStage`)."""
        pending, self._pending = self._pending, []
        return partial(_accumulate, pending)


def defer_weight_gradients(module: nn.Module, queue: WeightQueue) -> int:
    """Makes every `nn.Linear` in a module queue its weight gradients. Parameters stay as they are.

    Subclasses of `nn.Linear` with a forward of their own, and all other layers, keep the native
    backward: their weight gradients are computed in I.

    Returns:
        The number of layers that defer.
    """
    count = 0
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
            layer.forward = partial(_forward, layer, queue)  # type: ignore[method-assign]  # on purpose
            layer.weight_queue = queue  # type: ignore[assignment]  # a `MigratableMLP` looks for it
            count += 1
    return count


def _forward(layer: nn.Linear, queue: WeightQueue, inputs: Tensor) -> Tensor:
    device = inputs.device.type
    if torch.is_autocast_enabled(device) and inputs.is_floating_point():
        # As autocast casts a linear layer's operands; the cast of the input stays in the graph.
        inputs = inputs.to(torch.get_autocast_dtype(device))
    if not (torch.is_grad_enabled() and layer.weight.requires_grad):
        return functional.linear(inputs, layer.weight, layer.bias)
    apply: Callable[..., Tensor] = _DeferredLinear.apply
    return apply(inputs, layer.weight, layer.bias, queue)


class _DeferredLinear(torch.autograd.Function):
    """A linear layer whose backward computes the gradient of the input only.

    The weight is an argument so that the output needs a gradient even where the input does not.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, queue: WeightQueue
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.parameters, ctx.queue = (weight, bias), queue
        bias = None if bias is None else bias.to(inputs.dtype)
        return functional.linear(inputs, weight.to(inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        (grad,) = grads
        (inputs,) = ctx.saved_tensors
        weight, bias = ctx.parameters
        # Under no_grad, W would not grow a graph; detached, I frees the layers before this one.
        ctx.queue.add(_Linear(weight, bias, inputs.detach(), grad.detach()))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        flat = grad.reshape(-1, grad.shape[-1]).mm(weight.detach().to(grad.dtype))
        return flat.reshape(inputs.shape), None, None, None


class _Linear(NamedTuple):
    """The gradients of a linear layer: `inputs` of shape (..., in), `grad` of its output, (..., out)."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    inputs: Tensor
    grad: Tensor

    def held(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self.grad

    def gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        flat = self.grad.reshape(-1, self.grad.shape[-1])
        yield self.weight, flat.t().mm(self.inputs.reshape(-1, self.inputs.shape[-1]))
        if self.bias is not None and self.bias.requires_grad:
            yield self.bias, flat.sum(0)


@torch.no_grad()
def _accumulate(pending: list[Pending]) -> None:
    """Adds the gradients of one micro-batch, those of a parameter used twice summed first."""
    sums: dict[Tensor, Tensor] = {}
    for layers in pending:
        for parameter, grad in layers.gradients():
            grad = grad.to(parameter.dtype)
            sums[parameter] = sums[parameter] + grad if parameter in sums else grad
    pending.clear()
    for parameter, total in sums.items():
        if parameter.grad is None:
            parameter.grad = total
        else:
            parameter.grad += total
