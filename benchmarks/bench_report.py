"""Reports: the time that one action takes on a page, and how it grows with the number of actions.

Run: `NUMBA_NUM_THREADS=1 python -m pytest benchmarks/bench_report.py -p benchmark --override-ini addopts=`.
Wanted: 64 ranks x 512 micro-batches (98,304 actions) simulated and written in under 10 s, in a file under
15 MB; at most 1.5 times the cost of an action at 8 x 64.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.problem.spec import PipelineSpec
from conductor.report.page import page, write_page
from conductor.report.simulated import simulated
from conductor.schedules.registry import build

SMALL, LARGE = (8, 64), (64, 512)
pytestmark = pytest.mark.benchmark(timer=time.process_time)


def _spec(size: tuple[int, int]) -> PipelineSpec:
    return PipelineSpec(
        num_ranks=size[0],
        num_microbatches=size[1],
        forward_ms=10.4,
        backward_input_ms=10.2,
        backward_weight_ms=7.7,
        transfer_ms=0.4,
        freed_at_backward_input=0.5,
        memory_limit=float(size[0]),
    )


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=lambda size: f"{size[0]}x{size[1]}")
def test_page(benchmark: BenchmarkFixture, tmp_path: Path, size: tuple[int, int]) -> None:
    """Simulates a schedule and writes its page."""
    spec = _spec(size)
    schedule = build("zb-1p", spec)
    path = tmp_path / "report.html"

    def write() -> None:
        write_page([simulated(spec, schedule, title="zb-1p")], path, title="report")

    benchmark(write)
    benchmark.extra_info["actions"] = schedule.num_actions
    benchmark.extra_info["megabytes"] = round(path.stat().st_size / 1e6, 2)


def test_growth(benchmark: BenchmarkFixture) -> None:
    """The cost of an action on a large page over that on a small one, in one run."""

    def per_action(size: tuple[int, int]) -> float:
        spec = _spec(size)
        schedule = build("zb-1p", spec)
        times = []
        for _ in range(5):
            start = time.process_time()
            page([simulated(spec, schedule, title="zb-1p")], title="report")
            times.append(time.process_time() - start)
        return min(times) / schedule.num_actions

    def ratio() -> float:
        return per_action(LARGE) / per_action(SMALL)

    benchmark.extra_info["ratio"] = round(benchmark.pedantic(ratio), 2)
