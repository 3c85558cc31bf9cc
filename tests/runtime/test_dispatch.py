"""The executor's rule, run for all ranks in virtual time: nothing hangs, memory holds, orders hold."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.problem.kind import Kind
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.rl.dispatcher import LearnedPolicy
from conductor.runtime.dispatch import Dispatcher, rank_plan
from conductor.runtime.order import PlannedOrder, PolicyOrder
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline
from tests.rl.test_kernels import random_weights
from tests.runtime.plans import split_gpipe


def virtual_step(
    schedule, durations, *, spec=None, ahead=False, patience=0.0, lag=0.0, policy=None
):
    """Every rank's order in virtual time; returns ends (program order) and peak memory."""
    plans = [rank_plan(schedule, rank, spec) for rank in range(schedule.num_ranks)]
    states = [Dispatcher(plan) for plan in plans]
    orders = [
        PolicyOrder(policy.for_rank(spec, schedule, rank), 0)
        if policy
        else PlannedOrder(state, [int(1e6 * patience)] * state.num_left if ahead else None)
        for rank, state in enumerate(states)
    ]
    ends = np.full(schedule.num_actions, np.nan)
    memory, peaks = [0.0] * len(plans), [0.0] * len(plans)
    busy = [False] * len(plans)
    events = [(0.0, rank, ("look",)) for rank in range(len(plans))]
    while events:
        now, rank, event = heapq.heappop(events)
        state, plan, order = states[rank], plans[rank], orders[rank]
        if event[0] == "arrive":
            state.arrive(event[1])
            order.arrived(event[1], int(1e6 * now), event[2])
        elif event[0] == "end":
            i = event[1]
            state.finish(i)
            took = durations[int(schedule.rank_offsets[rank]) + i]
            order.ended(int(1e6 * took))
            memory[rank] -= plan.freed[i]
            busy[rank] = False
            stage, kind, microbatch, _ = plan.actions[i]
            target = {Kind.F: stage + 1, Kind.W: -1}.get(kind, stage - 1)
            if 0 <= target < schedule.num_stages and schedule.stage_ranks[target] != rank:
                message = ("arrive", (kind is not Kind.F, target, microbatch), took)
                heapq.heappush(events, (now + lag, schedule.stage_ranks[target], message))
        if busy[rank] or not state.num_left:
            continue
        i = order.choose(int(1e6 * now))
        if i is None:
            if order.until_ns is not None:
                # A nanosecond is lost in the float.
                heapq.heappush(events, ((order.until_ns + 1) / 1e6, rank, ("look",)))
            continue
        assert state.is_ready(i)
        state.start(i)
        memory[rank] += plan.allocated[i]
        peaks[rank] = max(peaks[rank], memory[rank])
        assert memory[rank] <= plan.limit
        index = int(schedule.rank_offsets[rank]) + i
        busy[rank] = True
        ends[index] = now + durations[index]
        heapq.heappush(events, (ends[index], rank, ("end", i)))
    assert all(state.num_left == 0 for state in states), "the step hangs"
    return ends, peaks


def spec_of(ranks, microbatches, **changes):
    return PipelineSpec(
        num_ranks=ranks, num_microbatches=microbatches,
        forward_ms=10.0, backward_input_ms=9.0, backward_weight_ms=7.0,
    ).with_(**changes)  # fmt: skip


