"""Measures a GPT's stages one after another in this process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime import torch_shim
from conductor.runtime.activation_memory import activation_bytes
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.gpt import (
    GPTConfig,
    gpt_stage,
    next_token_loss,
    spread_layers,
    stage_shapes,
)
from conductor.runtime.profiler import Profiler
from conductor.runtime.stage import wrap_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measured model.

    Attributes:
        spec: expected times (medians, ms) and activation memory (bytes), one stage a rank.
        spread: interquartile range over median, by kind.
    """

    spec: PipelineSpec
    spread: dict[str, float]


def profile_gpt(
    config: GPTConfig,
    *,
    num_ranks: int,
    num_microbatches: int,
    rows: int,
    num_steps: int = 5,
    seed: int = 0,
    name: str = "gpt",
) -> Profile:
    """Runs every stage in this process, so that no rank disturbs another; there are no transfers.

    One step warms up and is not counted. The process must not be in a process group yet.

    Args:
        config: of the model.
        num_ranks: stages to cut it in.
        num_microbatches: in the spec; four are run in each step.
        rows: samples in a micro-batch.
        num_steps: steps that count.
        seed: of weights and data.
        name: of the spec.

    Raises:
        InvalidSpecError: the model has too few layers.
    """
    layers = spread_layers(config.num_layers, num_ranks)
    dist.init_process_group("gloo", store=torch_shim.lone_store(), rank=0, world_size=1)
    try:
        stages, memory, freed = [], [], []
        for stage in range(num_ranks):
            module = gpt_stage(config, stage, layers, seed=seed)
            shapes = stage_shapes(config, stage, num_ranks, rows)
            example = torch.zeros(shapes[0].shape, dtype=shapes[0].dtype)
            size, share = activation_bytes(module, example)
            memory.append(float(size))
            freed.append(share)
            stages.append(
                wrap_stage(module, stage, num_ranks, input_args=shapes[0], output_args=shapes[1])
            )
        plan = one_rank_plan(num_ranks, 4)
        schedule = ConductorSchedule(stages, 4, next_token_loss, plan=plan)
        profiler = Profiler(schedule)
        rng = np.random.default_rng(seed)
        for step in range(1 + num_steps):
            tokens = torch.from_numpy(
                rng.integers(0, config.vocabulary, (4 * rows, config.sequence))
            )
            schedule.step(tokens, target=tokens, return_outputs=False)
            if step:
                profiler.record()
        spec = profiler.spec(
            name=name,
            source=f"measured by conductor profile, torch {torch.__version__} on"
            f" {torch.get_num_threads()} threads",
            num_ranks=num_ranks,
            placement="sequential",
            stages_per_rank=1,
            num_microbatches=num_microbatches,
            activation_memory=tuple(memory),
            freed_at_backward_input=float(np.mean(freed)),
        )
        return Profile(spec=spec, spread=profiler.spread())
    finally:
        dist.destroy_process_group()


def one_rank_plan(num_stages: int, num_microbatches: int) -> Schedule:
    """All stages on one rank: each micro-batch goes up, comes back down, and has its W done."""
    row = [
        Action(stage, kind, microbatch)
        for microbatch in range(num_microbatches)
        for kind in (Kind.F, Kind.I, Kind.W)
        for stage in (range(num_stages) if kind is Kind.F else reversed(range(num_stages)))
    ]
    return Schedule.from_actions(
        [row],
        name="one-rank",
        stage_ranks=(0,) * num_stages,
        num_microbatches=num_microbatches,
    )
