from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conductor.errors import FormatError
from conductor.problem.presets import load_preset
from conductor.rl import kernels
from conductor.rl.checkpoint import load_checkpoint, save_checkpoint
from conductor.rl.config import PAPER, ROBUST, TrainingConfig
from conductor.rl.curriculum import Curriculum
from conductor.rl.evaluation import (
    GREEDY,
    LOCK_STEP,
    POLICY,
    READY_FIRST,
    evaluate,
    interval95,
)
from conductor.rl.play import Decider, play, record
from conductor.rl.ppo import train
from conductor.rl.returns import discounted_returns
from conductor.rl.source import OneInstance, Source
from conductor.rl.training import Training, new_training, start_training
from conductor.rl.validation import held_out_draws
from conductor.variation import MarkovStragglers, NoVariation, Product, UniformNoise, Variation
from tests.rl.instances import preset_instance

NOISE = UniformNoise(0.3)
QUICK = replace(
    ROBUST,
    name="quick",
    cloning_rollouts=32,
    episodes_per_update=16,
    batch_size=256,
    plan_evaluations=200,
    validation_draws=16,
    validation_interval=1,
)
SAMPLED = replace(QUICK, name="sampled", compared=0.0, episodes_per_draw=4)


def quick_training(
    num_episodes: int = 32,
    *,
    config: TrainingConfig = QUICK,
    preset: str = "gpt-like",
    variation: Variation = NOISE,
) -> Training[OneInstance]:
    source = OneInstance(instance=preset_instance(preset), variation=variation)
    return new_training(source, config, num_episodes=num_episodes, seed=3)


def quick_curriculum(num_episodes: int = 32) -> Training[Curriculum]:
    """On pipelines of one to three stages a rank."""
    source = Curriculum(
        seed=5, num_tasks=8, num_held_out=3, tasks_per_update=4, num_cloned=8, ranks=(2, 3, 4),
        search_evaluations=200,
    )  # fmt: skip
    return new_training(source, QUICK, num_episodes=num_episodes, seed=3)


Make = Callable[[int], Training[Source]]
both_sources = pytest.mark.parametrize("make", [quick_training, quick_curriculum])


def same_weights(one: Training, other: Training) -> bool:
    ours, theirs = one.network.state_dict(), other.network.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_papers_settings_are_the_default() -> None:
    assert TrainingConfig(name="paper") == PAPER
    assert (PAPER.learning_rate, PAPER.clip, PAPER.discount) == (3e-4, 0.2, 0.99)
    assert (PAPER.update_epochs, PAPER.batch_size) == (10, 64)
    assert (PAPER.cloning_rollouts, PAPER.cloning_epochs) == (64, 10)
    assert (PAPER.value_coefficient, PAPER.entropy_coefficient, PAPER.hidden) == (0.5, 0.01, 128)


def test_returns_are_discounted_within_an_episode() -> None:
    instance = quick_training().source.instance
    durations = np.tile(instance.program.duration_ms, (2, 1))
    decisions = record(instance, durations, Decider.GREEDY)
    returns = discounted_returns(decisions, 0.9)
    end = decisions.episode_offsets[1]
    expected = 0.0
    for step in range(end - 1, -1, -1):
        expected = decisions.rewards[step] + 0.9 * expected
        assert returns[step] == pytest.approx(expected, abs=1e-5)
        assert returns[end + step] == returns[step]


def test_the_cloned_policy_follows_the_optimal_plan_waits_included() -> None:
    training = quick_training(0, config=PAPER, variation=NoVariation())
    assert train(training)
    assert training.experts == (Decider.REPLAY,)
    played = play(
        training.source.instance,
        training.source.instance.program.duration_ms,
        Decider.NETWORK,
        weights=training.best_policy(),
    )
    assert played.makespan_ms[0] == pytest.approx(259.8, abs=1e-9)


@both_sources
def test_equal_seeds_give_equal_weights_whatever_the_threads(make: Make) -> None:
    one, other = make(32), make(32)
    train(one, threads=1)
    train(other, threads=2)
    assert same_weights(one, other)
    assert one.history == other.history


