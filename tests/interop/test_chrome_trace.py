"""Chrome traces: one slice an action, arrows for transfers, counters for memory, times in microseconds."""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.chrome_trace import write_chrome_trace, write_trace
from conductor.interop.read_trace import read_trace
from conductor.interop.straggler_trace import read_straggler_trace
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline

SPEC = PipelineSpec(
    num_ranks=2, num_microbatches=2, forward_ms=3.0, backward_input_ms=2.0, backward_weight_ms=1.0
)
LARGER = SPEC.with_(num_ranks=4, num_microbatches=8, transfer_ms=0.5)


def events_of(times, folder, write=write_chrome_trace):
    path = folder / "trace.json"
    write(times, path)
    return json.loads(path.read_text())["traceEvents"]


def test_every_action_is_a_slice_of_its_rank(tmp_path):
    times = timeline(SPEC, build("zb-1p", SPEC))
    events = events_of(times, tmp_path)
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert len(slices) == times.program.num_actions == 12
    assert (slices["1F0"]["tid"], slices["1F0"]["ts"], slices["1F0"]["dur"]) == (1, 3000.0, 3000.0)
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["rank 0", "rank 1"]


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_the_format_s_rules_hold(tmp_path, name):
    """What Perfetto's importer asks of a file."""
    events = events_of(timeline(LARGER, build(name, LARGER)), tmp_path)
    assert {event["ph"] for event in events} == {"M", "X", "s", "f", "C"}
    slices = defaultdict(list)
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0.0
        if event["ph"] == "X":
            assert event["dur"] >= 0.0
            slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in slices.values():
        spans.sort()
        # Slices of one thread that cross are dropped; ours follow each other.
        assert all(b[0] >= a[1] - 1e-6 for a, b in zip(spans[:-1], spans[1:], strict=True))
    ends = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = event
            # An arrow ends inside exactly one slice of its thread.
            inside = [a for a, b in slices[event["tid"]] if a <= event["ts"] <= b]
            assert len(inside) == 1
    assert all(set(pair) == {"s", "f"} for pair in ends.values())
    assert all(pair["s"]["ts"] < pair["f"]["ts"] for pair in ends.values())
    assert all(pair["s"]["tid"] != pair["f"]["tid"] for pair in ends.values())


def test_every_transfer_between_ranks_is_an_arrow(tmp_path):
    events = events_of(timeline(LARGER, build("1f1b", LARGER)), tmp_path)
    # Each micro-batch crosses three links there and three back.
    assert Counter(event["ph"] for event in events if event["ph"] in "sf") == {"s": 48, "f": 48}


def test_counters_follow_the_memory(tmp_path):
    times = timeline(LARGER, build("zb-1p", LARGER))
    events = events_of(times, tmp_path)
    for rank in range(4):
        held = [
            event["args"]["held"] for event in events if event["ph"] == "C" and event["tid"] == rank
        ]
        assert max(held) == pytest.approx(times.peak_memory[rank])
        assert held[-1] == 0.0


def test_perfetto_s_trace_processor_counts_the_slices(tmp_path):
    """Needs the binary of the trace processor, which the package downloads when it is first used."""
    processor = pytest.importorskip("perfetto.trace_processor")
    times = timeline(LARGER, build("zb-1p", LARGER))
    write_chrome_trace(times, tmp_path / "trace.json")
    try:
        opened = processor.TraceProcessor(trace=str(tmp_path / "trace.json"))
    except Exception as error:
        pytest.skip(f"the trace processor cannot be started: {type(error).__name__}")
    with opened:
        query = "select tid, count(*) as n from slice join thread_track t on track_id = t.id" \
                " join thread using (utid) group by tid"  # fmt: skip
        counts = {row.tid: row.n for row in opened.query(query)}
        flows = next(iter(opened.query("select count(*) as n from flow"))).n
    assert counts == dict.fromkeys(range(4), 24)
    assert flows == 48


def test_a_step_of_a_real_trace(tmp_path, shared_data):
    pytest.importorskip("pyarrow")
    whole = read_straggler_trace(shared_data / "straggler-traces" / "trace-SE.parquet")
    step = whole.where((whole.steps == 16) & (whole.dp_ranks < 2))
    events = events_of(step, tmp_path, write_trace)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(step)
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(1000.0 * step.end_ms.max())
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "rank 1 forward recv" in names
    spans = defaultdict(list)
    for event in slices:
        spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for each in spans.values():
        start, end = np.array(sorted(each)).T
        assert (start[1:] >= end[:-1] - 1e-6).all()


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_what_is_written_is_what_is_read(tmp_path, name):
    times = timeline(LARGER, build(name, LARGER))
    write_chrome_trace(times, tmp_path / "t.json")
    trace = read_trace(tmp_path / "t.json")
    by = np.lexsort((trace.start_ms, trace.ranks))
    order = times.sequence
    assert trace.operations[by].tolist() == times.schedule.kinds[order].tolist()
    assert trace.stages[by].tolist() == times.schedule.stages[order].tolist()
    assert trace.microbatches[by].tolist() == times.schedule.microbatches[order].tolist()
    assert trace.start_ms[by] == pytest.approx(times.start_ms[order])
    assert trace.end_ms[by] == pytest.approx(times.end_ms[order])


def test_a_damaged_file_keeps_what_came_before(tmp_path):
    times = timeline(LARGER, build("1f1b", LARGER))
    write_chrome_trace(times, tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text()
    (tmp_path / "t.json").write_text(text[: text.index('"2F3"')])
    trace = read_trace(tmp_path / "t.json")
    assert 0 < len(trace) < times.schedule.num_actions
    assert f"cut off: kept the {len(trace)} actions" in trace.notes[0]
    (tmp_path / "t.json").write_text(text.replace('"dur"', '"length"'))
    with pytest.raises(FormatError, match="slice 0 has no 'dur'"):
        read_trace(tmp_path / "t.json")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FormatError, match="nowhere"):
        write_chrome_trace(timeline(SPEC, build("1f1b", SPEC)), tmp_path / "nowhere" / "t.json")
