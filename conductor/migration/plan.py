"""The planner: who lends to whom, planned over the whole step and together with the order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from conductor.errors import ConductorError, DoesNotFitError
from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.migration.execution import (
    Execution,
    MigrationRules,
    Prepared,
    latest_starts,
    prepare,
    run,
    run_draws,
)
from conductor.migration.joint.kernels import anneal
from conductor.migration.model import SimpleModel
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.variation import NoVariation, Variation

DELAY_SHARES = (0.0, 0.25, 0.5, 0.75)
ROUNDS = 5
REACH = 6
STARTS = ("zb-1p", "zb", "zb-v", "zb-v-2p", "v-half", "1f1b")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MigrationPlan:
    """An order with the knobs of its migration.

    Attributes:
        prepared: ready to run.
        rules: the knobs; `prepare(spec, schedule, rules=rules, execution=execution)` makes the same.
        schedule: the order.
        execution: static or ready-first.
        plan_ms: mean makespan over the training draws.
        without_ms: the same order and execution without migration.
        best_order_ms: the best of the starting orders without migration.
    """

    prepared: Prepared
    rules: MigrationRules
    schedule: Schedule
    execution: Execution
    plan_ms: float
    without_ms: float
    best_order_ms: float = math.inf


def plan_migration(
    spec: PipelineSpec,
    schedules: Iterable[Schedule] | None = None,
    *,
    model: SimpleModel | None = None,
    variation: Variation | None = None,
    executions: tuple[Execution, ...] = ("static", "ready-first"),
    blocks: int = 8,
    draws: int = 32,
    steps: int = 0,
    seed: int = 0,
) -> MigrationPlan:
    """Plans migration on the best of some orders, then improves order and migration together.

    For each order the step is simulated with expected times; what each action's latest start is in that
    step tells who has slack, and with that knowledge lenders are chosen anew, a few rounds long. The
    best on average over draws of the variation is kept. With `steps` annealing goes on from there over
    the order and the knobs of each action at once. Where nothing gains, nothing moves.

    Args:
        spec: the problem, or its rank-level profile.
        schedules: orders to start from; None is `starting_orders(spec)`.
        model: what moves and what it costs.
        variation: what realised durations are like; a planner may know that, and never the durations.
        executions: ways to execute them.
        blocks: blocks of an action, see `MigrationRules`.
        draws: training draws of the variation.
        steps: of annealing; 0 is none.
        seed: of the training draws and the annealing.

    Raises:
        DoesNotFitError: there is no order to start from.
    """
    model = model or SimpleModel()
    variation = variation or NoVariation()
    best: MigrationPlan | None = None
    best_order_ms = math.inf
    for schedule in starting_orders(spec) if schedules is None else schedules:
        for execution in executions:
            if execution == "ready-first" and schedule.overlaps.any():
                continue
            for candidate in _candidates(
                spec, schedule, execution, model, variation, blocks, draws, seed
            ):
                best_order_ms = min(best_order_ms, candidate.without_ms)
                if best is None or candidate.plan_ms < best.plan_ms:
                    best = candidate
    if best is None:
        raise DoesNotFitError(f"no order to start from fits {spec.name!r}")
    best = replace(best, best_order_ms=best_order_ms)
    if steps:
        best = improve(spec, best, model, variation, draws=draws, steps=steps, seed=seed)
    return best


def starting_orders(spec: PipelineSpec) -> list[Schedule]:
    """Orders worth starting from: those that fit, of the spec and of a spec half levelled.

    Migration levels the ranks, so an order made for equal ranks can be the better one.
    """
    orders: list[Schedule] = []
    for level in (0.0, 0.5):
        for name in STARTS:
            try:
                order = build(name, _levelled(spec, level) if level else spec)
            except ConductorError:
                continue
            if order not in orders:
                orders.append(order)
    return orders


def _levelled(spec: PipelineSpec, level: float) -> PipelineSpec:
    """The spec with every stage's times moved towards the mean."""
    changes = {}
    for name in ("forward_ms", "backward_input_ms", "backward_weight_ms"):
        times = spec.per_stage(name)
        changes[name] = tuple((times * (1.0 - level) + times.mean() * level).tolist())
    return spec.with_(**changes)


def _candidates(
    spec: PipelineSpec,
    schedule: Schedule,
    execution: Execution,
    model: SimpleModel,
    variation: Variation,
    blocks: int,
    draws: int,
    seed: int,
) -> Iterator[MigrationPlan]:
    """The same order under the rules worth trying, none at all among them."""
    idle = MigrationRules(most_parts=0)
    prepared = prepare(spec, schedule, model=model, rules=idle, execution=execution)
    realised = training_draws(prepared, variation, draws, seed)
    varies = len(realised) > 1
    without = float(run_draws(prepared, realised).makespan_ms.mean())

    def candidate(rules: MigrationRules) -> MigrationPlan:
        able = prepared.with_rules(rules)
        value = float(run_draws(able, realised).makespan_ms.mean())
        return MigrationPlan(
            prepared=able, rules=rules, schedule=schedule, execution=execution,
            plan_ms=value, without_ms=without,
        )  # fmt: skip

    yield candidate(idle)
    for share in DELAY_SHARES:
        latest = latest_starts(prepared)
        for _ in range(ROUNDS if share else 1):
            plain = MigrationRules(latest_start_ms=latest, delay_share=share)
            for gain in (0.0, 0.02, 0.05):
                for max_lenders in (2, 3):
                    yield candidate(plain.with_(max_lenders=max_lenders, min_gain=gain))
            if varies:
                yield candidate(plain.with_(blocks=blocks))
                for gain in (0.02, 0.05):
                    yield candidate(
                        plain.with_(
                            max_lenders=3, blocks=blocks, recheck=True, postpone=True, min_gain=gain
                        )
                    )
            latest = latest + 0.4 * (latest_starts(prepared.with_rules(plain)) - latest)


