"""What the learned lending tier costs: its event loop's time over the planner's, on the same draws in one run.

Run: `python -m pytest benchmarks/bench_two_tier.py -s -p benchmark --override-ini addopts=`.
"""

import time

import numpy as np
import pytest

from conductor.migration import execution
from conductor.migration.scenarios import SCENARIOS
from conductor.rl.two_tier import tier
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.policy.network import TwoTierPolicy
from conductor.rl.two_tier.tier import Tier
from conductor.rl.two_tier.training import PATIENCE, lesson

DRAWS, ROUNDS = 100, 5


@pytest.fixture(scope="module")
def given():
    """8 ranks, 32 micro-batches, ranks that turn slow: rules that offer many lenders, guesses, draws."""
    one = SCENARIOS["stragglers-8x32"]
    given = lesson(
        one.spec, one.variation, "zb-1p", postpone=True, in_order=False, seed=0, policy=True
    )
    program = given.prepared.program
    return given, one.variation.sample(program, DRAWS, np.random.default_rng(0))


def microseconds(run, durations):
    """Of an action, by the fastest round."""
    run(durations[:1])
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run(durations)
        taken.append(time.process_time() - start)
    return 1e6 * min(taken) / durations.size


def test_the_learned_tier_over_the_planners_loop(given):
    """The loop with nothing learned, with guesses and the network, and with the policy of both tiers."""
    one, durations = given
    prepared, guesses = one.prepared, one.tier.guesses
    base = microseconds(lambda draws: execution.run_draws(prepared, draws), durations)
    tiers = {
        "nothing learned": Tier(),
        "guesses, network, patience": Tier(
            guesses=guesses, network=LendingNetwork.load(), patience=PATIENCE
        ),
        "policy of both tiers": Tier(
            guesses=guesses, policy=TwoTierPolicy.load(), orders=True, lends=True, stay=2.0, patience=PATIENCE
        ),
    }  # fmt: skip
    ratios = {}
    for name, learned in tiers.items():
        took = microseconds(
            lambda draws, it=learned: tier.run_draws(prepared, it, draws), durations
        )
        ratios[name] = took / base
        print(f"{name}: {took:.2f} us an action, {ratios[name]:.1f} of the planner's {base:.2f}")
    assert ratios["nothing learned"] < 3.0
    assert ratios["guesses, network, patience"] < 10.0
