"""Time to plan each schedule at 32 ranks x 128 micro-batches, and the heuristics at 64 x 512.

Run: `python -m pytest benchmarks/bench_schedules.py -p benchmark`.
The published Python takes 190 ms for ZB-1p, 370 ms for ZB-V, 15.5 s for V-Half and 10.3 s for V-Min at
32 x 128, on 2 cores.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import SCHEDULES, build


def _spec(num_ranks: int, num_microbatches: int) -> PipelineSpec:
    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        transfer_ms=0.4,
    )


def _measure(benchmark: BenchmarkFixture, name: str, spec: PipelineSpec) -> None:
    schedule = benchmark(build, name, spec)
    assert schedule.num_microbatches == spec.num_microbatches


@pytest.mark.parametrize("name", SCHEDULES)
def test_plan_32_ranks_128_microbatches(benchmark: BenchmarkFixture, name: str) -> None:
    _measure(benchmark, name, _spec(32, 128))


@pytest.mark.parametrize(
    "name",
    ["zb-1p", "zb-2p", "zb-v", "zb-v-2p", "greedy", "v-half", "v-min", "v-half-cost", "v-min-cost"],
)
def test_plan_64_ranks_512_microbatches(benchmark: BenchmarkFixture, name: str) -> None:
    _measure(benchmark, name, _spec(64, 512))