def training_draws(prepared: Prepared, variation: Variation, draws: int, seed: int) -> FloatArray:
    """Draws to plan on, shape (draws, n); one of the expected durations when nothing varies."""
    rng = np.random.default_rng(seed)
    sample = variation.sample(prepared.program, draws, rng)
    return sample[:1] if (sample == sample[0]).all() else sample


def improve(
    spec: PipelineSpec,
    plan: MigrationPlan,
    model: SimpleModel,
    variation: Variation,
    *,
    draws: int,
    steps: int,
    seed: int,
    warmth: float = 0.001,
) -> MigrationPlan:
    """Anneals order and knobs together, from a plan; never worse on the training draws.

    A plan for ready-first execution is annealed twice: its priorities, and, executed statically, the
    order in which the ranks would start their actions.
    """
    realised = training_draws(plan.prepared, variation, draws, seed)
    known = replace(plan, plan_ms=float(run_draws(plan.prepared, realised).makespan_ms.mean()))
    starts = [(plan, realised)]
    if plan.execution == "ready-first":
        order = _executed(plan.prepared)
        rules, schedule = _reordered_rules(plan.rules, order), _reordered(plan.schedule, order)
        prepared = prepare(spec, schedule, model=model, rules=rules)
        executed = replace(
            plan, prepared=prepared, rules=rules, schedule=schedule, execution="static"
        )
        starts.append((executed, np.ascontiguousarray(realised[:, order])))
        if plan.prepared.layout.looks_ahead.any():
            starts = starts[1:]  # what may overtake what depends on the whole order then
    found = [
        _annealed(spec, start, model, draws_of_it, steps // len(starts), seed, warmth)
        for start, draws_of_it in starts
    ]
    return min([known, *found], key=lambda candidate: candidate.plan_ms)


def _annealed(
    spec: PipelineSpec,
    plan: MigrationPlan,
    model: SimpleModel,
    realised: FloatArray,
    steps: int,
    seed: int,
    warmth: float,
) -> MigrationPlan:
    """The best that annealing finds from a plan."""
    execution, rules, schedule = plan.execution, plan.rules, plan.schedule
    prepared = prepare(spec, schedule, model=model, rules=rules, execution=execution)
    durations, factors = prepared.realise(realised)
    chances = np.random.default_rng(seed).random((steps, 5))
    if len(realised) > 1:
        chances[:, 2] *= 0.5  # knobs of single actions would fit the draws; orders generalise
    order = (
        prepared.layout.stream_actions
        if execution == "static"
        else np.arange(prepared.program.num_actions, dtype=np.int32)
    )
    value = anneal(
        prepared.layout, prepared.costs, prepared.rules, order, prepared.program.streams,
        durations, factors, chances, REACH, warmth,
        float(run_draws(prepared, realised).makespan_ms.mean()),
    )  # fmt: skip
    rules = rules.with_(
        latest_start_ms=prepared.rules.latest_start_ms, most_parts=prepared.rules.most_parts
    )
    if execution == "static":
        rules, schedule = _reordered_rules(rules, order), _reordered(schedule, order)
    else:
        rules = rules.with_(priority=prepared.layout.priority)
    return replace(
        plan,
        prepared=prepare(spec, schedule, model=model, rules=rules, execution=execution),
        rules=rules,
        schedule=schedule,
        plan_ms=float(value),
    )


def _executed(prepared: Prepared) -> Int32Array:
    """Program indices, rank after rank, in the order in which they start in the expected step."""
    starts = run(prepared).start_ms
    order = np.lexsort((np.arange(len(starts)), starts, prepared.program.ranks))
    return order.astype(np.int32)


def _reordered(schedule: Schedule, order: Int32Array) -> Schedule:
    return replace(
        schedule,
        kinds=schedule.kinds[order],
        stages=schedule.stages[order],
        microbatches=schedule.microbatches[order],
        splits=schedule.splits[order],
        overlaps=schedule.overlaps[order],
    )


def _reordered_rules(rules: MigrationRules, order: Int32Array) -> MigrationRules:
    """Knobs that are given for each action, in another order."""
    names = ("most_parts", "latest_start_ms", "least_gain")
    return rules.with_(
        **{
            name: np.asarray(getattr(rules, name))[order]
            for name in names
            if np.ndim(getattr(rules, name))
        }
    )
