"""Planning: every schedule that fits a spec, best first."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import Schedule
from conductor.planning.deepen import PlanProgress, deepen
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import POOL, Objective, build
from conductor.search.common_draws import DurationDraws
from conductor.search.objective import SearchObjective, objective_value
from conductor.simulator.bounds import lower_bounds
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline
from conductor.variation.variation import Variation

if TYPE_CHECKING:
    from conductor.rl.play import Weights

LEARNED = "rl"
"""The learned planner's name among schedules."""

LEARNED_ROW = {
    "name": LEARNED,
    "placement": "any",
    "stages_per_rank": "any",
    "summary": "a trained policy's own way through the step from the best of the others, polished",
    "memory": "the limit",
    "formula": "",
    "source": "ours",
}
"""What `ScheduleInfo` says of the others."""

LEARNED_ACTIONS = 25_000
"""Without a budget it is asked unnamed for at most so many actions (some 50 ms)."""

SEARCH_DRAWS, VALUE_DRAWS = 200_000, 2_000_000
"""Actions over all draws that a search and a candidate's value use."""

LEAST_DRAWS, MOST_DRAWS = 32, 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A schedule that fits.

    Attributes:
        schedule: the order.
        spec: the spec on the schedule's stages.
        timeline: with the expected durations, in static execution.
        plan_ms: time that making the schedule took, with its compiled code loaded.
        lower_bound_ms: no order on this placement ends earlier.
        value_ms: what candidates are ordered by: the makespan or stage span of the timeline, or over
            draws of the plan's variation the mean or 95th percentile of the makespan.
    """

    schedule: Schedule
    spec: PipelineSpec
    timeline: Timeline
    plan_ms: float
    lower_bound_ms: float
    value_ms: float

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What fits a spec and what does not.

    Attributes:
        spec: what was planned for.
        candidates: best first; at least one.
        rejected: why each other schedule does not fit, by name.
        interrupted: Ctrl-C came before the budget's end.
    """

    spec: PipelineSpec
    candidates: tuple[Candidate, ...]
    rejected: Mapping[str, str]
    interrupted: bool = False

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.candidates[0]


