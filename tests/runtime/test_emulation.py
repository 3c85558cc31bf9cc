"""Emulated ranks take the simulator's time. By hand, on an idle machine, best with `nice -n -15` and `-s`."""

import numpy as np
import pytest

from conductor.problem.spec import PipelineSpec
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.pace import Emulation
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline
from tests.runtime.networks import batch, loss_of, network, stages_of
from tests.runtime.ranks import run_ranks

pytestmark = pytest.mark.timing


def even(ranks, microbatches, action_ms=40.0):
    return PipelineSpec(
        num_ranks=ranks, num_microbatches=microbatches,
        forward_ms=action_ms, backward_input_ms=action_ms, backward_weight_ms=action_ms,
    )  # fmt: skip


def emulated(rank, plan, spec, policy=None, steps=11):
    """Measured step times, without the first."""
    schedule = ConductorSchedule(
        stages_of(network(plan.num_stages), plan, rank), plan.num_microbatches, loss_of, plan=plan,
        mode="policy" if policy else "static", policy=policy, spec=spec, pace=Emulation(spec=spec),
    )  # fmt: skip
    x, target = batch(plan.num_microbatches, 0)
    times = []
    for _ in range(steps):
        schedule.barrier()
        schedule.step(*([x] if plan.stage_ranks[0] == rank else []), target=target, losses=[])
        times.append(schedule.timeline(spec).makespan_ms)
    return times[1:]


def check(times, expected_ms, most, name):
    ratio, least = np.median(times) / expected_ms, min(times) / expected_ms
    print(f"{name}: simulated {expected_ms:.1f} ms, median {ratio:.4f} of it, least {least:.4f}")
    assert least >= 0.999
    assert ratio <= most


@pytest.mark.parametrize(("ranks", "most"), [(4, 1.03), (8, 1.05)])
@pytest.mark.parametrize("name", ["1f1b", "zb-1p", "zb-v"])
def test_a_static_step_takes_the_simulated_time(name, ranks, most):
    # 40 ms an action with two stages a rank, too.
    spec = even(ranks, 2 * ranks, 80.0 if name == "zb-v" else 40.0)
    plan = build(name, spec)
    times = run_ranks(emulated, ranks, plan, spec, timeout_s=300)[0]
    check(times, timeline(spec, plan).makespan_ms, most, f"{name}, {ranks} ranks")


def test_a_step_that_a_policy_decides_takes_the_simulated_time():
    from conductor.rl.config import ROBUST
    from conductor.rl.dispatcher import LearnedPolicy
    from conductor.rl.play import Decider, play
    from conductor.rl.ppo import train
    from conductor.rl.training import start_training
    from conductor.variation import UniformNoise

    spec = even(4, 8).with_(memory_limit=4.0)
    training = start_training(spec, UniformNoise(0.1), ROBUST, num_episodes=512, seed=0)
    train(training)
    policy, instance = LearnedPolicy(weights=training.best_policy()), training.source.instance
    played = play(
        instance, instance.program.duration_ms[None], Decider.NETWORK, weights=policy.weights
    )
    times = run_ranks(emulated, 4, instance.plan, spec, policy, timeout_s=300)[0]
    check(times, float(played.makespan_ms[0]), 1.05, "policy, 4 ranks")
