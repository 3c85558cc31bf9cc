"""The compiled environment against the simulator, closed forms and what no policy may do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.problem.spec import PipelineSpec
from conductor.rl import kernels
from conductor.rl.environment import PipelineVectorEnv
from conductor.rl.evaluation import lock_step_ends
from conductor.rl.instance import Instance
from conductor.rl.plans import ordered
from conductor.rl.play import NO_WEIGHTS, Decider, play, record
from conductor.simulator.bounds import realised_bound
from conductor.simulator.simulate import simulate, timeline
from conductor.variation import NoVariation, UniformNoise
from tests.rl.instances import instances, preset_instance


@given(instances(), st.integers(0, 2**32))
def test_replay_of_the_plan_is_static_execution_bit_for_bit(instance: Instance, seed: int) -> None:
    durations = UniformNoise(0.3).sample(instance.program, 2, np.random.default_rng(seed))
    played = play(instance, durations, Decider.REPLAY)
    for draw in range(2):
        static = timeline(instance.spec, instance.plan, durations[draw])
        assert np.array_equal(played.end_ms[draw], static.end_ms)


@given(instances(), st.sampled_from(list(Decider)), st.integers(0, 2**32))
def test_whatever_the_decider_an_episode_is_a_valid_execution(
    instance: Instance, decider: Decider, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    durations = UniformNoise(0.3).sample(instance.program, 2, rng)
    played = play(instance, durations, decider, weights=random_weights(rng), rng=rng)
    program = instance.program
    busy = program.busy_ms(durations)
    start = played.end_ms - busy
    for i in range(program.num_actions):
        for j, lag in zip(program.inputs[i], program.input_lag_ms[i], strict=True):
            if j >= 0:
                assert (start[:, i] >= played.end_ms[:, j] + lag - 1e-9).all()
    for rank in range(program.num_ranks):
        own = slice(program.rank_offsets[rank], program.rank_offsets[rank + 1])
        order = np.lexsort((played.end_ms[:, own], start[:, own].round(6)), axis=1)
        starts = np.take_along_axis(start[:, own], order, 1)
        ends = np.take_along_axis(played.end_ms[:, own], order, 1)
        assert (starts[:, 1:] >= np.maximum.accumulate(ends, 1)[:, :-1] - 1e-9).all()
    assert (played.peak_memory <= program.memory_limits + 1e-6).all()
    assert (played.makespan_ms >= played.bound_ms - 1e-6).all()


@given(instances())
def test_a_policy_that_always_waits_comes_to_the_end(instance: Instance) -> None:
    always_wait = tuple(np.zeros_like(array) for array in NO_WEIGHTS)
    always_wait[5][0, 3] = 1.0
    played = play(instance, instance.program.duration_ms, Decider.NETWORK, weights=always_wait)
    assert np.isfinite(played.end_ms).all()
    assert (played.num_decisions <= 2 * instance.program.num_actions).all()


@pytest.mark.parametrize("placement", ["sequential", "loop", "v"])
@pytest.mark.parametrize("seed", range(5))
def test_the_least_possible_memory_never_hangs(placement: str, seed: int) -> None:
    from conductor.rl.plans import greedy_plan

    spec = PipelineSpec(
        num_ranks=3, num_microbatches=6, stages_per_rank=3, placement=placement,
        forward_ms=1.0, backward_input_ms=1.0, backward_weight_ms=1.0, activation_memory=1.0,
        memory_limit=3.0,
    )  # fmt: skip
    instance = Instance.of(spec, greedy_plan(spec))
    rng = np.random.default_rng(seed)
    durations = UniformNoise(0.5).sample(instance.program, 8, rng)
    played = play(instance, durations, Decider.SAMPLE, weights=random_weights(rng), rng=rng)
    assert np.isfinite(played.end_ms).all()
    assert played.peak_memory.max() == 3.0


@given(instances(), st.integers(0, 2**32))
def test_rewards_add_up_to_bound_less_makespan(instance: Instance, seed: int) -> None:
    rng = np.random.default_rng(seed)
    durations = UniformNoise(0.3).sample(instance.program, 1, rng)
    played = play(instance, durations, Decider.GREEDY)
    decisions = record(instance, durations, Decider.GREEDY)
    if len(decisions.rewards):  # without a choice nothing is rewarded
        total = float(decisions.rewards.sum()) * instance.arrays.scale
        assert total == pytest.approx(played.bound_ms[0] - played.makespan_ms[0], abs=1e-3)


@given(instances(), st.integers(0, 2**32))
def test_the_reward_starts_from_a_true_bound(instance: Instance, seed: int) -> None:
    durations = UniformNoise(0.3).sample(instance.program, 1, np.random.default_rng(seed))
    best_known = realised_bound(instance.program, durations)
    assert (play(instance, durations, Decider.GREEDY).bound_ms <= best_known + 1e-6).all()


def test_no_observation_depends_on_an_action_that_has_not_ended() -> None:
    instance = preset_instance("gpt-like")
    durations = UniformNoise(0.2).sample(instance.program, 1, np.random.default_rng(3))[0]
    ends = play(instance, durations, Decider.REPLAY).end_ms[0]
    before = observed(instance, durations)
    for i in range(0, instance.program.num_actions, 5):
        longer = durations.copy()
        longer[i] += 5.0
        after = observed(instance, longer)
        # Up to that action's end no rank knows that it takes longer.
        known = [time < ends[i] for time, _ in before]
        assert any(known) or ends[i] == ends.min()
        for (time, seen), (other_time, other_seen), known_before in zip(
            before, after, known, strict=False
        ):
            if not known_before:
                break
            assert time == other_time
            assert np.array_equal(seen, other_seen)


def observed(instance: Instance, durations: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Times and observations of all decisions under the plan's replay."""

    class Given:
        def sample(self, program: object, draws: int, rng: np.random.Generator) -> np.ndarray:
            return np.tile(durations, (draws, 1))

    slots = record(instance, durations, Decider.REPLAY).slots
    environment = PipelineVectorEnv(instance, Given(), 1)
    observations, info = environment.reset(seed=0)
    seen = [(float(info["time_ms"][0]), observations[0])]
    for slot in slots[:-1]:
        observations, _, _, _, info = environment.step(np.array([slot]))
        seen.append((float(info["time_ms"][0]), observations[0]))
    return seen


