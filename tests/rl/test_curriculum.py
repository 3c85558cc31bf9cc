"""Random tasks, and learning from several of them at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from conductor.problem.placement import placement_name
from conductor.rl.config import ROBUST
from conductor.rl.curriculum import Curriculum
from conductor.rl.experience import Experience, collect
from conductor.rl.play import Decider, play, record
from conductor.rl.processes import ALONE
from conductor.rl.random_problem import random_spec, random_variation
from conductor.rl.source import Task
from conductor.rl.training import new_training

SMALL = Curriculum(
    seed=1, num_tasks=24, num_held_out=6, tasks_per_update=5, num_cloned=6, ranks=(2, 3, 5),
    search_evaluations=100,
)  # fmt: skip


def same(one: Task, other: Task) -> bool:
    return (
        one.instance.spec == other.instance.spec
        and one.instance.plan == other.instance.plan
        and one.variation == other.variation
    )


def test_equal_seeds_make_equal_tasks() -> None:
    other = replace(SMALL, search_evaluations=101)  # made anew, not from the cache
    tasks = SMALL.training_tasks(1.0, np.random.default_rng(0))
    others = other.training_tasks(1.0, np.random.default_rng(0))
    assert [task.instance.spec for task in tasks] == [task.instance.spec for task in others]
    assert [task.variation for task in tasks] == [task.variation for task in others]


def test_held_out_tasks_are_no_training_tasks_and_have_sizes_of_their_own() -> None:
    tasks = SMALL.training_tasks(1.0, np.random.default_rng(0))
    tasks = replace(SMALL, tasks_per_update=24).training_tasks(1.0, np.random.default_rng(0))
    assert len(tasks) == 24
    held_out = SMALL.held_out_tasks()
    assert not any(same(task, other) for task in tasks for other in held_out)
    assert {task.instance.spec.num_ranks for task in tasks} <= {2, 3, 5}
    assert 4 in {task.instance.spec.num_ranks for task in held_out}


def test_a_training_begins_with_the_smallest_tasks_and_draws_from_all_in_the_end() -> None:
    rng = np.random.default_rng(0)

    def largest(progress: float) -> int:
        tasks = [task for _ in range(30) for task in SMALL.training_tasks(progress, rng)]
        return max(task.instance.program.num_actions for task in tasks)

    sizes = [largest(progress) for progress in (0.0, 0.25, 0.5)]
    assert sizes == sorted(set(sizes))
    everything = replace(SMALL, tasks_per_update=24).training_tasks(1.0, rng)
    assert largest(0.5) == max(task.instance.program.num_actions for task in everything)


def test_random_pipelines_are_of_all_sorts_and_can_be_played() -> None:
    rng = np.random.default_rng(0)
    specs = [random_spec(rng, range(2, 17)) for _ in range(300)]
    assert {spec.num_ranks for spec in specs} == set(range(2, 17))
    assert {placement_name(spec.stage_ranks, spec.num_ranks) for spec in specs} == {
        "sequential", "loop", "v",
    }  # fmt: skip
    assert {spec.blocking_transfers for spec in specs} == {True, False}
    assert any(spec.memory_limit is None for spec in specs)
    assert min(spec.num_microbatches / spec.num_ranks for spec in specs) >= 1.0
    assert max(spec.num_microbatches / spec.num_ranks for spec in specs) > 3.5
    kinds = {type(random_variation(rng, spec)).__name__ for spec in specs}
    assert kinds == {
        "NoVariation", "UniformNoise", "LognormalNoise", "MicrobatchFactor", "RankFactor",
        "MarkovStragglers", "ForwardPauses", "Product",
    }  # fmt: skip


def seen_on(tasks: list[Task], episodes: int, decider: Decider = Decider.SAMPLE) -> Experience:
    training = new_training(SMALL, SAMPLED, num_episodes=0, seed=0)
    return collect(
        training, [(task, decider) for task in tasks], episodes,
        episodes_per_draw=2, processes=ALONE, threads=1,
    )  # fmt: skip


SAMPLED = replace(ROBUST, compared=0.0)


def ragged() -> list[Task]:
    """A task with one, one with two and one with three stages a rank."""
    tasks = replace(SMALL, tasks_per_update=24).training_tasks(1.0, np.random.default_rng(0))
    by_stages = {task.instance.stages_per_rank: task for task in tasks}
    return [by_stages[count] for count in (1, 2, 3)]


def test_tasks_of_different_stages_a_rank_are_decided_as_each_alone() -> None:
    tasks = ragged()
    seen = seen_on(tasks, 12)
    network = new_training(SMALL, SAMPLED, num_episodes=0, seed=0).network
    assert seen.observations.shape[1] == 3
    rng = np.random.default_rng([0, 0])
    scores, values = network.decide(seen.observations)
    for index, task in enumerate(tasks):
        durations = np.repeat(task.variation.sample(task.instance.program, 2, rng), 2, axis=0)
        alone = record(task.instance, durations, Decider.SAMPLE, weights=network.weights(), rng=rng)
        mine = torch.from_numpy(seen.tasks == index)
        wait = 3 * task.instance.stages_per_rank
        slots = torch.from_numpy(np.where(alone.slots == wait, 9, alone.slots))
        assert torch.equal(seen.slots[mine], slots)
        own_scores, own_values = network.decide(torch.from_numpy(alone.observations))
        columns = [*range(wait), 9]
        torch.testing.assert_close(scores[mine][:, columns], own_scores)
        torch.testing.assert_close(values[mine], own_values)
        allowed = [seen.choices[mine] >> column & 1 for column in columns]
        own_allowed = [torch.from_numpy(alone.choices) >> k & 1 for k in range(wait + 1)]
        assert torch.equal(torch.stack(allowed), torch.stack(own_allowed))
        assert all((seen.choices[mine] >> k & 1 == 0).all() for k in range(10) if k not in columns)


def test_batches_hold_every_decision_once() -> None:
    seen = seen_on(ragged(), 12)
    batches = list(seen.batches(50, np.random.default_rng(0)))
    decisions = torch.cat([batch for batch, _, _ in batches])
    assert torch.equal(decisions.sort().values, torch.arange(len(seen)))
    assert all(torch.equal(batch, rows) for batch, _, rows in batches)


def test_baselines_compare_the_episodes_of_a_draw() -> None:
    seen = seen_on(ragged()[:1], 4)
    sums = seen.rewards.reshape(2, 2)
    above = sums - sums.mean(axis=1, keepdims=True)
    assert np.allclose(np.unique(seen.baselines), np.unique(above.astype(np.float32)))


def test_episodes_are_spread_over_tasks_in_whole_draws() -> None:
    counts = [
        len(seen.rewards) for seen in (seen_on(ragged(), episodes) for episodes in (1, 2, 5, 12))
    ]
    assert counts == [1, 2, 5, 12]


@pytest.mark.parametrize("index", range(0, 24, 4))
def test_plans_keep_to_the_memory(index: int) -> None:
    task = replace(SMALL, tasks_per_update=24).training_tasks(1.0, np.random.default_rng(0))[index]
    durations = task.variation.sample(task.instance.program, 2, np.random.default_rng(0))
    played = play(task.instance, durations, Decider.REPLAY)
    assert np.isfinite(played.end_ms).all()
    assert (played.peak_memory <= task.instance.program.memory_limits + 1e-6).all()
    assert (durations > 0.0).all()
