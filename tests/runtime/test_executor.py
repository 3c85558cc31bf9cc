"""Real ranks: loss and every gradient are bitwise those of the model without a pipeline."""

import numpy as np
import pytest
import torch

from conductor.errors import InvalidScheduleError, RankError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.pace import Emulation
from conductor.schedules.registry import build
from tests.runtime.networks import (
    batch,
    differences,
    loss_of,
    network,
    reference,
    stages_of,
)
from tests.runtime.plans import split_gpipe
from tests.runtime.ranks import run_ranks


def spec_of(ranks, microbatches, **changes):
    return PipelineSpec(
        num_ranks=ranks, num_microbatches=microbatches,
        forward_ms=1.0, backward_input_ms=1.0, backward_weight_ms=1.0,
    ).with_(**changes)  # fmt: skip


class Jitter:
    """Random times between 0 and 3 ms, seen by the dispatcher as lateness."""

    def targets_ms(self, schedule, step):
        return np.random.default_rng([7, step]).uniform(0.0, 3.0, schedule.num_actions)

    def lag_ms(self, schedule):
        return {}


def check_step(schedule, stages, net, x, target, rank):
    """One step; what differs from the reference on this rank."""
    plan = schedule.plan
    expected = reference(net, x, target, plan.num_microbatches)
    for stage in stages:
        stage.submod.zero_grad()
    first, last = plan.stage_ranks[0] == rank, plan.stage_ranks[-1] == rank
    losses = []
    schedule.step(*([x] if first else []), target=target if last else None, losses=losses)
    wrong = differences(net, stages)
    if last and not all(torch.equal(a, b) for a, b in zip(expected, losses, strict=True)):
        wrong.append("losses")
    return wrong


def policy_of(mode, seed=0):
    """A policy that knows nothing, and so decides wildly."""
    if mode != "policy":
        return None
    from conductor.rl.dispatcher import LearnedPolicy
    from tests.rl.test_kernels import random_weights

    return LearnedPolicy(weights=random_weights(np.random.default_rng(seed)))


def train(rank, plans, mode, dtype, checkpointed):
    """Each plan for one step of the same stages, all from one schedule object."""
    net = network(plans[0].num_stages, dtype, checkpointed)
    stages = stages_of(net, plans[0], rank, dtype)
    schedule = ConductorSchedule(
        stages, plans[0].num_microbatches, loss_of, plan=plans[0], mode=mode, timeout_s=60,
        pace=None if mode == "static" else Jitter(),
        policy=policy_of(mode), spec=spec_for(plans[0]) if mode == "policy" else None,
    )  # fmt: skip
    wrong = {}
    for number, plan in enumerate(plans):
        schedule.set_plan(plan, spec=spec_for(plan) if mode == "policy" else None)
        x, target = batch(plan.num_microbatches, number, dtype)
        wrong[f"{number} {plan.name}"] = check_step(schedule, stages, net, x, target, rank)
    forwards = [stage.submod.forwards for stage in stages]
    return {name: names for name, names in wrong.items() if names}, forwards


def spec_for(plan):
    return spec_of(plan.num_ranks, plan.num_microbatches)


def assert_exact(plans, mode="static", dtype=torch.float32, checkpointed=False):
    results = run_ranks(train, plans[0].num_ranks, plans, mode, dtype, checkpointed)
    assert not any(isinstance(result, Exception) for result in results), results
    assert [wrong for wrong, _ in results] == [{}] * plans[0].num_ranks
    return [forwards for _, forwards in results]


def one_stage_plans(ranks, microbatches):
    return [build(name, spec_of(ranks, microbatches)) for name in ("1f1b", "zb-1p", "zb-2p")]


@pytest.mark.parametrize("mode", ["static", "ready-first", "policy"])
def test_one_stage_a_rank_with_the_plan_swapped_and_the_count_changed(mode):
    assert_exact([*one_stage_plans(2, 6), *one_stage_plans(2, 4)], mode)


@pytest.mark.parametrize("mode", ["static", "ready-first", "policy"])
def test_two_stages_a_rank_in_a_v_on_four_ranks(mode):
    plans = [build(name, spec_of(4, 8)) for name in ("zb-v", "v-half", "zb-v")]
    assert_exact(plans, mode)


def test_a_loop_of_stages():
    assert_exact([build("interleaved-1f1b", spec_of(2, 4))], "ready-first")


def test_uneven_placements():
    assert_exact([split_gpipe((0, 0, 1, 2, 1), 3)], "ready-first")


