"""Plans migration between steps from measured times, and switches it off where it does not pay."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from conductor.ir.helps import Helps
from conductor.ir.schedule import FloatArray
from conductor.migration.execution import Execution, MigrationRules, prepare, run
from conductor.migration.model import SimpleModel
from conductor.migration.modules.lending import Lending
from conductor.migration.plan import plan_migration
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime.collectives import broadcast, gather
from conductor.runtime.controller import ChangeDetector, with_times
from conductor.runtime.exchange_help import StepHelps
from conductor.runtime.exchange_units import Held, Units
from conductor.runtime.executor import ConductorSchedule
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline
from conductor.variation import MarkovStragglers, Variation

log = logging.getLogger("conductor")

EXPECTED = MarkovStragglers(factor=3.0, p_slow=0.005, p_recover=0.15)
"""What times are taken to vary like: now and then a rank turns slow for some actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStep:
    """What moved in one step.

    Attributes:
        is_on: whether work might move.
        helps: that were done.
        refused: requests that lenders refused.
        late: promised helps that the borrowers gave up.
        bytes: of tensors that moved, there and back.
        waited_ms: time that actions waited for lenders, all ranks.
        peak_bytes: most bytes of others that a rank held.
        moved_share: work that moved, of all work.
    """

    is_on: bool = False
    helps: int = 0
    refused: int = 0
    late: int = 0
    bytes: int = 0
    waited_ms: float = 0.0
    peak_bytes: int = 0
    moved_share: float = 0.0