def test_ready_first_is_the_simulators_ready_first_execution() -> None:
    instance = preset_instance("gpt-like")
    durations = UniformNoise(0.3).sample(instance.program, 50, np.random.default_rng(0))
    ours = play(instance, durations, Decider.READY_FIRST).makespan_ms
    theirs = simulate(instance.spec, instance.plan, durations, execution="ready-first").makespan_ms
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("preset", "decider", "makespan"),
    [
        ("paper", Decider.GREEDY, 321.40),
        ("paper", Decider.REPLAY, 321.40),
        ("gpt-like", Decider.GREEDY, 285.2),
        ("gpt-like", Decider.REPLAY, 259.8),
    ],
)
def test_makespans_at_expected_times(preset: str, decider: Decider, makespan: float) -> None:
    instance = preset_instance(preset)
    durations = NoVariation().sample(instance.program, 1, np.random.default_rng(0))
    assert play(instance, durations, decider).makespan_ms[0] == pytest.approx(makespan, abs=1e-9)


def test_the_papers_lock_step_heuristic_takes_341_50() -> None:
    instance = preset_instance("paper")
    ends = lock_step_ends(instance, instance.program.duration_ms)
    assert ends.max() == pytest.approx(341.50, abs=1e-9)


def test_threads_change_nothing() -> None:
    instance = preset_instance("gpt-like")
    rng = np.random.default_rng(0)
    durations = UniformNoise(0.3).sample(instance.program, 30, rng)
    weights = random_weights(rng)
    one, three = (
        play(
            instance,
            durations,
            Decider.SAMPLE,
            weights=weights,
            rng=np.random.default_rng(1),
            threads=n,
        )
        for n in (1, 3)
    )
    assert np.array_equal(one.end_ms, three.end_ms)


def test_a_played_episode_gives_a_schedule_of_the_same_makespan() -> None:
    instance = preset_instance("paper")
    durations = UniformNoise(0.3).sample(instance.program, 1, np.random.default_rng(0))
    end_ms = play(instance, instance.program.duration_ms, Decider.GREEDY).end_ms[0]
    schedule = ordered(instance, end_ms)
    assert timeline(instance.spec, schedule).makespan_ms == pytest.approx(end_ms.max(), abs=1e-9)
    assert durations.shape == (1, schedule.num_actions)


def random_weights(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A network of no sense."""
    shapes = ((kernels.NUM_FEATURES, 16), (1, 16), (16, 16), (1, 16), (16, 4), (1, 4))
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