def test_checkpointing_in_bf16_runs_two_forwards_a_layer():
    plans = one_stage_plans(2, 4)
    forwards = assert_exact(plans, dtype=torch.bfloat16, checkpointed=True)
    assert forwards == [[2 * 4 * len(plans)]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["static", "ready-first", "policy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_six_ranks(mode, dtype):
    assert_exact(one_stage_plans(6, 12), mode, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "interleaved-1f1b"])
def test_every_schedule_in_fp32_and_bf16_checkpointed(ranks, name):
    plans = [build(name, spec_of(ranks, 2 * ranks))]
    for dtype in (torch.float32, torch.bfloat16):
        for mode in ("ready-first", "policy"):
            assert_exact(plans, mode, dtype, checkpointed=True)


def random_cases(rank, cases):
    """Each case anew; what differs from the reference."""
    wrong = []
    for plan, mode, spec in cases:
        net = network(plan.num_stages)
        stages = stages_of(net, plan, rank)
        schedule = ConductorSchedule(
            stages, plan.num_microbatches, loss_of,
            plan=plan, mode=mode, spec=spec, pace=Jitter(), timeout_s=60, policy=policy_of(mode),
        )  # fmt: skip
        for seed in range(2):
            x, target = batch(plan.num_microbatches, seed)
            wrong += check_step(schedule, stages, net, x, target, rank)
    return wrong


@pytest.mark.slow
def test_random_placements_limits_and_modes_end_with_exact_gradients():
    rng = np.random.default_rng(0)
    cases = []
    for case in range(30):
        placement = (*rng.permutation(3).tolist(), *rng.integers(0, 3, case % 4).tolist())
        plan = split_gpipe(placement, int(rng.integers(2, 5)))
        peak = max(sum(rank == r for rank in placement) for r in range(3)) * plan.num_microbatches
        spec = spec_of(
            3, plan.num_microbatches, placement=placement, memory_limit=float(peak + case % 2)
        )
        cases.append((plan, ("ready-first", "policy", "static")[case % 3], spec))
    for name in ("zb-v", "v-half", "interleaved-1f1b"):
        spec = spec_of(3, 6)
        cases.append((build(name, spec), "ready-first", None))
        cases.append((build(name, spec), "policy", spec))
    assert run_ranks(random_cases, 3, cases) == [[], [], []]


def test_a_send_never_waits_for_the_turn_of_the_receiver():
    # Rank 0 sends all of stage 0 to rank 1 before it runs stage 3, on which rank 1's second forward
    # depends by way of rank 2.
    count = 16
    plan = split_gpipe((0, 1, 3, 0, 2, 1), count)
    rows = [list(row) for row in plan.rows]
    forwards = rows[0][: 2 * count]
    rows[0][: 2 * count] = sorted(forwards, key=lambda action: (action.stage, action.microbatch))
    plan = Schedule.from_actions(
        rows, name="far ahead", stage_ranks=plan.stage_ranks, num_microbatches=count
    )
    assert_exact([plan])


def refuse(rank, plan, other):
    schedule = ConductorSchedule(
        stages_of(network(plan.num_stages), plan, rank), plan.num_microbatches, plan=plan,
        mode="ready-first", timeout_s=60,
    )  # fmt: skip
    try:
        schedule.set_plan(other)
    except InvalidScheduleError as error:
        schedule.close()
        try:
            schedule.eval()
        except RankError as closed:
            return str(error), str(closed)
    return None


def test_a_plan_that_places_the_stages_otherwise_is_refused_everywhere():
    plan, other = build("zb-1p", spec_of(2, 4)), split_gpipe((1, 0), 4)
    for error, closed in run_ranks(refuse, 2, plan, other):
        assert error == (
            "split-gpipe puts stages [1] on rank 0 of 2, but it holds stages [0] of 2 ranks"
        )
        assert "was closed" in closed


def accumulate(rank, plan):
    net = network(plan.num_stages)
    stages = stages_of(net, plan, rank)
    schedule = ConductorSchedule(
        stages, plan.num_microbatches, loss_of, plan=plan, accumulation_steps=2, timeout_s=60
    )
    x, target = batch(2 * plan.num_microbatches, 0)
    reference(net, x, target, 2 * plan.num_microbatches)
    for part, wanted in zip(x.chunk(2), target.chunk(2), strict=True):
        schedule.step(*([part] if rank == 0 else []), target=wanted)
    wrong = differences(net, stages)
    before = [p.grad.clone() for stage in stages for p in stage.submod.parameters()]
    losses = []
    output = schedule.eval(*([part] if rank == 0 else []), target=wanted, losses=losses)
    after = [p.grad for stage in stages for p in stage.submod.parameters()]
    kept = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with torch.no_grad():
        expected = part
        for module in net:
            expected = module(expected)
    if rank == plan.num_ranks - 1:
        same = torch.equal(expected, output) and len(losses) == plan.num_microbatches
        return wrong, kept, same
    return wrong, kept, output is None


def test_accumulated_steps_scale_once_and_eval_leaves_gradients_alone():
    assert run_ranks(accumulate, 2, build("zb-1p", spec_of(2, 4))) == [([], True, True)] * 2


def measure(rank, plan, spec):
    net = network(plan.num_stages)
    schedule = ConductorSchedule(
        stages_of(net, plan, rank), plan.num_microbatches, loss_of, plan=plan, timeout_s=60,
        pace=Emulation(spec=spec),
    )  # fmt: skip
    x, target = batch(plan.num_microbatches, 0)
    schedule.step(*([x] if rank == 0 else []), target=target)
    times = schedule.timeline(spec)
    return times.start_ms, times.end_ms


def test_the_measured_timeline_keeps_the_emulated_times_and_every_dependency():
    spec = spec_of(2, 4, forward_ms=5.0, transfer_ms=2.0)
    plan = build("zb-1p", spec)
    (start, end), other = run_ranks(measure, 2, plan, spec)
    assert np.array_equal(start, other[0])
    from conductor.simulator.program import encode

    program = encode(spec, plan)
    assert (end - start >= program.duration_ms - 0.01).all()
    for slot in range(program.inputs.shape[1]):
        waits = np.flatnonzero(program.inputs[:, slot] >= 0)
        source = program.inputs[waits, slot]
        assert (start[waits] >= end[source] + program.input_lag_ms[waits, slot] - 0.01).all()
