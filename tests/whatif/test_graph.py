"""The replay: dependencies, groups, waiting apart from work."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.errors import FormatError
from conductor.interop.straggler_trace import read_straggler_trace
from conductor.interop.timeline_json import trace_of_timeline
from conductor.ir.trace import Operation
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import timeline
from conductor.variation import UniformNoise
from conductor.whatif.durations import ideal_durations, own_durations
from conductor.whatif.graph import build_graph
from conductor.whatif.receives import graph_of
from tests.whatif.traces import trace_of, two_ranks

SPEC = PipelineSpec(
    num_ranks=3, num_microbatches=4, forward_ms=3.0, backward_input_ms=3.0, backward_weight_ms=2.0,
    transfer_ms=0.5,
)  # fmt: skip


def test_waiting_is_not_part_of_a_transfer():
    graph = build_graph(trace_of(two_ranks(transfer=1.5)))
    own = own_durations(graph)
    transfers = graph.trace.operations >= Operation.FORWARD_SEND
    assert own[transfers] == pytest.approx([1.5] * 4)


def test_the_replay_of_a_chain_is_its_sum_without_launch_delays():
    rows = two_ranks(delay=0.25)
    graph = build_graph(trace_of(rows))
    assert graph.step_ms(own_durations(graph)) == pytest.approx([10 + 20 + 30 + 40 + 2])


def test_steps_and_replicas_are_replayed_apart():
    rows = [row for step in (7, 3) for dp in (0, 1)
            for row in two_ranks(forward=(10.0 + step, 20.0 + dp), step=step, dp_rank=dp)]  # fmt: skip
    graph = build_graph(trace_of(rows))
    assert graph.step_numbers.tolist() == [3, 7]
    assert graph.step_ms(own_durations(graph)) == pytest.approx([106.0, 110.0])


def test_a_collective_waits_for_its_slowest_rank():
    rows = []
    for dp, forward in enumerate((10.0, 50.0)):
        rows += two_ranks(forward=(forward, 20.0), dp_rank=dp)
        for rank in (0, 1):
            end = 92.0 + forward
            rows.append((0, dp, rank, rank, -1, Operation.GRADS_REDUCE_SCATTER, end, 150.0 - end))
    graph = build_graph(trace_of(rows))
    own = own_durations(graph)
    assert own[graph.trace.operations == Operation.GRADS_REDUCE_SCATTER] == pytest.approx([8.0] * 4)
    assert graph.step_ms(own) == pytest.approx([150.0])


def test_ideal_compute_is_the_mean_and_ideal_communication_the_median():
    rows = [row for step, transfer in enumerate((1.0, 2.0, 12.0))
            for row in two_ranks(transfer=transfer, step=step)]  # fmt: skip
    graph = build_graph(trace_of(rows))
    ideal = ideal_durations(graph, own_durations(graph))
    kinds = graph.trace.operations
    assert set(ideal[kinds == Operation.FORWARD]) == {15.0}
    assert set(ideal[kinds == Operation.BACKWARD]) == {35.0}
    assert ideal[kinds >= Operation.FORWARD_SEND] == pytest.approx(2.0)
    assert graph.step_ms(ideal) == pytest.approx([104.0] * 3)


def test_an_impossible_order_is_refused():
    rows = two_ranks()
    # On rank 1 the clock is wrong: the backward seems to come before its forward.
    rows += [(*row[:4], 1, *row[5:]) for row in rows]
    late = [row for row in rows if row[2] == 0 and row[4] == 1 and row[5] == Operation.BACKWARD]
    rows[rows.index(late[0])] = (*late[0][:6], -500.0, 30.0)
    with pytest.raises(FormatError, match="circle; do the ranks' clocks agree"):
        build_graph(trace_of(rows))


@pytest.mark.parametrize("name", ["AR", "SE"])
def test_real_traces_replay_as_the_study_says(shared_data, name):
    folder = shared_data / "straggler-traces"
    expected = json.loads((folder / f"expected-{name}.json").read_text())
    graph = build_graph(read_straggler_trace(folder / f"trace-{name}.parquet"))
    own = own_durations(graph)
    steps = [str(step) for step in graph.step_numbers]

    def seconds(key):
        return np.array([expected[key][step] for step in steps])

    replayed = graph.step_ms(own) / 1000.0
    assert replayed.mean() == pytest.approx(seconds("step_time_no_launch_delay").mean(), rel=0.005)
    assert replayed == pytest.approx(seconds("step_time_no_launch_delay"), rel=0.01)
    ideal = graph.step_ms(ideal_durations(graph, own)) / 1000.0
    assert ideal == pytest.approx(seconds("step_time_no_straggler"), rel=0.005)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["1f1b", "zb-1p", "zb-v"]))
@settings(max_examples=20)
def test_longer_operations_never_end_a_step_earlier(seed, name):
    """And time has no unit: all durations times 2 is all ends times 2."""
    rng = np.random.default_rng(seed)
    order = build(name, SPEC)
    times = timeline(SPEC, order, UniformNoise(0.5).sample(encode(SPEC, order), 1, rng)[0])
    graph = graph_of(trace_of_timeline(times))
    own = own_durations(graph)
    assert graph.end_ms(2.0 * own) == pytest.approx(2.0 * graph.end_ms(own))
    longer = own + np.where(rng.random(len(own)) < 0.1, rng.exponential(5.0, len(own)), 0.0)
    assert (graph.end_ms(longer) >= graph.end_ms(own) - 1e-9).all()
    assert graph.step_ms(own) == pytest.approx([graph.end_ms(own).max()])
