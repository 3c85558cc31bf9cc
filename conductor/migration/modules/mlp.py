"""`MigratableMLP`: an MLP of which slices of the hidden dimension can move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from conductor.errors import CannotMoveError
from conductor.migration.modules import torch_shim
from conductor.migration.modules.activation import ACTIVATIONS, hidden_of
from conductor.migration.modules.columns import Columns
from conductor.migration.modules.lending import Done, Lending, Part
from conductor.migration.modules.request import Piece, Request
from conductor.migration.modules.slices import (
    Weights,
    columns_of,
    flat,
    inner_of,
    slice_backward,
    slice_forward,
    slice_weight_gradients,
)
from conductor.problem.kind import Kind


class Queue(Protocol):
    """Where weight gradients wait for W: the `WeightQueue` of `conductor.runtime.deferred`."""

    def add(self, pending: Any) -> None:
        """Queues something with `held` and `gradients`, as `SliceGradients` has them."""


class MigratableMLP(nn.Module):
    """`down(activation(up(x)))`, or `down(activation(gate(x)) * up(x))`.

    The modules given are used as they are, their parameters shared. While a helper is set their own
    forward does not run, so hooks on them do not either.

    Args:
        up: (D) to (U).
        down: (U) to (D).
        gate: (D) to (U), or None.
        activation: one of `ACTIVATIONS`.
        name: for messages.

    Raises:
        CannotMoveError: shapes, types or the activation do not fit.
    """

    piece = Piece.SLICE

    def __init__(
        self,
        up: nn.Linear,
        down: nn.Linear,
        gate: nn.Linear | None = None,
        *,
        activation: str = "silu",
        name: str = "mlp",
    ) -> None:
        super().__init__()
        self.up, self.down, self.gate, self.name = up, down, gate, name
        self.lending: Lending | None = None
        self.block = -1
        self.units = down.in_features
        self.gated = gate is not None
        # Gate before up; a tuple, which is quicker to reach than modules of a module.
        self.firsts = (up,) if gate is None else (gate, up)
        self._seconds = (down,)
        if activation not in ACTIVATIONS:
            raise CannotMoveError(f"{name!r} has {activation!r}, not {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS.index(activation)
        shape = (down.out_features, down.in_features)
        if any((first.in_features, first.out_features) != shape for first in self.firsts):
            raise CannotMoveError(f"{name!r} does not lead from a width back to the same width")
        if len({first.bias is None for first in self.firsts}) > 1:
            raise CannotMoveError(f"{name!r} has a bias in one of gate and up, not in both")

    @property
    def parameters_in_order(self) -> Weights:
        """As `slices` orders them, without the bias of `down`."""
        layers = (*self.firsts, *self._seconds)
        biases = [layer.bias for layer in self.firsts if layer.bias is not None]
        return (*[layer.weight for layer in layers], *biases)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D), in and out."""
        if self.lending is None or self.lending.helper is None:
            inner = [first(x) for first in self.firsts]
            output: Tensor = self.down(hidden_of(inner, self.activation))
            return output
        parameters = self.parameters_in_order
        keeps = torch.is_grad_enabled() and (
            x.requires_grad or any(p.requires_grad for p in parameters)
        )
        apply: Callable[..., Tensor] = _MLP.apply
        return apply(x, self, keeps, self.down.bias, *parameters)

    @property
    def queue(self) -> Queue | None:
        """Where weight gradients wait for W; None computes them in the backward."""
        queue: Queue | None = getattr(self.firsts[0], "weight_queue", None)
        return queue

    def width(self, kind: Kind, units: int) -> float:
        """Numbers for each token that a request for so many columns and its reply have together."""
        outer, inner = self.down.out_features, (1 + self.gated) * units
        if kind is Kind.W:
            return 2 * outer + units + inner
        return 2 * outer + (inner if kind is Kind.F else 2 * inner)

    def slice_weights(self, part: Part) -> Weights:
        """Copies of the part's weights, for a lender's `SliceStore`."""
        parameters = [parameter.detach() for parameter in self.parameters_in_order]
        views = columns_of(parameters, part.columns, gated=self.gated)
        return tuple(view.clone(memory_format=torch.contiguous_format) for view in views)

    def add_gradients(self, part: Part, gradients: Sequence[Tensor]) -> None:
        """Adds gradients of a part's weights to those of the parameters."""
        parameters = self.parameters_in_order
        for parameter in parameters:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        # Where a parameter is frozen, its gradient goes nowhere.
        sums = [p.detach() if p.grad is None else p.grad for p in parameters]
        views = columns_of(sums, part.columns, gated=self.gated)
        for parameter, view, gradient in zip(parameters, views, gradients, strict=True):
            if parameter.requires_grad:
                view += gradient.to(view.dtype)

    def weights(self, dtype: torch.dtype) -> Weights:
        """All columns' weights, without a graph."""
        return tuple(parameter.detach().to(dtype) for parameter in self.parameters_in_order)

    def inner(self, x: Tensor, columns: slice) -> tuple[Tensor, ...]:
        """Inner activations of some columns."""
        own = columns_of(self.weights(x.dtype), columns, gated=self.gated)
        return inner_of(x, own, gated=self.gated)

    def with_hidden(self, inner: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Inner activations and the hidden ones that they make."""
        return *inner, hidden_of(inner, self.activation)

    def ask(
        self, part: Part, serial: int, kind: Kind, tensors: Sequence[Tensor], keep: bool
    ) -> Request:
        """A request to the part's lender."""
        lending = self.lending
        assert lending is not None
        return Request(
            serial=serial, piece=Piece.SLICE, kind=kind, stage=lending.stage, block=self.block,
            microbatch=lending.microbatch, lender=part.lender, first=part.first, stop=part.stop,
            tensors=tuple(tensor.detach().contiguous() for tensor in tensors), keep=keep,
            activation=self.activation, gated=self.gated, version=lending.version,
        )  # fmt: skip


class _MLP(torch.autograd.Function):
    """An MLP in pieces. Shapes of what it saves do not depend on what moves, so checkpointing may
    recompute it under another decision.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, module: MigratableMLP, keeps: bool, bias: Tensor | None, *_: Tensor
    ) -> Tensor:
        gated, lending, device = module.gated, module.lending, x.device.type
        assert lending is not None
        ctx.dtype = x.dtype
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        weights = module.weights(x.dtype)
        moves = len(lending.parts(module.block, Kind.F)) > 0
        fused = None if moves or bias is None else bias.to(x.dtype)
        # Of a checkpointed forward nothing is kept; when it runs again, its backward is next.
        again = torch_shim.in_backward()
        keeps = keeps and (again or not torch_shim.saving_is_hooked())

        def compute(part: Part) -> tuple[Tensor, ...]:
            own = columns_of(weights, part.columns, gated=gated)
            result, inner, hidden = slice_forward(
                x, own, module.activation, gated=gated, bias=fused
            )
            return result, *inner, hidden

        def ask(part: Part, serial: int) -> Request:
            return module.ask(part, serial, Kind.F, (x,), keeps)

        done = lending.split(module.block, Kind.F, ask, compute)
        output = _sum(done)
        if moves and bias is not None:
            output = output + bias.to(x.dtype)
        inner = Columns.of(done, x, 2 + gated)
        if not keeps:
            inner.owed.clear()
        if again:
            inner.complete(lending, lambda columns: module.inner(x, columns), module.with_hidden)
        ctx.save_for_backward(x, inner.here, *inner.tensors)
        ctx.module, ctx.owed = module, inner.owed
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        module: MigratableMLP = ctx.module
        gated, lending = module.gated, module.lending
        assert lending is not None
        x, here, *tensors = ctx.saved_tensors
        weights = module.weights(x.dtype)
        *inner, hidden = Columns(tensors=tuple(tensors), here=here, owed=ctx.owed).complete(
            lending, lambda columns: module.inner(x, columns), module.with_hidden
        )

        def compute(part: Part) -> tuple[Tensor, ...]:
            columns = part.columns
            own = columns_of(weights, columns, gated=gated)
            some = [tensor[..., columns] for tensor in inner]
            result, grads = slice_backward(
                grad, some, own, module.activation, gated=gated, dtype=ctx.dtype
            )
            return result, *grads

        def ask(part: Part, serial: int) -> Request:
            some = (tensor[..., part.columns] for tensor in inner)
            return module.ask(part, serial, Kind.I, (grad, *some), keep=True)

        done = lending.split(module.block, Kind.I, ask, compute)
        inner_grads = Columns.of(done, x, 1 + gated)
        pending = SliceGradients(
            module=module, x=x.detach(), grad=grad, hidden=hidden, inner_grads=inner_grads,
            inner=tuple(inner) if inner_grads.owed else (),
        )  # fmt: skip
        result = _sum(done).to(ctx.dtype)
        order = [module.down.bias, *module.parameters_in_order]
        if module.queue is not None:
            module.queue.add(pending)
            return result, None, None, *[None] * len(order)
        found = {parameter: each.to(parameter.dtype) for parameter, each in pending.gradients()}
        return result, None, None, *(None if p is None else found.get(p) for p in order)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceGradients:
    """The weight gradients of an MLP for one micro-batch, which W computes, or asks lenders for.

    Attributes:
        module: the MLP.
        x: its input.
        grad: of its output.
        hidden: hidden activations.
        inner_grads: gradients of the inner activations.
        inner: those, if some of their gradients may be lost.
    """

    module: MigratableMLP
    x: Tensor
    grad: Tensor
    hidden: Tensor
    inner_grads: Columns
    inner: tuple[Tensor, ...]

    def held(self) -> list[Tensor]:
        """The tensors that wait for W."""
        return [self.x, self.grad, self.hidden, *self.inner_grads.tensors, *self.inner]

    def gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter's gradient; zeros in columns whose lender returns them later."""
        module = self.module
        lending, gated, bias = module.lending, module.gated, module.down.bias
        assert lending is not None
        grads = self.inner_grads.complete(lending, self._inner_grads)
        x, grad = flat(self.x), flat(self.grad)
        wide = [flat(self.hidden), *map(flat, grads)]
        parameters = module.parameters_in_order

        def cut(part: Part) -> tuple[Tensor, ...]:
            hidden, *some = (tensor[:, part.columns] for tensor in wide)
            return x, grad, hidden, *some

        def compute(part: Part) -> tuple[Tensor, ...]:
            x, grad, hidden, *some = cut(part)
            biased = len(parameters) > 2 + gated
            return slice_weight_gradients(x, grad, hidden, some, biased=biased)

        def ask(part: Part, serial: int) -> Request:
            return module.ask(part, serial, Kind.W, cut(part), keep=False)

        done = lending.split(module.block, Kind.W, ask, compute)
        totals = _whole(done, parameters, gated=gated, like=x)
        for parameter, total in zip(parameters, totals, strict=True):
            if parameter.requires_grad:
                yield parameter, total
        if bias is not None and bias.requires_grad:
            yield bias, grad.sum(0)

    def _inner_grads(self, columns: slice) -> tuple[Tensor, ...]:
        """Lost ones again."""
        module = self.module
        own = columns_of(module.weights(self.x.dtype), columns, gated=module.gated)
        some = [tensor[..., columns] for tensor in self.inner]
        grads: tuple[Tensor, ...] = slice_backward(
            self.grad, some, own, module.activation, gated=module.gated, dtype=self.x.dtype
        )[1]
        return grads


def _whole(
    done: Sequence[Done], parameters: Sequence[Tensor], *, gated: bool, like: Tensor
) -> Weights:
    """All columns' gradients; zeros where a lender has them."""
    units = parameters[0].shape[0]
    if done and done[0].tensors and done[0].part.first == 0 and done[0].part.stop == units:
        return done[0].tensors
    totals = tuple(torch.zeros_like(p, dtype=like.dtype) for p in parameters)
    for piece in done:
        if piece.tensors:
            views = columns_of(totals, piece.part.columns, gated=gated)
            for view, tensor in zip(views, piece.tensors, strict=True):
                view.copy_(tensor)
    return totals


def _sum(done: Sequence[Done]) -> Tensor:
    """The pieces' parts of the output, in their order."""
    total = done[0].tensors[0]
    for piece in done[1:]:
        total = total + piece.tensors[0]
    return total
