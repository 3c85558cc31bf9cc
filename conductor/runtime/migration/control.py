"""Plans migration between steps from measured times, and switches it off where it does not pay."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from conductor.ir.helps import Helps
from conductor.ir.schedule import FloatArray
from conductor.migration.execution import Execution, MigrationRules, prepare, run
from conductor.migration.model import SimpleModel
from conductor.migration.modules.lending import Lending
from conductor.migration.plan import MigrationPlan, plan_migration
from conductor.problem.spec import PipelineSpec
from conductor.runtime.collectives import broadcast, gather
from conductor.runtime.controller import ChangeDetector, with_times
from conductor.runtime.exchange.help import StepHelps
from conductor.runtime.exchange.units import Held, Units
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.migration.memory import mlp_messages, placed
from conductor.runtime.migration.step import MigrationStep, summed_up
from conductor.runtime.migration.times import (
    action_table,
    by_rank,
    helps_of,
    link_ms,
    profile,
    start_delays_ms,
)
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline
from conductor.variation import MarkovStragglers, Variation

log = logging.getLogger("conductor")

EXPECTED = MarkovStragglers(factor=3.0, p_slow=0.005, p_recover=0.15)
"""What times are taken to vary like: now and then a rank turns slow for some actions."""
_RECENT = 4
"""Steps whose times make up the profile that predicts the next one."""


@dataclass(slots=True, kw_only=True)
class _State:
    """What rank 0 remembers."""

    stale: bool = True
    retry: int = 0
    hold: int = 8
    ratio: float = 1.0
    off: list[float] = field(default_factory=list)
    on: list[float] = field(default_factory=list)
    tables: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=_RECENT))
    slow_steps: int = 0
    planned: MigrationPlan | None = None
    predicted_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What all ranks do from the next step on."""

    spec: PipelineSpec
    rules: MigrationRules | None
    held: Held
    given: SimpleModel


