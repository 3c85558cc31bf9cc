"""The paper's simulator by its names; the work is done in `conductor`."""

from __future__ import annotations

from enum import Enum

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan
from conductor.variation import UniformNoise


class OperationType(Enum):
    """Operations in the paper's letters: its B is Conductor's I."""

    F = "F"
    """Forward."""
    B = "B"
    """Backward for the input."""
    W = "W"
    """Backward for the weights."""


class PipelineSimulator:
    """The paper's timing model: rank d is slower by 1 + 0.1 d, uniform noise on each action."""

    def __init__(
        self,
        num_devices: int = 4,
        num_micro_batches: int = 8,
        micro_batch_size: int = 32,
        max_memory: float = 4.0,
        noise_level: float = 0.1,
    ) -> None:
        """Makes the spec.

        Args:
            num_devices: ranks.
            num_micro_batches: micro-batches in a step.
            micro_batch_size: samples in a micro-batch; the times are those of one micro-batch.
            max_memory: limit of each rank, in micro-batches.
            noise_level: x of 1 + U(-x, x).
        """
        self.num_devices = num_devices
        self.num_micro_batches = num_micro_batches
        self.micro_batch_size = micro_batch_size
        self.max_memory = max_memory
        self.noise_level = noise_level
        self.variation = UniformNoise(noise_level)
        self.spec = _spec(num_devices, num_micro_batches, max_memory)
        self.instance = Instance.of(self.spec, best_plan(self.spec))

    def sample_durations(self, seed: int, draws: int = 1) -> FloatArray:
        """Realised durations, shape (draws, n), in the order of `instance.program`."""
        return self.variation.sample(self.instance.program, draws, np.random.default_rng(seed))


def _spec(num_devices: int, num_micro_batches: int, max_memory: float) -> PipelineSpec:
    paper = load_preset("paper")
    if num_devices == paper.num_ranks:
        return paper.with_(num_microbatches=num_micro_batches, memory_limit=max_memory)
    slowdown = 1.0 + 0.1 * np.arange(num_devices)
    return paper.with_(
        num_ranks=num_devices,
        num_microbatches=num_micro_batches,
        memory_limit=max_memory,
        **{
            name: tuple(paper.per_stage(name)[0] * slowdown)
            for name in ("forward_ms", "backward_input_ms", "backward_weight_ms")
        },
    )
