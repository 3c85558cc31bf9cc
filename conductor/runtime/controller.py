"""Watches what steps take, and changes the plan between steps when that pays."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from conductor.errors import RankError
from conductor.ir.schedule import FloatArray, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime.collectives import gather
from conductor.runtime.executor import ConductorSchedule, plan_hash
from conductor.runtime.profiler import step_samples
from conductor.simulator.simulate import timeline

log = logging.getLogger("conductor")
_KEPT = 32
"""Steps whose times are kept, for a mean over those since a change."""


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
"""Plans for estimated times of the stages as they are, with their layers. Called on one rank only, there
once at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a change of the times led to.

    Attributes:
        step: after which it was seen.
        rank: whose times changed most.
        factor: its time over what was expected.
        measured: the times as they were then.
        proposal: what was proposed for them.
        switched: whether the proposal was put in force.
        before_ms: simulated step with the plan before, at the measured times.
        after_ms: the same with the proposed plan.
        planned_in_ms: time that planning took.
    """

    step: int
    rank: int
    factor: float
    measured: PipelineSpec
    proposal: Proposal
    switched: bool
    before_ms: float
    after_ms: float
    planned_in_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A rank whose times have changed.

    Attributes:
        rank: which one.
        factor: measured over expected time.
        num_steps: the last ones, in which it was so.
    """

    rank: int
    factor: float
    num_steps: int


class ChangeDetector:
    """Tells a lasting change of a rank's times from noise: a cumulative sum (Page, 1954) for each rank.

    While a rank is off to the same side by more than `ignored`, what is beyond that adds up from step to
    step; a change counts once the sum is above `enough`. One step adds at most `most`, so that none counts
    alone: 30 % are seen after two steps in a row, 15 % after five, 10 % after nine, 5 % never.

    Args:
        ignored: share of the expected time.
        enough: sum of shares.
        most: share that one step may add.
    """

    def __init__(self, *, ignored: float = 0.05, enough: float = 0.42, most: float = 0.25) -> None:
        self._ignored, self._enough, self._most = ignored, enough, most
        self._runs: list[list[float]] = []

    def observe(self, measured: FloatArray, expected: FloatArray) -> Change | None:
        """Takes one step in.

        Args:
            measured: milliseconds of each rank, shape (num_ranks,).
            expected: the same.

        Returns:
            The change of the rank that changed most, or None.
        """
        self._runs = self._runs or [[] for _ in measured]
        sums = []
        for run, off in zip(self._runs, (measured / expected - 1.0).tolist(), strict=True):
            if abs(off) <= self._ignored or (run and run[-1] * off < 0.0):
                run.clear()
            if abs(off) > self._ignored:
                run.append(off)
            sums.append(sum(min(abs(off) - self._ignored, self._most) for off in run))
        rank = int(np.argmax(sums))
        if sums[rank] <= self._enough:
            return None
        run, self._runs = self._runs[rank], []
        return Change(rank=rank, factor=1.0 + float(np.mean(run)), num_steps=len(run))


