"""The learned planner: a policy plays the step under expected times; what it does is the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.plans import greedy_plan, ordered
from conductor.rl.play import Decider, Weights, play
from conductor.schedules.memory import check_memory
from conductor.search.common_draws import CommonDraws, DurationDraws
from conductor.search.objective import SearchObjective, objective_value
from conductor.search.polish import polish
from conductor.simulator.bounds import lower_bounds
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate
from conductor.variation import UniformNoise

PLACEMENTS = 2
"""So many placements are played on, those with the best starts."""

BATCH, MOST_SAMPLES = 2_000, 32
"""Stages that the network looks at in a batch of sampled episodes, and the most episodes of a batch."""

EFFORT = 30_000
"""What planning takes without being told: looks of the network, and twice as many as orders of the polish;
some 40 ms."""


DOUBT, DOUBTED_DRAWS = UniformNoise(level=0.1), 32
"""Of orders no worse than the best start the one is taken that is best when times vary so: expected times
never hold, and an order fitted to them to the last bit loses more than it had gained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPlan:
    """What `plan_learned` found.

    Attributes:
        schedule: never worse than the best start.
        value_ms: its objective.
        start: name of the best start.
        played_ms: objective before polishing.
    """

    schedule: Schedule
    value_ms: float
    start: str
    played_ms: float


def plan_learned(
    spec: PipelineSpec,
    weights: Weights,
    starts: Sequence[Schedule] = (),
    *,
    samples: int | None = None,
    evaluations: int | None = None,
    budget_ms: float = inf,
    objective: SearchObjective = "makespan",
    durations: DurationDraws | None = None,
    seed: int = 0,
) -> LearnedPlan:
    """Plans with a policy: its best episode from given plans, polished by a short local search.

    On each of the placements with the best starts the policy plays under expected times, first by its best
    choices, then by samples; when an order is better than the plan it came from, the next episodes start from
    that one. Unless the budget ends in between, the result depends on the seed alone.

    Args:
        spec: a rank-level profile is split over the stages of each start.
        weights: of the policy.
        starts: plans; those that split sequences or overlap actions are left out. None at all is the order
            of ranks that start what they can.
        samples: sampled episodes on each placement; None is as long as they find something.
        evaluations: orders that the polish looks at; None is what some 40 ms leave it.
        budget_ms: no episode or polish begins after so long.
        objective: what to minimise; orders are never polished for `mean` and `p95`.
        durations: for `mean` and `p95`, makes the draws.
        seed: of every choice.

    Raises:
        DoesNotFitError: some rank's memory holds less than one micro-batch.
    """
    until = perf_counter() + budget_ms / 1000.0
    draws = None if durations is None else CommonDraws(durations)

    def scored(plan: Schedule) -> _Scored:
        drawn = None if draws is None else draws.of(plan, encode(spec, plan))
        return objective_value(spec, plan, objective, drawn), plan

    def is_optimal(one: _Scored) -> bool:
        spec_there = spec.on_stages(one[1].stage_ranks)
        return objective == "makespan" and one[0] <= lower_bounds(spec_there).makespan_ms * (
            1 + 1e-9
        )

    plans = [plan for plan in starts if plan.num_splits == 1 and not plan.overlaps.any()]
    ranked = sorted(map(scored, plans or [greedy_plan(spec)]), key=_value)
    rng = np.random.default_rng(seed)
    left, found = EFFORT, []
    for placement in list(dict.fromkeys(plan.stage_ranks for _, plan in ranked))[:PLACEMENTS]:
        best, looks = next(one for one in ranked if one[1].stage_ranks == placement), 0
        if not is_optimal(best):
            best, looks = _play_from(spec, best, weights, samples, scored, rng, until)
        found.append(best)
        left -= looks
    best = played = min(found, key=_value)
    orders = [ranked[0], played]
    if durations is None and not is_optimal(best) and perf_counter() < until:
        count = max(left, 0) // 2 if evaluations is None else evaluations
        orders.append(
            scored(polish(spec, best[1], evaluations=count, objective=objective, seed=seed))
        )
    orders = list(dict.fromkeys(orders))
    if durations is None and len(orders) > 1:
        best = min(orders, key=lambda one: _mean_ms(spec, one[1], seed))
    return LearnedPlan(
        schedule=best[1],
        value_ms=best[0],
        start=ranked[0][1].name,
        played_ms=played[0],
    )


_Scored = tuple[float, Schedule]


def _value(one: _Scored) -> float:
    return one[0]


def _mean_ms(spec: PipelineSpec, plan: Schedule, seed: int) -> float:
    """What a plan takes when nothing takes its expected time, rounded."""
    draws = DOUBT.sample(encode(spec, plan), DOUBTED_DRAWS, np.random.default_rng(seed))
    return round(float(simulate(spec, plan, draws).makespan_ms.mean()), 9)


def _fits(instance: Instance, order: Schedule) -> bool:
    try:
        check_memory(instance.spec, order)
    except DoesNotFitError:
        return False
    return True


def _play_from(
    spec: PipelineSpec,
    best: _Scored,
    weights: Weights,
    samples: int | None,
    scored: Callable[[Schedule], _Scored],
    rng: np.random.Generator,
    until: float,
) -> tuple[_Scored, int]:
    """The best order of the policy's episodes from a plan, the plan itself where none is better; and how many
    stages the network looked at."""
    instance = Instance.of(spec, best[1])
    expected = instance.program.duration_ms
    looks = len(expected) * instance.stages_per_rank
    batch = min(max(BATCH // looks, 1), MOST_SAMPLES)
    played, num_played = play(instance, expected, Decider.NETWORK, weights=weights), 1
    while True:
        found = scored(ordered(instance, played.end_ms[played.makespan_ms.argmin()]))
        # Actions that take no time may stand in another order than they were played in.
        is_better = found[0] < best[0] * (1.0 - 1e-12) and _fits(instance, found[1])
        if is_better:
            best, instance = found, Instance.of(spec, found[1])
            expected = instance.program.duration_ms
        if samples is not None:
            batch = min(batch, samples + 1 - num_played)
        elif num_played > 1 and not is_better:
            batch = 0
        if batch <= 0 or perf_counter() >= until:
            return best, looks * num_played
        played = play(
            instance, np.tile(expected, (batch, 1)), Decider.SAMPLE, weights=weights, rng=rng
        )
        num_played += batch
