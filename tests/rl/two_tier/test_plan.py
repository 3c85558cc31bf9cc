"""The learned tier on plans: kept where it pays, and what it gains there."""

import numpy as np
import pytest

from conductor.evaluation.scenario import load_scenario
from conductor.migration import execution as planner
from conductor.migration.model import SimpleModel
from conductor.migration.plan import plan_migration
from conductor.migration.scenarios import equal_ranks
from conductor.rl.two_tier.plan import plan_two_tier
from conductor.rl.two_tier.tier import run_draws
from conductor.schedules.registry import build
from conductor.variation import MicrobatchFactor, NoVariation, UniformNoise

pytestmark = pytest.mark.slow  # the loop of both tiers compiles for minutes

SPEC = equal_ranks(3, 5, 3.0)


@pytest.mark.parametrize("variation", [NoVariation(), UniformNoise(0.2), MicrobatchFactor()])
def test_never_worse_than_the_planner_on_planning_draws(variation):
    plans = [
        plan_migration(SPEC, [build(name, SPEC)], variation=variation, draws=8)
        for name in ("zb-1p", "zb-v")
    ]
    plan = plan_two_tier(SPEC, plans, variation=variation)
    assert plan.plan_ms <= plan.planner_ms * 1.0005
    assert plan.schedule in [one.schedule for one in plans]


def test_stays_where_nothing_moves():
    model = SimpleModel(movable=0.0)
    plan = plan_migration(SPEC, [build("zb-v", SPEC)], model=model)
    kept = plan_two_tier(SPEC, [plan], model=model)
    assert kept.tier.network is None
    assert kept.tier.guesses is None
    assert kept.rules is plan.rules
    assert kept.plan_ms <= kept.planner_ms * (1.0 + 1e-9)


def test_the_same_seed_gives_the_same_plan():
    plan = plan_migration(SPEC, [build("zb-v", SPEC)], variation=UniformNoise(0.2), draws=8)
    first, second = (
        plan_two_tier(SPEC, [plan], variation=UniformNoise(0.2), seed=3) for _ in range(2)
    )
    assert (first.plan_ms, first.tier.patience) == (second.plan_ms, second.tier.patience)


@pytest.mark.parametrize(("name", "draws"), [("markov-stragglers", 500), ("variable-length", 60)])
def test_gains_at_least_a_percent_on_fresh_draws(name, draws):
    """Where the planner is blind: ranks that turn slow, and micro-batches whose length tells."""
    scenario = load_scenario(name)
    spec, variation = scenario.spec, scenario.variation
    plan = plan_migration(
        spec, [build("zb-v", spec)], variation=variation, draws=32, executions=("static",)
    )
    learned = plan_two_tier(spec, [plan], variation=variation)
    prepared = learned.prepared()
    fresh = variation.sample(prepared.program, draws, np.random.default_rng(77))
    before = planner.run_draws(plan.prepared, fresh).makespan_ms
    gain = before - run_draws(prepared, learned.tier, fresh).makespan_ms
    half = 1.96 * gain.std() / np.sqrt(draws)
    assert gain.mean() - half > 0.01 * before.mean()
