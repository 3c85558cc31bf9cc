"""Training of the lending network: evolution strategies on common draws, from the planner's rule on.

The network starts with a last layer of zeros, which is the rule itself: nothing needs to be cloned. Each
generation moves the parameters a little in random directions, there and back, runs all of them on the same
draws of a few pipelines, and goes where steps were shorter (rank-shaped, with Adam). Makespans are compared
whole, so no credit has to be given to single decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from conductor.errors import ConductorError
from conductor.ir.schedule import FloatArray
from conductor.migration.execution import Execution, MigrationRules, Prepared, prepare
from conductor.migration.plan import STARTS, plan_migration
from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.random_problem import random_spec, random_variation
from conductor.rl.two_tier.guesses import fit_guesses
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.tier import Tier, run_draws
from conductor.schedules.registry import build
from conductor.variation import Variation

PATIENCE = 0.5
FITTING_DRAWS = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """A pipeline with its plan, to train or validate on.

    Attributes:
        prepared: with rules that offer more lenders than the planner would.
        tier: the guesses and the patience.
        variation: of the draws.
        plan_ms: mean makespan of the planner's own best rules.
    """

    prepared: Prepared
    tier: Tier
    variation: Variation
    plan_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionConfig:
    """How the network is trained.

    Attributes:
        hidden: width of the network.
        generations: steps.
        pairs: directions tried in each, there and back.
        lessons: pipelines in each.
        draws: of each pipeline.
        reach: standard deviation of a direction's entries.
        rate: Adam's step, falling linearly to a tenth.
    """

    hidden: int = 8
    generations: int = 600
    pairs: int = 12
    lessons: int = 8
    draws: int = 8
    reach: float = 0.2
    rate: float = 0.05


def generous(rules: MigrationRules, *, postpone: bool) -> MigrationRules:
    """Rules under which more lenders are offered than pay by themselves: the network says which."""
    return rules.with_(
        max_lenders=3, min_gain=0.05, least_gain=None, most_parts=None, blocks=8, recheck=True,
        postpone=postpone, delay_share=0.75,
    )  # fmt: skip


def random_lesson(
    rng: np.random.Generator, ranks: Sequence[int] = range(3, 7), *, policy: bool = False
) -> Lesson:
    """A lesson on a random pipeline, kind of variation and order, which a policy can run if it must."""
    while True:
        spec = random_spec(rng, list(ranks))
        variation = random_variation(rng, spec)
        name = STARTS[int(rng.integers(len(STARTS)))]
        postpone, in_order = bool(rng.random() < 0.7), bool(rng.random() < 0.3)
        seed = int(rng.integers(2**31))
        try:
            return lesson(
                spec, variation, name, postpone=postpone, in_order=in_order and not policy, seed=seed,
                policy=policy,
            )  # fmt: skip
        except ConductorError:
            continue


def lesson(
    spec: PipelineSpec,
    variation: Variation,
    order: str,
    *,
    postpone: bool,
    in_order: bool,
    seed: int,
    policy: bool = False,
) -> Lesson:
    """A lesson on one pipeline.

    Args:
        spec: the problem.
        variation: of its durations.
        order: a schedule's name.
        postpone: whether lenders are asked at the first block boundary.
        in_order: whether ranks keep to the order.
        seed: of the draws for planning.
        policy: whether a policy is to run it: full backwards are parted then.

    Raises:
        DoesNotFitError: the order does not fit the spec.
        InvalidScheduleError: no policy can run the order.
    """
    schedule = build(order, spec)
    if policy:
        schedule = Instance.of(spec, schedule).plan
    plan = plan_migration(
        spec, [schedule], variation=variation, executions=("static",), draws=8, seed=seed
    )
    execution: Execution = "static" if in_order or plan.schedule.overlaps.any() else "ready-first"
    rules = generous(plan.rules, postpone=postpone)
    prepared = prepare(spec, plan.schedule, rules=rules, execution=execution)
    draws = variation.sample(prepared.program, FITTING_DRAWS, np.random.default_rng((seed, 1)))
    return Lesson(
        prepared=prepared,
        tier=Tier(guesses=fit_guesses(prepared, draws, seen=postpone), patience=PATIENCE),
        variation=variation,
        plan_ms=plan.plan_ms,
    )


def mean_ratio(
    lessons: Sequence[Lesson], draws: Sequence[FloatArray], network: LendingNetwork | None
) -> float:
    """Mean makespan over the planner's, over some lessons and their draws."""
    ratios = [
        run_draws(
            one.prepared, Tier(guesses=one.tier.guesses, network=network, patience=PATIENCE), drawn
        ).makespan_ms.mean()
        / one.plan_ms
        for one, drawn in zip(lessons, draws, strict=True)
    ]
    return float(np.mean(ratios))


def evolve(
    lessons: Sequence[Lesson],
    validation: Sequence[Lesson],
    config: EvolutionConfig,
    seed: int,
    report: Callable[[int, float], None] = lambda _generation, _ratio: None,
    start: LendingNetwork | None = None,
) -> LendingNetwork:
    """Trains a network; the best on the validation lessons, looked at every 25 generations.

    Args:
        lessons: to train on; each generation takes some and makes fresh draws.
        validation: lessons that serve no step.
        config: how.
        seed: of everything.
        report: called with the generation and the mean ratio on the validation lessons.
        start: a network to go on from.
    """
    rng = np.random.default_rng(seed)
    network = start or LendingNetwork.initial(config.hidden, rng)
    held = [lesson_draws(one, 16, np.random.default_rng(2)) for one in validation]
    best, best_ratio = network, mean_ratio(validation, held, network)
    report(0, best_ratio)
    parameters = network.parameters
    mean, square = np.zeros_like(parameters), np.zeros_like(parameters)
    for generation in range(1, config.generations + 1):
        chosen = rng.choice(len(lessons), min(config.lessons, len(lessons)), replace=False)
        some = [lessons[k] for k in chosen]
        drawn = [lesson_draws(one, config.draws, rng) for one in some]
        directions = rng.normal(size=(config.pairs, len(parameters)))
        values = np.array(
            [
                [
                    mean_ratio(some, drawn, network.with_parameters(parameters + sign * direction))
                    for direction in config.reach * directions
                ]
                for sign in (1.0, -1.0)
            ]
        )
        shaped = values.ravel().argsort().argsort().reshape(values.shape) / (values.size - 1)
        gradient = ((shaped[0] - shaped[1])[:, None] * directions).mean(axis=0)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        rate = config.rate * (1.0 - 0.9 * generation / config.generations)
        step = mean / (1.0 - 0.9**generation)
        parameters = parameters - rate * step / (np.sqrt(square / (1.0 - 0.99**generation)) + 1e-8)
        if generation % 25 == 0 or generation == config.generations:
            candidate = network.with_parameters(parameters)
            ratio = mean_ratio(validation, held, candidate)
            report(generation, ratio)
            if ratio < best_ratio:
                best, best_ratio = candidate, ratio
    return best


def lesson_draws(one: Lesson, draws: int, rng: np.random.Generator) -> FloatArray:
    """Durations, shape (draws, n), program order; one row where nothing varies."""
    sample = one.variation.sample(one.prepared.program, draws, rng)
    return sample[:1] if (sample == sample[0]).all() else sample
