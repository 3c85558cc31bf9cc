"""Measured runs: steps of traces are the timelines that were run."""

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.read_trace import read_trace
from conductor.interop.timeline_json import trace_of_timeline
from conductor.problem.presets import load_preset
from conductor.report.traced import traced
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline


@pytest.fixture(scope="module")
def run():
    spec = load_preset("paper").with_(blocking_transfers=False)
    return timeline(spec, build("zb-1p", spec))


def test_a_timeline_comes_back_from_its_trace(run):
    (entry,) = traced(trace_of_timeline(run, step=7), title="run")
    assert entry.title == "run, step 7"
    drawn = entry.timeline
    assert drawn.schedule == run.schedule
    assert drawn.start_ms == pytest.approx(run.start_ms)
    assert drawn.end_ms == pytest.approx(run.end_ms)
    assert drawn.bubble_ratio == pytest.approx(run.bubble_ratio)


def test_time_begins_with_the_first_action(run):
    trace = trace_of_timeline(run)
    trace.start_ms[:] += 5.0
    (entry,) = traced(trace, title="late")
    assert entry.timeline.start_ms.min() == 0.0
    assert entry.timeline.makespan_ms == pytest.approx(run.makespan_ms)


def test_steps_are_spread_over_a_job_and_each_is_its_own(shared_data):
    trace = read_trace(shared_data / "straggler-traces" / "trace-AR.parquet")
    entries = traced(trace, title="job", num_steps=3, dp_rank=1)
    steps = np.unique(trace.steps)
    numbers = [int(entry.title.split()[-1]) for entry in entries]
    assert (numbers[0], numbers[-1]) == (steps[0], steps[-1])
    for number, entry in zip(numbers, entries, strict=True):
        own = trace.where(trace.is_action & (trace.steps == number) & (trace.dp_ranks == 1))
        span = own.end_ms.max() - own.start_ms.min()
        assert entry.timeline.makespan_ms == pytest.approx(span)
        busy = np.bincount(own.ranks, own.duration_ms)
        # Actions of one rank cross by a tick of the clock here and there.
        assert entry.timeline.busy_ms == pytest.approx(busy, rel=1e-4)


def test_a_replica_that_is_not_there_is_refused(run):
    with pytest.raises(FormatError, match="data-parallel rank 3"):
        traced(trace_of_timeline(run), title="run", dp_rank=3)
