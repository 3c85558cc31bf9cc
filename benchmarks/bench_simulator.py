"""Speed of the simulator: actions per second on one core, and how the cost of one grows with the size.

Run: `NUMBA_NUM_THREADS=1 python -m pytest benchmarks/bench_simulator.py -p benchmark --override-ini addopts=`.
Wanted at 8 ranks x 32: 20 million actions/s static, 10 million ready-first; at 64 x 256 at most 1.5 times
the cost of an action at 8 x 32. Durations are ZB-1p's with 10 % noise; each draw differs. Times are the
process's own, so that a busy machine moves them less.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numba
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.bounds import realised_bound
from conductor.simulator.kernels import static_makespans
from conductor.simulator.program import Program, encode
from conductor.simulator.ready_first.kernels import ready_first_makespans
from conductor.simulator.simulate import Execution, simulate
from conductor.variation import UniformNoise

SMALL, LARGE = (8, 32), (64, 256)
ACTIONS = 150_000
pytestmark = pytest.mark.benchmark(timer=time.process_time)
WANTED = {"static": 20e6, "ready-first": 10e6}


@pytest.fixture(autouse=True)
def _one_core() -> None:
    numba.set_num_threads(1)


def _program(size: tuple[int, int], name: str = "zb-1p") -> tuple[PipelineSpec, Program]:
    spec = PipelineSpec(
        num_ranks=size[0],
        num_microbatches=size[1],
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        transfer_ms=0.4,
        memory_limit=float(size[0]),
    )
    return spec, encode(spec, build(name, spec))


def _busy(program: Program, actions: int = ACTIONS) -> np.ndarray:
    draws = max(1, actions // program.num_actions)
    return program.busy_ms(UniformNoise(0.1).sample(program, draws, np.random.default_rng(0)))


def _run(
    execution: Execution, size: tuple[int, int], name: str = "zb-1p"
) -> tuple[Callable[[], np.ndarray], int]:
    """A batch of draws to time, and its number of actions."""
    _, program = _program(size, name)
    busy = _busy(program)
    if execution == "static":
        arrays = (
            program.order, program.rank_offsets, program.ranks, program.inputs,
            program.input_lag_ms,
        )  # fmt: skip
        return lambda: static_makespans(*arrays, busy), busy.size
    tables = program.ready_tables()
    return lambda: ready_first_makespans(tables, busy), busy.size


@pytest.mark.parametrize("name", ["zb-1p", "zb-v"])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["8x32", "64x256"])
@pytest.mark.parametrize("execution", ["static", "ready-first"])
def test_actions_per_second(
    benchmark: BenchmarkFixture, execution: Execution, size: tuple[int, int], name: str
) -> None:
    run, actions = _run(execution, size, name)
    run()
    benchmark(run)
    rate = actions / benchmark.stats.stats.min
    benchmark.extra_info["million actions/s"] = round(rate / 1e6, 1)
    if size == SMALL and name == "zb-1p":
        assert rate >= WANTED[execution]


@pytest.mark.parametrize("execution", ["static", "ready-first"])
def test_cost_of_an_action_from_8x32_to_64x256(
    benchmark: BenchmarkFixture, execution: Execution
) -> None:
    """Both sizes in turns within one run, the least of each; a loaded machine still moves it."""
    pairs = [_run(execution, size) for size in (SMALL, LARGE)]
    costs = [np.inf, np.inf]

    def both() -> None:
        for which, (run, actions) in enumerate(pairs):
            start = time.process_time()
            run()
            costs[which] = min(costs[which], (time.process_time() - start) / actions)

    both()
    benchmark.pedantic(both, rounds=60)
    benchmark.extra_info["ns per action"] = [round(cost * 1e9, 1) for cost in costs]
    benchmark.extra_info["ratio"] = round(costs[1] / costs[0], 2)


def test_encoding(benchmark: BenchmarkFixture) -> None:
    spec, _ = _program(SMALL)
    schedule = build("zb-1p", spec)
    benchmark(encode, spec, schedule)


@pytest.mark.parametrize("execution", ["static", "ready-first"])
def test_a_thousand_draws_with_idle_by_cause(
    benchmark: BenchmarkFixture, execution: Execution
) -> None:
    spec, program = _program(SMALL)
    schedule = build("zb-1p", spec)
    durations = UniformNoise(0.1).sample(program, 1000, np.random.default_rng(0))
    benchmark(simulate, spec, schedule, durations, execution=execution)
    benchmark.extra_info["million actions/s"] = round(
        durations.size / benchmark.stats.stats.min / 1e6, 1
    )


def test_realised_bounds_of_a_thousand_draws(benchmark: BenchmarkFixture) -> None:
    _, program = _program(SMALL)
    durations = UniformNoise(0.1).sample(program, 1000, np.random.default_rng(0))
    benchmark(realised_bound, program, durations)
