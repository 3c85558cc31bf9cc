"""Trains a small GPT under a plan: what `conductor run` does on each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.runtime.collectives import broadcast
from conductor.runtime.controller import Controller, Proposal, Replan
from conductor.runtime.executor import ConductorSchedule, Mode
from conductor.runtime.gpt import (
    GPTConfig,
    GPTStage,
    gpt_stage,
    next_token_loss,
    spread_layers,
    stage_shapes,
)
from conductor.runtime.layers import move_layers, with_layers
from conductor.runtime.pace import Emulation
from conductor.runtime.stage import wrap_stage
from conductor.runtime.sums_text import sums_batch
from conductor.simulator.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How to train.

    Attributes:
        config: the model.
        num_steps: optimizer steps.
        rows: samples in a micro-batch.
        learning_rate: of AdamW.
        seed: of weights and data.
        mode: see `ConductorSchedule`.
        patience: see `ConductorSchedule`.
        pace: emulated devices; None runs at the machine's own speed.
        replan: changes the plan when measured times change (see `Controller`); with one stage a rank it
            may move layers.
        timeout_s: see `ConductorSchedule`.
    """

    config: GPTConfig
    num_steps: int = 20
    rows: int = 2
    learning_rate: float = 3e-3
    seed: int = 0
    mode: Mode = "static"
    patience: float = 0.2
    pace: Emulation | None = None
    replan: Replan | None = None
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step did.

    Attributes:
        step: from 0.
        loss: mean over the micro-batches, before the step.
        time_ms: from the first start of an action to the last end, over all ranks.
        bubble_ratio: measured.
        plan: name of the plan in force.
    """

    step: int
    loss: float
    time_ms: float
    bubble_ratio: float
    plan: str


def train(
    settings: TrainSettings,
    plan: Schedule,
    spec: PipelineSpec,
    on_step: Callable[[StepRecord], None] = lambda record: None,
) -> tuple[list[StepRecord], Timeline]:
    """Trains on this rank; every rank of the default process group calls it with the same arguments.

    Args:
        settings: of the model and the run.
        plan: the order of every rank.
        spec: memory and links of the measured timeline, and limits of ready-first execution.
        on_step: told of every step, on every rank.

    Returns:
        Records of all steps and the timeline of the last one, on every rank.

    Raises:
        InvalidSpecError: the model has too few layers for the plan's stages.
        RankError: some rank cannot go on.
    """
    rank, config = dist.get_rank(), settings.config
    layers = spread_layers(config.num_layers, plan.num_stages)
    modules = {
        stage: gpt_stage(config, stage, layers, seed=settings.seed)
        for stage, owner in enumerate(plan.stage_ranks)
        if owner == rank
    }
    schedule = ConductorSchedule(
        _wrap(modules, plan, settings), plan.num_microbatches, next_token_loss,
        plan=plan, mode=settings.mode, patience=settings.patience, spec=spec, pace=settings.pace,
        timeout_s=settings.timeout_s,
    )  # fmt: skip
    parameters = [p for module in modules.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate)

    def apply(proposal: Proposal) -> None:
        nonlocal layers
        if proposal.layers is not None and proposal.layers != layers:
            move_layers(modules[rank], optimizer, config, layers, proposal.layers)
            if settings.pace is not None:
                even = spread_layers(config.num_layers, plan.num_stages)
                slower = with_layers(settings.pace.spec, even, proposal.layers)
                schedule.set_pace(replace(settings.pace, spec=slower))
            layers = proposal.layers
            schedule.replace_stages(_wrap(modules, plan, settings))
        schedule.set_plan(proposal.plan)

    controller = settings.replan and Controller(
        schedule,
        spec,
        settings.replan,
        layers=layers if plan.stage_ranks == tuple(range(plan.num_ranks)) else None,
        apply=apply,
    )
    data = np.random.default_rng(settings.seed)
    records = []
    for number in range(settings.num_steps):
        tokens, targets = sums_batch(settings.rows * plan.num_microbatches, config.sequence, data)
        losses: list[torch.Tensor] = []
        schedule.barrier()
        schedule.step(
            *([tokens] if plan.stage_ranks[0] == rank else []),
            target=targets,
            losses=losses,
            return_outputs=False,
        )
        optimizer.step()
        optimizer.zero_grad()
        times = schedule.timeline(spec)
        record = StepRecord(
            step=number,
            loss=broadcast(float(np.mean(losses)) if losses else None, plan.stage_ranks[-1]),
            time_ms=times.makespan_ms,
            bubble_ratio=times.bubble_ratio,
            plan=schedule.plan.name,
        )
        records.append(record)
        on_step(record)
        if controller:
            controller.after_step()
    return records, times


def _wrap(
    modules: dict[int, GPTStage], plan: Schedule, settings: TrainSettings
) -> list[PipelineStage]:
    stages = []
    for stage, module in modules.items():
        inputs, outputs = stage_shapes(settings.config, stage, plan.num_stages, settings.rows)
        stages.append(
            wrap_stage(module, stage, plan.num_stages, input_args=inputs, output_args=outputs)
        )
    return stages


def median_ms(records: Sequence[StepRecord]) -> float:
    """Median time of the steps but the first, which warms up; of the first where it is the only one."""
    return float(np.median([record.time_ms for record in records[1:] or records]))