@pytest.mark.parametrize("name", ["1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "interleaved-1f1b"])
def test_static_dispatch_takes_the_simulators_time(name):
    spec = spec_of(4, 8)
    schedule = build(name, spec)
    times = timeline(spec, schedule)
    ends, _ = virtual_step(schedule, times.program.duration_ms)
    np.testing.assert_allclose(ends, times.end_ms, rtol=1e-12)


@settings(max_examples=60)
@given(
    name=st.sampled_from(["1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "interleaved-1f1b"]),
    ranks=st.integers(2, 6),
    factor=st.integers(1, 4),
    patience=st.sampled_from([0.0, 2.0, 15.0]),
    spare=st.sampled_from([None, 0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_ready_first_dispatch_never_hangs_nor_exceeds_memory(
    name, ranks, factor, patience, spare, seed
):
    spec = spec_of(ranks, ranks * factor)
    schedule = build(name, spec)
    if spare is not None:
        peak = timeline(spec, schedule).peak_memory.max()
        spec = spec.with_(memory_limit=float(peak) + spare)
    rng = np.random.default_rng(seed)
    durations = timeline(spec, schedule).program.duration_ms * rng.lognormal(
        0.0, 1.0, schedule.num_actions
    )
    ends, peaks = virtual_step(
        schedule, durations, spec=spec, ahead=True, patience=patience, lag=float(rng.uniform(0, 5))
    )
    for kind in Kind:
        for stage in range(schedule.num_stages):
            stream = (schedule.kinds == kind) & (schedule.stages == stage)
            assert (np.diff(ends[stream]) > 0).all()
    if spec.memory_limit is not None:
        assert max(peaks) <= spec.memory_limit * (1 + 1e-6)


def random_case(rng, case):
    """A schedule, a spec with its peak of memory or a little more as limit, and wild durations."""
    ranks, spare = int(rng.integers(2, 7)), float(rng.integers(0, 3))
    if case % 2:
        placement = (*rng.permutation(ranks).tolist(), *rng.integers(0, ranks, 3).tolist())
        schedule = split_gpipe(placement, int(rng.integers(1, 8)))
        spec = spec_of(ranks, schedule.num_microbatches, placement=placement)
    else:
        spec = spec_of(ranks, ranks * int(rng.integers(1, 5)))
        names = ("1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "interleaved-1f1b")
        schedule = build(names[case // 2 % len(names)], spec)
    times = timeline(spec, schedule)
    spec = spec.with_(memory_limit=float(times.peak_memory.max()) + spare)
    return schedule, spec, times.program.duration_ms, rng.lognormal(0, 1.5, schedule.num_actions)


def test_five_hundred_random_cases_end_within_memory():
    rng = np.random.default_rng(0)
    for case in range(500):
        schedule, spec, expected, factors = random_case(rng, case)
        virtual_step(
            schedule, expected * factors, spec=spec, ahead=case % 5 != 4,
            patience=float(rng.choice([0.0, 2.0, 50.0])), lag=float(rng.uniform(0.0, 20.0)),
        )  # fmt: skip


@pytest.mark.slow
def test_a_policy_that_decides_wildly_ends_five_hundred_random_cases_within_memory():
    rng = np.random.default_rng(1)
    for case in range(500):
        policy = LearnedPolicy(weights=random_weights(rng))
        schedule, spec, _, _ = random_case(rng, case)
        parted = policy.runs(schedule)
        expected = timeline(spec, parted).program.duration_ms
        factors = rng.lognormal(0.0, 1.5, parted.num_actions)
        lag = float(rng.uniform(0.0, 20.0))
        virtual_step(parted, expected * factors, spec=spec, lag=lag, policy=policy)


def test_uneven_placements_run():
    schedule = split_gpipe((0, 0, 1, 2, 2), 6)
    spec = spec_of(3, 6, placement=schedule.stage_ranks)
    durations = timeline(spec, schedule).program.duration_ms
    ends, _ = virtual_step(schedule, durations, spec=spec, ahead=True)
    assert np.isfinite(ends).all()


def test_messages_are_those_between_ranks_only():
    spec = spec_of(3, 2)
    plan = rank_plan(build("zb-v", spec), 2, spec)  # stages 2 and 3, both beside the turn
    assert stage_ranks("v", 3, 2)[2:4] == (2, 2)
    assert sorted(plan.senders[1]) == sorted(plan.arrivals)
    assert set(plan.arrivals) == {(False, 2, 0), (False, 2, 1), (True, 3, 0), (True, 3, 1)}


def test_forward_only_keeps_the_forwards():
    schedule = build("1f1b", spec_of(2, 4))
    plan = rank_plan(schedule, 1, forward_only=True)
    assert [str(action) for action in plan.actions] == ["1F0", "1F1", "1F2", "1F3"]
    assert plan.senders == {0: tuple((False, 1, microbatch) for microbatch in range(4))}
