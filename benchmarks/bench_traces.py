"""Speed of traces: reading, replay, the whole what-if, the fit, and streaming of large profiler traces.

Run: `NUMBA_NUM_THREADS=1 python -m pytest benchmarks/bench_traces.py -p benchmark --override-ini addopts=`.
Wanted: a trace of 117,216 operations to what-if in at most 3 s; a large file in bounded memory. The trace
is made here: 4 x 4 ranks, 44 steps of 32 micro-batches. Times are the process's own, so that a busy
machine moves them less.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conductor.interop.kineto import read_kineto
from conductor.interop.straggler_trace import OPTYPES, read_straggler_trace
from conductor.interop.timeline_json import trace_of_timeline
from conductor.ir.trace import Operation
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import timeline
from conductor.variation import LognormalNoise
from conductor.variation.fit import fit
from conductor.whatif.durations import own_durations
from conductor.whatif.graph import build_graph
from conductor.whatif.levers import lever_remedies
from conductor.whatif.receives import with_transfers
from conductor.whatif.whatif import analyse, straggler_remedies

STEPS, REPLICAS = 44, 4
SPEC = PipelineSpec(
    num_ranks=4,
    num_microbatches=32,
    forward_ms=200.0,
    backward_input_ms=200.0,
    backward_weight_ms=150.0,
    transfer_ms=1.0,
)
pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A straggler trace."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = build("1f1b", SPEC)
    draws = LognormalNoise(forward=0.02, backward=0.02).sample(
        encode(SPEC, order), STEPS * REPLICAS, np.random.default_rng(0)
    )
    names = {int(operation): text for text, operation in OPTYPES.items()}
    parts = []
    for draw in range(STEPS * REPLICAS):
        times = timeline(SPEC, order, draws[draw])
        trace = with_transfers(trace_of_timeline(times))
        by = np.lexsort((trace.start_ms, trace.operations, trace.ranks))
        trace = trace.where(by)
        worker = trace.ranks.astype(np.int64) * 16 + trace.operations
        parts.append(
            pa.table(
                {
                    "dp_rank": np.full(len(trace), draw % REPLICAS),
                    "stage": trace.ranks,
                    "step": np.full(len(trace), draw // REPLICAS),
                    "optype": pa.array([names[kind] for kind in trace.operations.tolist()]),
                    "start_ts": trace.start_ms / 1000.0,
                    "duration": trace.duration_ms / 1000.0,
                    "seq_id": np.arange(len(trace)) - np.searchsorted(worker, worker),
                    "mc": np.where(trace.is_action, 0, -1),
                    "mb_id": np.where(trace.is_action, trace.microbatches, -1),
                    "gmc": np.where(trace.is_action, trace.stages, -1),
                }
            )
        )
    file = tmp_path_factory.mktemp("traces") / "job.parquet"
    pq.write_table(pa.concat_tables(parts), file)
    return file


def test_reading(benchmark: BenchmarkFixture, path: Path) -> None:
    trace = benchmark(read_straggler_trace, path)
    benchmark.extra_info["operations"] = len(trace)


def test_replay(benchmark: BenchmarkFixture, path: Path) -> None:
    graph = build_graph(read_straggler_trace(path))
    own = own_durations(graph)
    benchmark(graph.step_ms, own)
    benchmark.extra_info["operations_a_second"] = len(own) / benchmark.stats["min"]


def test_whatif(benchmark: BenchmarkFixture, path: Path) -> None:
    def whole() -> int:
        found = analyse(read_straggler_trace(path))
        return len(straggler_remedies(found) + lever_remedies(found))

    assert benchmark.pedantic(whole, rounds=3, warmup_rounds=1) > 5
    assert benchmark.stats["min"] <= 3.0


def test_fit(benchmark: BenchmarkFixture, path: Path) -> None:
    trace = read_straggler_trace(path)
    benchmark.pedantic(fit, (trace,), rounds=3, warmup_rounds=1)


def test_a_large_profiler_trace_needs_little_memory(
    benchmark: BenchmarkFixture, tmp_path: Path
) -> None:
    """200 MB of operations around the ranges of a step; memory grows by far less than the file."""
    file = tmp_path / "rank0.json"
    with file.open("w") as out:
        out.write('{"traceEvents": [\n')
        number = 0
        while out.tell() < 200e6:
            lines = []
            for _ in range(20_000):
                number += 1
                event = {"ph": "X", "cat": "kernel", "name": "gemm" + "x" * 80, "pid": 0, "tid": 7,
                         "ts": number, "dur": 1, "args": {"stream": 7, "correlation": number}}  # fmt: skip
                if number % 1000 == 0:
                    event |= {"cat": "user_annotation", "name": f"PP:0F{number // 1000}"}
                lines.append(json.dumps(event))
            out.write(",\n".join(lines) + ",\n")
        out.write('{"ph": "M"}]}')
    size = file.stat().st_size
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = benchmark.pedantic(read_kineto, ([file],), rounds=1)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert len(trace) == number // 1000
    assert trace.operations[0] == Operation.FORWARD
    benchmark.extra_info["mb_a_second"] = size / 1e6 / benchmark.stats["min"]
    benchmark.extra_info["memory_mb"] = grown / 1e6
    assert grown < 0.25 * size
