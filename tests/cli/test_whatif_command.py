"""`conductor whatif`: the table, the JSON, the files it writes, bad input."""

import json

import pytest

from conductor.cli.app import main
from conductor.interop.timeline_json import write_timeline
from conductor.problem.presets import load_preset
from conductor.problem.spec_file import load_spec
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline

KEYS = {
    "slowdown", "by_stage", "by_dp_rank", "by_kind", "by_step", "replay_error", "remedies"
}  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    """A step of the gpt-like spec under 1F1B."""
    spec = load_preset("gpt-like")
    path = tmp_path / "step.json"
    write_timeline(timeline(spec, build("1f1b", spec)), path)
    return path


def run(capsys, *arguments):
    code = main(["whatif", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json(capsys, trace):
    code, out, err = run(capsys, trace, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert set(answer) >= KEYS
    assert answer["replay_error"] == pytest.approx(0.0, abs=1e-9)
    assert answer["by_step"] == {"0": answer["slowdown"]}
    assert list(answer["by_stage"]) == ["0", "1", "2", "3"]
    for remedy in answer["remedies"]:
        assert set(remedy) == {"name", "step_ms", "gain"}
        assert remedy["gain"] == pytest.approx(
            1 - remedy["step_ms"] / answer["step_ms"]["replayed"]
        )


def test_the_table_names_causes_and_remedies(capsys, trace):
    code, out, _ = run(capsys, trace)
    assert code == 0
    assert "303.4 ms traced, 303.4 ms replayed (+0.00 %)" in out
    for word in ("pipeline rank", "kind", "backward-compute", "What would help", "ready-first"):
        assert word in out


def test_the_slowest_step_is_drawn(capsys, trace):
    code, out, _ = run(capsys, trace, "--draw")
    assert code == 0
    assert "step 0 of data-parallel rank 0, as traced" in out
    (row,) = (line for line in out.splitlines() if line.startswith("rank 3 |"))
    assert row.index("F0") < row.index("B0") < row.index("F1")


def test_the_profile_plans(capsys, trace, tmp_path):
    code, _, err = run(capsys, trace, "--profile", tmp_path / "job.toml", "--json")
    assert code == 0
    assert "wrote the expected times" in err
    assert load_spec(tmp_path / "job.toml").num_ranks == 4
    assert main(["plan", "--spec", str(tmp_path / "job.toml")]) == 0


def test_the_timeline_is_a_chrome_trace(capsys, trace, tmp_path):
    assert run(capsys, trace, "--trace", tmp_path / "t.json")[0] == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(event["name"] == "0F0" for event in events) == 1


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "gone.parquet", "no such file"),
        (b"hello", "t.parquet", "cannot read the table"),
        (b"a,b\n1,2\n", "t.csv", "columns are missing: rank, stage"),
        (b'{"traceEvents": []}', "t.json", "no ranges of a pipeline"),
        (b"\x1f\x8b\x08\x00", "t.json.gz", "cut off"),
        (b"hello", "t.txt", "a trace ends in"),
    ],
)
def test_bad_input_is_one_sentence(capsys, tmp_path, content, name, message):
    pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, err = run(capsys, tmp_path / name, "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
