"""The CSV of torch: round trips, torch's own reader, and what can be wrong with a file."""

import pytest
from hypothesis import given

from conductor.errors import FormatError
from conductor.interop.torch_csv import read_torch_csv, write_torch_csv
from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from tests.strategies import schedules


@pytest.fixture
def overlapped() -> Schedule:
    rows = ["0F0 3F0 0F1 3B0 3F1 0B0 3B1 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"]
    schedule = Schedule.from_actions(
        [[Action.parse(text) for text in row.split()] for row in rows],
        name="overlapped", stage_ranks=(0, 1, 1, 0), num_microbatches=2,
    )  # fmt: skip
    schedule.overlaps[4] = True
    return schedule


def complaint(tmp_path, text) -> str:
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    with pytest.raises(FormatError) as error:
        read_torch_csv(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(str(path))


@given(schedules())
def test_what_is_written_is_read_again(tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("csv") / "random.csv"
    write_torch_csv(schedule, path)
    assert read_torch_csv(path) == schedule


def test_the_file_is_as_torch_writes_it(tmp_path):
    schedule = Schedule.from_actions(
        [[Action(0, Kind.F, 0), Action(0, Kind.B, 0)],
         [Action(1, Kind.F, 0), Action(1, Kind.I, 0), Action(1, Kind.W, 0)]],
        name="s", stage_ranks=(0, 1), num_microbatches=1,
    )  # fmt: skip
    write_torch_csv(schedule, tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text() == "0F0,0B0\n1F0,1I0,1W0\n"


def test_blank_cells_and_trailing_lines_are_idle(tmp_path):
    (tmp_path / "idle.csv").write_text("0F0,,,0B0\n, 1F0 ,1B0,\n,,\n\n")
    schedule = read_torch_csv(tmp_path / "idle.csv")
    assert (schedule.name, schedule.stage_ranks, schedule.num_microbatches) == ("idle", (0, 1), 1)
    assert [[str(action) for action in row] for row in schedule.rows] == [
        ["0F0", "0B0"],
        ["1F0", "1B0"],
    ]


def test_an_uneven_placement_is_found_from_the_rows(tmp_path):
    (tmp_path / "uneven.csv").write_text("0F0,2F0,2B0,0B0\n1F0,1B0\n")
    assert read_torch_csv(tmp_path / "uneven.csv").stage_ranks == (0, 1, 0)


def test_an_overlapping_pair_is_one_cell(tmp_path, overlapped):
    write_torch_csv(overlapped, tmp_path / "pair.csv")
    assert ",(3F1;0B0)OVERLAP_F_B,3B1," in (tmp_path / "pair.csv").read_text()
    assert read_torch_csv(tmp_path / "pair.csv") == overlapped


@given(schedules())
def test_torch_reads_what_we_write(tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("csv") / "random.csv"
    write_torch_csv(schedule, path)
    loaded = torch_load(path, schedule)
    rows = [[(a.stage, a.kind.name, a.microbatch) for a in row] for row in schedule.rows]
    assert [
        [(a.stage_index, a.computation_type.value, a.microbatch_index) for a in loaded[rank]]
        for rank in range(schedule.num_ranks)
    ] == rows


def test_torch_reads_our_overlapping_pairs(tmp_path, overlapped):
    write_torch_csv(overlapped, tmp_path / "pair.csv")
    cell = torch_load(tmp_path / "pair.csv", overlapped)[0][4]
    assert [str(action) for action in cell.sub_actions] == ["3F1", "0B0"]


def torch_load(path, schedule):
    """torch's own reader and checks, without the stages that its constructor wants."""
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    runtime = object.__new__(torch_schedules._PipelineScheduleRuntime)
    runtime.pipeline_order = {}
    runtime.pp_group_size = schedule.num_ranks
    runtime._num_stages = schedule.num_stages
    runtime._n_microbatches = schedule.num_microbatches
    runtime._stages = []
    torch_schedules.PipelineScheduleMulti._load_csv(runtime, str(path))
    assert runtime.stage_index_to_group_rank == dict(enumerate(schedule.stage_ranks))
    return runtime.pipeline_order


def test_our_runtime_file_from_torch_is_read(tmp_path):
    """A file that torch itself writes, with idle cells, holds the same order for us."""
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    runtime = object.__new__(torch_schedules._PipelineScheduleRuntime)
    order = [[Action(0, Kind.F, 0), None, Action(0, Kind.B, 0)], [None, Action(1, Kind.F, 0),
             Action(1, Kind.I, 0), Action(1, Kind.W, 0)]]  # fmt: skip
    runtime.pipeline_order = {
        rank: [cell and torch_schedules._Action.from_str(str(cell)) for cell in row]
        for rank, row in enumerate(order)
    }
    runtime._dump_csv(str(tmp_path / "torch.csv"), format="compute_only")
    rows = read_torch_csv(tmp_path / "torch.csv").rows
    assert rows == tuple(tuple(filter(None, row)) for row in order)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", ", line 1, cell 2: '0X0' is no action (an action looks like 2F0)"),
        ("0F0,0B0\n1F0,0B1\n", ", line 2, cell 2: 0B1 puts stage 0 on rank 1, but line 1 has it"
         " on rank 0"),
        ("0F0,0B0\n\n1F0,1B0\n", ", line 2: rank 1 has no action"),
        ("0F0,0B0\n2F0,2B0\n", ": no rank has stage 1, but there is a stage 2"),
        ("", ": the schedule is empty"),
        ("0F0,0SEND_F0\n", ", line 1, cell 2: '0SEND_F0' is no action (an action looks like 2F0);"
         " is this a compute_comms file?"),
        ("0F0,0F0.1\n", ", line 1, cell 2: '0F0.1' has a sequence split, which this format has"
         " not"),
        ("(0B0;0F1)OVERLAP_F_B\n", ", line 1, cell 1: '(0B0;0F1)OVERLAP_F_B' overlaps other"
         " actions than a forward and a backward"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named_with_line_and_cell(tmp_path, text, message):
    assert complaint(tmp_path, text) == message


def test_unreadable_and_unwritable_paths_are_refused(tmp_path, overlapped):
    with pytest.raises(FormatError, match="No such file"):
        read_torch_csv(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not a CSV"):
        read_torch_csv(tmp_path / "binary.csv")
    with pytest.raises(FormatError, match="cannot write"):
        write_torch_csv(overlapped, tmp_path / "no" / "such.csv")


def test_sequence_splits_cannot_be_written(tmp_path):
    rows = [[Action(0, Kind.F, 0), Action(0, Kind.F, 0, 1), Action(0, Kind.B, 0, 1),
             Action(0, Kind.B, 0)]]  # fmt: skip
    split = Schedule.from_actions(
        rows, name="seq", stage_ranks=(0,), num_microbatches=1, num_splits=2
    )
    with pytest.raises(FormatError, match="seq splits sequences"):
        write_torch_csv(split, tmp_path / "seq.csv")
    assert not list(tmp_path.iterdir())
