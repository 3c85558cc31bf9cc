"""Deepen: what a plan does with its budget: local search from the heuristics, then CP-SAT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Literal

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.search.common_draws import DurationDraws
from conductor.search.improve import improve
from conductor.search.objective import SearchObjective

EXACT_ACTIONS = 1500
"""CP-SAT is tried for at most so many actions, and gets half of the budget."""

EXACT_MS = 1000.0
"""And only with at least so much time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """How far a plan is.

    Attributes:
        phase: what is running.
        share: of the budget that is spent, in [0, 1].
        value_ms: objective of the best schedule so far.
        bound_ms: no schedule is better, as far as is known.
    """

    phase: Literal["search", "cp-sat"]
    share: float
    value_ms: float
    bound_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepened:
    """What a budget brought.

    Attributes:
        schedules: the ones found, each with the time it took, ms.
        bound_ms: CP-SAT's bound on the objective for the placement of the last one; None without it.
        interrupted: Ctrl-C ended it.
    """

    schedules: tuple[tuple[Schedule, float], ...]
    bound_ms: float | None
    interrupted: bool


def deepen(
    spec: PipelineSpec,
    starts: Sequence[Schedule],
    *,
    objective: SearchObjective,
    durations: DurationDraws | None,
    bound_ms: float,
    budget_ms: float,
    seed: int,
    on_progress: Callable[[PlanProgress], None] | None,
) -> Deepened:
    """Spends a budget on better schedules than the given ones.

    Args:
        spec: what is planned for.
        starts: best first.
        objective: of the plan.
        durations: draws, for `mean` and `p95`.
        bound_ms: no schedule has a lower objective; reaching it ends the plan early.
        budget_ms: all the time there is.
        seed: of every choice.
        on_progress: called a few times a second.
    """
    begin = perf_counter()

    def report(phase: Literal["search", "cp-sat"], value: float, bound: float) -> None:
        if on_progress is not None:
            share = min(1.0, 1000.0 * (perf_counter() - begin) / budget_ms) if budget_ms else 1.0
            on_progress(PlanProgress(phase=phase, share=share, value_ms=value, bound_ms=bound))

    exact: Literal["makespan", "stage-span"] | None = None
    if objective in ("makespan", "stage-span") and find_spec("ortools") is not None:
        exact = objective
    smallest = min(start.num_actions for start in starts)
    shared = exact is not None and budget_ms >= 2.0 * EXACT_MS and smallest <= EXACT_ACTIONS
    found = improve(
        spec,
        starts,
        budget_ms=budget_ms / 2.0 if shared else budget_ms,
        objective=objective,
        durations=durations,
        bound_ms=bound_ms,
        seed=seed,
        on_progress=lambda _, value: report("search", value, bound_ms),
    )
    schedules = [(found.schedule, found.elapsed_ms)]
    left_ms = budget_ms - 1000.0 * (perf_counter() - begin)
    best = found.schedule
    if (
        exact is None
        or found.stopped_by in ("bound", "interrupt")
        or left_ms < EXACT_MS
        or best.num_actions > EXACT_ACTIONS
        or best.num_splits > 1
        or best.overlaps.any()
    ):
        return Deepened(
            schedules=tuple(schedules), bound_ms=None, interrupted=found.stopped_by == "interrupt"
        )
    from conductor.optimal.solve import solve

    proof = solve(
        spec.on_stages(best.stage_ranks),
        objective=exact,
        warm_start=best,
        time_limit_s=left_ms / 1000.0,
        seed=seed,
        on_progress=lambda now: report("cp-sat", now.value_ms, now.bound_ms),
    )
    if proof.schedule is not None and proof.value_ms < found.value:
        schedules.append((proof.schedule.named("cp-sat"), 1000.0 * proof.wall_s))
    return Deepened(
        schedules=tuple(schedules),
        bound_ms=proof.bound_ms,
        interrupted=proof.status == "interrupted",
    )