@dataclass(slots=True, kw_only=True)
class _State:
    """What rank 0 remembers."""

    stale: bool = True
    retry: int = 0
    hold: int = 8
    ratio: float = 1.0
    off: list[float] = field(default_factory=list)
    on: list[float] = field(default_factory=list)
    without_ms: float = 0.0
    with_ms: float = 0.0
    slow_steps: int = 0
    plain_ms: float = 0.0
    exact_ms: float = 0.0
    rules: MigrationRules | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What all ranks do from the next step on."""

    spec: PipelineSpec
    rules: MigrationRules | None
    held: Held


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
        persistent: a rank that is slow for so many steps lends out columns of its MLPs, too.
        lender_share: columns of an MLP that one lender may hold.

    Attributes:
        spec: measured times.
        last: what moved in the last step.
        helps: of the last step, for pictures and files.
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
        persistent: int = 10,
        lender_share: float = 0.25,
    ) -> None:
        self._schedule, self._given = schedule, model or SimpleModel()
        self._lendings, self._variation = lendings or {}, variation
        self._min_gain, self._persistent, self._lender_share = min_gain, persistent, lender_share
        self.spec = spec.on_stages(schedule.plan.stage_ranks)
        self._detector = ChangeDetector()
        self._state = _State()
        self._held: Held = {}
        self._steps = 0
        self.last = MigrationStep()
        self.helps: Helps | None = None
        self.decisions: list[str] = []
        self.ms_per_byte = 0.0

    @property
    def expected_ms(self) -> float | None:
        """The step with migration in simulation, with the times measured last; on rank 0, once planned."""
        state = self._state
        return state.exact_ms if state.rules is not None else None

    def after_step(self, times: Timeline) -> MigrationStep:
        """Takes the last step in; what it decides is in force on every rank when it returns.

        Args:
            times: the step as measured, from `ConductorSchedule.timeline`.
        """
        assert self._schedule.exchange is not None
        is_on = self._schedule.exchange.migration is not None
        report = self._schedule.exchange.report if is_on else StepHelps()
        rows = gather((self._own_table(report), report, self._origin_ns()), self._schedule.group)
        self.last = self._sum_up([row[1] for row in rows], is_on)
        self.helps = _helps(
            [row[1] for row in rows], min(row[2] for row in rows), self._model.parts
        )
        self._steps += 1
        if self._steps == 1:  # the first step loads code and memory
            return self.last
        order = None
        if self._schedule.rank == 0:
            table: FloatArray = np.sum([row[0] for row in rows], axis=0)
            order = self._decide(table, times.makespan_ms, is_on)
        order = broadcast(order, 0, self._schedule.group)
        if order is not None:
            self._apply(order)
        return self.last

    # On rank 0.

    def _decide(self, table: FloatArray, makespan_ms: float, is_on: bool) -> _Order | None:
        """What changes, if anything does."""
        state, plan = self._state, self._schedule.plan
        (state.on if is_on else state.off).append(makespan_ms)
        now = with_times(self.spec, _whole(table, self.spec))
        first = len(state.off) == 1 and not state.on
        change = self._detector.observe(_by_rank(now), _by_rank(self.spec))
        if first or change is not None:
            self.spec, state.stale, state.retry = now, True, self._steps
            state.on, state.slow_steps = [], 0
            if change is not None and not first:
                self._say(f"rank {change.rank} takes {change.factor:.2f} times as long as before")
        if state.stale:
            state.stale = False
            planned = plan_migration(
                self.spec, [plan], model=self._model, variation=self._variation,
                executions=(self._execution,), draws=16,
            )  # fmt: skip
            state.without_ms, state.with_ms, state.rules = (
                planned.without_ms, planned.plan_ms, planned.rules
            )  # fmt: skip
            # Draws chose the rules; measured steps are held to the measured times alone.
            state.plain_ms = timeline(self.spec, plan, execution=self._execution).makespan_ms
            state.exact_ms = run(planned.prepared).makespan_ms
            if first:
                state.ratio = makespan_ms / state.plain_ms
            if is_on and self._pays():
                return _Order(spec=self.spec, rules=state.rules, held=self._held)
        if not is_on:
            if self._steps >= state.retry and self._pays():
                gain = 1.0 - state.with_ms / state.without_ms
                self._say(f"migration on: {100.0 * gain:.1f} % less in simulation")
                state.on = []
                return _Order(spec=self.spec, rules=state.rules, held=self._held)
            return None
        if not self._pays():
            self._say("migration off: no gain in simulation")
            return _Order(spec=self.spec, rules=None, held={})
        expected_ms = state.ratio * state.plain_ms
        if len(state.on) >= 4:
            least = 0.5 * (1.0 - state.exact_ms / state.plain_ms)
            measured = float(np.median(state.on[-8:]))
            if measured > expected_ms * (1.0 - least):
                state.retry, state.hold = self._steps + state.hold, 2 * state.hold
                self._say(
                    f"migration off: {measured:.1f} ms with it, {expected_ms:.1f} ms expected without"
                )
                return _Order(spec=self.spec, rules=None, held={})
        return self._hold_slices()

    def _hold_slices(self) -> _Order | None:
        """A rank that stays slow lends out columns: their weights travel once a step."""
        state = self._state
        work = _by_rank(self.spec)
        rank = int(work.argmax())
        state.slow_steps += 1
        if work[rank] < 1.15 * np.median(work) or self._held:
            return None
        if state.slow_steps != self._persistent:
            return None
        lenders = [r for r in np.argsort(work, kind="stable").tolist() if r != rank][:2]
        stages = np.flatnonzero(np.asarray(self._schedule.plan.stage_ranks) == rank).tolist()
        self._held = {s: [(lender, self._lender_share) for lender in lenders] for s in stages}
        named = " and ".join(map(str, lenders))
        self._say(f"rank {rank} stays slow: from now on ranks {named} hold columns of its MLPs")
        return _Order(spec=self.spec, rules=state.rules, held=self._held)

    def _pays(self) -> bool:
        return self._state.with_ms <= self._state.without_ms * (1.0 - self._min_gain)

    def _say(self, text: str) -> None:
        self.decisions.append(f"step {self._schedule.num_steps - 1}: {text}")
        log.info("step %d: %s", self._schedule.num_steps - 1, text)

    # On every rank.

    @property
    def _model(self) -> SimpleModel:
        return self._given if self._held else replace(self._given, movable_weight=0.0)

    @property
    def _execution(self) -> Execution:
        return "static" if self._schedule.mode == "static" else "ready-first"

    def _apply(self, order: _Order) -> None:
        exchange = self._schedule.exchange
        assert exchange is not None
        self.spec, self._held = order.spec, order.held
        if order.rules is None:
            exchange.set_migration(None, self._lendings)
            return
        prepared = prepare(
            order.spec, self._schedule.plan, model=self._model, rules=order.rules,
            execution=self._execution,
        )  # fmt: skip
        units = Units(lendings=self._lendings, parts=self._model.parts, held=order.held)
        exchange.set_migration(prepared, self._lendings, units)

    def _own_table(self, report: StepHelps) -> FloatArray:
        """Medians of what this rank's actions take without help, shape (kinds, num_stages)."""
        schedule, times = self._schedule, self._schedule.times
        assert times is not None
        samples: dict[tuple[Kind, int], list[float]] = {}
        first = int(schedule.plan.rank_offsets[schedule.rank])
        for index, action in enumerate(schedule.actions):
            took = times.end_ns[index] - times.start_ns[index]
            whole = report.whole_ns.get(first + index, took)
            samples.setdefault((action.kind, action.stage), []).append(whole / 1e6)
        table = np.zeros((len(Kind), schedule.plan.num_stages))
        for (kind, stage), values in samples.items():
            table[kind, stage] = np.median(values)
        return table

    def _origin_ns(self) -> int:
        assert self._schedule.times is not None
        return min(self._schedule.times.start_ns)

    def _sum_up(self, reports: list[StepHelps], is_on: bool) -> MigrationStep:
        helps = [help_ for report in reports for help_ in report.helps]
        outcomes = Counter(help_.outcome for help_ in helps)
        plan, spec = self._schedule.plan, self.spec
        durations = spec.duration_ms[plan.kinds, plan.stages]
        shares = [self._model.share(Kind(int(plan.kinds[h.action]))) * h.parts for h in helps]
        moved = sum(
            durations[h.action] * share / self._model.parts
            for h, share in zip(helps, shares, strict=True)
            if h.outcome == "done"
        )
        return MigrationStep(
            is_on=is_on,
            helps=outcomes["done"],
            refused=outcomes["refused"],
            late=outcomes["late"],
            bytes=sum(help_.num_bytes for help_ in helps),
            waited_ms=sum(report.waited_ns for report in reports) / 1e6,
            peak_bytes=max(report.peak_bytes for report in reports),
            moved_share=float(moved / durations.sum()),
        )


