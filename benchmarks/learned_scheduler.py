"""The learned scheduler against every static order and ready-first execution: the tables of docs/results.md.

    python -m benchmarks.learned_scheduler specialists [--case c1-30 ...] [--seeds 3] [--episodes N]
    python -m benchmarks.learned_scheduler ablation [--case c1-30 ...]
    python -m benchmarks.learned_scheduler clairvoyant [--case c1-30 ...] [--solved 40]
    python -m benchmarks.learned_scheduler generalist [--tasks 100] [--policy FILE.npz]
    python -m benchmarks.learned_scheduler large [--policy FILE.npz]

Every row is 1,000 fresh draws of each seed, the same for all columns; a training sees none of them, and nothing
is chosen on them. `searched` is a static order: a local search for the mean over 256 other draws, from all
published ones. A specialist of 4 ranks is trained twice from the package's policy, on that order and on the
best published one (under stragglers on that alone, for longer); one of 8 ranks from a clone of the searched
order. Which training, and how firmly the policy is held to its plan, is chosen on 512 further draws.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np

from conductor.optimal.solve import solve
from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.rl.config import ROBUST
from conductor.rl.curriculum import Curriculum
from conductor.rl.evaluation import interval95
from conductor.rl.execution import loosest
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan, robust_plan
from conductor.rl.play import Decider, play
from conductor.rl.ppo import train
from conductor.rl.shipped import policy_weights
from conductor.rl.source import OneInstance, Task
from conductor.rl.training import new_training
from conductor.rl.weights import shipped_policy
from conductor.schedules.registry import build
from conductor.search.common_draws import CommonDraws
from conductor.simulator.bounds import realised_bound
from conductor.simulator.simulate import simulate
from conductor.variation import MarkovStragglers, NoVariation, Product, UniformNoise

FOUR = load_preset("gpt-like")
EIGHT = PipelineSpec(
    name="eight", num_ranks=8, num_microbatches=16, forward_ms=10.0, backward_input_ms=10.0,
    backward_weight_ms=7.0, transfer_ms=0.4, memory_limit=8.0,
)  # fmt: skip
STRAGGLERS = Product((UniformNoise(0.1), MarkovStragglers()))
THIRTY_TWO = EIGHT.with_(num_microbatches=32)
PUBLISHED, SEARCHED = 0, 1
ON_BOTH = (PUBLISHED, True), (SEARCHED, True)
ON_PUBLISHED = ((PUBLISHED, True),)
CLONED = ((SEARCHED, False),)
"""Trainings of a case: on which order, and whether from the package's policy or from a clone."""

CASES = {
    "c1-0": (FOUR, NoVariation(), 100_000, 512, ON_BOTH),
    "c1-10": (FOUR, UniformNoise(0.1), 1_000_000, 4096, ON_BOTH),
    "c1-30": (FOUR, UniformNoise(0.3), 1_000_000, 12_800, ON_BOTH),
    "c4": (FOUR, STRAGGLERS, 1_000_000, 204_800, ON_PUBLISHED),
    "c3-16-0": (EIGHT, NoVariation(), 100_000, 512, CLONED),
    "c3-16-30": (EIGHT, UniformNoise(0.3), 2_000_000, 49_152, CLONED),
    "c3-32-0": (THIRTY_TWO, NoVariation(), 100_000, 512, CLONED),
    "c3-32-20": (THIRTY_TWO, UniformNoise(0.2), 2_000_000, 4096, CLONED),
    "c3-32-30": (THIRTY_TWO, UniformNoise(0.3), 2_000_000, 4096, CLONED),
}
"""Spec, variation, orders that the search tries, episodes of a training, trainings."""

LONG = {"entropy_coefficient": 0.02}
"""Changes of the settings for eight ranks: of many decisions each is worth less beside the luck of the draw,
and a large bonus for entropy drowns it."""

FROM_SHIPPED = "from the package's policy"
FROM_SEARCHED = "from the searched order"
ABLATIONS = {
    "as it is": {},
    FROM_SHIPPED: {},
    "without wait": {"may_wait": False},
    "without plan observation": {"sees_plan": False},
    "without cloning": {"cloning_epochs": 0},
    "without PPO": {"episodes": 0},
    "returns instead of comparisons": {"compared": 0.0, "episodes_per_draw": 4, "batch_size": 1024},
    FROM_SEARCHED: {},
}

DRAWS, CHOOSING_DRAWS = 1000, 512


