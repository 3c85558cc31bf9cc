"""Profiler traces of torch: ranges, work inside them, several ranks, damage."""

import gzip
import json

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.json_events import Events
from conductor.interop.read_trace import read_trace
from conductor.problem.kind import Kind


def span(name, start, duration, category="user_annotation", tid=7):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": duration,
    }


def op(start, duration, name="aten::mm", tid=7):
    return span(name, start, duration, "cpu_op", tid)


def write(path, events, **facts):
    text = json.dumps(
        {"schemaVersion": 1, **facts, "traceEvents": events, "more": [{"x": 1}]}, indent=1
    )
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def two_ranks(folder, suffix=".json", skew=0.0, steps=2):
    """Rank 1 waits inside its ranges; times in microseconds."""
    first, second = [], []
    for step in range(steps):
        t = 1e6 + 1e5 * step
        first += [span("PP:0F0", t, 10_100), op(t, 10_000), span("PP:0B0", t + 20_000, 50_000)]
        first += [op(t + 50_000, 20_000), op(t + 51_000, 5_000, "aten::add")]
        s = t + skew
        second += [span("PP:1F0", s, 20_000), op(s + 11_000, 9_000), op(s + 2, 1, tid=8)]
        second += [span("PP:1B0", s + 20_000, 28_000), op(s + 20_100, 27_900)]
    # Profilers write events in any order.
    write(folder / f"a{suffix}", first[::-1], distributedInfo={"rank": 0})
    write(folder / f"b{suffix}", second, distributedInfo={"rank": 1})
    return folder


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_actions_are_the_work_inside_their_ranges(tmp_path, suffix):
    trace = read_trace(two_ranks(tmp_path, suffix))
    assert trace.notes == ()
    by = np.lexsort((trace.start_ms, trace.steps))[:4]
    assert trace.stages[by].tolist() == [0, 1, 1, 0]
    assert trace.operations[by].tolist() == [0, 0, 3, 3]
    assert trace.start_ms[by] == pytest.approx([0.0, 11.0, 20.1, 50.0])
    assert trace.duration_ms[by] == pytest.approx([10.0, 9.0, 27.9, 20.0])
    assert np.bincount(trace.steps).tolist() == [4, 4]


def test_our_runtime_s_ranges_hold_no_waiting(tmp_path):
    """A paced action goes on after its last operation on tensors."""
    events = [span("Conductor:2F3", 10_000, 9_000), op(11_000, 1_000)]
    events += [span("Conductor:2W3", 20_000, 4_000)]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert trace.stages.tolist() == [2, 2]
    assert trace.operations.tolist() == [Kind.F, Kind.W]
    assert trace.duration_ms.tolist() == [9.0, 4.0]


def test_gpipe_s_ranges_name_no_stage(tmp_path):
    for rank in (0, 1):
        events = [span("Forward 0", 10.0, 5.0), span("Backward 0", 30.0, 9.0)]
        write(tmp_path / f"rank{rank}.json", events)
    trace = read_trace(tmp_path / "rank1.json", tmp_path / "rank0.json")
    assert sorted(zip(trace.ranks, trace.stages, trace.operations, strict=True)) == [
        (0, 0, 0), (0, 0, 3), (1, 1, 0), (1, 1, 3)
    ]  # fmt: skip


def test_files_with_the_same_stages_are_of_data_parallel_ranks(tmp_path):
    # Global ranks 0, 1 hold stages 0 and 2, ranks 2, 3 stages 1 and 3.
    for rank, stages in enumerate(((0, 2), (0, 2), (1, 3), (1, 3))):
        events = [span(f"PP:{s}F0", 10.0 * s + rank, 5.0) for s in stages]
        write(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank})
    trace = read_trace(tmp_path)
    assert trace.notes == ()
    columns = (trace.dp_ranks, trace.ranks, trace.stages)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 0, 0), (0, 0, 2), (0, 1, 1), (0, 1, 3), (1, 0, 0), (1, 0, 2), (1, 1, 1), (1, 1, 3)
    ]  # fmt: skip


def test_the_device_says_when_it_ran(tmp_path):
    events = [span("PP:0F0", 0.0, 5.0), span("PP:0F0", 100.0, 7.0, "gpu_user_annotation", 20)]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert trace.duration_ms == pytest.approx([0.007])


def test_clocks_that_do_not_meet_are_set_together_and_said(tmp_path):
    trace = read_trace(two_ranks(tmp_path, skew=5e9))
    assert trace.notes == ("the ranks' clocks disagree: each rank's step is taken to start at 0",)
    for rank in (0, 1):
        assert trace.start_ms[(trace.ranks == rank) & (trace.steps == 1)].min() == 0.0


def test_a_truncated_file_keeps_what_came_before(tmp_path):
    events = [span(f"PP:0F{i}", 10.0 * i, 5.0) for i in range(5000)]
    whole = write(tmp_path / "t.json.gz", events).read_bytes()
    (tmp_path / "t.json.gz").write_bytes(whole[: len(whole) // 2])
    trace = read_trace(tmp_path / "t.json.gz")
    assert 100 < len(trace) < 5000
    assert trace.microbatches.tolist() == list(range(len(trace)))
    (note,) = trace.notes
    assert f"the compressed file is cut off: kept the {len(trace)} ranges" in note


def test_a_cut_text_keeps_what_came_before(tmp_path):
    path = write(tmp_path / "t.json", [span(f"PP:0F{i}", 10.0 * i, 5.0) for i in range(10)])
    path.write_text(path.read_text()[:1000])
    assert "the file is cut off: kept the" in read_trace(path).notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"traceEvents": []}', "no ranges of a pipeline"),
        ('{"a": 1}', "no traceEvents in this file"),
        ("", "no traceEvents in this file"),
    ],
)
def test_no_pipeline_is_one_sentence(tmp_path, content, message):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(FormatError, match=message):
        read_trace(tmp_path / "t.json")


def test_ranges_without_a_time_are_left_out_and_said(tmp_path):
    events = [span("PP:0F0", 0.0, 5.0), span("PP:0F1", 9.0, -1.0), span("PP:0F2", None, 1.0)]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert len(trace) == 1
    assert "left out 2 ranges" in trace.notes[0]


def test_two_files_of_one_rank_are_refused(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.json", [span("PP:0F0", 0.0, 5.0)], distributedInfo={"rank": 3})
    with pytest.raises(FormatError, match="are both of rank 3"):
        read_trace(tmp_path)


def test_events_are_read_in_pieces(tmp_path, monkeypatch):
    """Any cut between two pieces, in an event or in a character, gives the same events."""
    events = [{"name": "é≈漢🙂" * (i % 5), "n": i, "args": {"deep": [i, "]}"]}} for i in range(40)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}, ensure_ascii=False), encoding="utf-8")
    for size in (1, 2, 3, 7, 64, 1 << 20):
        monkeypatch.setattr("conductor.interop.json_events.CHUNK", size)
        assert list(Events(path)) == events
