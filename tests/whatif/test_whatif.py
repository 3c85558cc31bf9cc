"""What-if: the study's figures on its traces, blame, profile and remedies on traces of known causes."""

import json

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.straggler_trace import OPTYPES, read_straggler_trace
from conductor.interop.timeline_json import trace_of_timeline
from conductor.ir.trace import Operation
from conductor.planning.plan import plan
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import timeline
from conductor.variation import UniformNoise
from conductor.whatif.levers import lever_remedies
from conductor.whatif.profile import profile, traced_schedule, traced_timeline
from conductor.whatif.receives import with_transfers
from conductor.whatif.whatif import analyse, straggler_remedies
from tests.whatif.traces import trace_of, two_ranks

SPEC = PipelineSpec(
    num_ranks=4,
    num_microbatches=8,
    forward_ms=(10.0, 10.0, 10.0, 14.0),
    backward_input_ms=10.0,
    backward_weight_ms=7.0,
    transfer_ms=0.5,
)


@pytest.fixture(scope="module", params=["AR", "SE"])
def real(request, shared_data):
    pytest.importorskip("pyarrow")
    folder = shared_data / "straggler-traces"
    found = analyse(read_straggler_trace(folder / f"trace-{request.param}.parquet"))
    return found, json.loads((folder / f"expected-{request.param}.json").read_text())


def texts(ratios):
    return {str(key): ratio for key, ratio in ratios.items()}


def test_the_slowdown_is_the_study_s(real):
    found, expected = real
    assert found.slowdown == pytest.approx(expected["slowdown"], rel=0.005)


def test_the_groups_slowdowns_are_the_study_s(real):
    found, expected = real
    assert texts(found.by_stage) == pytest.approx(expected["by_stage"], rel=0.01)
    assert texts(found.by_dp_rank) == pytest.approx(expected["by_dp_rank"], rel=0.01)
    assert found.by_kind == pytest.approx(expected["by_optype"], rel=0.01)
    assert texts(found.by_step) == pytest.approx(expected["step_slowdown"], rel=0.01)


def test_the_worst_replicas_are_the_study_s(real):
    found, expected = real
    first = sorted(found.by_dp_rank, key=found.by_dp_rank.get, reverse=True)[:5]
    assert [str(rank) for rank in first] == list(expected["by_dp_rank"])[:5]


def test_the_replay_is_near_the_traced_time(real):
    found, _ = real
    assert abs(found.replay_error) < 0.02


def test_a_slow_worker_is_found():
    rows = [row for step in range(3) for dp in range(4)
            for row in two_ranks(forward=(10.0, 40.0 if dp == 2 else 10.0), step=step, dp_rank=dp)]  # fmt: skip
    found = analyse(trace_of(rows))
    assert max(found.by_worker, key=found.by_worker.get) == (2, 1)
    # Replayed 10 + 40 + 30 + 40 + 2; ideal forwards 110 / 8, backwards 35.
    assert found.replay_ms == pytest.approx([122.0] * 3)
    assert found.slowdown == pytest.approx(122.0 / (2 * 110 / 8 + 70 + 2))
    assert found.by_kind["backward-pp-comm"] == pytest.approx(1.0)
    remedies = {remedy.name: remedy for remedy in straggler_remedies(found)}
    remedy = remedies["rank 1 of replica 2 like the others"]
    # The other replicas, at 92, now are the slowest: 10 + 10 + 30 + 40 + 2; or this one, 13.75 and 35.
    assert remedy.step_ms == pytest.approx(max(92.0, 10 + 13.75 + 35 + 30 + 2))


def simulated(name, spec=SPEC):
    return trace_of_timeline(timeline(spec, build(name, spec)))


@pytest.mark.parametrize("name", ["1f1b", "zb-1p", "interleaved-1f1b"])
def test_a_simulated_step_is_replayed_exactly(name):
    times = timeline(SPEC, build(name, SPEC))
    found = analyse(trace_of_timeline(times))
    assert found.replay_ms == pytest.approx([times.makespan_ms])


def test_the_profile_of_a_simulated_step_is_its_spec():
    spec = profile(analyse(simulated("zb-1p")).graph)
    assert spec.duration_ms == pytest.approx(SPEC.duration_ms)
    assert spec.link_ms == pytest.approx(SPEC.link_ms)
    assert traced_schedule(simulated("zb-1p")) == build("zb-1p", SPEC)
    assert spec.memory_limit == 4.0


def test_a_full_backward_is_split_by_the_stated_share():
    spec = profile(analyse(simulated("1f1b")).graph, input_share=10.0 / 17.0)
    assert spec.duration_ms == pytest.approx(SPEC.duration_ms)