class Controller:
    """Replans while steps go on. Every rank makes one and calls `after_step` after each training step.

    Args:
        schedule: whose plan to control.
        spec: the times that its plan was made for.
        replan: makes a plan for new times, in a thread of rank 0 while the steps go on.
        layers: of each stage, handed to `replan`.
        apply: puts a proposal in force on this rank; None only changes the plan.
        min_gain: share of the step's time that a new plan must save, in simulation.
        detector: of changes.
        in_background: False waits for the plan, so that it is in force after the step that follows.

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
        in_background: bool = True,
    ) -> None:
        self._schedule, self._replan, self._layers = schedule, replan, layers
        self.spec = spec.on_stages(schedule.plan.stage_ranks)
        self._apply = apply or (
            lambda proposal: schedule.set_plan(proposal.plan, spec=proposal.spec)
        )
        self._min_gain, self._detector = min_gain, detector or ChangeDetector()
        self._tables: list[FloatArray] = []
        self._warm = self._is_planning = False
        self._planner, self._in_background = None, in_background
        self._future: Future[Decision] | None = None
        if schedule.rank == 0:
            self._planner = ThreadPoolExecutor(1, "conductor-planner")
            replan(self.spec, layers)  # loads the code before a step needs it
        self.decisions: list[Decision] = []

    def after_step(self) -> Decision | None:
        """Takes the last step in; a new plan is in force on every rank when it returns.

        Returns:
            What was decided about a change seen some steps ago; None where nothing was.

        Raises:
            RankError: planning failed, or another rank is gone.
        """
        table, decision = self._gather()
        if decision is not None:
            self._conclude(decision)
            return decision
        if not self._warm:  # the first step loads code and memory
            self._warm = True
            return None
        if self._is_planning:
            return None
        self._tables = [*self._tables, table][-_KEPT:]
        change = self._detector.observe(self._by_rank(table), self._by_rank(self.spec.duration_ms))
        if change is not None:
            self._is_planning = True
            now = with_times(self.spec, np.mean(self._tables[-change.num_steps :], axis=0))
            self._tables = []
            if self._planner is not None:
                self._future = self._planner.submit(self._decide, now, change)
                if not self._in_background:
                    wait([self._future])
        return None

    def _conclude(self, decision: Decision) -> None:
        """The same on every rank, after the same step."""
        self._is_planning = False
        if decision.switched:
            self._apply(decision.proposal)
            self._layers, self.spec = decision.proposal.layers, decision.proposal.spec
        else:
            self.spec = decision.measured
        self.decisions.append(decision)
        log.info(
            "step %d: rank %d takes %.2f times as long as planned for; %s %s after step %d, step"
            " %.2f -> %.2f ms in simulation, planned in %.1f ms",
            decision.step, decision.rank, decision.factor,
            "switch to" if decision.switched else "no gain from", decision.proposal.plan.name,
            self._schedule.num_steps - 1, decision.before_ms, decision.after_ms,
            decision.planned_in_ms,
        )  # fmt: skip

    def _decide(self, now: PipelineSpec, change: Change) -> Decision:
        """Plans, on rank 0, while the steps go on."""
        step = self._schedule.num_steps - 1
        start = time.perf_counter()
        proposal = self._replan(now, self._layers)
        planned_in_ms = 1000.0 * (time.perf_counter() - start)
        before_ms = timeline(now, self._schedule.plan).makespan_ms
        after_ms = timeline(proposal.spec, proposal.plan).makespan_ms
        same = plan_hash(proposal.plan) == plan_hash(self._schedule.plan)
        return Decision(
            step=step,
            rank=change.rank,
            factor=change.factor,
            measured=now,
            proposal=proposal,
            switched=after_ms <= before_ms * (1.0 - self._min_gain)
            and not (same and proposal.layers == self._layers),
            before_ms=before_ms,
            after_ms=after_ms,
            planned_in_ms=planned_in_ms,
        )

    def _finished(self) -> Decision | RankError | None:
        """What rank 0 has decided by now."""
        if self._future is None or not self._future.done():
            return None
        future, self._future = self._future, None
        error = future.exception()
        if error is None:
            return future.result()
        return RankError(f"rank 0 cannot plan for new times: {type(error).__name__}: {error}")

    def _gather(self) -> tuple[FloatArray, Decision | None]:
        """Measured medians, shape (kinds, num_stages), and what rank 0 has decided, on every rank.

        What a plan does not have is 0.
        """
        own = np.zeros((len(Kind), self._schedule.plan.num_stages))
        for (kind, stage), values in step_samples(self._schedule).items():
            if kind in Kind.__members__:
                own[Kind[kind], stage] = np.median(values)
        rows = gather((own, self._finished()), self._schedule.group)
        decided = rows[0][1]
        if isinstance(decided, RankError):
            raise decided
        table: FloatArray = np.sum([row[0] for row in rows], axis=0)
        split = table[Kind.B] == 0.0
        table[Kind.B][split] = (table[Kind.I] + table[Kind.W])[split]
        return table, decided

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
