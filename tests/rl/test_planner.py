"""The learned planner: never worse than what it starts from, whatever the policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import DoesNotFitError, FormatError
from conductor.ir.schedule import Schedule
from conductor.ir.validate import validate
from conductor.migration.scenarios import equal_ranks
from conductor.problem.presets import load_preset
from conductor.rl.instance import Instance
from conductor.rl.planner import plan_learned
from conductor.rl.play import NO_WEIGHTS
from conductor.rl.shipped import policy_weights
from conductor.rl.weights import StoredPolicy, save_weights
from conductor.schedules.memory import check_memory
from conductor.schedules.registry import build
from conductor.search.objective import SearchObjective, objective_value
from conductor.search.polish import polish
from conductor.simulator.program import encode
from conductor.variation import UniformNoise
from tests.rl.instances import instances
from tests.rl.test_kernels import random_weights

OBJECTIVES = st.sampled_from(["makespan", "stage-span", "mean", "p95"])


@given(instances(), OBJECTIVES, st.integers(0, 2**32))
def test_a_plan_is_never_worse_than_its_start_and_fits(
    instance: Instance, objective: SearchObjective, seed: int
) -> None:
    durations = None
    if objective in ("mean", "p95"):
        durations = lambda program: UniformNoise(0.3).sample(  # noqa: E731
            program, 8, np.random.default_rng(0)
        )
    weights = random_weights(np.random.default_rng(seed))
    found = plan_learned(
        instance.spec, weights, [instance.plan], samples=3, evaluations=50, objective=objective,
        durations=durations, seed=seed,
    )  # fmt: skip
    drawn = None if durations is None else durations(instance.program)
    before = objective_value(instance.spec, instance.plan, objective, drawn)
    assert found.value_ms <= before
    assert found.played_ms <= before
    validate(found.schedule, instance.spec)
    check_memory(instance.spec, found.schedule)
    if durations is None:
        assert found.value_ms == objective_value(instance.spec, found.schedule, objective)


UNEVEN = equal_ranks(8, 24, 8.0, {3: 1.1})


def starts() -> list[Schedule]:
    return [build(name, UNEVEN) for name in ("1f1b", "zb-1p", "greedy")]


def test_the_seed_decides_everything() -> None:
    weights = random_weights(np.random.default_rng(3))
    first, again, other = (
        plan_learned(UNEVEN, weights, starts(), seed=seed) for seed in (1, 1, 2)
    )  # fmt: skip
    assert first.schedule == again.schedule
    assert first.schedule != other.schedule


def test_samples_find_what_the_policy_s_best_choices_do_not() -> None:
    spec = load_preset("gpt-like").with_(num_microbatches=4)
    few, many = (
        plan_learned(
            spec, NO_WEIGHTS, [build("gpipe", spec)], samples=samples, evaluations=0, seed=1
        ).value_ms
        for samples in (0, 500)
    )
    assert many < few


def test_without_a_start_it_begins_from_the_order_of_ranks_that_do_what_they_can() -> None:
    found = plan_learned(UNEVEN, NO_WEIGHTS, samples=2, evaluations=100)
    assert found.start == "greedy"
    validate(found.schedule, UNEVEN)


def test_plans_that_split_sequences_or_overlap_actions_are_left_out() -> None:
    spec = load_preset("gpt-like").with_(memory_limit=None)
    plans = [build("seq1f1b", spec), build("dualpipe-v", spec)]
    assert plan_learned(spec, NO_WEIGHTS, plans, samples=0, evaluations=0).start == "greedy"


def test_memory_below_one_microbatch_is_refused() -> None:
    with pytest.raises(DoesNotFitError, match="rank 0 needs 1 for one micro-batch"):
        plan_learned(UNEVEN.with_(memory_limit=0.5), NO_WEIGHTS)


def test_no_time_is_enough_for_the_policys_best_choices() -> None:
    found = plan_learned(UNEVEN, NO_WEIGHTS, starts(), budget_ms=0.0)
    assert found.start == "greedy"
    assert found.value_ms == pytest.approx(784.0)


def test_an_order_fitted_to_the_expected_times_is_taken_only_if_it_stands_their_varying() -> None:
    # The polished order ends earlier by expected times and later on average when they vary by 10 %.
    spec = equal_ranks(8, 32, 8.0)
    start = build("zb-v-handmade", spec)
    polished = polish(spec, start, evaluations=8192)
    assert objective_value(spec, polished, "makespan") < objective_value(spec, start, "makespan")
    found = plan_learned(spec, NO_WEIGHTS, [start], samples=0, evaluations=8192)
    drawn = [
        objective_value(
            spec,
            plan,
            "mean",
            UniformNoise(0.1).sample(encode(spec, plan), 200, np.random.default_rng(9)),
        )
        for plan in (found.schedule, polished)
    ]
    assert drawn[0] < drawn[1]


def test_weights_come_from_a_file_and_must_know_todays_observations(tmp_path) -> None:
    weights = random_weights(np.random.default_rng(3))
    critic = (np.zeros((16, 1), np.float32), np.zeros((1, 1), np.float32))
    save_weights(tmp_path / "p.npz", StoredPolicy(weights=weights, critic=critic, meta={}))
    read = policy_weights(tmp_path / "p.npz")
    assert all(np.array_equal(a, b) for a, b in zip(read, weights, strict=True))
    (tmp_path / "broken.npz").write_bytes(b"no policy")
    with pytest.raises(FormatError, match="holds no policy"):
        policy_weights(tmp_path / "broken.npz")
    with pytest.raises(FormatError, match="cannot read"):
        policy_weights(tmp_path / "missing.npz")
    with pytest.raises(FormatError, match="observes 3 features"):
        policy_weights((np.zeros((3, 16), np.float32), *weights[1:]))
