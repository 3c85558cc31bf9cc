"""Schedulers x scenarios on fresh paired draws, with intervals and the gap to the bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.evaluation.clairvoyance import Clairvoyant, solve_draws
from conductor.evaluation.draws import fresh_draws
from conductor.evaluation.scenario import Scenario
from conductor.evaluation.scheduler import (
    Outcome,
    Planner,
    SchedulerName,
    execute,
    execute_migrating,
    execute_two_tier,
)
from conductor.ir.schedule import FloatArray
from conductor.migration.model import SimpleModel
from conductor.rl.play import Weights
from conductor.rl.two_tier import network
from conductor.rl.weights import SHIPPED
from conductor.schedules.registry import POOL
from conductor.simulator.bounds import Bounds, lower_bounds, realised_bound
from conductor.simulator.program import encode

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scheduler in one scenario. Times are over the draws.

    Attributes:
        name: of the scheduler.
        schedule: the schedule that it executes, and how, where that was chosen.
        mean_ms: mean makespan.
        ci95_ms: 95 % interval of the mean.
        p95_ms: 95 % of the draws are shorter.
        vs_best_static: mean over that of the best static row, minus 1; below 0 is faster.
        vs_best_static_ci95: its 95 % interval, from paired differences.
        over_bound: mean over the mean of the draws' own lower bounds (its placement, work on its rank; of
            all work spread evenly where it migrates), minus 1. Work that moves from a slow rank to a fast
            one gets shorter, so a row that migrates may go below 0.
        decision_us: what each action costs more to simulate than in static execution.
        moved_share: share of the work that moved to another rank.
        migrations: helps in a step.
        bytes: sent a step for them; None where the model of moving counts time alone.
    """

    name: str
    schedule: str
    mean_ms: float
    ci95_ms: Interval
    p95_ms: float
    vs_best_static: float
    vs_best_static_ci95: Interval
    over_bound: float
    decision_us: float
    moved_share: float
    migrations: float
    bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """All schedulers in one scenario, best first.

    Attributes:
        name: of the scenario.
        summary: what it stands for.
        clairvoyant: see `Clairvoyant`; None if it was not asked for.
        bounds_ms: lower bounds with expected durations: `per_rank` (work stays on its rank; the least over
            the placements in the table) and `balanced_work` (all work spread evenly: what migration could
            reach at best).
        schedulers: rows.
        left_out: schedulers that do not fit, with the reason.
    """

    name: str
    summary: str
    bounds_ms: dict[str, float]
    schedulers: tuple[Row, ...]
    left_out: dict[str, str]
    clairvoyant: Clairvoyant | None = None


def default_schedulers() -> tuple[str, ...]:
    """Every schedule, the best and the searched one, alone and with what can be added; the learned ones where
    the package has their weights. `rl+policy+migration` compiles for two minutes: only if asked for."""
    names = (*POOL, "searched")
    return (
        *names,
        *(["rl"] if SHIPPED.exists() else []),
        "best+ready-first",
        *(f"{name}+migration" for name in names),
        "best+ready-first+migration",
        "joint+migration",
        *(["rl+migration"] if network.SHIPPED.exists() else []),
    )