def test_levers_are_worth_what_the_simulator_says():
    found = analyse(simulated("1f1b"))
    remedies = {remedy.name: remedy for remedy in lever_remedies(found)}
    (order,) = (name for name in remedies if name.startswith("order") and "," not in name)
    spec = profile(found.graph)
    best = plan(spec, schedules=[order.removeprefix("order ")]).best.schedule
    assert remedies[order].step_ms == pytest.approx(timeline(spec, best).makespan_ms)
    assert remedies[order].gain > 0.05
    even = SPEC.with_(forward_ms=11.0)
    assert remedies["equal stages in the traced order"].step_ms == pytest.approx(
        timeline(even, build("1f1b", even)).makespan_ms
    )


def test_a_traced_step_is_the_timeline_it_was():
    times = timeline(SPEC, build("1f1b", SPEC))
    again = traced_timeline(trace_of_timeline(times), SPEC, 0, 0)
    assert again.start_ms.tolist() == times.start_ms.tolist()
    assert again.idle_ms == pytest.approx(times.idle_ms)


@pytest.mark.parametrize("seed", range(3))
def test_steps_with_noise_are_replayed_exactly(seed):
    order = build("zb-v", SPEC)
    durations = UniformNoise(0.5).sample(encode(SPEC, order), 1, np.random.default_rng(seed))[0]
    times = timeline(SPEC, order, durations)
    assert analyse(trace_of_timeline(times)).replay_ms == pytest.approx([times.makespan_ms])


def test_a_profile_of_one_replica():
    rows = [row for dp in (0, 1) for row in two_ranks(forward=(10.0 + dp, 20.0), dp_rank=dp)]
    graph = analyse(trace_of(rows)).graph
    assert profile(graph, dp_rank=1).forward_ms == (11.0, 20.0)
    assert profile(graph).forward_ms == (10.5, 20.0)


def test_steps_that_are_not_whole_are_left_out_of_the_levers():
    rows = [row for step in (0, 1) for row in two_ranks(step=step)]
    lost = [row for row in rows if row[0] == 1 and row[5] == Operation.BACKWARD and row[2] == 0]
    found = analyse(trace_of([row for row in rows if row not in lost]))
    assert len(lever_remedies(found)) >= 2
    rows = [row for row in two_ranks() if row[5] != Operation.BACKWARD or row[2] != 0]
    with pytest.raises(FormatError, match="is not whole"):
        lever_remedies(analyse(trace_of(rows)))


def test_clocks_that_disagree_are_said():
    trace = simulated("1f1b")
    skewed = trace.start_ms - np.where(trace.ranks == 2, 8.0, 0.0)
    from dataclasses import replace

    found = analyse(replace(trace, start_ms=skewed))
    assert "the ranks' clocks disagree" in found.graph.trace.notes[0]
    assert found.slowdown > 0.5


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
def test_a_simulated_step_survives_the_straggler_format(tmp_path, name):
    """Stages and micro-batches of transfers are told from their order alone, with chunks too."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    times = timeline(SPEC, build(name, SPEC))
    trace = with_transfers(trace_of_timeline(times))
    names = {int(operation): text for text, operation in OPTYPES.items()}
    is_action = trace.is_action
    order = np.lexsort((trace.start_ms, trace.operations, trace.ranks))
    seq = np.empty(len(trace), np.int64)
    worker = trace.ranks[order].astype(np.int64) * 16 + trace.operations[order]
    seq[order] = np.arange(len(trace)) - np.searchsorted(worker, worker)
    columns = {
        "dp_rank": trace.dp_ranks,
        "stage": trace.ranks,
        "step": trace.steps,
        "optype": [names[kind] for kind in trace.operations.tolist()],
        "start_ts": trace.start_ms / 1000.0,
        "duration": trace.duration_ms / 1000.0,
        "seq_id": seq,
        "mc": np.where(is_action, trace.stages // 4, -1),
        "mb_id": np.where(is_action, trace.microbatches, -1),
        "gmc": np.where(is_action, trace.stages, -1),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    again = read_straggler_trace(tmp_path / "t.parquet")
    assert again.notes == ()
    assert again.stages.tolist() == trace.stages.tolist()
    assert again.microbatches.tolist() == trace.microbatches.tolist()
    assert analyse(again).replay_ms == pytest.approx([times.makespan_ms])


def test_recorded_transfers_show_clocks_that_disagree():
    rows = [(*row[:6], row[6] - 5.0 * (row[2] == 1), row[7]) for row in two_ranks()]
    (note,) = analyse(trace_of(rows)).graph.trace.notes
    assert (
        note
        == "1 sends and receives end before both sides have started: the ranks' clocks disagree"
    )
    assert analyse(trace_of(two_ranks())).graph.trace.notes == ()
