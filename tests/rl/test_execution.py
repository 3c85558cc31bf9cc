"""A plan executed as a policy decides, through `simulate` and `timeline`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.rl.execution import PolicyExecution, loosest
from conductor.rl.instance import Instance
from conductor.rl.play import NO_WEIGHTS, Decider, play
from conductor.schedules.registry import build
from conductor.simulator.simulate import simulate, timeline
from conductor.variation import UniformNoise
from tests.rl.instances import instances, preset_instance
from tests.rl.test_kernels import random_weights


@given(instances(), st.integers(0, 2**32))
def test_a_simulation_is_what_the_policy_plays(instance: Instance, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = random_weights(rng)
    durations = UniformNoise(0.3).sample(instance.program, 3, rng)
    execution = PolicyExecution(instance=instance, weights=weights)
    played = play(instance, durations, Decider.NETWORK, weights=weights)
    simulated = simulate(instance.spec, execution.plan, durations, execution=execution)
    assert simulated.makespan_ms == pytest.approx(played.makespan_ms)
    assert (simulated.peak_memory <= instance.program.memory_limits + 1e-6).all()
    assert (simulated.idle_ms >= -1e-9).all()


@given(instances(), st.integers(0, 2**32))
def test_held_to_the_plan_for_good_it_is_static_execution(instance: Instance, seed: int) -> None:
    rng = np.random.default_rng(seed)
    durations = UniformNoise(0.3).sample(instance.program, 1, rng)[0]
    execution = PolicyExecution(instance=instance, weights=random_weights(rng), stay=1e30)
    decided = timeline(instance.spec, instance.plan, durations, execution=execution)
    static = timeline(instance.spec, instance.plan, durations)
    assert decided.start_ms == pytest.approx(static.start_ms)


def test_links_are_met_as_they_are() -> None:
    instance = preset_instance("paper")
    execution = PolicyExecution(instance=instance, weights=NO_WEIGHTS, rule="static")
    actual = instance.spec.with_(transfer_ms=30.0)
    late = simulate(actual, instance.plan, execution=execution).makespan_ms
    assert late == pytest.approx(simulate(actual, instance.plan).makespan_ms)


def test_only_its_own_plan_is_run() -> None:
    instance = preset_instance("gpt-like")
    execution = PolicyExecution(instance=instance, weights=NO_WEIGHTS)
    with pytest.raises(ValueError, match="its own plan"):
        simulate(instance.spec, build("1f1b", instance.spec), execution=execution)


def test_a_policy_without_sense_is_held_to_the_plan_and_one_that_keeps_to_it_is_not() -> None:
    instance = preset_instance("gpt-like")
    durations = UniformNoise(0.1).sample(instance.program, 32, np.random.default_rng(0))
    held = loosest(instance, NO_WEIGHTS, durations)
    assert held.name == "policy held by 1"
    static = simulate(instance.spec, instance.plan, durations).makespan_ms
    decided = simulate(instance.spec, instance.plan, durations, execution=held).makespan_ms
    assert decided == pytest.approx(static)
    # Choosing whatever is next in the plan, or waiting for it, is to keep to it.
    first = 3  # of a slot's features: it is the plan's next
    keeping = tuple(np.zeros_like(array) for array in random_weights(np.random.default_rng(0)))
    for kind in range(3):
        keeping[0][8 * kind + first, kind] = keeping[2][kind, kind] = keeping[4][kind, kind] = 1.0
    keeping[5][0, 3] = 0.5
    assert loosest(instance, keeping, durations).name == "policy"
