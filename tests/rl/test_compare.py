"""What each choice leads to, against playing it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.rl import kernels
from conductor.rl.environment import PipelineVectorEnv
from conductor.rl.instance import Instance
from conductor.rl.play import Decider, Weights, compare, play
from conductor.variation import UniformNoise
from tests.rl.instances import instances, preset_instance


def some_weights(rng: np.random.Generator) -> Weights:
    shapes = ((kernels.NUM_FEATURES, 16), (1, 16), (16, 16), (1, 16), (16, 4), (1, 4))
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def test_an_outcome_is_the_makespan_when_the_choice_is_made_and_the_networks_best_follows() -> None:
    instance = preset_instance("gpt-like")
    rng = np.random.default_rng(0)
    weights = some_weights(rng)
    durations = UniformNoise(0.3).sample(instance.program, 1, rng)
    seen = compare(instance, durations, weights=weights, share=1.0, rng=np.random.default_rng(1))
    assert len(seen.slots) > 30
    for index in range(0, len(seen.slots), 5):
        for slot in range(instance.num_slots):
            if seen.choices[index] >> slot & 1:
                expected = -seen.outcomes[index, slot] * instance.arrays.scale
                prefix = seen.slots[:index]
                assert played_on(instance, durations, weights, [*prefix, slot]) == pytest.approx(
                    expected, rel=1e-5
                )


def played_on(
    instance: Instance, durations: np.ndarray, weights: Weights, slots: list[int]
) -> float:
    """Makespan of given first choices and the network's best after them."""

    class Given:
        def sample(self, program: object, draws: int, rng: np.random.Generator) -> np.ndarray:
            return durations

    environment = PipelineVectorEnv(instance, Given(), 1)
    observations, info = environment.reset(seed=0)
    count = 0
    while True:
        if count < len(slots):
            slot = slots[count]
        else:
            choices = int((info["action_mask"][0] << np.arange(instance.num_slots)).sum())
            observation = observations.reshape(instance.stages_per_rank, -1)
            slot = kernels.decide(weights, observation, instance.stages_per_rank, choices)
        count += 1
        observations, _, ended, _, info = environment.step(np.array([slot]))
        if ended[0]:
            return float(info["makespan_ms"][0])


def test_parts_of_the_episodes_are_the_same_as_all() -> None:
    instance = preset_instance("gpt-like")
    rng = np.random.default_rng(0)
    weights, durations = some_weights(rng), UniformNoise(0.3).sample(instance.program, 6, rng)

    def seen(part: slice, threads: int) -> np.ndarray:
        found = compare(
            instance, durations, weights=weights, share=0.3, part=part, threads=threads,
            rng=np.random.default_rng(1),
        )  # fmt: skip
        return found.outcomes

    parts = [seen(slice(0, 2), 1), seen(slice(2, 6), 1)]
    assert np.array_equal(np.concatenate(parts), seen(slice(None), 2))


@settings(max_examples=20)
@given(instances(), st.integers(0, 2**32))
def test_a_policy_that_is_held_to_its_plan_without_end_replays_it(
    instance: Instance, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    durations = UniformNoise(0.3).sample(instance.program, 2, rng)
    held = play(instance, durations, Decider.NETWORK, weights=some_weights(rng), stay=np.inf)
    replayed = play(instance, durations, Decider.REPLAY)
    assert np.array_equal(held.end_ms, replayed.end_ms)
