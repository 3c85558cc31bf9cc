"""Straggler traces: what is read, what is mended and said, what is refused."""

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.straggler_trace import COLUMNS, read_straggler_trace
from conductor.ir.trace import Operation

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def rows(chunks=1):
    """One micro-batch through two ranks with `chunks` stages each; sends and receives at every stage."""
    made = []
    for gmc in range(2 * chunks):
        rank, mc = gmc % 2, gmc // 2
        last = 2 * chunks - 1
        start, back = gmc * 10.0, (4 * chunks - 1 - gmc) * 10.0
        made += [
            (0, rank, 5, "forward-recv", start, 1.0, mc, -1, -1, -1),
            (0, rank, 5, "forward-compute", start + 1, 8.0, mc, mc, 0, gmc),
            (0, rank, 5, "forward-send", start + 9, 1.0, mc, -1, -1, -1),
            (0, rank, 5, "backward-recv", back, 1.0, chunks - 1 - mc, -1, -1, -1),
            (0, rank, 5, "backward-compute", back + 1, 8.0, chunks - 1 - mc, mc, 0, gmc),
            (0, rank, 5, "backward-send", back + 9, 1.0, chunks - 1 - mc, -1, -1, -1),
        ]
        if gmc == last:
            made.append((0, rank, 5, "params-all-gather", 0.0, 1.0, mc, mc, -1, -1))
    return made


def write(path, made, columns=COLUMNS):
    table = {name: [row[i] for row in made] for i, name in enumerate(COLUMNS) if name in columns}
    pq.write_table(pa.table(table), path)
    return path


def transfers(trace):
    sends = trace.operations >= Operation.FORWARD_SEND
    return sorted(
        (Operation(int(kind)).name, int(stage))
        for kind, stage in zip(trace.operations[sends], trace.stages[sends], strict=True)
        if kind <= Operation.BACKWARD_RECV
    )


@pytest.mark.parametrize("chunks", [1, 2])
def test_transfers_get_the_stage_of_their_compute(tmp_path, chunks):
    trace = read_straggler_trace(write(tmp_path / "t.parquet", rows(chunks)))
    last = 2 * chunks - 1
    assert transfers(trace) == sorted(
        [("FORWARD_SEND", s) for s in range(last)]
        + [("FORWARD_RECV", s + 1) for s in range(last)]
        + [("BACKWARD_SEND", s + 1) for s in range(last)]
        + [("BACKWARD_RECV", s) for s in range(last)]
    )
    assert trace.notes == ("left out 4 transfers that no compute needs",)


def test_transfers_may_be_missing_at_the_ends(tmp_path):
    ends = {("forward-recv", 0), ("forward-send", 1), ("backward-recv", 1), ("backward-send", 0)}
    made = [row for row in rows() if (row[3], row[1]) not in ends]
    trace = read_straggler_trace(write(tmp_path / "t.parquet", made))
    assert (len(transfers(trace)), trace.notes) == (4, ())


def test_weights_are_those_of_their_chunk(tmp_path):
    trace = read_straggler_trace(write(tmp_path / "t.parquet", rows(2)))
    assert trace.stages[trace.operations == Operation.PARAMS_ALL_GATHER].tolist() == [3]


def test_bad_rows_are_left_out_and_said(tmp_path):
    made = [*rows(), (0, 0, 5, "coffee", 0.0, 1.0, 0, -1, -1, -1)]
    made[1] = (*made[1][:5], -8.0, *made[1][6:])
    trace = read_straggler_trace(write(tmp_path / "t.parquet", made))
    assert "left out 1 operations of unknown type: coffee" in trace.notes
    assert "left out 1 operations that end before they start" in trace.notes
    assert trace.stages[trace.operations == Operation.FORWARD].tolist() == [1]


def test_a_missing_column_is_named(tmp_path):
    path = write(tmp_path / "t.parquet", rows(), [c for c in COLUMNS if c not in ("gmc", "step")])
    with pytest.raises(FormatError, match=r"t\.parquet: columns are missing: step, gmc"):
        read_straggler_trace(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = write(tmp_path / "t.parquet", rows())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"t\.parquet: cannot read the table: "):
        read_straggler_trace(path)


def test_a_trace_without_a_pipeline_is_refused(tmp_path):
    made = [row for row in rows() if "compute" not in row[3]]
    with pytest.raises(FormatError, match="no forward and backward of a pipeline stage"):
        read_straggler_trace(write(tmp_path / "t.parquet", made))


def test_real_traces_are_read_whole(shared_data):
    seen = []
    trace = read_straggler_trace(
        shared_data / "straggler-traces" / "trace-AR.parquet",
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert (len(trace), trace.num_ranks, trace.num_stages, trace.notes) == (117_216, 4, 4, ())
    assert seen[-1] == (117_216, 117_216)
    assert np.unique(trace.steps).size == 44