def _helps(reports: list[StepHelps], origin_ns: int, parts: int) -> Helps:
    """The helps that were done, on the clock of the measured timeline."""
    done = [h for report in reports for h in report.helps if h.outcome == "done"]

    def ms(values: list[int]) -> FloatArray:
        return (np.array(values, np.int64) - origin_ns) / 1e6

    return Helps(
        actions=np.array([h.action for h in done], np.int32),
        lenders=np.array([h.lender for h in done], np.int32),
        parts=np.array([round(h.parts) for h in done], np.int32),
        of_parts=parts,
        decided_ms=ms([h.decided_ns for h in done]),
        start_ms=ms([h.start_ns for h in done]),
        end_ms=ms([h.end_ns for h in done]),
    )


def _whole(table: FloatArray, spec: PipelineSpec) -> FloatArray:
    """The table with what a plan does not measure: full backwards from their halves."""
    table = table.copy()
    split = table[Kind.B] == 0.0
    table[Kind.B][split] = (table[Kind.I] + table[Kind.W])[split]
    return table


def _by_rank(spec: PipelineSpec) -> FloatArray:
    """F and full backward of each rank's stages."""
    sums = np.zeros(spec.num_ranks)
    np.add.at(sums, list(spec.stage_ranks), spec.duration_ms[Kind.F] + spec.duration_ms[Kind.B])
    return sums