class MigrationControl:
    """Decides between steps whether work may move in the next. Every rank makes one.

    The first steps run without; what they take, against their simulation, is the yardstick. Then
    migration is on while a plan at the measured times gains `min_gain` and the measured steps keep at
    least half of that; else it is off, for twice as many steps each time, until times change.

    Args:
        schedule: made with `lends=True`.
        spec: the times that the plan in force is made for.
        model: what moves and what it costs; weight gradients do where lenders hold columns.
        lendings: of this rank's stages, where their modules can move work.
        variation: what times vary like.
        min_gain: share of a step that migration must save.
        persistent: a rank that is slow for so many steps lends out columns of its MLPs, too; None is never.
        lender_share: columns of an MLP that each of two lenders holds then.
        mlp_share: of a stage's time that its MLPs take.
        only_weights: heads are all that moves in F and I, and messages cost what the model says, as on
            emulated devices; else lenders that hold columns do F and I of them as well, and messages cost
            what was measured.
        lender_bytes: most that a rank may hold of others; None is what the plan needs.

    Attributes:
        spec: measured times, with what it costs to start actions.
        last: what moved in the last step.
        helps: of the last step, for pictures and files.
        decisions: in words.
    """

    def __init__(
        self,
        schedule: ConductorSchedule,
        spec: PipelineSpec,
        *,
        model: SimpleModel | None = None,
        lendings: Mapping[int, Lending] | None = None,
        variation: Variation = EXPECTED,
        min_gain: float = 0.02,
        persistent: int | None = 10,
        lender_share: float = 0.5,
        mlp_share: float = 0.66,
        only_weights: bool = True,
        lender_bytes: int | None = None,
    ) -> None:
        self._schedule, self._given = schedule, model or SimpleModel()
        self._lendings, self._variation = lendings or {}, variation
        self._min_gain, self._persistent, self._lender_share = min_gain, persistent, lender_share
        self._mlp_share, self._only_weights = mlp_share, only_weights
        self._lender_bytes = lender_bytes
        self.spec = spec.on_stages(schedule.plan.stage_ranks)
        self._detector = ChangeDetector()
        self._state = _State()
        self._held: Held = {}
        self._steps = self._planned_bytes = 0
        self._mlp_ms: list[float] = []
        self._sizes: list[float] = []
        self.last = MigrationStep()
        self.helps: Helps | None = None
        self.decisions: list[str] = []

    @property
    def expected_ms(self) -> float | None:
        """The next step with migration in simulation, with the times measured last; on rank 0, while on."""
        return self._state.predicted_ms or None

    def after_step(self, times: Timeline) -> MigrationStep:
        """Takes the last step in; what it decides is in force on every rank when it returns.

        Args:
            times: the step as measured, from `ConductorSchedule.timeline`.
        """
        schedule = self._schedule
        assert schedule.exchange is not None
        assert schedule.times is not None
        is_on = schedule.exchange.migration is not None
        report = schedule.exchange.report if is_on else StepHelps()
        mine = (
            action_table(schedule, report),
            report,
            min(schedule.times.start_ns),
            link_ms(schedule),
            0.0 if self._only_weights or self._steps else mlp_messages(schedule, self._lendings),
        )
        rows = gather(mine, schedule.group)
        reports = [row[1] for row in rows]
        self.last = MigrationStep()
        if is_on:
            self.last = summed_up(
                reports, schedule.plan, self.spec, self._model,
                planned_bytes=self._planned_bytes, predicted_ms=self._state.predicted_ms,
            )  # fmt: skip
        self.helps = helps_of(reports, min(row[2] for row in rows), self._given.parts)
        self._steps += 1
        self._sizes = self._sizes or [row[4] for row in rows]
        if self._steps == 1:  # the first step loads code and memory
            return self.last
        order = None
        if schedule.rank == 0:
            measured: FloatArray = np.sum([row[0] for row in rows], axis=0)
            table = profile(measured, start_delays_ms(times, self.helps), self.spec)
            if not self._only_weights and self._steps == 2:
                # To a rank that waits, as lenders do; a busy one takes messages later.
                message_ms = min((row[3] for row in rows if row[3] > 0.0), default=0.0)
                self._given = self._calibrated(message_ms)
                self._mlp_ms = [size * message_ms for size in self._sizes]
            order = self._decide(table, times.makespan_ms, is_on)
            will_be_on = is_on if order is None else order.rules is not None
            self._state.predicted_ms = self._predict() if will_be_on else 0.0
        order = broadcast(order, 0, schedule.group)
        if order is not None:
            self._apply(order)
        return self.last

    # On rank 0.

    def _decide(self, table: FloatArray, makespan_ms: float, is_on: bool) -> _Order | None:
        """What changes, if anything does."""
        state = self._state
        (state.on if is_on else state.off).append(makespan_ms)
        state.tables.append(table)
        now = with_times(self.spec, table)
        first = len(state.off) == 1 and not state.on
        change = self._detector.observe(by_rank(now), by_rank(self.spec))
        if first or change is not None:
            self.spec, state.stale, state.retry = now, True, self._steps
            state.on, state.slow_steps = [], 0
            state.tables.clear()
            state.tables.append(table)
            if change is not None and not first:
                self._say(f"rank {change.rank} takes {change.factor:.2f} times as long as before")
        if state.stale:
            state.stale, state.planned = False, self._plan()
            if first:
                state.ratio = makespan_ms / self._plain_ms()
            if is_on and self._pays():
                return self._order(on=True)
        slices = self._hold_slices()
        if slices is not None:
            return slices
        if not is_on:
            if self._steps >= state.retry and self._pays():
                self._say(f"migration on: {100.0 * self._gain():.1f} % less in simulation")
                state.on = []
                return self._order(on=True)
            return None
        if not self._pays():
            self._say("migration off: no gain in simulation")
            return self._order(on=False)
        expected_ms = state.ratio * self._plain_ms()
        if len(state.on) >= 4:
            # Draws chose the rules; measured steps are held to the measured times alone.
            least = 0.5 * (1.0 - self._predict() / self._plain_ms())
            measured = float(np.median(state.on[-8:]))
            if measured > expected_ms * (1.0 - least):
                state.retry, state.hold = self._steps + state.hold, 2 * state.hold
                state.slow_steps = 0
                self._say(
                    f"migration off: {measured:.1f} ms with it, {expected_ms:.1f} ms expected without"
                )
                return self._order(on=False)
        return None

    def _hold_slices(self) -> _Order | None:
        """A rank that stays slow lends out columns, if that gains: their weights travel once a step."""
        state = self._state
        work = by_rank(self.spec)
        rank = int(work.argmax())
        if self._held or work[rank] < 1.15 * np.median(work):
            state.slow_steps = 0
            return None
        state.slow_steps += 1
        persistent = self._persistent
        if persistent is None or state.slow_steps < persistent or self._steps < state.retry:
            return None
        state.slow_steps = 0
        lenders = [r for r in np.argsort(work, kind="stable").tolist() if r != rank][:2]
        stages = np.flatnonzero(np.asarray(self._schedule.plan.stage_ranks) == rank).tolist()
        before = state.planned
        assert before is not None
        self._held = {s: [(lender, self._lender_share) for lender in lenders] for s in stages}
        state.planned = self._plan()
        named = " and ".join(map(str, lenders))
        if not self._pays() or state.planned.plan_ms + self._held_ms() > 0.99 * before.plan_ms:
            self._held, state.planned = {}, before
            self._say(f"rank {rank} stays slow: columns of its MLPs at ranks {named} gain nothing")
            return None
        state.on = []
        self._say(
            f"rank {rank} stays slow: from now on ranks {named} hold columns of its MLPs,"
            f" {100.0 * self._gain():.1f} % less in simulation"
        )
        return self._order(on=True)

    def _order(self, *, on: bool) -> _Order:
        planned = self._state.planned
        assert planned is not None
        if not on and self._held:
            self._held, self._state.stale = {}, True
        return _Order(
            spec=self.spec,
            rules=planned.rules if on else None,
            held=self._held,
            given=self._given,
        )

    def _held_ms(self) -> float:
        """What the weights of all slices at lenders, and their gradients back, add to a step."""
        ranks = self._schedule.plan.stage_ranks
        owners = {ranks[stage]: len(lenders) for stage, lenders in self._held.items()}
        if not self._mlp_ms:
            return 0.0
        return sum(2.0 * self._lender_share * n * self._mlp_ms[r] for r, n in owners.items())

    def _calibrated(self, message_ms: float) -> SimpleModel:
        """The model with what messages cost here: a round trip for each block of a stage."""
        blocks = max((len(lending.blocks) for lending in self._lendings.values()), default=1)
        return replace(
            self._given, latency_ms=message_ms * blocks, part_ms=0.0,
            source="messages as long as the pipeline's own took",
        )  # fmt: skip

    def _plan(self) -> MigrationPlan:
        return plan_migration(
            self.spec, [self._schedule.plan], model=self._model, variation=self._variation,
            executions=(self._execution,), draws=16,
        )  # fmt: skip

    def _recent(self) -> PipelineSpec:
        """Times of the last steps, burst and noise levelled."""
        return with_times(self.spec, np.mean(self._state.tables, axis=0))

    def _predict(self) -> float:
        """The next step with migration in simulation."""
        assert self._state.planned is not None
        prepared = prepare(
            self._recent(), self._schedule.plan, model=self._model, rules=self._state.planned.rules,
            execution=self._execution,
        )  # fmt: skip
        return run(prepared).makespan_ms + self._held_ms()

    def _plain_ms(self) -> float:
        """The next step without migration in simulation."""
        return timeline(self._recent(), self._schedule.plan, execution=self._execution).makespan_ms

    def _gain(self) -> float:
        planned = self._state.planned
        assert planned is not None
        return 1.0 - (planned.plan_ms + self._held_ms()) / planned.without_ms

    def _pays(self) -> bool:
        return self._gain() >= self._min_gain

    def _say(self, text: str) -> None:
        self.decisions.append(f"step {self._schedule.num_steps - 1}: {text}")
        log.info("step %d: %s", self._schedule.num_steps - 1, text)

    # On every rank.

    @property
    def _model(self) -> SimpleModel:
        """What can move: heads, and where columns are held at lenders, those that one of them has."""
        given = self._given
        if not self._held:
            return replace(given, movable_weight=0.0)
        share = self._mlp_share * self._lender_share
        movable = given.movable if self._only_weights else min(given.movable + share, 1.0)
        return replace(given, movable=movable, movable_weight=share)

    @property
    def _execution(self) -> Execution:
        return "static" if self._schedule.mode == "static" else "ready-first"

    def _apply(self, order: _Order) -> None:
        exchange, schedule = self._schedule.exchange, self._schedule
        assert exchange is not None
        self.spec, self._held, self._given = order.spec, order.held, order.given
        if order.rules is None:
            exchange.set_migration(None, self._lendings)
            return
        prepared = prepare(
            order.spec, schedule.plan, model=self._model, rules=order.rules,
            execution=self._execution,
        )  # fmt: skip
        units = Units(
            lendings=self._lendings, parts=self._model.parts, held=order.held,
            only_weights=self._only_weights,
        )  # fmt: skip
        units, planned = placed(units, schedule, self._lender_bytes)
        self._planned_bytes = max(planned)
        exchange.set_migration(prepared, self._lendings, units, planned[schedule.rank])
