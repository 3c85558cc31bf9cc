"""Every private name of `torch.distributed.pipelining` that Conductor uses, in one place.

Written against torch 2.13; 2.6 to 2.15 were read, not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.microbatch import merge_chunks, split_args_kwargs_into_chunks

from conductor.errors import ConductorError

try:
    from torch.distributed.pipelining._utils import InferenceMode
except ImportError:  # before 2.11: stages with static arguments need no mode
    InferenceMode = None  # type: ignore[assignment,misc]  # older torch


def has_static_shapes(stage: Any) -> bool:
    """Whether the stage was given `input_args` and `output_args`."""
    meta = getattr(stage, "_user_meta", None)
    if meta is not None:
        return meta.inputs is not None and meta.outputs is not None
    return getattr(stage, "inputs_meta", None) is not None


def prepare(stage: Any, num_microbatches: int, *, has_backward: bool) -> None:
    """Readies a stage for a step's micro-batches; the buffers that torch would receive in are dropped."""
    stage.has_backward = has_backward
    if InferenceMode is not None:
        stage._inference_mode = InferenceMode.STATIC
    stage.args_recv_info.clear()
    stage.grad_recv_info.clear()
    if InferenceMode is not None:
        stage._prepare_forward_infra(num_microbatches, (), None, has_backward=has_backward)
    else:
        stage._prepare_forward_infra(num_microbatches, (), None)
    if has_backward:
        stage._prepare_backward_infra(num_microbatches)
    for table in (stage.args_recv_info, stage.grad_recv_info):
        for infos in table.values():
            for info in infos:
                if not getattr(info, "is_root_arg", False) and hasattr(info, "buffer"):
                    info.buffer = None


def drop_input(stage: Any, microbatch: int) -> None:
    """Lets go of a micro-batch's input where the forward has it already."""
    if not stage.is_first:
        for info in stage.args_recv_info[microbatch]:
            info.buffer = None


def drop_output_grad(stage: Any, microbatch: int) -> None:
    """Lets go of the gradient that a backward has used."""
    if not stage.is_last:
        for info in stage.grad_recv_info[microbatch]:
            info.buffer = None


def input_shapes(stage: Any) -> list[tuple[tuple[int, ...], torch.dtype, bool]]:
    """Shape, dtype and need of a gradient of each input that a micro-batch of the stage receives."""
    meta = stage.args_recv_info[0]
    return [
        (tuple(m.shape), m.dtype, m.requires_grad)
        for m in (getattr(info, "tensor_meta", None) or info.buffer for info in meta)
    ]


def output_shapes(stage: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each output of a micro-batch of the stage."""
    meta = getattr(stage, "_user_meta", None)
    outputs = meta.outputs if meta is not None else stage._outputs_meta
    return [(tuple(m.shape), m.dtype) for m in outputs]


def split(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], num_microbatches: int
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """A batch cut into micro-batches along dimension 0."""
    if not args and not kwargs:
        return [()] * num_microbatches, [{}] * num_microbatches
    parts: tuple[list[tuple[Any, ...]], list[dict[str, Any]]] = split_args_kwargs_into_chunks(
        args, dict(kwargs), num_microbatches
    )
    return parts


def merge(outputs: Sequence[Any]) -> Any:
    """The micro-batches' outputs as one batch."""
    return merge_chunks(list(outputs), None)


def torch_runtime(
    stages: list[PipelineStage],
    num_microbatches: int,
    loss_fn: Callable[..., Tensor] | None,
    *,
    scale_grads: bool,
) -> Any:
    """The schedule runtime of torch itself, without an order yet."""
    runtime: Any = torch_schedules._PipelineScheduleRuntime
    return runtime(stages, num_microbatches, loss_fn=loss_fn, scale_grads=scale_grads)


def load_rows(runtime: Any, rows: Sequence[Sequence[str]]) -> None:
    """Gives torch's runtime an order: one list of cells (`2F0`) a rank.

    Raises:
        ConductorError: this torch takes no order in memory.
    """
    actions = {
        rank: [torch_schedules._Action.from_str(cell) for cell in row]
        for rank, row in enumerate(rows)
    }
    runtime.pipeline_order = actions
    for name in ("_prepare_schedule_with_comms", "_load_actions"):  # 2.9 and later; up to 2.8
        load = getattr(runtime, name, None)
        if load is not None:
            load(actions)
            return
    raise ConductorError(f"torch {torch.__version__} takes no schedule in memory")


def load_csv(runtime: Any, path: str) -> None:
    """Gives torch's runtime an order from a compute_only CSV file."""
    runtime._load_csv(path, format="compute_only")


def default_store() -> Any:
    """The store that the ranks met at."""
    return torch.distributed.distributed_c10d._get_default_store()


def input_grads(stage: Any, microbatch: int) -> tuple[Tensor | None, ...]:
    """The gradients that a backward gives the stage before; zeros for an input that was not used."""
    grads = stage.get_local_bwd_output(microbatch)
    return tuple(
        torch.zeros(shape, dtype=dtype, device=stage.device) if grad is None and wanted else grad
        for grad, (shape, dtype, wanted) in zip(grads, input_shapes(stage), strict=True)
    )


def forget_forward(stage: Any, microbatch: int) -> None:
    """Lets go of what a forward kept for a backward that will not come."""
    stage.fwd_cache.pop(microbatch, None)


def pair_group(name: str, rank: int, timeout_s: float) -> Any:
    """A gloo group of two, outside the registry of groups, which all ranks of the world would have to enter.

    Args:
        name: the same on both.
        rank: 0 or 1.
        timeout_s: longest wait of its operations.
    """
    store = PrefixStore(name, default_store())
    return ProcessGroupGloo(store, rank, 2, timedelta(seconds=timeout_s))


def nccl_pair(name: str, rank: int, timeout_s: float, device: torch.device) -> Any:
    """As `pair_group`, of NCCL. Untested: nothing here has run on GPUs.

    Raises:
        ConductorError: this torch has no NCCL.
    """
    nccl = getattr(torch.distributed, "ProcessGroupNCCL", None)
    if nccl is None:
        raise ConductorError(f"torch {torch.__version__} has no NCCL: stages on {device} need it")
    options = nccl.Options()
    options._timeout = timedelta(seconds=timeout_s)
    with torch.cuda.device(device):
        return nccl(PrefixStore(name, default_store()), rank, 2, options)


def lone_store() -> Any:
    """A store for a process group of one."""
    return HashStore()