@cache
def plans(case):
    """The best published order and the searched one, as instances."""
    spec, variation, evaluations, _, _ = CASES[case]
    found = best_plan(spec), robust_plan(spec, variation, evaluations)
    return tuple(Instance.of(spec, plan) for plan in found)


def trained(case, instance, seed, *, from_shipped=True, **changes):
    """The training on one of a case's plans, from the package's policy or from nothing."""
    spec, variation, _, episodes, _ = CASES[case]
    episodes = changes.pop("episodes", episodes)
    if spec.num_ranks > 4:
        changes = {**LONG, **changes}
    source = OneInstance(instance=instance, variation=variation)
    training = new_training(source, replace(ROBUST, **changes), num_episodes=episodes, seed=seed)
    if from_shipped:
        training.start_from(shipped_policy())
    train(training, threads=os.cpu_count() or 1)
    return training


def specialist(case, seed, **changes):
    """Execution of the best training, on draws for choosing, and what it is."""
    chosen_on = common(CASES[case][1], CHOOSING_DRAWS, (seed, 4))
    found = []
    for start, from_shipped in CASES[case][-1]:
        instance = plans(case)[start]
        training = trained(case, instance, seed, from_shipped=from_shipped, **changes)
        durations = chosen_on.of(instance.plan, instance.program)
        execution = loosest(instance, training.best_policy(), durations)
        mean = executed(instance, execution, chosen_on).mean()
        found.append((mean, f"{instance.plan.name}: {execution.name}", instance, execution))
    return min(found, key=lambda one: one[0])[1:]


def executed(instance, execution, draws):
    """Makespans."""
    durations = draws.of(instance.plan, instance.program)
    return simulate(instance.spec, instance.plan, durations, execution=execution).makespan_ms


def common(variation, count, seed):
    """Draws that belong to actions, whatever the order of these."""
    return CommonDraws(
        lambda program: variation.sample(program, count, np.random.default_rng(seed))
    )


def half(values):
    """Half of the 95 % interval."""
    low, high = interval95(values)
    return (high - low) / 2.0


def specialists(cases, seeds, episodes):
    print("| case | best published | ready-first | searched | policy, by seed | less searched | |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: |", flush=True)
    for case in cases:
        best, searched = plans(case)
        rows, means, how, began = [], [], [], time.time()
        for seed in range(seeds):
            changes = {} if episodes is None else {"episodes": episodes}
            name, instance, execution = specialist(case, seed, **changes)
            draws = common(CASES[case][1], DRAWS, (1000 + seed, 2))
            rows.append([
                executed(best, "static", draws),
                executed(best, "ready-first", draws),
                executed(searched, "static", draws),
                executed(instance, execution, draws),
            ])  # fmt: skip
            means.append(f"{rows[-1][-1].mean():.2f}")
            how.append(name)
        published, ready, static, policy = np.concatenate(rows, axis=1)
        less = policy - static
        print(
            f"| `{case}` | {published.mean():.2f} | {ready.mean():.2f} | {static.mean():.2f} |"
            f" {policy.mean():.2f} ({', '.join(means)}) | {less.mean():+.2f} ± {half(less):.2f} |"
            f" {100.0 * less.mean() / static.mean():+.2f} % |"
            f" <!-- {'; '.join(how)}; {time.time() - began:.0f} s -->",
            flush=True,
        )


def ablation(cases):
    for case in cases:
        print(f"\n{case}\n\n| | mean | less searched |\n| --- | ---: | ---: |", flush=True)
        draws = common(CASES[case][1], DRAWS, (1000, 2))
        best, searched = plans(case)
        static = executed(searched, "static", draws)
        for name, changes in ABLATIONS.items():
            instance = searched if name == FROM_SEARCHED else best
            training = trained(
                case,
                instance,
                0,
                from_shipped=name == FROM_SHIPPED,
                **{"episodes": 5120, **changes},
            )
            played = play(
                instance, draws.of(instance.plan, instance.program),
                Decider.NETWORK, weights=training.best_policy(), threads=2,
            ).makespan_ms  # fmt: skip
            less = played - static
            print(
                f"| {name} | {played.mean():.2f} | {less.mean():+.2f} ± {half(less):.2f} |",
                flush=True,
            )