def plan(
    spec: PipelineSpec,
    *,
    schedules: Sequence[str] | None = None,
    objective: SearchObjective = "makespan",
    budget_ms: float | None = None,
    variation: Variation | None = None,
    policy: str | Path | Weights | None = None,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> Plan:
    """Makes every schedule that fits a spec; with a budget, searches better ones.

    Among them is `rl`, the learned planner: the best that a policy does when it starts from the best of the
    others, after a short polish; never worse than those.

    The budget goes to a local search from all of them, then, where the pipeline is small enough and
    OR-Tools is there, to CP-SAT, which also improves the bound. Ctrl-C ends it with the best so far.

    Args:
        spec: a rank-level profile is split over the stages of each schedule.
        schedules: names from `conductor schedules`; None is every one that need not be asked for by
            name. `rl` is not among these where it takes more than milliseconds and there is no budget.
        objective: what candidates are ordered by and the search minimises. Heuristics minimise the
            makespan or the stage span.
        budget_ms: time for the search and CP-SAT; None is none.
        variation: for `mean` and `p95`: how durations vary. The search and the candidates' values use
            different draws.
        policy: of `rl`: a file that `conductor train` wrote, or weights; None is the one that comes with the
            package.
        seed: of every choice and draw.
        on_progress: called a few times a second while the budget is spent.

    Raises:
        InvalidSpecError: no schedule has one of these names.
        DoesNotFitError: none fits; says which rank misses how much memory, or what is wrong.
        FormatError: the policy's file cannot be read or is not one.
        ValueError: a variation is missing, or given where it has no effect.
    """
    if (variation is not None) != (objective in ("mean", "p95")):
        raise ValueError("a variation goes with the objectives mean and p95, and only with them")
    wanted = dict.fromkeys((*POOL, LEARNED) if schedules is None else schedules)
    pool = _Pool(spec, objective, variation, seed)
    for name in dict.fromkeys((*POOL, *wanted)) if LEARNED in wanted else wanted:
        if name != LEARNED:
            pool.build(name)
    spent_ms = 0.0
    if LEARNED in wanted:
        spent_ms = pool.learn(policy, budget_ms, unasked=schedules is None)
        pool.keep(wanted)
    if not pool.candidates:
        raise _nothing_fits(list(pool.rejected.values()))
    interrupted = False
    if budget_ms is not None:
        ordered = pool.ordered()
        found = deepen(
            spec,
            [candidate.schedule for candidate in ordered],
            objective=objective,
            durations=None if variation is None else pool.draws(SEARCH_DRAWS, seed),
            bound_ms=pool.least_bound_ms() if objective == "makespan" else -math.inf,
            budget_ms=max(0.0, budget_ms - spent_ms),
            seed=seed,
            on_progress=on_progress,
        )
        for schedule, took_ms in found.schedules:
            if all(candidate.schedule != schedule for candidate in ordered):
                pool.add(schedule, took_ms)
        if found.bound_ms is not None and objective == "makespan":
            pool.raise_bound(found.schedules[-1][0].stage_ranks, found.bound_ms)
        interrupted = found.interrupted
    return Plan(
        spec=spec,
        candidates=tuple(pool.ordered()),
        rejected={name: str(error) for name, error in pool.rejected.items()},
        interrupted=interrupted,
    )


class _Pool:
    """Candidates as they come."""

    def __init__(
        self,
        spec: PipelineSpec,
        objective: SearchObjective,
        variation: Variation | None,
        seed: int,
    ) -> None:
        self.candidates: list[Candidate] = []
        self.rejected: dict[str, DoesNotFitError] = {}
        self._spec = spec
        self._objective: SearchObjective = objective
        self._variation = variation
        self._seed = seed
        self._bounds: dict[tuple[tuple[int, ...], int], float] = {}

    def build(self, name: str) -> None:
        """A schedule of the registry, or why it does not fit."""
        _load_kernels(name)
        objective: Objective = "stage-span" if self._objective == "stage-span" else "makespan"
        start = perf_counter()
        try:
            schedule = build(name, self._spec, objective=objective)
        except DoesNotFitError as error:
            self.rejected[name] = error
            return
        self.add(schedule.named(name), 1000.0 * (perf_counter() - start))

    def learn(
        self, policy: str | Path | Weights | None, budget_ms: float | None, *, unasked: bool
    ) -> float:
        """What the learned planner makes of the candidates; gives the time that took, ms."""
        from conductor.rl.planner import plan_learned
        from conductor.rl.shipped import has_shipped_policy, policy_weights

        if unasked and policy is None and not has_shipped_policy():
            return 0.0
        weights = policy_weights(policy)
        starts = [candidate.schedule for candidate in self.ordered()]
        if unasked and budget_ms is None and starts and starts[0].num_actions > LEARNED_ACTIONS:
            self.rejected[LEARNED] = DoesNotFitError(
                f"{LEARNED} takes longer than planning without a budget may: give one, or ask for it by name"
            )
            return 0.0
        _load_learned()
        start = perf_counter()
        try:
            found = plan_learned(
                self._spec,
                weights,
                starts,
                budget_ms=math.inf if budget_ms is None else budget_ms,
                objective=self._objective,
                durations=None if self._variation is None else self.draws(SEARCH_DRAWS, self._seed),
                seed=self._seed,
            )
        except DoesNotFitError as error:
            self.rejected[LEARNED] = error
            return 0.0
        took_ms = 1000.0 * (perf_counter() - start)
        self.add(
            found.schedule.named(LEARNED), took_ms + sum(one.plan_ms for one in self.candidates)
        )
        return took_ms

    def keep(self, wanted: Collection[str]) -> None:
        """Drops what served as a start alone."""
        self.candidates = [one for one in self.candidates if one.name in wanted]
        self.rejected = {name: why for name, why in self.rejected.items() if name in wanted}

    def add(self, schedule: Schedule, plan_ms: float) -> None:
        """A schedule with its timeline, bound and value."""
        result = timeline(self._spec, schedule)
        placement = (schedule.stage_ranks, schedule.num_splits)
        if placement not in self._bounds:
            self._bounds[placement] = lower_bounds(
                result.spec, num_splits=schedule.num_splits
            ).makespan_ms
        if self._objective == "makespan":
            value = result.makespan_ms
        elif self._objective == "stage-span":
            value = result.stage_span_ms
        else:
            durations = self.draws(VALUE_DRAWS, self._seed + 1)(result.program)
            value = objective_value(self._spec, schedule, self._objective, durations)
        self.candidates.append(
            Candidate(
                schedule=schedule,
                spec=result.spec,
                timeline=result,
                plan_ms=plan_ms,
                lower_bound_ms=self._bounds[placement],
                value_ms=value,
            )
        )

    def draws(self, work: int, seed: int) -> DurationDraws:
        """Paired draws; fewer for longer programs."""
        variation = self._variation
        assert variation is not None
        return lambda program: variation.sample(
            program,
            min(max(work // program.num_actions, LEAST_DRAWS), MOST_DRAWS),
            np.random.default_rng(seed),
        )

    def least_bound_ms(self) -> float:
        """No order on any placement ends earlier."""
        return min(self._bounds.values())

    def raise_bound(self, stage_ranks: tuple[int, ...], bound_ms: float) -> None:
        """A better bound for orders of separate actions on one placement."""
        self.candidates = [
            replace(candidate, lower_bound_ms=max(candidate.lower_bound_ms, bound_ms))
            if candidate.schedule.stage_ranks == stage_ranks
            and candidate.schedule.num_splits == 1
            and not candidate.schedule.overlaps.any()
            else candidate
            for candidate in self.candidates
        ]

    def ordered(self) -> list[Candidate]:
        """Best first; of equals, less memory comes first."""
        return sorted(
            self.candidates,
            key=lambda candidate: (candidate.value_ms, float(candidate.timeline.peak_memory.max())),
        )


_TOY = PipelineSpec(
    num_ranks=2, num_microbatches=4, forward_ms=1, backward_input_ms=1, backward_weight_ms=1
)


@cache
def _load_kernels(name: str) -> None:
    """Makes the schedule on a toy, so that its time is that of planning, not of loading code."""
    with suppress(DoesNotFitError):
        build(name, _TOY)


@cache
def _load_learned() -> None:
    """The same for the learned planner."""
    from conductor.rl.planner import plan_learned
    from conductor.rl.play import NO_WEIGHTS

    plan_learned(_TOY, NO_WEIGHTS, samples=1)


def _nothing_fits(rejected: Sequence[DoesNotFitError]) -> DoesNotFitError:
    """The reason of the schedule that misses least memory, or else the first reason."""
    if len(rejected) == 1:
        return rejected[0]
    nearest = min(
        rejected, key=lambda e: math.inf if e.missing_memory is None else e.missing_memory
    )
    return DoesNotFitError(f"no schedule fits: the nearest, {nearest}")
