from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from conductor.problem.presets import load_preset
from conductor.rl.environment import PipelineEnv, PipelineVectorEnv
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan
from conductor.rl.play import Decider, record
from conductor.variation import NoVariation, UniformNoise
from tests.rl.instances import preset_instance


@pytest.mark.filterwarnings("ignore:.*Box observation space:UserWarning")
@pytest.mark.parametrize("placement", ["sequential", "v"])
def test_gymnasiums_checker_passes(placement: str) -> None:
    spec = load_preset("gpt-like")
    if placement == "v":
        spec = spec.on_stages((0, 1, 2, 3, 3, 2, 1, 0))
    check_env(
        PipelineEnv(Instance.of(spec, best_plan(spec)), UniformNoise(0.1)), skip_render_check=True
    )


def test_stepping_with_the_greedy_rules_slots_plays_its_episode() -> None:
    instance = preset_instance("paper")
    durations = NoVariation().sample(instance.program, 1, np.random.default_rng(0))
    decisions = record(instance, durations, Decider.GREEDY)
    environment = PipelineEnv(instance, NoVariation())
    observation, info = environment.reset(seed=0)
    rewards = []
    for seen, slot in zip(decisions.observations, decisions.slots, strict=True):
        assert np.array_equal(observation, seen.ravel())
        assert info["action_mask"][slot]
        observation, reward, ended, _, info = environment.step(slot)
        rewards.append(reward)
    assert ended
    assert info["makespan_ms"] == decisions.makespan_ms[0]
    assert np.array_equal(np.float32(rewards), decisions.rewards)


def test_each_environment_of_a_batch_has_its_own_draws_and_starts_anew_when_it_has_ended() -> None:
    instance = preset_instance("gpt-like")
    batch = PipelineVectorEnv(instance, UniformNoise(0.2), 3)
    _, info = batch.reset(seed=5)
    rng = np.random.default_rng(0)
    episodes = np.zeros(3, int)
    makespans: list[float] = []
    for _ in range(400):
        slots = np.array(
            [rng.choice(np.flatnonzero(mask)) if mask.any() else 0 for mask in info["action_mask"]]
        )
        observations, _, ended, truncated, info = batch.step(slots)
        assert observations in batch.observation_space
        assert not truncated.any()
        episodes += ended
        makespans += info["makespan_ms"][ended].tolist()
    assert (episodes >= 2).all()
    assert len(set(makespans)) == len(makespans)


def test_an_illegal_slot_is_replaced_by_the_first_legal() -> None:
    instance = preset_instance("gpt-like")
    environment = PipelineEnv(instance, NoVariation())
    _, info = environment.reset(seed=0)
    assert not info["action_mask"][1]  # no backward before the first forward
    after_illegal = environment.step(np.int64(1))[0]
    environment.reset(seed=0)
    after_first = environment.step(np.int64(np.flatnonzero(info["action_mask"])[0]))[0]
    assert np.array_equal(after_illegal, after_first)
