"""Pipelines with replicas: gradients meet once an optimizer step, after the last micro-batch's W."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from conductor.errors import InvalidScheduleError
from conductor.runtime.collectives import named


def check_replicas(stage: Any, group: dist.ProcessGroup | None, *, in_order: bool) -> None:
    """Refuses wrappers that talk to the replicas at a time that is not theirs.

    Args:
        stage: of a pipeline.
        group: to average its gradients over.
        in_order: whether all replicas keep to the plan's order.

    Raises:
        InvalidScheduleError: says what to do instead.
    """
    where = f"stage {stage.stage_index}"
    for module in stage.submod.modules():
        if isinstance(module, DistributedDataParallel | FullyShardedDataParallel):
            raise InvalidScheduleError(
                f"{where} is wrapped in {type(module).__name__}, whose hooks miss weight gradients that"
                " are put off: give the plain module and data_parallel_group, or use fully_shard"
            )
    if not any(isinstance(module, FSDPModule) for module in stage.submod.modules()):
        return
    if not isinstance(stage.submod, FSDPModule):
        raise InvalidScheduleError(
            f"{where} has sharded parts only: apply fully_shard to its whole module, too"
        )
    if group is not None:
        raise InvalidScheduleError(
            f"{where} is sharded, which reduces its gradients: leave data_parallel_group out"
        )
    if not in_order:
        # Each forward and backward gathers the shards: in another order they would be another stage's.
        raise InvalidScheduleError(
            f"{where} is sharded, so its replicas must run alike: use mode static"
        )
    if not hasattr(stage, "perform_reduce_grad"):
        raise InvalidScheduleError(
            f"{where} is sharded: torch {torch.__version__} reduces gradients too early for that"
        )


def reduce_gradients(stages: Iterable[Any], group: dist.ProcessGroup | None) -> None:
    """Averages the gradients of all stages over their replicas.

    A parameter that has a gradient in some replicas counts as zero in the others; one that has none
    anywhere gets none.

    Args:
        stages: of this rank; the replicas of the rank pass the same.
        group: of the replicas; None where there are none or the modules are sharded.

    Raises:
        RankError: a replica is gone.
    """
    plain: list[nn.Parameter] = []
    for stage in stages:
        if isinstance(stage.submod, FSDPModule):
            with named("reduces sharded gradients"):
                stage.perform_reduce_grad(1)
        elif group is not None:
            plain += [p for p in stage.submod.parameters() if p.requires_grad]
    if not plain:
        return
    assert group is not None
    with torch.no_grad(), named("averages gradients"):
        has_grad = torch.tensor([p.grad is not None for p in plain], device=plain[0].device).int()
        dist.all_reduce(has_grad, dist.ReduceOp.MAX, group)
        shared = [p for p, used in zip(plain, has_grad.tolist(), strict=True) if used]
        works = []
        for parameter in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
        for parameter, work in zip(shared, works, strict=True):
            work.wait()
            parameter.grad.div_(group.size())  # type: ignore[union-attr]  # there is one
