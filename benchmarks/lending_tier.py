"""What each part of the learned lending tier gains: `python -m benchmarks.lending_tier parts [NETWORK ...]`.

On the planner's plan of ZB-V, against that plan, over fresh paired draws; the mean and its 95 % half interval,
in percent. Files are networks of `python -m conductor.rl.two_tier`; without any it is the shipped one.

`python -m benchmarks.lending_tier trainings [FILE ...]` puts trainings side by side: on stragglers and on
variable lengths, 1,000 draws, against the planner's best row. Files are networks, or policies of
`conductor train --migration`; without any they are the shipped ones.
"""

from __future__ import annotations

import sys

import numpy as np

from conductor.errors import FormatError
from conductor.evaluation.draws import fresh_draws
from conductor.evaluation.scenario import Scenario, load_scenario
from conductor.evaluation.scheduler import TWO_TIER, Planner, SchedulerName, execute_migrating
from conductor.migration.execution import Execution, MigrationRules, prepare
from conductor.migration.model import SimpleModel
from conductor.migration.plan import MigrationPlan, plan_migration
from conductor.migration.scenarios import SCENARIOS
from conductor.rl.two_tier import network
from conductor.rl.two_tier.guesses import Guesses, fit_guesses
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.plan import plan_two_tier
from conductor.rl.two_tier.policy import network as two_tier
from conductor.rl.two_tier.policy.network import TwoTierPolicy
from conductor.rl.two_tier.tier import Tier, run_draws
from conductor.rl.two_tier.training import FITTING_DRAWS, PATIENCE, generous
from conductor.schedules.registry import build

DRAWS = 400


def scenarios() -> list[Scenario]:
    """Ranks that turn slow, at two sizes; micro-batches of variable length; plain noise."""
    large = SCENARIOS["stragglers-8x32"]
    return [
        load_scenario("markov-stragglers"),
        Scenario(name="stragglers-8x32", spec=large.spec, variation=large.variation),
        load_scenario("variable-length"),
        load_scenario("few-microbatches"),
    ]


def ablation(scenario: Scenario, lending: LendingNetwork) -> None:
    """Prints a line for each combination of parts."""
    spec, variation = scenario.spec, scenario.variation
    plan = plan_migration(
        spec, [build("zb-v", spec)], variation=variation, executions=("static",), draws=64
    )
    program = plan.prepared.program
    fitting = variation.sample(program, FITTING_DRAWS, np.random.default_rng((0, 6)))
    drawn = fresh_draws(scenario, program, DRAWS, 0)
    base = _makespans(plan, plan.rules, "static", Tier(), drawn)
    print(f"\n{scenario.name}: planner {base.mean():.2f} ms")
    offered = generous(plan.rules, postpone=True)
    plain = plan.rules.with_(blocks=8, recheck=True, postpone=True)
    seen = fit_guesses(plan.prepared, fitting, seen=True)
    twins = fit_guesses(plan.prepared, fitting, seen=True, twins=True)
    rows: tuple[tuple[str, MigrationRules, Guesses | None, bool, bool], ...] = (
        ("more lenders alone", offered, None, False, False),
        ("guesses", plain, seen, False, False),
        ("guesses with twins", plain, twins, False, False),
        ("patience", plan.rules, None, False, True),
        ("network", offered, None, True, False),
        ("network, guesses", offered, seen, True, False),
        ("network, patience", offered, None, True, True),
        ("all three", offered, seen, True, True),
        ("all three with twins", offered, twins, True, True),
    )
    for label, rules, guesses, scores, patient in rows:
        tier = Tier(
            guesses=guesses, network=lending if scores else None,
            patience=PATIENCE if patient else None,
        )  # fmt: skip
        gain = _makespans(plan, rules, "ready-first" if patient else "static", tier, drawn) - base
        half = 1.96 * gain.std() / np.sqrt(len(gain))
        print(
            f"{label:24s} {100 * gain.mean() / base.mean():+.2f} % +- {100 * half / base.mean():.2f}"
        )


def _makespans(
    plan: MigrationPlan,
    rules: MigrationRules,
    execution: Execution,
    tier: Tier,
    drawn: np.ndarray,
) -> np.ndarray:
    prepared = prepare(plan.prepared.spec, plan.schedule, rules=rules, execution=execution)
    return run_draws(prepared, tier, drawn).makespan_ms


def trainings(files: list[str]) -> None:
    """Prints a line for each training in each of the two scenarios."""
    for name in ("markov-stragglers", "variable-length"):
        scenario = load_scenario(name)
        planner = Planner(
            scenario=scenario, seed=0, search_ms=5000.0, joint_steps=2000, model=SimpleModel()
        )
        plans = [planner.migration(SchedulerName.parse(f"{one}+migration")) for one in TWO_TIER]
        rows = []
        for plan in plans:
            drawn = fresh_draws(scenario, plan.prepared.program, 1000, 0)
            outcome = execute_migrating(scenario.spec, plan, planner.model, drawn)
            rows.append(outcome.makespan_ms)
        base = min(rows, key=np.mean)
        print(f"\n{name}: planner's best row {base.mean():.2f} ms", flush=True)
        for file in files or [str(network.SHIPPED), str(two_tier.SHIPPED)]:
            lending, policy = _learned(file)
            both = plan_two_tier(
                scenario.spec, plans, variation=scenario.variation, network=lending, policy=policy
            )
            drawn = fresh_draws(scenario, both.prepared().program, 1000, 0)
            gain = both.run_draws(drawn).makespan_ms - base
            half = 1.96 * gain.std() / np.sqrt(len(gain))
            print(
                f"{file:40s} {base.mean() + gain.mean():.2f} ms {100 * gain.mean() / base.mean():+.2f} % +-"
                f" {100 * half / base.mean():.2f}  {both.schedule.name}, {both.tier.name}",
                flush=True,
            )


def _learned(file: str) -> tuple[LendingNetwork, TwoTierPolicy | None]:
    try:
        return LendingNetwork.load(file), None
    except FormatError:
        return LendingNetwork.load(), TwoTierPolicy.load(file)


if __name__ == "__main__":
    what, *paths = sys.argv[1:] or ["parts"]
    if what == "trainings":
        trainings(paths)
    else:
        for path in paths or [""]:
            print(f"\n{path or 'shipped network'}")
            chosen = LendingNetwork.load(path) if path else LendingNetwork.load()
            for one in scenarios():
                ablation(one, chosen)
