"""Profiler traces of torch: ranges, work inside them, several ranks, damage."""

import gzip
import json

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.json_events import Events
from conductor.interop.read_trace import read_trace
from conductor.ir.trace import Operation
from conductor.problem.kind import Kind
from conductor.whatif.durations import own_durations
from conductor.whatif.profile import profile
from conductor.whatif.receives import graph_of


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


def kernel(start, end, direction, me, peer, titled):
    """NCCL's on the device: as a range with a title, or as a kernel with its facts inside such a range."""
    title = f"nccl:{direction} {me}{'->' if direction == 'send' else '<-'}{peer}"
    events = [span(title, start, end - start, "gpu_user_annotation", 20)]
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    facts = {"stream": 20} if titled else {"Collective name": direction, "Rank": peer}
    return [*events, {**span(name, start, end - start, "kernel", 20), "args": facts}]


def with_nccl(folder, titled=False, tensors=1, steps=2):
    """Two ranks, two micro-batches, F takes 10 ms and B 20; a transfer takes 2 ms once both ends are there.

    Rank 1 asks for its input at the beginning, rank 0 for its gradients after its forwards.
    """
    on_gpu = "gpu_user_annotation"
    ranks = [[], []]
    for step in range(steps):
        t = 1e6 + 1e5 * step
        for rank, name, start, length in (
            (0, "0F0", 0, 10), (0, "0F1", 10, 10), (1, "1F0", 12, 10), (1, "1B0", 22, 20),
            (1, "1F1", 42, 10), (1, "1B1", 52, 20), (0, "0B0", 44, 20), (0, "0B1", 74, 20),
        ):  # fmt: skip
            ranks[rank].append(span(f"PP:{name}", t + 1e3 * start, 1e3 * length, on_gpu, 7))
        for sender, sent, asked, end in (
            (0, 10, 0, 12),
            (0, 20, 12, 22),
            (1, 42, 20, 44),
            (1, 72, 44, 74),
        ):
            for tensor in range(tensors):
                at = [t + 1e3 * (x + 0.1 * tensor) for x in (sent, asked, end)]
                ranks[sender] += kernel(at[0], at[2], "send", sender, 1 - sender, titled)
                ranks[1 - sender] += kernel(at[1], at[2], "recv", 1 - sender, sender, titled)
    for rank, events in enumerate(ranks):
        write(folder / f"{rank}.json", events[::-1], distributedInfo={"rank": rank})
    return folder


@pytest.mark.parametrize("titled", [False, True])
@pytest.mark.parametrize("tensors", [1, 3])
def test_nccl_s_sends_and_receives_are_the_transfers(tmp_path, titled, tensors):
    trace = read_trace(with_nccl(tmp_path, titled, tensors))
    assert trace.notes == ()
    first = trace.where(trace.steps == 0)
    columns = (
        first.operations,
        first.ranks,
        first.stages,
        first.microbatches,
        first.start_ms.round(6),
    )
    found = sorted(zip(*(column.tolist() for column in columns), strict=True))
    assert [row for row in found if row[0] > 3] == [
        (Operation.FORWARD_SEND, 0, 0, 0, 10.0), (Operation.FORWARD_SEND, 0, 0, 1, 20.0),
        (Operation.FORWARD_RECV, 1, 1, 0, 0.0), (Operation.FORWARD_RECV, 1, 1, 1, 12.0),
        (Operation.BACKWARD_SEND, 1, 1, 0, 42.0), (Operation.BACKWARD_SEND, 1, 1, 1, 72.0),
        (Operation.BACKWARD_RECV, 0, 0, 0, 20.0), (Operation.BACKWARD_RECV, 0, 0, 1, 44.0),
    ]  # fmt: skip
    assert len(trace) == 2 * (8 + 8)
    # Waiting is told from the transfer.
    graph = graph_of(trace)
    assert graph.trace.notes == ()
    last = 2.0 + 0.1 * (tensors - 1)
    assert own_durations(graph)[graph.trace.operations > 3] == pytest.approx(np.full(16, last))
    assert profile(graph).transfer_ms == pytest.approx((last,))


def test_transfers_that_do_not_fit_the_actions_are_left_out_and_said(tmp_path):
    with_nccl(tmp_path)
    events = json.loads((tmp_path / "1.json").read_text())["traceEvents"]
    lost = next(i for i, event in enumerate(events) if event["cat"] == "kernel")
    del events[lost]
    write(tmp_path / "1.json", events, distributedInfo={"rank": 1})
    trace = read_trace(tmp_path)
    assert len(trace) == 2 * 8
    assert trace.notes == (
        "left out NCCL's sends and receives: their numbers do not fit those of the actions",
    )


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
