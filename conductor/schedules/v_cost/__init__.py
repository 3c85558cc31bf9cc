"""V-Half and V-Min that look at costs, at the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from conductor.ir.schedule import Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.best import best_of
from conductor.schedules.info import Objective, ScheduleInfo
from conductor.schedules.v_cost.planner import Plan, Planner
from conductor.schedules.v_half import v_half
from conductor.schedules.v_min import v_min

_EFFORT = 500_000
"""Actions planned over all plans, of which there are at least and at most `_PLANS`."""
_PLANS = (3, 500)
_REFINED = 105
"""Plans of these that take others as hints, where there are many; where there are few, all."""
_PARENTS = 5
"""Settings that the second half of them varies."""
_LOW = np.array([0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.65, 0.0])
_HIGH = np.array([4.0, 4.0, 4.0, 4.0, 1.0, 2.0, 1.1, 1.5])
_STEP = np.array([0.5, 0.5, 0.5, 0.5, 0.1, 0.2, 0.05, 0.25])
"""Range of each setting, see `Planner.by_due_dates`, and how far a variation goes."""
_HINTS = (
    (2, 0.5), (3, 0.0), (4, 0.75), (2, 0.0), (3, 0.5), (1, 0.0), (8, 0.75), (2, 0.75), (4, 0.0),
    (3, 0.75), (8, 0.0), (4, 0.5), (1, 0.5), (8, 0.5), (1, 0.75),
)  # fmt: skip
"""Windows and patience of plans that follow a hint, the most useful first."""


def cost_aware(
    published: Callable[[int, int], Schedule],
    spec: PipelineSpec,
    objective: Objective = "makespan",
    *,
    name: str,
    seed: int = 0,
) -> Schedule:
    """The best of a published order and of many list schedules at its memory.

    List schedules take the published order as a hint, or go by regular due dates: the first half of
    their settings is drawn at random, the second half varies the best so far. The best plans serve as
    hints again. The result is never worse than the published order, where that fits.

    Args:
        published: makes the order for numbers of ranks and of micro-batches.
        spec: V placement, two stages a rank.
        objective: what to minimise.
        name: of the schedule.
        seed: of the settings.

    Raises:
        DoesNotFitError: some rank cannot hold one micro-batch of both its stages.

    Source: ours.
    """
    order = published(spec.num_ranks, spec.num_microbatches).named(name)
    planner = Planner(spec, order, objective)
    budget = int(np.clip(_EFFORT // order.num_actions, *_PLANS))
    plans = _follow(planner, *_rows(order), budget)
    if budget > 2 * _REFINED:
        plans += _vary(planner, budget - _REFINED, np.random.default_rng(seed))
    followed: set[bytes] = set()
    while planner.num_plans < budget:
        fresh = [plan for plan in plans if plan.score < math.inf and plan.key not in followed]
        if not fresh:
            break
        best = min(fresh)
        followed.add(best.key)
        plans += _follow(planner, best.types, best.microbatches, budget - planner.num_plans)
    if min(plans).score == math.inf:
        plans.append(planner.by_due_dates((_LOW + _HIGH) / 2.0))  # never gets stuck
    return best_of(spec, [order, min(plans).schedule(name)], objective)


def _rows(order: Schedule) -> tuple[Int64Array, Int64Array]:
    """Types and micro-batches of a schedule, each of shape (p, 6m)."""
    first_chunk = order.stages < order.num_ranks
    way = np.where(order.kinds == Kind.F, 1 - first_chunk, first_chunk)
    types = 2 * order.kinds.astype(np.int64) + way
    shape = (order.num_ranks, -1)
    return types.reshape(shape), order.microbatches.astype(np.int64).reshape(shape)


def _follow(
    planner: Planner, types: Int64Array, microbatches: Int64Array, budget: int
) -> list[Plan]:
    return [planner.by_hint(types, microbatches, *hint) for hint in _HINTS[:budget]]


def _vary(planner: Planner, settings: int, rng: np.random.Generator) -> list[Plan]:
    plans: list[Plan] = []
    for number in range(settings):
        if number < settings // 2:
            setting = rng.uniform(_LOW, _HIGH)
        else:
            plans = sorted(plans)[:_PARENTS]
            parent = plans[rng.integers(len(plans))].setting
            assert parent is not None
            setting = parent + rng.normal(scale=_STEP)
        plans.append(planner.by_due_dates(setting))
    return plans


INFOS = (
    ScheduleInfo(
        name="v-half-cost",
        build=partial(cost_aware, v_half, name="v-half-cost"),
        placement="v",
        stages_per_rank=2,
        summary="the memory of V-Half, planned by stage costs and links",
        memory="floor(p / 2) + 1",
        source="ours",
    ),
    ScheduleInfo(
        name="v-min-cost",
        build=partial(cost_aware, v_min, name="v-min-cost"),
        placement="v",
        stages_per_rank=2,
        summary="the memory of V-Min, planned by stage costs and links",
        memory="floor((p + 4) / 3)",
        source="ours",
    ),
)
