"""Watches what steps take, and changes the plan between steps when that pays."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime.collectives import broadcast, gather
from conductor.runtime.executor import ConductorSchedule, plan_hash
from conductor.runtime.profiler import step_samples
from conductor.simulator.simulate import timeline

log = logging.getLogger("conductor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan for given times.

    Attributes:
        plan: the order.
        spec: the times that the plan is expected to meet, on its stages.
        layers: layers of each stage, where the planner may move them; None where it may not.
    """

    plan: Schedule
    spec: PipelineSpec
    layers: tuple[int, ...] | None = None


Replan = Callable[[PipelineSpec, tuple[int, ...] | None], Proposal]
"""Plans for estimated times of the stages as they are, with their layers. Called on one rank only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a change of the times led to.

    Attributes:
        step: after which it was seen.
        rank: whose times changed most.
        factor: its time over what was expected.
        proposal: what was proposed.
        switched: whether the proposal is in force from the next step on.
        before_ms: simulated step with the plan before, at the times as they are now.
        after_ms: the same with the proposed plan.
        planned_in_ms: time that planning took.
    """

    step: int
    rank: int
    factor: float
    proposal: Proposal
    switched: bool
    before_ms: float
    after_ms: float
    planned_in_ms: float


class ChangeDetector:
    """Tells a lasting change of a rank's times from noise.

    A change counts once the same rank is off by more than `threshold`, to the same side, in `confirm`
    steps in a row. The times compared are sums over a rank's stages of medians over micro-batches.

    Args:
        threshold: share of the expected time that a rank may be off.
        confirm: steps in a row.
    """

    def __init__(self, *, threshold: float = 0.08, confirm: int = 2) -> None:
        self._threshold, self._confirm = threshold, confirm
        self._recent: list[FloatArray] = []

    def observe(self, measured: FloatArray, expected: FloatArray) -> tuple[int, float] | None:
        """Takes one step in.

        Args:
            measured: milliseconds of each rank, shape (num_ranks,).
            expected: the same.

        Returns:
            The rank that changed most and its factor, or None.
        """
        self._recent = [*self._recent, measured / expected - 1.0][-self._confirm :]
        if len(self._recent) < self._confirm:
            return None
        recent = np.array(self._recent)
        lasting = np.where(
            (recent > 0).all(axis=0) | (recent < 0).all(axis=0), np.abs(recent).min(axis=0), 0.0
        )
        rank = int(lasting.argmax())
        if lasting[rank] <= self._threshold:
            return None
        self._recent = []
        return rank, 1.0 + float(recent[:, rank].mean())


class Controller:
    """Replans between steps. Every rank makes one and calls `after_step` after each training step.

    Args:
        schedule: whose plan to control.
        spec: the times that its plan was made for.
        replan: makes a plan for new times; with milliseconds to spend, as the ranks wait for it.
        layers: of each stage, handed to `replan`.
        apply: puts a proposal in force on this rank; None only changes the plan.
        min_gain: share of the step's time that a new plan must save, in simulation.
        detector: of changes.

    Attributes:
        spec: the times that the plan in force is made for.
        decisions: all so far.
    """

    def __init__(
        self,
        schedule: ConductorSchedule,
        spec: PipelineSpec,
        replan: Replan,
        *,
        layers: tuple[int, ...] | None = None,
        apply: Callable[[Proposal], None] | None = None,
        min_gain: float = 0.01,
        detector: ChangeDetector | None = None,
    ) -> None:
        self._schedule, self._replan, self._layers = schedule, replan, layers
        self.spec = spec.on_stages(schedule.plan.stage_ranks)
        self._apply = apply or (
            lambda proposal: schedule.set_plan(proposal.plan, spec=proposal.spec)
        )
        self._min_gain, self._detector = min_gain, detector or ChangeDetector()
        self._tables: list[FloatArray] = []
        self._warm = False
        self.decisions: list[Decision] = []

    def after_step(self) -> Decision | None:
        """Takes the last step in; a new plan is in force on every rank when it returns.

        Returns:
            What was decided, where the times have changed; None otherwise.
        """
        table = self._gather()
        if not self._warm:  # the first step loads code and memory
            self._warm = True
            return None
        self._tables = [*self._tables, table][-2:]
        change = self._detector.observe(self._by_rank(table), self._by_rank(self.spec.duration_ms))
        if change is None:
            return None
        now = with_times(self.spec, np.mean(self._tables, axis=0))
        decision = self._decide(now, *change)
        if decision.switched:
            self._apply(decision.proposal)
            self._layers, self.spec = decision.proposal.layers, decision.proposal.spec
            self._tables = []
        else:
            self.spec = now
        self.decisions.append(decision)
        log.info(
            "step %d: rank %d takes %.2f times as long as planned for; %s %s, step %.2f -> %.2f ms"
            " in simulation, planned in %.1f ms",
            decision.step, decision.rank, decision.factor,
            "switch to" if decision.switched else "no gain from", decision.proposal.plan.name,
            decision.before_ms, decision.after_ms, decision.planned_in_ms,
        )  # fmt: skip
        return decision

    def _decide(self, now: PipelineSpec, rank: int, factor: float) -> Decision:
        """Plans on rank 0 and tells the others."""
        decision = None
        if self._schedule.rank == 0:
            start = time.perf_counter()
            proposal = self._replan(now, self._layers)
            planned_in_ms = 1000.0 * (time.perf_counter() - start)
            before_ms = timeline(now, self._schedule.plan).makespan_ms
            after_ms = timeline(proposal.spec, proposal.plan).makespan_ms
            same = plan_hash(proposal.plan) == plan_hash(self._schedule.plan)
            decision = Decision(
                step=self._schedule.num_steps - 1,
                rank=rank,
                factor=factor,
                proposal=proposal,
                switched=after_ms <= before_ms * (1.0 - self._min_gain)
                and not (same and proposal.layers == self._layers),
                before_ms=before_ms,
                after_ms=after_ms,
                planned_in_ms=planned_in_ms,
            )
        agreed: Decision = broadcast(decision, 0, self._schedule.group)
        return agreed

    def _gather(self) -> FloatArray:
        """Measured medians, shape (kinds, num_stages); what a plan does not have is 0."""
        own = np.zeros((len(Kind), self._schedule.plan.num_stages))
        for (kind, stage), values in step_samples(self._schedule).items():
            if kind in Kind.__members__:
                own[Kind[kind], stage] = np.median(values)
        table: FloatArray = np.sum(gather(own, self._schedule.group), axis=0)
        split = table[Kind.B] == 0.0
        table[Kind.B][split] = (table[Kind.I] + table[Kind.W])[split]
        return table

    def _by_rank(self, table: FloatArray) -> FloatArray:
        """F and full backward of each rank's stages."""
        sums = np.zeros(self._schedule.plan.num_ranks)
        np.add.at(sums, list(self._schedule.plan.stage_ranks), table[Kind.F] + table[Kind.B])
        return sums


def with_times(spec: PipelineSpec, table: FloatArray) -> PipelineSpec:
    """The spec with measured times; a backward measured in one is split as the spec has it."""
    expected = spec.duration_ms
    share = expected[Kind.I] / np.maximum(expected[Kind.B], 1e-12)
    whole = table[Kind.I] + table[Kind.W] == 0.0
    inputs = np.where(whole, table[Kind.B] * share, table[Kind.I])
    return spec.with_(
        forward_ms=tuple(table[Kind.F].tolist()),
        backward_input_ms=tuple(inputs.tolist()),
        backward_weight_ms=tuple((table[Kind.B] - inputs).tolist()),
    )