def test_first_weights_depend_on_the_seed_alone_whatever_torchs_threads() -> None:
    def first_layer() -> np.ndarray:
        made = start_training(load_preset("gpt-like"), NoVariation(), PAPER, num_episodes=0, seed=0)
        return made.network.weights()[0]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        shared = first_layer()
        torch.set_num_threads(1)
        assert np.array_equal(first_layer(), shared)
    finally:
        torch.set_num_threads(before)


@both_sources
def test_a_resumed_training_ends_as_if_it_had_not_stopped(make: Make, tmp_path: Path) -> None:
    straight, stopped = make(48), make(48)
    train(straight)
    interrupt_after(stopped, updates=2)
    assert stopped.episodes == 16
    save_checkpoint(stopped, tmp_path / "training.pt")
    resumed = load_checkpoint(tmp_path / "training.pt")
    assert train(resumed)
    assert same_weights(straight, resumed)
    assert straight.history == resumed.history
    assert straight.best_score == resumed.best_score


def interrupt_after(training: Training, *, updates: int) -> None:
    """Trains, and presses Ctrl-C in the given update (the cloning is the first)."""
    seen = 0

    def press(_: Training) -> None:
        nonlocal seen
        seen += 1
        if seen == updates:
            signal.raise_signal(signal.SIGINT)

    assert not train(training, on_update=press)


def test_ctrl_c_stops_between_two_updates_and_is_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    training = quick_training(1_000_000)
    interrupt_after(training, updates=1)
    assert training.episodes == 0
    assert training.experts is not None
    assert signal.getsignal(signal.SIGINT) is before


def test_a_checkpoint_keeps_any_variation(tmp_path: Path) -> None:
    variation = Product((UniformNoise(0.1), MarkovStragglers(factor=3.0)))
    save_checkpoint(quick_training(variation=variation), tmp_path / "training.pt")
    source = load_checkpoint(tmp_path / "training.pt").source
    assert isinstance(source, OneInstance)
    assert source.variation == variation


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04broken"])
def test_another_file_is_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "training.pt"
    file.write_bytes(content)
    with pytest.raises(FormatError, match="no checkpoint"):
        load_checkpoint(file)


def test_a_missing_checkpoint_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot read .*missing\.pt: No such file"):
        load_checkpoint(tmp_path / "missing.pt")


def test_another_torch_file_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "training.pt"
    torch.save({"weights": torch.zeros(3)}, file)
    with pytest.raises(FormatError, match="no checkpoint"):
        load_checkpoint(file)


@pytest.mark.parametrize("config", [PAPER, QUICK, SAMPLED])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1)])
def test_a_pipeline_with_hardly_a_choice_can_be_trained(
    size: tuple[int, int], config: TrainingConfig
) -> None:
    spec = load_preset("gpt-like").with_(num_ranks=size[0], num_microbatches=size[1])
    training = start_training(spec, UniformNoise(0.1), config, num_episodes=20, seed=0)
    assert train(training)
    assert training.episodes == 20
    assert all(torch.isfinite(value).all() for value in training.network.state_dict().values())


def test_the_best_policy_is_kept() -> None:
    training = quick_training()
    train(training)
    assert training.best_score == min(mean for _, mean in training.history)
    rng = np.random.default_rng([training.seed, 1])
    durations = training.source.variation.sample(
        training.source.instance.program, training.config.validation_draws, rng
    )
    played = play(
        training.source.instance, durations, Decider.NETWORK, weights=training.best_policy()
    )
    assert played.makespan_ms.mean() == training.best_score


def test_evaluation_has_every_baseline_on_paired_draws() -> None:
    training = quick_training(0, preset="paper")
    train(training)
    evaluation = evaluate(
        training.source.instance, training.best_policy(), NoVariation(), draws=3, seed=0
    )
    assert list(evaluation.makespan_ms) == [
        "1f1b", "zb-1p", "zb-2p", "zb-v", "ready-first", "greedy", "lock-step zbpp", "policy",
    ]  # fmt: skip
    assert evaluation.elsewhere == {"zb-v"}
    assert evaluation.mean(GREEDY) == pytest.approx(321.40)
    assert evaluation.mean(LOCK_STEP) == pytest.approx(341.50)
    assert evaluation.mean(POLICY) == pytest.approx(321.40)
    assert evaluation.bound_ms == pytest.approx([321.40] * 3)
    assert evaluation.ci95(POLICY, minus=GREEDY) == pytest.approx((0.0, 0.0))


