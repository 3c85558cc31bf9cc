"""Time to a proved optimum, and to a bound that knows the memory limits without search.

Run: `python -m pytest benchmarks/bench_optimal.py -p benchmark`. F 10, I 10, W 7, transfers 0.4; limits in
micro-batches of a rank. The solver runs on two threads.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.optimal.solve import lower_bound_ms, solve
from conductor.problem.placement import PlacementName, stage_ranks
from conductor.problem.spec import PipelineSpec

CASES: list[tuple[PlacementName, int, int, float, float]] = [
    ("sequential", 4, 8, 4.0, 259.8),
    ("sequential", 8, 16, 8.0, 534.2),
    ("v", 4, 8, 4.0, 234.6),
    ("v", 4, 8, 3.0, 255.7),
    ("v", 4, 8, 2.0, 301.9),
    ("v", 8, 16, 8.0, 475.4),
    ("v", 8, 16, 16.0, 469.8),
]


def _spec(placement: PlacementName, ranks: int, microbatches: int, limit: float) -> PipelineSpec:
    spec = PipelineSpec(
        num_ranks=ranks,
        num_microbatches=microbatches,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        transfer_ms=0.4,
        memory_limit=limit,
    )
    return spec.on_stages(stage_ranks(placement, ranks, 2 if placement == "v" else 1))


@pytest.mark.parametrize(("placement", "ranks", "microbatches", "limit", "optimum"), CASES)
def test_proof(
    benchmark: BenchmarkFixture,
    placement: PlacementName,
    ranks: int,
    microbatches: int,
    limit: float,
    optimum: float,
) -> None:
    spec = _spec(placement, ranks, microbatches, limit)
    result = benchmark.pedantic(solve, (spec,), {"time_limit_s": 120.0}, rounds=1)
    assert result.status == "optimal"
    assert result.makespan_ms == pytest.approx(optimum)


@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 8), (8, 16), (8, 32), (16, 64)])
def test_bound_without_search(benchmark: BenchmarkFixture, ranks: int, microbatches: int) -> None:
    spec = _spec("v", ranks, microbatches, float(ranks))
    assert benchmark.pedantic(lower_bound_ms, (spec,), rounds=1) > 27.0 * microbatches
