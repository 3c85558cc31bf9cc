"""The executor's own cost against torch's runtime, and ready-first against static execution.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_runtime

Ratios within one run: both sides take turns on the same ranks. Not a pytest benchmark, as it starts ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import torch

from conductor.problem.spec import PipelineSpec
from conductor.runtime import executor
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.order import PolicyOrder
from conductor.runtime.pace import Emulation
from conductor.runtime.torch_backend import torch_schedule
from conductor.schedules.registry import build
from tests.runtime.networks import batch, loss_of, network, stages_of
from tests.runtime.ranks import run_ranks

EVEN = PipelineSpec(
    num_ranks=4, num_microbatches=8,
    forward_ms=40.0, backward_input_ms=40.0, backward_weight_ms=40.0,
)  # fmt: skip


class Lognormal:
    """Each action takes lognormal times of the given sigma and mean 1 as long."""

    def __init__(self, sigma):
        self.sigma = sigma

    def sample(self, program, draws, rng):
        shape = (draws, program.num_actions)
        return program.duration_ms * rng.lognormal(-0.5 * self.sigma**2, self.sigma, shape)


def overhead(rank, plan, steps):
    """Milliseconds a step of bare stages: ours, torch's; medians of alternating steps."""
    ours = ConductorSchedule(
        stages_of(network(plan.num_stages), plan, rank), plan.num_microbatches, loss_of, plan=plan
    )
    theirs = torch_schedule(stages_of(network(plan.num_stages), plan, rank), plan, loss_fn=loss_of)
    x, target = batch(plan.num_microbatches, 0)
    args = [x] if plan.stage_ranks[0] == rank else []
    target = target if plan.stage_ranks[-1] == rank else None
    times = ([], [])
    for _ in range(steps):
        for schedule, kept in zip((ours, theirs), times, strict=True):
            ours.barrier()
            start = time.perf_counter()
            schedule.step(*args, target=target, losses=[])
            ours.barrier()
            kept.append(1000.0 * (time.perf_counter() - start))
    return [float(np.median(kept[2:])) for kept in times]


def emulated(rank, plan, spec, modes, sigma, steps):
    """Measured step times of each mode, in turns, with the same realised durations; actions ahead."""
    schedules = [
        ConductorSchedule(
            stages_of(network(plan.num_stages), plan, rank), plan.num_microbatches, loss_of,
            plan=plan, mode=mode, spec=spec,
            pace=Emulation(spec=spec, variation=Lognormal(sigma), seed=1),
        )
        for mode in modes
    ]  # fmt: skip
    x, target = batch(plan.num_microbatches, 0)
    times, ahead = [[] for _ in modes], [0 for _ in modes]
    for step in range(steps):
        for number, schedule in enumerate(schedules):
            schedule.barrier()
            schedule.step(*([x] if plan.stage_ranks[0] == rank else []), target=target, losses=[])
            makespan = schedule.timeline(spec).makespan_ms
            if step:
                times[number].append(makespan)
                ahead[number] += schedule.times.num_ahead
    return times, ahead


def show_overhead():
    for name in ("1f1b", "zb-1p", "zb-v"):
        plan = build(name, EVEN)
        ours, theirs = np.max(run_ranks(overhead, 4, plan, 30), axis=0)
        count = plan.num_actions / 4
        print(
            f"{name}: {ours / count:.3f} ms an action and rank, torch {theirs / count:.3f},"
            f" ratio {ours / theirs:.2f}"
        )


def deciding(rank, plan, spec, policy, steps):
    """Milliseconds of each action that the policy took, and an action took in all; medians of steps."""
    times = ([], [])

    class Timed(PolicyOrder):
        def _timed(self, call, *args):
            start = time.perf_counter()
            result = call(*args)
            times[0][-1] += 1000.0 * (time.perf_counter() - start)
            return result

        def arrived(self, *args):
            self._timed(super().arrived, *args)

        def choose(self, *args):
            return self._timed(super().choose, *args)

        def ended(self, *args):
            self._timed(super().ended, *args)

    executor.PolicyOrder = Timed
    schedule = ConductorSchedule(
        stages_of(network(plan.num_stages), plan, rank), plan.num_microbatches, loss_of, plan=plan,
        mode="policy", policy=policy, spec=spec,
    )  # fmt: skip
    x, target = batch(plan.num_microbatches, 0)
    for _ in range(steps):
        schedule.barrier()
        times[0].append(0.0)
        start = time.perf_counter()
        schedule.step(*([x] if plan.stage_ranks[0] == rank else []), target=target, losses=[])
        times[1].append(1000.0 * (time.perf_counter() - start))
    return [float(np.median(kept[2:])) / len(schedule.actions) for kept in times]


def show_policy():
    from conductor.rl.config import ROBUST
    from conductor.rl.dispatcher import LearnedPolicy
    from conductor.rl.ppo import train
    from conductor.rl.training import start_training
    from conductor.variation import UniformNoise

    spec = EVEN.with_(memory_limit=4.0)
    training = start_training(spec, UniformNoise(0.1), ROBUST, num_episodes=512, seed=0)
    train(training)
    policy = LearnedPolicy(weights=training.best_policy())
    results = run_ranks(deciding, 4, training.source.instance.plan, spec, policy, 30)
    policy_ms, whole_ms = np.max(results, axis=0)
    print(f"policy: {policy_ms:.4f} ms an action and rank, of {whole_ms:.3f} for bare stages")


def show_ready_first():
    spec = EVEN.with_(num_microbatches=24, memory_limit=8.0)
    plan = build("zb-2p", spec)
    for sigma in (0.0, 0.6):
        results = run_ranks(
            emulated, 4, plan, spec, ["static", "ready-first"], sigma, 11, timeout_s=300
        )
        static, ready = np.array(results[0][0])
        ahead = sum(counts[1] for _, counts in results) / len(ready)
        print(
            f"zb-2p, 24 micro-batches, limit 8, lognormal {sigma}: static mean {static.mean():.1f},"
            f" median {np.median(static):.1f} ms; ready-first {ready.mean():.1f},"
            f" {np.median(ready):.1f} ms: mean {100.0 * (static.mean() / ready.mean() - 1.0):+.2f} %,"
            f" median {100.0 * (np.median(static) / np.median(ready) - 1.0):+.2f} %;"
            f" {ahead:.0f} actions ahead a step"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["overhead", "policy", "ready-first"])
    for part in parser.parse_args(sys.argv[1:]).parts:
        {
            "overhead": show_overhead, "policy": show_policy, "ready-first": show_ready_first
        }[part]()  # fmt: skip
