"""Speed of execution with migration: actions a second, and the cost of a decision."""

import time

import numpy as np
import pytest

from conductor.migration.execution import MigrationRules, latest_starts, prepare, run_draws
from conductor.migration.scenarios import SCENARIOS
from conductor.schedules.registry import build

DRAWS = 200


@pytest.fixture(scope="module", params=["zb-1p", "zb-v"])
def prepared(request):
    """8 ranks, 32 micro-batches, with the slack of lenders known."""
    spec = SCENARIOS["equal-8x32-0"].spec
    plain = prepare(spec, build(request.param, spec), rules=MigrationRules(most_parts=0))
    return plain.with_rules(MigrationRules(latest_start_ms=latest_starts(plain), delay_share=0.5))


def steps(prepared):
    return np.repeat(prepared.program.duration_ms[None], DRAWS, axis=0)


def test_execution_with_migration(benchmark, prepared):
    durations = steps(prepared)
    run_draws(prepared, durations[:1])
    benchmark(run_draws, prepared, durations)
    rate = durations.size / benchmark.stats.stats.min
    benchmark.extra_info["million_actions_per_s"] = rate / 1e6


def test_execution_without(benchmark, prepared):
    idle = prepared.with_rules(MigrationRules(most_parts=0))
    durations = steps(idle)
    run_draws(idle, durations[:1])
    benchmark(run_draws, idle, durations)


def test_a_decision_takes_less_than_20_us(prepared):
    """Time of a step with decisions over one without, an action."""
    durations = steps(prepared)
    idle = prepared.with_rules(MigrationRules(most_parts=0))
    best = []
    for able in (prepared, idle):
        run_draws(able, durations[:1])
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            run_draws(able, durations)
            taken.append(time.perf_counter() - start)
        best.append(min(taken))
    microseconds = 1e6 * (best[0] - best[1]) / durations.size
    print(f"decision {microseconds:.3f} us, {durations.size / best[0] / 1e6:.2f} M actions/s")
    assert microseconds < 20.0
