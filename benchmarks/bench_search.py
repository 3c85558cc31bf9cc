"""Orders that the search evaluates per second, on one core, and what they are worth.

Run: `python -m pytest benchmarks/bench_search.py -p benchmark --override-ini addopts=`.
`evaluations_per_s` counts by the fastest round; `full_simulations` is how many times faster than a
compiled simulation of the whole order each evaluation is, in the same run.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.search.improve import improve
from conductor.search.walk import Walk
from conductor.simulator.program import encode
from conductor.simulator.simulate import execute
from conductor.variation.uniform import UniformNoise

EVALUATIONS = 20_000


def _spec(num_ranks: int, num_microbatches: int) -> PipelineSpec:
    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        transfer_ms=0.4,
        memory_limit=float(num_ranks),
    )


@pytest.mark.parametrize("draws", [1, 64])
@pytest.mark.parametrize(
    ("name", "num_ranks", "num_microbatches"),
    [("1f1b-split", 8, 32), ("zb-1p", 8, 32), ("zb-v", 8, 32), ("zb-v", 32, 128)],
)
def test_evaluated_orders(
    benchmark: BenchmarkFixture, name: str, num_ranks: int, num_microbatches: int, draws: int
) -> None:
    from conductor.search.split_backward import split_backward

    spec = _spec(num_ranks, num_microbatches)
    schedule = split_backward(build(name.removesuffix("-split"), spec))
    program = encode(spec, schedule)
    durations = UniformNoise(0.3 if draws > 1 else 0.0).sample(
        program, draws, np.random.default_rng(0)
    )
    busy = program.busy_ms(durations)
    walk = Walk(schedule, program, busy)
    count = EVALUATIONS if draws == 1 else EVALUATIONS // 20

    def begin() -> None:
        walk.begin_round(count, 0.4, 0.02, from_best=True)

    done = benchmark.pedantic(walk.advance, (count,), setup=begin, rounds=10, warmup_rounds=1)
    assert done == count
    execute(program, busy, "static")
    whole = []
    for _ in range(10):
        start = time.perf_counter()
        execute(program, busy, "static")
        whole.append(time.perf_counter() - start)
    per_order = benchmark.stats.stats.min / count
    benchmark.extra_info["evaluations_per_s"] = round(1.0 / per_order)
    benchmark.extra_info["full_simulations"] = round(min(whole) / per_order, 1)


@pytest.mark.parametrize(
    ("name", "limit", "target"),
    [("zb-v", 8, 475.4), ("zb-v", 16, 469.8), ("v-half", 5, 547.3), ("v-min", 4, 615.7)],
)
def test_time_to_the_best_known(
    benchmark: BenchmarkFixture, name: str, limit: int, target: float
) -> None:
    spec = _spec(8, 16).with_(memory_limit=float(limit))
    start = build(name, spec)
    result = benchmark.pedantic(
        lambda: improve(spec, [start], budget_ms=120_000, bound_ms=target), rounds=1
    )
    benchmark.extra_info["value_ms"] = round(result.value, 2)
    benchmark.extra_info["evaluations"] = result.evaluations
    assert result.stopped_by == "bound"
