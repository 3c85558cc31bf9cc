"""Training of the policy of both tiers: what comparisons tell, and a file from which it goes on exactly."""

import numpy as np
import pytest
import torch

from conductor.errors import FormatError
from conductor.rl.two_tier.policy import training as learning
from conductor.rl.two_tier.policy.comparison.kernels import compare
from conductor.rl.two_tier.policy.kernels import NUM_OPTION_FEATURES
from conductor.rl.two_tier.policy.training import (
    TwoTierConfig,
    TwoTierNetwork,
    load_two_tier_training,
    new_two_tier_training,
    save_two_tier_training,
    train_two_tier,
)
from conductor.rl.two_tier.tier import Tier, run_draws
from tests.rl.two_tier.policy.test_policy import random_policy
from tests.rl.two_tier.test_training import STRAGGLERS, a_lesson

pytestmark = pytest.mark.slow  # the loop of both tiers compiles for minutes

SMALL = TwoTierConfig(
    updates=2,
    lessons=2,
    draws=4,
    compared=(2.0, 6.0),
    epochs=2,
    validate_every=1,
    pipelines=2,
    width=12,
)


def test_the_policys_own_choice_leads_to_its_own_makespan():
    """In an episode of best choices, one outcome of every tried decision is the episode's makespan: that of
    the option which the torch twin likes best."""
    one, policy = a_lesson(STRAGGLERS), random_policy(5)
    tier = Tier(policy=policy, orders=True, lends=True, stay=1.0, patience=0.5)
    prepared = one.prepared
    drawn = STRAGGLERS.sample(prepared.program, 3, np.random.default_rng(0))
    durations, factors = prepared.realise(drawn)
    mind, compiled = tier.mind(prepared), tier.compiled_policy(prepared)
    stages, tries = compiled.p.local_stages.shape[1], 65
    orders = (
        np.zeros((3, 20, stages, 43), np.float32), np.zeros((3, 20), np.int64),
        np.zeros((3, 20), np.int64), np.zeros((3, 20, 3 * stages + 1)),
    )  # fmt: skip
    lends = (
        np.zeros((3, 20, 43), np.float32), np.zeros((3, 20, tries, NUM_OPTION_FEATURES), np.float32),
        np.zeros((3, 20, tries)), np.zeros((3, 20, tries)), np.zeros((3, 20), np.int64),
    )  # fmt: skip
    lengths, makespans = np.zeros((3, 2), np.int64), np.zeros(3)
    compare(
        prepared.layout, prepared.costs, prepared.rules, mind, compiled, durations, factors,
        np.array([0.2, 0.1]), np.zeros(3, np.uint64), *orders, *lends, lengths, makespans,
    )  # fmt: skip
    assert makespans.tolist() == run_draws(prepared, tier, drawn).makespan_ms.tolist()
    assert (lengths.sum(0) > 5).all()
    network = TwoTierNetwork(policy)
    for e in range(3):
        for t in range(lengths[e, 0]):
            with torch.no_grad():
                scores = network.core.decide(torch.from_numpy(orders[0][e, t : t + 1]))[0][
                    0
                ].numpy()
            scores[orders[2][e, t]] += 1.0
            open_ = orders[1][e, t] >> np.arange(len(scores)) & 1 == 1
            best = int(np.argmax(np.where(open_, scores, -np.inf)))
            assert orders[3][e, t, best] == makespans[e]
        for t in range(lengths[e, 1]):
            count = lends[4][e, t]
            assert count > 1
            with torch.no_grad():
                scores = network.lend(
                    torch.from_numpy(lends[0][e, t : t + 1]),
                    torch.from_numpy(lends[1][e, t : t + 1, :count]),
                    torch.from_numpy(lends[2][e, t : t + 1, :count]).float(),
                )[0].numpy()
            near = np.flatnonzero(scores >= scores.max() - 1e-4)
            assert makespans[e] in lends[3][e, t, near]


@pytest.fixture
def start(monkeypatch):
    lessons = [a_lesson(STRAGGLERS, seed) for seed in (0, 1)]
    monkeypatch.setattr(learning, "random_lesson", lambda rng, policy: lessons[rng.integers(2)])
    return new_two_tier_training(random_policy(1).weights, SMALL, seed=0)


def test_training_goes_on_exactly_from_its_file(start, tmp_path):
    path = tmp_path / "both.pt"
    train_two_tier(
        start, lambda now: save_two_tier_training(now, path) if now.updates == 1 else None
    )
    again = load_two_tier_training(path, random_policy(1).weights)
    assert again.updates == 1
    train_two_tier(again)
    assert again.history == start.history
    assert (again.best.last == start.best.last).all()
    assert all(
        (a == b).all()
        for a, b in zip(again.network.policy().weights, start.network.policy().weights, strict=True)
    )
    assert start.network.policy().last.any()


def test_other_files_are_named(tmp_path):
    path = tmp_path / "other.pt"
    torch.save({"format": "another"}, path)
    with pytest.raises(FormatError, match="no checkpoint of a training of both tiers"):
        load_two_tier_training(path, random_policy(1).weights)
    with pytest.raises(FormatError, match="cannot read"):
        load_two_tier_training(tmp_path / "missing.pt", random_policy(1).weights)