def clairvoyant(cases, count):
    """The best order for each draw, known in advance: below it nobody can be."""
    print("| case | draws | proved | searched | optimum | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for case in cases:
        _, searched = plans(case)
        plan = searched.plan
        durations = common(CASES[case][1], DRAWS, (1000, 2)).of(plan, searched.program)[:count]
        static = simulate(searched.spec, plan, durations).makespan_ms
        results = []
        for drawn in durations:
            times = np.zeros((3, searched.spec.num_stages, searched.spec.num_microbatches))
            times[plan.kinds, plan.stages, plan.microbatches] = drawn
            results.append(
                solve(
                    searched.spec, durations_ms=times, warm_start=plan, time_limit_s=20, workers=2
                )
            )
        best = np.array([result.value_ms for result in results])
        proved = sum(result.status == "optimal" for result in results)
        less = best - static
        print(
            f"| `{case}` | {len(best)} | {proved} | {static.mean():.2f} | {best.mean():.2f} |"
            f" {less.mean():+.2f} ± {half(less):.2f} |",
            flush=True,
        )


def generalist(count, policy):
    """Random pipelines that no training has seen; every column executes the best published order."""
    weights = policy_weights(policy)
    over = {name: [] for name in ("best published", "ready-first", "policy alone", "policy")}
    for index, task in enumerate(Curriculum(seed=0).evaluation_tasks(count)):
        spec = task.instance.spec
        task = Task(instance=Instance.of(spec, best_plan(spec)), variation=task.variation)
        program = task.instance.program
        durations = task.variation.sample(program, 200, np.random.default_rng((7, index)))
        chosen_on = task.variation.sample(program, 100, np.random.default_rng((8, index)))
        execution = loosest(task.instance, weights, chosen_on)
        bound = realised_bound(program, durations).mean()
        for name, how in (
            ("best published", "static"), ("ready-first", "ready-first"), ("policy", execution),
        ):  # fmt: skip
            played = simulate(spec, task.instance.plan, durations, execution=how)
            over[name].append(played.makespan_ms.mean() / bound)
        alone = play(task.instance, durations, Decider.NETWORK, weights=weights, threads=2)
        over["policy alone"].append(alone.makespan_ms.mean() / bound)
    best = np.minimum(over["best published"], over["ready-first"])
    over["the better of both"] = best
    print(
        f"{count} unseen pipelines\n\n| | over bound | less the policy's |\n| --- | ---: | ---: |"
    )
    for name, values in over.items():
        less = 100.0 * (np.array(values) - np.array(over["policy"]))
        print(
            f"| {name} | {100.0 * (np.mean(values) - 1.0):.2f} % |"
            f" {less.mean():+.2f} ± {half(less):.2f} |"
        )


def large(policy):
    """Sizes that no training has seen, at expected times and under noise."""
    weights = policy_weights(policy)
    print("| size | noise | `zb-1p` | ready-first | policy alone | policy | one schedule, ms |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for ranks, microbatches in ((4, 8), (16, 64), (64, 256)):
        spec = EIGHT.with_(
            num_ranks=ranks, num_microbatches=microbatches, memory_limit=float(ranks)
        )
        plan = build("zb-1p", spec)
        for noise in (0.0, 0.1):
            source = OneInstance(instance=Instance.of(spec, plan), variation=UniformNoise(noise))
            count = max(1, 4096 // (ranks * ranks)) if noise else 1
            draws = common(UniformNoise(noise), count, 5)
            durations = draws.of(plan, source.instance.program)
            began = time.perf_counter()
            alone = play(source.instance, durations, Decider.NETWORK, weights=weights)
            took = 1000.0 * (time.perf_counter() - began) / count
            chosen_on = source.variation.sample(
                source.instance.program, min(count, 64), np.random.default_rng(6)
            )
            execution = loosest(source.instance, weights, chosen_on)
            rows = [
                simulate(spec, source.instance.plan, durations, execution=how).makespan_ms.mean()
                for how in ("static", "ready-first", execution)
            ]
            print(
                f"| {ranks} x {microbatches} | {noise:g} | {rows[0]:.1f} | {rows[1]:.1f} |"
                f" {alone.makespan_ms.mean():.1f} | {rows[2]:.1f} ({execution.name}) | {took:.2f} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "table", choices=("specialists", "ablation", "clairvoyant", "generalist", "large")
    )
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--solved", type=int, default=40, help="draws of `clairvoyant`")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--policy", type=Path)
    chosen = parser.parse_args()
    if chosen.table == "specialists":
        specialists(chosen.case or CASES, chosen.seeds, chosen.episodes)
    elif chosen.table == "ablation":
        ablation(chosen.case or ("c1-30", "c4"))
    elif chosen.table == "clairvoyant":
        clairvoyant(chosen.case or ("c1-10", "c1-30", "c4"), chosen.solved)
    elif chosen.table == "generalist":
        generalist(chosen.tasks, chosen.policy)
    else:
        large(chosen.policy)


if __name__ == "__main__":
    main()
