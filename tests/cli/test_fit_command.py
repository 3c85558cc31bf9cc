"""`conductor fit`: the table, the JSON, the files, and where they are used."""

import json

import numpy as np
import pytest

from conductor.cli.app import main
from conductor.interop.torch_csv import write_torch_csv
from conductor.problem.spec_file import load_spec, save_spec
from conductor.schedules.registry import build
from conductor.variation import ForwardPauses
from conductor.variation.variation_file import load_variation

HEAD = "step,rank,stage,kind,microbatch,start_ms,duration_ms"


@pytest.fixture
def table(tmp_path):
    """Two ranks, four micro-batches of which the third is twice as slow, five steps."""
    pytest.importorskip("pyarrow")
    rows = [HEAD]
    for step in range(5):
        clock = 0.0
        for microbatch in range(4):
            slow = (2.0 if microbatch == 2 else 1.0) * (1.0 + 0.001 * ((7 * step + microbatch) % 5))
            for rank, kind, time in ((0, "F", 10), (1, "F", 12), (1, "B", 24), (0, "B", 20)):
                rows.append(f"{step},{rank},{rank},{kind},{microbatch},{clock},{time * slow}")
                clock += time * slow
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def run(capsys, *arguments):
    code = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json(capsys, table):
    code, out, err = run(capsys, "fit", table, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert list(answer) == [
        "levels", "shares", "slowest", "correlation_error", "quantile_errors", "distance",
        "num_microbatches", "spells",
    ]  # fmt: skip
    assert answer["num_microbatches"] == 20
    assert answer["levels"]["forward"]["micro-batch"] == pytest.approx(0.3, abs=0.01)


def test_the_files_are_used_by_simulate_and_plan(capsys, table, tmp_path):
    model, spec, order = tmp_path / "v.toml", tmp_path / "s.toml", tmp_path / "o.csv"
    code, out, err = run(capsys, "fit", table, "--out", model, "--profile", spec)
    assert code == 0
    assert "micro-batch" in out
    assert "wrote the model" in err
    assert load_variation(model).parts
    # The traced order had one micro-batch at a time.
    save_spec(load_spec(spec).with_(memory_limit=None), spec)
    write_torch_csv(build("1f1b", load_spec(spec)), order)
    arguments = ("simulate", order, "--spec", spec, "--draws", "50", "--json")
    code, out, err = run(capsys, *arguments, "--variation", model)
    assert (code, err) == (0, "")
    with_it = json.loads(out)
    assert with_it["draws"] == 50
    assert with_it["makespan_ms"]["p95"] > with_it["makespan_ms"]["p50"]
    again = json.loads(run(capsys, *arguments, "--variation", model)[1])
    assert again == with_it
    code, _, err = run(capsys, *arguments, "--variation", model, "--noise", "0.1")
    assert (code, err) == (2, "conductor: give one of --noise X and --variation FILE\n")
    code, _, _ = run(capsys, "plan", "--spec", spec, "--objective", "mean", "--variation", model)
    assert code == 0


def test_a_setting_without_effect_is_said(capsys, table):
    assert "--input-share has no effect" in run(capsys, "fit", table, "--input-share", "0.5")[2]


@pytest.mark.slow
def test_a_scheduler_trains_on_it_and_goes_on(capsys, table, tmp_path):
    pytest.importorskip("torch")
    model, file = tmp_path / "v.toml", tmp_path / "t.pt"
    run(capsys, "fit", table, "--out", model, "--profile", tmp_path / "s.toml")
    arguments = ("--spec", tmp_path / "s.toml", "--variation", model, "--episodes", "0", "--json")
    code, out, _ = run(capsys, "train", *arguments, "--save", file)
    assert code == 0
    code, again, _ = run(capsys, "train", "--resume", file, "--json")
    assert code == 0
    assert json.loads(again)["evaluation"] == json.loads(out)["evaluation"]


def test_pauses_are_said_and_not_counted_twice(capsys, tmp_path):
    """Every 25th forward is held up by 50 ms: expected times are those without."""
    pytest.importorskip("pyarrow")
    rows, number = [HEAD], 0
    for step in range(40):
        clock = 0.0
        for microbatch in range(8):
            for rank, kind, time in ((0, "F", 10), (1, "F", 12), (1, "B", 24), (0, "B", 20)):
                number += kind == "F"
                taken = time + 50.0 * (kind == "F" and number % 25 == 0)
                rows.append(f"{step},{rank},{rank},{kind},{microbatch},{clock},{taken}")
                clock += taken
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    files = ("--out", tmp_path / "v.toml", "--profile", tmp_path / "s.toml")
    code, out, _ = run(capsys, "fit", tmp_path / "t.csv", *files)
    assert code == 0
    assert "pauses: 3.91 % of forwards are held up by 50 to 50 ms" in out  # 25 of 640
    spec = load_spec(tmp_path / "s.toml")
    assert spec.forward_ms == pytest.approx((10.0, 12.0))
    backward = np.add(spec.backward_input_ms, spec.backward_weight_ms)
    assert backward == pytest.approx((20.0, 24.0))
    spells = load_variation(tmp_path / "v.toml").parts[-1]
    assert spells == ForwardPauses(chance=0.039062, pause_ms=(50.0, 50.0))
