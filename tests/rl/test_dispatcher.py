"""Ranks that decide each for itself against the policy inside the simulator."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import InvalidScheduleError
from conductor.ir.schedule import FloatArray
from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.rl.dispatcher import LearnedPolicy, LocalDispatcher
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan
from conductor.rl.play import NO_WEIGHTS, Decider, Weights, play
from conductor.runtime.policy import Policy
from conductor.schedules.registry import build
from conductor.variation import MarkovStragglers, NoVariation, UniformNoise, Variation
from tests.rl.instances import instances, preset_instance
from tests.rl.test_kernels import random_weights


def run_ranks(
    instance: Instance, weights: Weights, busy: FloatArray, stay: float = 0.0
) -> FloatArray:
    """Ends of all actions when each rank has its own dispatcher and hears only what comes to it."""
    return Ranks(instance, weights, busy, stay).run()


class Ranks:
    """Ranks, links between them and a clock. A rank is asked whenever something has happened and it is free,
    the first rank first; where nothing goes on any more, the first that can is told that it has timed out."""

    def __init__(self, instance: Instance, weights: Weights, busy: FloatArray, stay: float) -> None:
        self.program, self.plan, self.busy = instance.program, instance.plan, busy
        self.ranks = [
            LocalDispatcher(instance, rank, weights, stay)
            for rank in range(instance.spec.num_ranks)
        ]
        self.free = [True] * len(self.ranks)
        self.ends = np.full(len(busy), np.inf)
        self.events: list[tuple[float, int, int, int]] = []  # time, action, its rank, receiver
        self.times: set[float] = set()

    def run(self) -> FloatArray:
        now = last_choice = 0.0
        while True:
            while self.events and self.events[0][0] <= now:
                self.happen(*heappop(self.events))
            before = [rank.num_decisions for rank in self.ranks]
            started = any(self.ask(rank, now) for rank in range(len(self.ranks)))
            if started or before != [rank.num_decisions for rank in self.ranks]:
                last_choice = now
            if started:
                continue
            if not self.events:
                if np.isfinite(self.ends).all():
                    return self.ends
                now = last_choice = max(
                    last_choice, self.ends[np.isfinite(self.ends)].max(initial=0.0)
                )
                assert any(self.ask(rank, now, timed_out=True) for rank in range(len(self.ranks)))
                for time in self.times:  # what came after that time has come again
                    heappush(self.events, (time, -1, -1, -1))
                continue
            now = self.events[0][0]

    def ask(self, rank: int, now: float, *, timed_out: bool = False) -> bool:
        """Whether the rank starts something."""
        if not self.free[rank]:
            return False
        position = self.ranks[rank].decide(now, timed_out=timed_out)
        if position is None:
            return False
        i = int(self.program.rank_offsets[rank]) + position
        self.free[rank] = False
        self.ends[i] = now + self.busy[i]
        self.post(self.ends[i], i, rank, rank)
        for j in self.program.outputs[i][self.program.outputs[i] >= 0]:
            receiver = int(self.program.ranks[j])
            if receiver != rank:
                slot = self.program.inputs[j].tolist().index(i)
                self.post(self.ends[i] + self.program.input_lag_ms[j, slot], i, rank, receiver)
        return True

    def post(self, time: float, action: int, rank: int, receiver: int) -> None:
        heappush(self.events, (time, action, rank, receiver))
        self.times.add(time)

    def happen(self, time: float, action: int, rank: int, receiver: int) -> None:
        if action < 0:
            return
        if receiver == rank:
            self.free[rank] = True
            self.ranks[rank].ended(self.busy[action])
            return
        is_gradient = bool(self.plan.kinds[action] == 1)
        stage = int(self.plan.stages[action]) + (-1 if is_gradient else 1)
        message = is_gradient, stage, int(self.plan.microbatches[action])
        self.ranks[receiver].arrived(message, time, self.busy[action])


@given(instances(), st.integers(0, 2**32), st.sampled_from([0.0, 3.0, 1e30]))
def test_ranks_that_hear_only_messages_decide_as_the_policy_in_the_simulator(
    instance: Instance, seed: int, stay: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = random_weights(rng)
    durations = UniformNoise(0.3).sample(instance.program, 2, rng)
    played = play(instance, durations, Decider.NETWORK, weights=weights, stay=stay)
    for draw, busy in enumerate(instance.program.busy_ms(durations)):
        assert np.array_equal(run_ranks(instance, weights, busy, stay), played.end_ms[draw])


SPECS = {
    "tight memory": load_preset("gpt-like"),
    "two stages a rank, V": load_preset("gpt-like").with_(placement="v", stages_per_rank=2),
    "two stages a rank, loop": load_preset("gpt-like").with_(
        placement="loop", stages_per_rank=2, memory_limit=None
    ),
    "uneven": PipelineSpec(
        num_ranks=4, num_microbatches=12, forward_ms=(10.0, 14.0, 9.0, 20.0), backward_input_ms=11.0,
        backward_weight_ms=(5.0, 9.0, 3.0, 8.0), transfer_ms=(0.5, 3.0, 40.0), memory_limit=6.0,
    ),
    "least memory": load_preset("paper").with_(memory_limit=1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    "variation",
    [NoVariation(), UniformNoise(0.3), MarkovStragglers()],
    ids=["none", "noise", "markov"],
)
def test_the_same_on_pipelines_of_every_shape(name: str, variation: Variation) -> None:
    rng = np.random.default_rng(5)
    instance = Instance.of(SPECS[name], best_plan(SPECS[name]))
    weights = random_weights(rng)
    durations = variation.sample(instance.program, 3, rng)
    played = play(instance, durations, Decider.NETWORK, weights=weights)
    for draw, busy in enumerate(instance.program.busy_ms(durations)):
        assert np.array_equal(run_ranks(instance, weights, busy), played.end_ms[draw])


def test_a_step_begins_anew_whatever_was_before() -> None:
    instance = preset_instance("paper")
    rank = LocalDispatcher(instance, 0, NO_WEIGHTS)
    first = []
    for _ in range(2):
        rank.begin()
        assert rank.decide(0.0) == 0
        rank.ended(9.0)
        first.append([rank.decide(9.0), rank.num_decisions])
    assert first[0] == first[1]


def test_a_rank_that_has_nothing_waits_even_when_it_has_timed_out() -> None:
    rank = LocalDispatcher(preset_instance("paper"), 3, NO_WEIGHTS)
    assert rank.decide(0.0) is None
    assert rank.decide(1000.0, timed_out=True) is None
    rank.arrived((False, 3, 0), 1000.0, 10.0)
    assert rank.decide(1000.0, timed_out=True) == 0


def test_plans_with_full_backwards_are_parted_first() -> None:
    spec = load_preset("gpt-like")
    plan = build("1f1b", spec)
    policy: Policy = LearnedPolicy(weights=NO_WEIGHTS)
    with pytest.raises(InvalidScheduleError, match="part it"):
        policy.for_rank(spec, plan, 0)
    assert policy.for_rank(spec, policy.runs(plan), 0).decide(0.0) == 0
