"""Speed of the learned scheduler: whole schedules by the policy, collecting, learning, the paper's training.

Run: `python -m pytest benchmarks/bench_rl.py -p benchmark`. One core, two where it says so.
The paper's code takes about 140 s for its 500 episodes and 79 ms for a schedule at 4 x 8.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.problem.presets import load_preset
from conductor.rl.config import PAPER
from conductor.rl.instance import Instance
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.play import Decider, Weights, play, record
from conductor.rl.policy import ActorCritic
from conductor.rl.ppo import train
from conductor.rl.processes import ALONE, Processes, launched
from conductor.rl.source import OneInstance
from conductor.rl.training import Training, new_training, start_training
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


def _training() -> Training[OneInstance]:
    """PPO on all decisions of 256 episodes, four times."""
    config = replace(
        PAPER, update_epochs=4, batch_size=2048, episodes_per_update=256, episodes_per_draw=4,
        cloning_rollouts=8, cloning_epochs=1, validation_draws=2, validation_interval=1000,
    )  # fmt: skip
    source = OneInstance(instance=_instance(8, 32), variation=UniformNoise(0.3))
    return new_training(source, config, num_episodes=4 * 256, seed=0)


def _best_rate(processes: Processes = ALONE, *, threads: int) -> float:
    """Decisions that are made and learned from in a second, in the fastest of four updates."""
    rates = [0.0]

    def note(now: Training[OneInstance]) -> None:
        rates.append(now.figures.get("decisions_per_s", 0.0))

    assert train(_training(), threads=threads, processes=processes, on_update=note)
    return max(rates)


@pytest.mark.parametrize("threads", [1, 2])
def test_collecting_and_learning(benchmark: BenchmarkFixture, threads: int) -> None:
    rate = benchmark.pedantic(_best_rate, kwargs={"threads": threads}, rounds=1, warmup_rounds=0)
    benchmark.extra_info["decisions_per_s"] = rate
    instance, rng = _instance(8, 32), np.random.default_rng(0)
    durations = UniformNoise(0.3).sample(instance.program, 256, rng)
    collecting = 0.0
    for _ in range(4):
        begin = perf_counter()
        decisions = record(
            instance, durations, Decider.SAMPLE, weights=_weights(), rng=rng, threads=threads
        )
        collecting = max(collecting, len(decisions.slots) / (perf_counter() - begin))
    benchmark.extra_info["collecting_only_per_s"] = collecting
    benchmark.extra_info["share_of_collecting"] = rate / collecting


def test_collecting_and_learning_in_two_processes(benchmark: BenchmarkFixture) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__
    ]  # fmt: skip

    def run() -> float:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(done.stdout)

    rate = benchmark.pedantic(run, rounds=1, warmup_rounds=0)
    benchmark.extra_info["decisions_per_s"] = rate
    benchmark.extra_info["times_one_process"] = rate / _best_rate(threads=1)


def test_the_papers_500_episodes_on_two_cores(benchmark: BenchmarkFixture) -> None:
    def run() -> None:
        training = start_training(
            load_preset("paper"), UniformNoise(0.1), PAPER, num_episodes=500, seed=0
        )
        assert train(training, threads=2)

    benchmark.pedantic(run, rounds=1, warmup_rounds=0)


if __name__ == "__main__":
    with launched("cpu") as joined:
        best = _best_rate(joined, threads=1)
    if joined.rank == 0:
        print(best)
