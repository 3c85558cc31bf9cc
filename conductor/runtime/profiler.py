"""What stages take, from steps that run anyway."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from conductor.errors import RankError
from conductor.problem.spec import PipelineSpec
from conductor.runtime.collectives import gather
from conductor.runtime.deferred import WeightQueue, defer_weight_gradients
from conductor.runtime.executor import ConductorSchedule

Samples = dict[tuple[str, int], list[float]]
"""Measured milliseconds by kind ("F", "I", "W", "B", or "transfer") and stage (of a link, the lower)."""


def step_samples(schedule: ConductorSchedule) -> Samples:
    """What the last training step measured on this rank; nothing is added to the step's own path."""
    samples: Samples = defaultdict(list)
    times = schedule.times
    if times is None:
        return samples
    for action, start, end in zip(schedule.actions, times.start_ns, times.end_ns, strict=True):
        samples[action.kind.name, action.stage].append((end - start) / 1e6)
    for (is_grad, stage), transfers in times.transfer_ms.items():
        samples["transfer", stage if is_grad else stage - 1] += transfers
    return samples


class Profiler:
    """Collects the measured times of a schedule's steps.

    Args:
        schedule: whose steps to measure. Its plan must split the backward.
    """

    def __init__(self, schedule: ConductorSchedule) -> None:
        self._schedule = schedule
        self._samples: Samples = defaultdict(list)

    def record(self) -> None:
        """Takes the last training step in; call it after each step that shall count."""
        for key, values in step_samples(self._schedule).items():
            self._samples[key] += values

    def gather(self) -> Samples:
        """The samples of all ranks, on every rank; every rank calls it."""
        rows = gather(dict(self._samples), self._schedule.group)
        merged: Samples = defaultdict(list)
        for row in rows:
            for key, values in row.items():
                merged[key] += values
        return merged

    def spec(self, *, name: str, source: str, **fields: object) -> PipelineSpec:
        """Medians of what was measured, as a spec with the plan's placement; every rank calls it.

        Args:
            name: of the spec.
            source: said in the file: what was measured, and where.
            fields: further fields of the spec (memory, another placement).

        Raises:
            RankError: some stage has no F, I or W among the samples.
        """
        samples, plan = self.gather(), self._schedule.plan

        def medians(kind: str, count: int, missing: float | None = None) -> tuple[float, ...]:
            found = []
            for stage in range(count):
                if (kind, stage) not in samples and missing is None:
                    raise RankError(f"no {kind} of stage {stage} was measured")
                found.append(float(np.median(samples.get((kind, stage), missing))))  # type: ignore[arg-type]
            return tuple(found)

        given: dict[str, object] = {
            "num_ranks": plan.num_ranks,
            "placement": plan.stage_ranks,
            "num_microbatches": plan.num_microbatches,
            "forward_ms": medians("F", plan.num_stages),
            "backward_input_ms": medians("I", plan.num_stages),
            "backward_weight_ms": medians("W", plan.num_stages),
            "transfer_ms": medians("transfer", plan.num_stages - 1, 0.0),
        }
        return PipelineSpec(name=name, source=source, **{**given, **fields})  # type: ignore[arg-type]  # checked there

    def spread(self) -> dict[str, float]:
        """Interquartile range over median, by kind, the median of all stages; every rank calls it."""
        widths: dict[str, list[float]] = defaultdict(list)
        for (kind, _), values in self.gather().items():
            low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
            widths[kind].append(float((high - low) / middle) if middle else 0.0)
        return {kind: float(np.median(values)) for kind, values in sorted(widths.items())}


def activation_bytes(module: nn.Module, inputs: Tensor) -> tuple[int, float]:
    """Memory that one micro-batch of a stage holds from its F on, and the share of it that I frees.

    Counts what autograd saves and the tensors that stay alive (a checkpoint keeps its inputs so),
    parameters aside. The module's linear layers defer their weight gradients afterwards, as in
    `wrap_stage`, which may follow.

    Returns:
        Bytes; share in [0, 1].
    """
    queue = WeightQueue()
    defer_weight_gradients(module, queue)
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    before = _live_storages()
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    unpack: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731 - a hook of one line
    inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
    with torch.autograd.graph.saved_tensors_hooks(keep, unpack):
        output = module(inputs)
    held = {**_live_storages(before), **saved, inputs.untyped_storage().data_ptr(): inputs.nbytes}
    held = {address: size for address, size in held.items() if address not in parameters}
    total = sum(held.values())
    output.backward(torch.ones_like(output))
    left = sum(_sizes(queue.held()).values())
    queue.take()
    module.zero_grad()
    return total, max(0.0, 1.0 - left / total)


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
