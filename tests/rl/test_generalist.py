"""The policy that comes with the package, held to figures."""

from __future__ import annotations

import numpy as np
import pytest

from conductor.problem.presets import load_preset
from conductor.rl.config import ROBUST
from conductor.rl.curriculum import Curriculum
from conductor.rl.evaluation import POLICY, READY_FIRST, interval95
from conductor.rl.generality import PLAN, evaluate_on_tasks
from conductor.rl.play import Decider, play
from conductor.rl.ppo import train
from conductor.rl.shipped import policy_weights
from conductor.rl.training import start_training
from conductor.rl.weights import shipped_policy
from conductor.variation import MarkovStragglers, Product, UniformNoise


def test_it_is_better_than_strict_and_ready_first_execution_on_pipelines_it_has_not_seen() -> None:
    unseen = Curriculum(seed=77, ranks=(2, 6), search_evaluations=200)
    tasks = unseen.evaluation_tasks(24)
    found = evaluate_on_tasks(tasks, policy_weights(), draws=40, seed=3)
    assert found.mean(POLICY) < found.mean(PLAN) - 0.005
    assert found.mean(POLICY) < found.mean(READY_FIRST) - 0.005


@pytest.mark.slow
def test_specialised_it_beats_the_searched_order_where_ranks_turn_slow() -> None:
    variation = Product((UniformNoise(0.1), MarkovStragglers()))
    training = start_training(load_preset("gpt-like"), variation, ROBUST, num_episodes=4096, seed=0)
    training.start_from(shipped_policy())
    train(training, threads=2)
    instance = training.source.instance
    durations = variation.sample(instance.program, 1000, np.random.default_rng(9))
    searched = play(instance, durations, Decider.REPLAY).makespan_ms
    policy = play(instance, durations, Decider.NETWORK, weights=training.best_policy()).makespan_ms
    assert interval95(policy - searched)[1] < 0.0
    assert policy.mean() < 0.993 * searched.mean()
