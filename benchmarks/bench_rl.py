"""Speed of the learned scheduler: whole schedules by the policy, collecting, learning, the paper's training.

Run: `python -m pytest benchmarks/bench_rl.py -p benchmark`. One core but for the last, which takes two.
The paper's code takes about 140 s for its 500 episodes and 79 ms for a schedule at 4 x 8.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.problem.presets import load_preset
from conductor.rl.config import PAPER, ROBUST
from conductor.rl.instance import Instance
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.play import Decider, Weights, play, record
from conductor.rl.policy import ActorCritic
from conductor.rl.ppo import train
from conductor.rl.source import OneInstance
from conductor.rl.training import new_training, start_training
from conductor.schedules.registry import build
from conductor.variation import UniformNoise


def _instance(num_ranks: int, num_microbatches: int) -> Instance:
    spec = load_preset("gpt-like").with_(
        num_ranks=num_ranks, num_microbatches=num_microbatches, memory_limit=float(num_ranks)
    )
    return Instance.of(spec, build("zb-1p", spec))


def _weights() -> Weights:
    return ActorCritic(state_dim=NUM_FEATURES, generator=torch.Generator().manual_seed(0)).weights()


@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(4, 8), (8, 32), (16, 64), (64, 256)])
def test_a_whole_schedule_by_the_policy(
    benchmark: BenchmarkFixture, num_ranks: int, num_microbatches: int
) -> None:
    instance, weights = _instance(num_ranks, num_microbatches), _weights()
    durations = instance.program.duration_ms
    played = benchmark(play, instance, durations, Decider.NETWORK, weights=weights)
    benchmark.extra_info["decisions"] = int(played.num_decisions[0])


@pytest.mark.parametrize("decider", [Decider.SAMPLE, Decider.REPLAY])
def test_collecting_100_episodes_at_8_ranks_32_microbatches(
    benchmark: BenchmarkFixture, decider: Decider
) -> None:
    instance, weights = _instance(8, 32), _weights()
    rng = np.random.default_rng(0)
    durations = UniformNoise(0.3).sample(instance.program, 100, rng)
    decisions = benchmark(record, instance, durations, decider, weights=weights, rng=rng)
    benchmark.extra_info["decisions_per_s"] = len(decisions.slots) / benchmark.stats["min"]


def test_collecting_and_learning(benchmark: BenchmarkFixture) -> None:
    config = replace(ROBUST, cloning_rollouts=8, cloning_epochs=1, validation_draws=1)
    source = OneInstance(instance=_instance(8, 32), variation=UniformNoise(0.3))

    def run() -> None:
        training = new_training(source, config, num_episodes=256, seed=0)
        assert train(training)

    benchmark.pedantic(run, rounds=3, warmup_rounds=1)


def test_the_papers_500_episodes_on_two_cores(benchmark: BenchmarkFixture) -> None:
    def run() -> None:
        training = start_training(
            load_preset("paper"), UniformNoise(0.1), PAPER, num_episodes=500, seed=0
        )
        assert train(training, threads=2)

    benchmark.pedantic(run, rounds=1, warmup_rounds=0)
