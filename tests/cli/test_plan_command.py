"""`conductor plan`, `schedules`, `presets`: tables, JSON, files, errors."""

import json
import sys

import pytest

from conductor.cli.app import main
from conductor.interop.torch_csv import read_torch_csv
from conductor.ir.validate import validate
from conductor.planning.plan import LEARNED
from conductor.problem.presets import load_preset, preset_names
from conductor.schedules.registry import SCHEDULES

SPEC = """\
num_ranks = 4
num_microbatches = 8
forward_ms = 10
backward_input_ms = 10
backward_weight_ms = 7
"""


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_is_one_object_with_the_promised_keys(capsys):
    code, out, _ = run(capsys, "plan", "--preset", "gpt-like", "--json")
    answer = json.loads(out)
    assert code == 0
    assert list(answer) == ["spec", "candidates", "best"]
    assert answer["spec"]["num_ranks"] == 4
    assert answer["best"] == answer["candidates"][0]["schedule"]
    for candidate in answer["candidates"]:
        assert list(candidate) == [
            "schedule", "makespan_ms", "bubble_ratio", "stage_span_bubble_ratio", "peak_memory",
            "plan_ms", "lower_bound_ms", "value_ms",
        ]  # fmt: skip
        assert len(candidate["peak_memory"]) == 4
    times = [candidate["makespan_ms"] for candidate in answer["candidates"]]
    assert times == sorted(times)


def test_the_table_shows_the_same_times_best_first(capsys):
    _, out, err = run(capsys, "plan", "--preset", "gpt-like", "--schedule", "1f1b",
                      "--schedule", "zb-1p", "--schedule", "gpipe")  # fmt: skip
    rows = [line.split() for line in out.splitlines()]
    assert out.startswith("gpt-like: 4 ranks, 8 micro-batches ")
    assert [row[:2] for row in rows[2:]] == [["zb-1p", "259.80"], ["1f1b", "303.40"]]
    assert err.startswith("left out gpipe: needs 8 of activation memory on rank 0")


def test_the_best_is_written_as_a_file_that_torch_reads(capsys, tmp_path):
    code, _, err = run(capsys, "plan", "--preset", "gpt-like", "--schedule", "zb-1p",
                       "--out", tmp_path / "best.csv")  # fmt: skip
    assert code == 0
    assert f"wrote zb-1p to {tmp_path / 'best.csv'}" in err
    validate(read_torch_csv(tmp_path / "best.csv"), load_preset("gpt-like"))


def test_a_spec_file_works_like_a_preset(capsys, tmp_path):
    (tmp_path / "mine.toml").write_text(SPEC)
    code, out, _ = run(capsys, "plan", "--spec", tmp_path / "mine.toml", "--schedule", "1f1b",
                       "--json")  # fmt: skip
    assert code == 0
    assert json.loads(out)["candidates"][0]["makespan_ms"] == pytest.approx(297.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("transfers_ms = 1", "line 6: unknown key 'transfers_ms'"),
        ("transfer_ms = -1", "line 6: transfer_ms must be a number of at least 0"),
        ("memory_limit = 0.1", "is missing"),
        ("placement = [0, 0, 1, 2]", "placement gives rank 3 no stage"),
    ],
)
def test_a_bad_spec_is_one_sentence_and_exit_code_2(capsys, tmp_path, change, message):
    (tmp_path / "bad.toml").write_text(SPEC + change)
    code, out, err = run(capsys, "plan", "--spec", tmp_path / "bad.toml")
    assert (code, out) == (2, "")
    assert err.startswith("conductor: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_memory_limit_that_no_schedule_fits_names_rank_and_missing(capsys, tmp_path):
    (tmp_path / "tight.toml").write_text(SPEC + "memory_limit = 0.1")
    _, _, err = run(capsys, "plan", "--spec", tmp_path / "tight.toml")
    assert " on rank " in err
    assert "is missing" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "give one of --preset NAME and --spec FILE"),
        (["plan", "--preset", "paper", "--spec", "x.toml"], "give one of"),
        (["plan", "--preset", "papper"], "nearest is 'paper'"),
        (["plan", "--spec", "absent.toml"], "No such file"),
        (["plan", "--preset", "paper", "--schedule", "nope"], "nope"),
        (["plan", "--preset", "paper", "--objective", "speed"], "speed"),
        (["plan", "--preset", "paper", "--nope"], "--nope"),
        (["plan", "--preset", "paper", "--out", "no/such/dir.csv"], "cannot write"),
        (["fly"], "fly"),
    ],
)
def test_bad_arguments_are_one_sentence_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_schedules_lists_all_with_memory_and_source(capsys):
    code, out, _ = run(capsys, "schedules", "--json")
    assert code == 0
    rows = json.loads(out)["schedules"]
    assert [row["name"] for row in rows] == [*SCHEDULES, LEARNED]
    assert all(row["memory"] and row["source"] and row["placement"] for row in rows)
    _, table, _ = run(capsys, "schedules")
    assert all(name in table for name in (*SCHEDULES, LEARNED))


def test_one_schedule_is_shown_with_its_drawing(capsys):
    code, out, _ = run(capsys, "schedules", "1f1b")
    assert code == 0
    assert out.startswith("name            1f1b\nplacement       sequential\n")
    assert out.splitlines()[-1].startswith("rank 2 |       F0 B0--- F1 B1---")
    code, out, err = run(capsys, "schedules", "nope")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_presets_lists_all_with_their_sources(capsys):
    code, out, _ = run(capsys, "presets", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)["presets"]] == list(preset_names())
    _, table, _ = run(capsys, "presets")
    assert all(name in table for name in preset_names())
    assert "[1] Dong" in table


@pytest.mark.parametrize("command", ["plan", "simulate", "schedules", "presets", "demo", "train"])
def test_help_has_an_example(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"conductor {command}" in out.split("Example")[1]


def test_a_missing_extra_is_named(capsys, monkeypatch):
    loaded = [name for name in sys.modules if name.startswith("conductor.rl")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = run(capsys, "train", "--preset", "paper")
    assert (code, out) == (2, "")
    assert err == "conductor: this command needs torch: pip install 'conductor-pipeline[rl]'\n"


def test_no_arguments_show_the_help(capsys):
    _, out, err = run(capsys)
    assert "Usage: conductor" in out + err
