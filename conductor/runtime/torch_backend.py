"""The same plan in torch's own runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from conductor.errors import InvalidScheduleError
from conductor.ir.schedule import Schedule
from conductor.runtime import torch_shim


def torch_schedule(
    stages: list[PipelineStage],
    plan: Schedule | str | Path,
    *,
    num_microbatches: int | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
    scale_grads: bool = True,
) -> Any:
    """A schedule object of `torch.distributed.pipelining` that runs a plan, with `step` and `eval`.

    Args:
        stages: this rank's stages.
        plan: in memory, or the path of a CSV file in torch's compute_only format.
        num_microbatches: needed with a file; a plan in memory knows it.
        loss_fn: of output and target; None runs forward only.
        scale_grads: divide the gradients by the number of micro-batches at the end of each step.

    Raises:
        InvalidScheduleError: torch's runtime cannot hold the plan, or the count is missing.
    """
    if isinstance(plan, Schedule):
        if plan.num_splits > 1:
            raise InvalidScheduleError(
                f"torch's runtime cannot split sequences, as {plan.name} does"
            )
        num_microbatches = plan.num_microbatches
    if num_microbatches is None:
        raise InvalidScheduleError("a plan from a file needs its number of micro-batches")
    runtime = torch_shim.torch_runtime(stages, num_microbatches, loss_fn, scale_grads=scale_grads)
    if isinstance(plan, Schedule):
        torch_shim.load_rows(runtime, [[str(action) for action in row] for row in plan.rows])
    else:
        torch_shim.load_csv(runtime, str(plan))
    return runtime
