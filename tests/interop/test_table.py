"""Plain tables: columns, kinds, what is refused."""

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.read_trace import read_trace
from conductor.ir.trace import Operation

pytest.importorskip("pyarrow")

HEAD = "rank,stage,kind,microbatch,start_ms,duration_ms"
ROWS = ["0,0,F,0,100.0,10", "1,1,F,0,110.5,10", "1,1,B,0,120.5,20", "0,0,B,0,141.0,20"]


def write(path, *rows, head=HEAD):
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_a_csv_table_starts_at_0(tmp_path):
    trace = read_trace(write(tmp_path / "t.csv", *ROWS))
    assert trace.start_ms.tolist() == [0.0, 10.5, 20.5, 41.0]
    assert trace.duration_ms.tolist() == [10.0, 10.0, 20.0, 20.0]
    assert trace.operations.tolist() == [
        Operation.FORWARD, Operation.FORWARD, Operation.BACKWARD, Operation.BACKWARD
    ]  # fmt: skip
    assert (trace.steps == 0).all()
    assert (trace.dp_ranks == 0).all()


def test_each_step_starts_at_0(tmp_path):
    rows = [f"{row},{step}" for step in (4, 5) for row in ROWS]
    trace = read_trace(write(tmp_path / "t.csv", *rows, head=HEAD + ",step"))
    assert np.unique(trace.steps).tolist() == [4, 5]
    assert trace.start_ms.reshape(2, 4).tolist() == [[0.0, 10.5, 20.5, 41.0]] * 2


def test_a_parquet_table_reads_like_its_csv(tmp_path):
    import pyarrow.csv
    import pyarrow.parquet

    csv = write(tmp_path / "t.csv", *ROWS)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(csv), tmp_path / "t.parquet")
    one, other = read_trace(csv), read_trace(tmp_path / "t.parquet")
    for name in ("ranks", "stages", "microbatches", "operations", "start_ms", "duration_ms"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (ROWS, "rank,stage,kind,microbatch,start,duration_ms", "a column is missing: start_ms"),
        ([], HEAD, "no rows|no forward and backward"),
        (["0,0,hello,0,0,1"], HEAD, "no forward and backward"),
        (["0,0,F,0,zero,1"], HEAD, "column start_ms must hold numbers"),
        (["0,0,F,,0.0,1"], HEAD, "column microbatch"),
        (["0,0,7,0,0.0,1"], HEAD, "column kind must hold texts"),
    ],
)
def test_bad_tables_are_one_sentence(tmp_path, rows, head, message):
    with pytest.raises(FormatError, match=message) as caught:
        read_trace(write(tmp_path / "t.csv", *rows, head=head))
    assert "\n" not in str(caught.value)


def test_bad_rows_are_left_out_and_said(tmp_path):
    trace = read_trace(write(tmp_path / "t.csv", *ROWS, "0,0,nap,0,0,1", "0,0,F,1,5.0,-2"))
    assert trace.notes == (
        "left out 1 operations of unknown kind: nap",
        "left out 1 operations that end before they start",
    )
    assert len(trace) == 4


@pytest.mark.parametrize("name", ["t.txt", "missing.parquet"])
def test_other_files_are_refused(tmp_path, name):
    (tmp_path / "t.txt").write_text("hello")
    with pytest.raises(FormatError, match=r"ends in|no such file"):
        read_trace(tmp_path / name)