def evaluate(
    scenarios: Sequence[Scenario],
    schedulers: Sequence[str],
    *,
    draws: int = 1000,
    seed: int = 0,
    search_ms: float = 5000.0,
    joint_steps: int = 2000,
    clairvoyant: int = 0,
    model: SimpleModel | None = None,
    policy: str | Path | Weights | None = None,
    on_progress: Callable[[str, str], None] | None = None,
) -> tuple[ScenarioResult, ...]:
    """Runs every scheduler in every scenario.

    Schedules are made from expected times and planning draws; all schedulers then meet the same fresh
    draws: an action (stage, kind, micro-batch) has the same factor under each scheduler with the same
    number of stages.

    Args:
        scenarios: see `load_scenario`.
        schedulers: names as `SchedulerName.parse` reads them.
        draws: fresh draws a scenario.
        seed: of everything.
        search_ms: budget of `searched` in each scenario.
        joint_steps: of the search of `joint`.
        clairvoyant: so many of the draws are solved to optimality, knowing their durations.
        model: what migration moves and what it costs.
        policy: of the learned scheduler, see `conductor.planning.plan.plan`.
        on_progress: called with the names of scenario and scheduler before each run.

    Raises:
        InvalidSpecError: a scheduler's name is wrong.
    """
    names = {text: SchedulerName.parse(text) for text in dict.fromkeys(schedulers)}
    return tuple(
        _evaluate(
            names, draws, clairvoyant, on_progress,
            Planner(
                scenario=scenario, seed=seed, search_ms=search_ms, joint_steps=joint_steps,
                model=model or SimpleModel(), policy=policy,
            ),
        )
        for scenario in scenarios
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    name: str
    scheduler: SchedulerName
    schedule: str
    outcome: Outcome
    cpu_us: float
    bound_ms: float
    expected_bounds: Bounds

    @property
    def mean_ms(self) -> float:
        return float(self.outcome.makespan_ms.mean())

    @property
    def is_static(self) -> bool:
        name = self.scheduler
        return name.execution == "static" and not (name.migrates or name.decides)


def _evaluate(
    names: dict[str, SchedulerName],
    draws: int,
    clairvoyant: int,
    on_progress: Callable[[str, str], None] | None,
    planner: Planner,
) -> ScenarioResult:
    scenario = planner.scenario
    runs: list[_Run] = []
    left_out: dict[str, str] = {}
    for text, name in names.items():
        if on_progress is not None:
            on_progress(scenario.name, text)
        try:
            runs.append(_run(text, name, draws, planner))
        except DoesNotFitError as error:
            left_out[text] = str(error)
    if not any(run.is_static for run in runs):
        # Every table has the strongest static baseline.
        best = _run("best", SchedulerName.parse("best"), draws, planner)
        runs.append(best)
    baseline = min((run for run in runs if run.is_static), key=lambda run: run.mean_ms)
    runs.sort(key=lambda run: (run.mean_ms, run.name))
    return ScenarioResult(
        name=scenario.name,
        summary=scenario.summary,
        bounds_ms={
            "per_rank": min(run.expected_bounds.makespan_ms for run in runs),
            "balanced_work": min(run.expected_bounds.balanced_work_ms for run in runs),
        },
        schedulers=tuple(_row(run, baseline) for run in runs),
        left_out=left_out,
        clairvoyant=(
            solve_draws(
                planner, draws, clairvoyant, {run.name: run.outcome.makespan_ms for run in runs}
            )
            if clairvoyant
            else None
        ),
    )


def _run(text: str, name: SchedulerName, draws: int, planner: Planner) -> _Run:
    scenario, spec = planner.scenario, planner.scenario.actual_spec
    run: Callable[[FloatArray], Outcome]
    how = ""
    if name.migrates and name.schedule == "rl":
        both = planner.two_tier(decides=name.decides)
        schedule, how = both.schedule, f", {both.tier.name}"
        run = partial(execute_two_tier, spec, both)
    elif name.migrates:
        plan = planner.migration(name)
        schedule = plan.schedule
        run = partial(execute_migrating, spec, plan, planner.model)
    elif name.decides:
        execution = planner.policy_execution(name.schedule)
        schedule, how = execution.plan, f", {execution.name}"
        run = partial(execute, spec, schedule, execution)
    else:
        schedule = planner.schedule(name.schedule)
        run = partial(execute, spec, schedule, name.execution)
    program = encode(spec, schedule)
    durations = fresh_draws(scenario, program, draws, planner.seed)
    run(durations[:1])  # compiles
    started = process_time()
    outcome = run(durations)
    return _Run(
        name=text,
        scheduler=name,
        schedule=f"{schedule.name}{how}",
        outcome=outcome,
        cpu_us=1e6 * (process_time() - started) / durations.size,
        bound_ms=float(
            program.busy_ms(durations).sum(axis=1).mean() / program.num_ranks
            if name.migrates
            else realised_bound(program, durations).mean()
        ),
        expected_bounds=lower_bounds(
            spec.on_stages(schedule.stage_ranks), num_splits=schedule.num_splits
        ),
    )


def _row(run: _Run, baseline: _Run) -> Row:
    makespan, reference = run.outcome.makespan_ms, baseline.outcome.makespan_ms
    mean, ci95 = _mean_ci95(makespan)
    # Ratio of means: its error is that of the paired residuals (delta method).
    ratio = mean / baseline.mean_ms
    _, (low, high) = _mean_ci95((makespan - ratio * reference) / baseline.mean_ms)
    return Row(
        name=run.name,
        schedule=run.schedule,
        mean_ms=mean,
        ci95_ms=ci95,
        p95_ms=float(np.quantile(makespan, 0.95)),
        vs_best_static=ratio - 1.0,
        vs_best_static_ci95=(ratio - 1.0 + low, ratio - 1.0 + high),
        over_bound=mean / run.bound_ms - 1.0,
        decision_us=max(0.0, run.cpu_us - baseline.cpu_us) if not run.is_static else 0.0,
        moved_share=run.outcome.moved_share,
        migrations=run.outcome.migrations,
        bytes=run.outcome.bytes,
    )


def _mean_ci95(values: FloatArray) -> tuple[float, Interval]:
    """Mean and its 95 % interval (normal approximation)."""
    mean = float(values.mean())
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return mean, (mean - half, mean + half)