def test_a_training_from_a_stored_policy_starts_there_and_keeps_it_if_nothing_is_better() -> None:
    first = quick_training(16)
    train(first)
    stored = first.stored({"seed": 3})
    training = quick_training(16)
    training.start_from(stored)
    assert all(map(np.array_equal, training.network.weights(), first.best_policy()))
    assert np.array_equal(training.network.critic_weights()[0], stored.critic[0])
    train(training)
    assert training.experts == ()
    assert training.history[0] == (0, first.best_score)
    assert training.best_score <= first.best_score


def test_a_stored_policy_can_be_cloned_on() -> None:
    training = quick_training(0)
    training.start_from(training_of(0).stored({}), clone=True)
    train(training)
    assert training.experts == (Decider.REPLAY,)


def training_of(num_episodes: int) -> Training[OneInstance]:
    training = quick_training(num_episodes)
    train(training)
    return training


def test_each_update_has_figures_and_baselines_beside_them() -> None:
    training = training_of(16)
    assert set(training.figures) == {
        "reward", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "decisions",
        "decisions_per_s",
    }  # fmt: skip
    assert training.figures["reward"] < 0.0
    assert 0.0 < training.figures["entropy"] < np.log(4)
    assert 0.0 <= training.figures["clip_fraction"] <= 1.0
    assert training.figures["kl"] > 0.0
    durations = held_out_draws(training, training.source.held_out_tasks()[0])
    for name, decider in (("plan", Decider.REPLAY), ("ready-first", Decider.READY_FIRST)):
        played = play(training.source.instance, durations, decider)
        assert training.baselines[name] == played.makespan_ms.mean()


def test_a_policy_that_may_not_wait_never_does_and_a_blind_one_sees_no_plan() -> None:
    training = new_training(
        quick_training().source, replace(QUICK, may_wait=False, sees_plan=False),
        num_episodes=32, seed=0,
    )  # fmt: skip
    train(training)
    source = training.source
    durations = source.variation.sample(source.instance.program, 8, np.random.default_rng(0))
    weights = training.network.weights()
    decisions = record(source.instance, durations, Decider.NETWORK, weights=weights)
    assert (decisions.choices >> 3 & 1).any()
    assert not (decisions.slots == 3).any()
    assert not weights[0][list(kernels.PLAN_FEATURES)].any()
    assert weights[0].any(axis=1).sum() == len(weights[0]) - len(kernels.PLAN_FEATURES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "over_bound"), [(0.0, 1e-6), (0.1, 0.001), (0.2, 0.006), (0.3, 0.014)]
)
def test_the_papers_configuration_reaches_the_bound(noise: float, over_bound: float) -> None:
    training = quick_training(500, config=PAPER, preset="paper", variation=UniformNoise(noise))
    train(training, threads=2)
    source = training.source
    evaluation = evaluate(source.instance, training.best_policy(), source.variation, seed=0)
    assert evaluation.mean(POLICY) <= evaluation.mean(GREEDY) + 1e-9
    assert evaluation.ci95(POLICY, minus=READY_FIRST)[0] <= 1e-9
    assert evaluation.mean(POLICY) <= (1.0 + over_bound) * evaluation.bound_ms.mean()


@pytest.mark.slow
def test_equal_ranks_leave_the_optimal_order_where_noise_makes_it_pay() -> None:
    training = start_training(
        load_preset("gpt-like"), UniformNoise(0.3), ROBUST, num_episodes=5120, seed=0
    )
    train(training, threads=2)
    source = training.source
    evaluation = evaluate(source.instance, training.best_policy(), source.variation, seed=0)
    assert evaluation.mean(POLICY) <= 267.0
    durations = source.variation.sample(source.instance.program, 1000, np.random.default_rng(9))
    searched = play(source.instance, durations, Decider.REPLAY).makespan_ms
    policy = play(
        source.instance, durations, Decider.NETWORK, weights=training.best_policy()
    ).makespan_ms
    assert interval95(policy - searched)[1] < 0.0
