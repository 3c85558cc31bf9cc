"""Trains a small GPT under a plan: what `conductor run` does on each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from conductor.errors import FormatError
from conductor.ir.schedule import Schedule
from conductor.migration.model import SimpleModel
from conductor.migration.modules.convert import migratable
from conductor.problem.spec import PipelineSpec
from conductor.runtime.checkpoint import (
    load_rank,
    save_rank,
    schedule_from,
    schedule_state,
    spec_from,
    spec_state,
)
from conductor.runtime.collectives import broadcast
from conductor.runtime.controller import Controller, Proposal, Replan
from conductor.runtime.executor import ConductorSchedule, Mode
from conductor.runtime.gpt import (
    GPTConfig,
    gpt_stage,
    next_token_loss,
    spread_layers,
    stage_shapes,
)
from conductor.runtime.layers import move_layers, with_layers
from conductor.runtime.migration.control import MigrationControl
from conductor.runtime.migration.step import MigrationStep
from conductor.runtime.migration.times import link_ms
from conductor.runtime.pace import Emulation
from conductor.runtime.policy import Policy
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
        policy: see `ConductorSchedule`.
        pace: emulated devices; None runs at the machine's own speed.
        replan: changes the plan when measured times change (see `Controller`); with one stage a rank it
            may move layers.
        replan_in_background: see `Controller`.
        timeout_s: see `ConductorSchedule`.
        migrate: what moves between ranks during a step, and what it costs; None moves nothing.
        slices: a rank that stays slow lends out columns of its MLPs, too.
        lender_bytes: most that a rank may hold of others then; None is what the plan needs.
        save: folder to write a checkpoint to at the end.
        resume: folder of a checkpoint to go on from.
    """

    config: GPTConfig
    num_steps: int = 20
    rows: int = 2
    learning_rate: float = 3e-3
    seed: int = 0
    mode: Mode = "static"
    patience: float = 0.2
    policy: Policy | None = None
    pace: Emulation | None = None
    replan: Replan | None = None
    replan_in_background: bool = True
    timeout_s: float = 120.0
    migrate: SimpleModel | None = None
    slices: bool = True
    lender_bytes: int | None = None
    save: Path | None = None
    resume: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step did.

    Attributes:
        step: from 0.
        loss: mean over the micro-batches, before the step.
        time_ms: from the first start of an action to the last end, over all ranks.
        bubble_ratio: measured; a rank that helps others is not idle.
        plan: name of the plan in force.
        migration: what moved; None where nothing may.
    """

    step: int
    loss: float
    time_ms: float
    bubble_ratio: float
    plan: str
    migration: MigrationStep | None = None


class Training:
    """The training on one rank; every rank of the default process group makes one alike.

    Args:
        settings: of the model and the run.
        plan: the order of every rank.
        spec: memory and links of the measured timeline, limits of ready-first execution, and the times
            that the controller takes the plan to be made for.
        resume: folder of a checkpoint to go on from, exactly; its plan takes the place of `plan`.

    Raises:
        InvalidSpecError: the model has too few layers for the plan's stages.
        FormatError: the checkpoint cannot be read or is of another model or placement.
        RankError: some rank cannot go on.
    """

    def __init__(
        self,
        settings: TrainSettings,
        plan: Schedule,
        spec: PipelineSpec,
        resume: str | Path | None = None,
    ) -> None:
        self._settings, self._spec, self._stage_ranks = settings, spec, plan.stage_ranks
        self._rank, config = dist.get_rank(), settings.config
        self.layers = self._even = spread_layers(config.num_layers, plan.num_stages)
        self.num_steps = 0
        state = None if resume is None else load_rank(resume, self._rank)
        if state is not None:
            if state["model"] != repr(config) or state["plan"]["stage_ranks"] != [
                *plan.stage_ranks
            ]:
                raise FormatError(f"{resume}: the checkpoint is of another model or placement")
            plan, self.layers = schedule_from(state["plan"]), tuple(state["layers"])
            self.num_steps = state["num_steps"]
        self._modules = {
            stage: gpt_stage(config, stage, self.layers, seed=settings.seed)
            for stage, owner in enumerate(plan.stage_ranks)
            if owner == self._rank
        }
        self._lendings = {
            stage: migratable(module, stage=stage)
            for stage, module in self._modules.items()
            if settings.migrate is not None
        }
        parameters = [p for module in self._modules.values() for p in module.parameters()]
        self._optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate)
        self._data = np.random.default_rng(settings.seed)
        self._schedule = ConductorSchedule(
            self._stages(), plan.num_microbatches, next_token_loss,
            plan=plan, mode=settings.mode, patience=settings.patience, spec=spec,
            policy=settings.policy,
            pace=self._pace(), timeout_s=settings.timeout_s, first_step=self.num_steps,
            lends=settings.migrate is not None,
        )  # fmt: skip
        self.migration = None
        if settings.migrate is not None:
            self.migration = MigrationControl(
                self._schedule, spec, model=settings.migrate, lendings=self._lendings,
                only_weights=settings.pace is not None, lender_bytes=settings.lender_bytes,
                persistent=10 if settings.slices else None,
            )  # fmt: skip
        self.controller = settings.replan and Controller(
            self._schedule,
            spec if state is None else spec_from(state["planned_for"]),
            settings.replan,
            layers=self.layers if plan.stage_ranks == tuple(range(plan.num_ranks)) else None,
            apply=self._apply,
            in_background=settings.replan_in_background,
        )
        if state is not None:
            for stage, module in self._modules.items():
                module.load_state_dict(state["modules"][stage])
            self._optimizer.load_state_dict(state["optimizer"])
            self._data.bit_generator.state = state["data"]

    def step(self) -> tuple[StepRecord, Timeline]:
        """One optimizer step: its record and its measured timeline, on every rank.

        Raises:
            RankError: some rank cannot go on.
        """
        plan, settings = self._schedule.plan, self._settings
        tokens, targets = sums_batch(
            settings.rows * plan.num_microbatches, settings.config.sequence, self._data
        )
        losses: list[torch.Tensor] = []
        self._schedule.barrier()
        self._schedule.step(
            *([tokens] if plan.stage_ranks[0] == self._rank else []),
            target=targets,
            losses=losses,
            return_outputs=False,
        )
        self._optimizer.step()
        self._optimizer.zero_grad()
        times = self._schedule.timeline(self._with_layers(self._spec))
        moved = None if self.migration is None else self.migration.after_step(times)
        record = StepRecord(
            step=self.num_steps,
            loss=broadcast(float(np.mean(losses)) if losses else None, plan.stage_ranks[-1]),
            time_ms=times.makespan_ms,
            bubble_ratio=self._bubble_ratio(times),
            plan=plan.name,
            migration=moved,
        )
        self.num_steps += 1
        if self.controller:
            self.controller.after_step()
        return record, times

    def _bubble_ratio(self, times: Timeline) -> float:
        helps = None if self.migration is None else self.migration.helps
        if helps is None:
            return times.bubble_ratio
        busy_ms = times.busy_ms.sum() + (helps.end_ms - helps.start_ms).sum()
        return 1.0 - float(busy_ms) / (times.program.num_ranks * times.makespan_ms)

    @property
    def plan(self) -> Schedule:
        """The plan in force."""
        return self._schedule.plan

    @property
    def layer_bytes(self) -> int:
        """Of one layer of this rank: weights, and twice as much that the optimizer keeps."""
        blocks = next(iter(self._modules.values())).blocks
        return 3 * sum(parameter.nbytes for parameter in blocks[0].parameters())

    @property
    def ms_per_byte(self) -> float:
        """Of what comes from a neighbour, as this rank measured it in the last step."""
        config = self._settings.config
        size = self._settings.rows * config.sequence * config.d_model * config.dtype.itemsize
        return link_ms(self._schedule) / size

    def close(self) -> None:
        """Ends what links run; every rank calls it."""
        self._schedule.barrier()
        self._schedule.close()

    def save(self, folder: str | Path) -> None:
        """Writes a checkpoint; every rank calls it after the same step.

        Raises:
            FormatError: this rank's file cannot be written.
            RankError: another rank is gone.
        """
        save_rank(
            folder,
            self._rank,
            {
                "model": repr(self._settings.config),
                "plan": schedule_state(self._schedule.plan),
                "layers": list(self.layers),
                "planned_for": spec_state(self.controller.spec if self.controller else self._spec),
                "num_steps": self.num_steps,
                "modules": {stage: m.state_dict() for stage, m in self._modules.items()},
                "optimizer": self._optimizer.state_dict(),
                "data": self._data.bit_generator.state,
            },
        )
        self._schedule.barrier()

    def _apply(self, proposal: Proposal) -> None:
        """Puts a proposal in force, between two steps."""
        if proposal.layers is not None and proposal.layers != self.layers:
            move_layers(
                self._modules[self._rank], self._optimizer, self._settings.config,
                self.layers, proposal.layers,
            )  # fmt: skip
            self.layers = proposal.layers
            self._schedule.set_pace(self._pace())
            self._schedule.replace_stages(self._stages())
        self._schedule.set_plan(proposal.plan, spec=proposal.spec)

    def _pace(self) -> Emulation | None:
        pace = self._settings.pace
        return pace and replace(pace, spec=self._with_layers(pace.spec))

    def _with_layers(self, spec: PipelineSpec) -> PipelineSpec:
        """A spec of the even layers, with the layers where they are now."""
        return spec if self.layers == self._even else with_layers(spec, self._even, self.layers)

    def _stages(self) -> list[PipelineStage]:
        config, count = self._settings.config, len(self._stage_ranks)
        stages = []
        for stage, module in self._modules.items():
            inputs, outputs = stage_shapes(config, stage, count, self._settings.rows)
            stages.append(wrap_stage(module, stage, count, input_args=inputs, output_args=outputs))
        return stages


def train(
    settings: TrainSettings,
    plan: Schedule,
    spec: PipelineSpec,
    on_step: Callable[[StepRecord], None] = lambda record: None,
    on_end: Callable[[Training], None] = lambda training: None,
) -> tuple[list[StepRecord], Timeline]:
    """Trains on this rank for `settings.num_steps`. Arguments and errors as of `Training`.

    `on_step` is told of every step, `on_end` of the training before its links are closed.

    Returns:
        Records of all steps and the timeline of the last one, on every rank.
    """
    training = Training(settings, plan, spec, settings.resume)
    records = []
    for _ in range(settings.num_steps):
        record, times = training.step()
        records.append(record)
        on_step(record)
    if settings.save is not None:
        training.save(settings.save)
    on_end(training)
    training.close()
    return records, times


def median_ms(records: Sequence[StepRecord]) -> float:
    """Median time of the steps but the first, which warms up; of the first where it is the only one."""
    return float(np.median([record.time_ms for record in records[1:] or records]))
