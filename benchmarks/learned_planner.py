"""One slow stage of eight: how far above the proved optimum published orders, policy and search end in 50 ms.

    python -m benchmarks.learned_planner [POLICY.npz]

One stage a rank, one core; milliseconds are processor time beside that of the published orders (3 ms), with
loaded code, the least of ten.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from time import process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.migration.scenarios import equal_ranks
from conductor.rl.planner import plan_learned
from conductor.rl.shipped import policy_weights
from conductor.schedules.registry import POOL, build
from conductor.search.improve import improve
from conductor.simulator.simulate import timeline

CASES = ((3, 1.1, 8, 762.0), (3, 1.3, 8, 873.6), (3, 1.3, 16, 873.6), (0, 1.3, 16, 842.4))
"""Slow stage, factor, memory limit, proved optimum."""

SEEDS = range(10)
SEARCHED = 18_000
"""Orders that a search evaluates in some 40 ms."""


def published(spec):
    """All orders that fit, on one stage a rank."""
    plans = []
    for name in POOL:
        with suppress(DoesNotFitError):
            plans.append(build(name, spec))
    return [plan for plan in plans if plan.num_stages == spec.num_ranks]


def ways(spec, weights):
    """The planners: from a seed to a makespan."""
    plans = published(spec)

    def learned(seed, **options):
        return plan_learned(spec, weights, plans, seed=seed, **options)

    return {
        "published": lambda seed: min(timeline(spec, plan).makespan_ms for plan in plans),
        "policy alone": lambda seed: learned(seed, evaluations=0).played_ms,
        "search alone": lambda seed: improve(spec, plans, evaluations=SEARCHED, seed=seed).value,
        "`rl`": lambda seed: learned(seed).value_ms,
    }


def main():
    """Prints the table."""
    weights = policy_weights(*sys.argv[1:])
    print("| stage, factor, limit | | above the optimum | worst of ten | ms |")
    print("| --- | --- | ---: | ---: | ---: |")
    for stage, factor, limit, optimum in CASES:
        spec = equal_ranks(8, 24, float(limit), {stage: factor})
        for name, plan_ms in ways(spec, weights).items():
            plan_ms(0)
            above, times = [], []
            for seed in SEEDS:
                begin = process_time()
                above.append(100.0 * (plan_ms(seed) / optimum - 1.0))
                times.append(1000.0 * (process_time() - begin))
            print(
                f"| {stage}, {factor}, {limit} | {name} | {np.mean(above):.2f} % | {max(above):.2f} % |"
                f" {min(times):.0f} |"
            )


if __name__ == "__main__":
    main()
