"""`wrap_stage`: a module as a pipeline stage whose backward splits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from conductor.runtime.deferred import WeightQueue, defer_weight_gradients


def wrap_stage(
    module: nn.Module,
    stage_index: int,
    num_stages: int,
    *,
    input_args: Tensor | Sequence[Tensor],
    output_args: Tensor | Sequence[Tensor],
    device: torch.device | str = "cpu",
    group: dist.ProcessGroup | None = None,
) -> PipelineStage:
    """Makes a stage of `torch.distributed.pipelining` that defers its weight gradients.

    The module's linear layers are changed in place (see `defer_weight_gradients`); its parameters, its
    `state_dict` and its results are not.

    Args:
        module: this stage's part of the model.
        stage_index: of `num_stages`, global.
        num_stages: of the whole pipeline.
        input_args: tensors shaped as one micro-batch's inputs of this stage; device "meta" will do.
        output_args: the same for its outputs.
        device: where the module is.
        group: the pipeline's process group; None is the default one.
    """
    queue = WeightQueue()
    defer_weight_gradients(module, queue)
    return PipelineStage(
        module,
        stage_index,
        num_stages,
        torch.device(device),
        input_args=_examples(input_args, needs_grad=stage_index > 0),
        output_args=_examples(output_args, needs_grad=True),
        group=group,
        dw_builder=queue.take,
    )


def _examples(tensors: Tensor | Sequence[Tensor], *, needs_grad: bool) -> tuple[Tensor, ...]:
    """The stages need to know which tensors have a gradient: all of floating point but the batch."""
    given = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
    return tuple(
        tensor.detach().requires_grad_(needs_grad and tensor.is_floating_point())
        for tensor in given
    )
