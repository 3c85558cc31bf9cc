"""What a stage holds for a micro-batch between its forward and its backward."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from conductor.runtime.deferred import WeightQueue, defer_weight_gradients


class ActivationMeter:
    """Measures the module's next forward with gradients, and its backward, once.

    Counts what autograd saves and the tensors that stay alive (a checkpoint keeps its inputs so),
    parameters aside; on a GPU, what the allocator holds more. Looks at every object of the process: for
    a step that warms up.

    Args:
        module: whose forward to watch.

    Attributes:
        held_bytes: memory that one micro-batch holds from its forward on; 0 until it has run.
        freed: share of it that I frees, in [0, 1]; what is left waits for W.
    """

    def __init__(self, module: nn.Module) -> None:
        self.held_bytes, self.freed = 0, 0.0
        self._parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._saved: dict[int, int] = {}
        self._hooks = [
            module.register_forward_pre_hook(self._before, prepend=True),
            module.register_forward_hook(self._after),
        ]

    def after_input_backward(self, waiting: Iterable[Tensor]) -> None:
        """Called between I and W, with the tensors that W needs."""
        left = sum(_sizes(waiting).values())
        self.freed = max(0.0, 1.0 - left / max(self.held_bytes, 1))

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled():
            return

        def keep(tensor: Tensor) -> Tensor:
            self._saved.update(_sizes([tensor]))
            return tensor

        unpack: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731 - a hook of one line
        self._allocated, self._alive = _allocated_bytes(), _live_storages()
        self._context = torch.autograd.graph.saved_tensors_hooks(keep, unpack)
        self._context.__enter__()

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._context.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        # A micro-batch is often a view of the batch, which is there anyway.
        given = {
            value.untyped_storage().data_ptr(): value.nbytes
            for value in inputs
            if isinstance(value, Tensor)
        }
        held = {**_live_storages(self._alive), **self._saved, **given}
        counted = sum(size for at, size in held.items() if at not in self._parameters)
        on_gpu = _allocated_bytes() - self._allocated
        self.held_bytes = on_gpu + sum(given.values()) if on_gpu else counted
        self._saved, self._alive = {}, {}


def activation_bytes(module: nn.Module, inputs: Tensor) -> tuple[int, float]:
    """Runs a module once: bytes that it holds for a micro-batch, and the share that I frees.

    The module's linear layers defer their weight gradients afterwards, as in `wrap_stage`, which may
    follow.
    """
    queue = WeightQueue()
    defer_weight_gradients(module, queue)
    meter = ActivationMeter(module)
    output = module(inputs.detach().requires_grad_(inputs.is_floating_point()))
    output.backward(torch.ones_like(output))
    meter.after_input_backward(queue.held())
    queue.take()
    module.zero_grad()
    return meter.held_bytes, meter.freed


def _allocated_bytes() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _live_storages(known: dict[int, int] | None = None) -> dict[int, int]:
    """Sizes by address of the storages of all tensors that Python holds, but for known ones."""
    gc.collect()
    tensors = (item for item in gc.get_objects() if type(item) in (Tensor, nn.Parameter))
    sizes = _sizes(tensor for tensor in tensors if tensor.device.type != "meta")
    return {address: size for address, size in sizes.items() if address not in (known or {})}


def _sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
