"""`conductor simulate`: figures, drawings, and every bad input."""

import json
import subprocess
import sys

import numpy as np
import pytest

from conductor.cli.app import main
from conductor.cli.simulate import spread
from conductor.interop.torch_csv import write_torch_csv
from conductor.problem.presets import load_preset
from conductor.rl.weights import StoredPolicy, save_weights
from conductor.schedules.registry import build
from tests.rl.test_kernels import random_weights

GPT = ("--preset", "gpt-like")


@pytest.fixture
def csv(tmp_path):
    """The zero-bubble order of the gpt-like spec."""
    path = tmp_path / "zb.csv"
    write_torch_csv(build("zb-1p", load_preset("gpt-like")), path)
    return path


def run(capsys, *arguments):
    code = main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_without_noise(capsys, csv):
    code, out, err = run(capsys, csv, *GPT, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert list(answer) == [
        "makespan_ms", "bubble_ratio", "idle_ms", "peak_memory", "draws", "seed"
    ]  # fmt: skip
    time = answer["makespan_ms"]
    assert list(time) == ["mean", "ci95", "p50", "p95", "max"]
    assert [*time.pop("ci95"), *time.values()] == pytest.approx([259.8] * 6)
    assert (answer["draws"], answer["seed"]) == (1, 0)
    assert answer["bubble_ratio"] == pytest.approx(1 - 8 * 27 / 259.8)
    assert max(answer["peak_memory"]) == 4.0
    assert list(answer["idle_ms"]) == ["previous_stage", "next_stage", "memory", "nothing_left"]
    # Busy and idle time of each rank fill the makespan.
    idle = np.sum(list(answer["idle_ms"].values()), axis=0)
    assert idle == pytest.approx(np.full(4, 259.8 - 8 * 27))


def test_the_critical_path_names_its_actions_and_adds_up(capsys, csv):
    _, out, _ = run(capsys, csv, *GPT, "--critical-path")
    assert "bubble over ideal 20.28 %" in out  # 259.8 / 216 - 1
    line = next(line for line in out.splitlines() if line.startswith("critical path"))
    path = line.split(": ")[-1].split()
    assert path[:4] == ["0F0", "1F0", "2F0", "3F0"]
    # Every transfer takes 0.4 ms; a zero-bubble order has no other gap on its path.
    hops = sum(a[0] != b[0] for a, b in zip(path[:-1], path[1:], strict=True))
    assert f"{0.4 * hops:.2f} ms between them" in line


def test_noise_is_drawn_from_the_seed(capsys, csv):
    noisy = (csv, *GPT, "--noise", "0.2", "--draws", "200", "--json")
    first, again, other = (json.loads(run(capsys, *noisy, "--seed", seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert first["makespan_ms"]["mean"] != other["makespan_ms"]["mean"]
    time = first["makespan_ms"]
    assert time["ci95"][0] < time["mean"] < time["ci95"][1]
    assert time["p50"] < time["p95"] < time["max"]
    # Two intervals of the same mean nearly always meet.
    low, high = other["makespan_ms"]["ci95"]
    assert low < time["ci95"][1]
    assert high > time["ci95"][0]


def test_ready_first_execution_differs(capsys, csv):
    noisy = (csv, *GPT, "--noise", "0.3", "--draws", "300", "--json")
    static = json.loads(run(capsys, *noisy)[1])
    ready = json.loads(run(capsys, *noisy, "--execution", "ready-first")[1])
    assert static["makespan_ms"]["mean"] != ready["makespan_ms"]["mean"]


def test_the_interval_is_that_of_the_mean():
    values = np.random.default_rng(0).normal(100.0, 5.0, 400)
    half = 1.96 * values.std(ddof=1) / 20.0
    result = spread(values)
    assert result.ci95 == pytest.approx((values.mean() - half, values.mean() + half))


def test_the_table_and_the_drawing(capsys, csv):
    code, out, _ = run(capsys, csv, *GPT, "--noise", "0.1", "--draw")
    assert code == 0
    assert out.startswith("rank 0 |F0")
    assert "zb on gpt-like, static execution" in out
    assert "1000 draws" in out
    assert "previous stage" in out
    assert len([line for line in out.splitlines() if line.startswith("rank ")]) == 5


def test_draws_without_noise_warn(capsys, csv):
    code, _, err = run(capsys, csv, *GPT, "--draws", "50")
    assert code == 0
    assert "--draws has no effect" in err


def test_two_stages_a_rank_split_a_rank_level_profile(capsys, tmp_path):
    profile = load_preset("gpt-like")
    write_torch_csv(build("zb-v", profile), tmp_path / "v.csv")
    code, out, _ = run(capsys, tmp_path / "v.csv", *GPT, "--json")
    assert code == 0
    # Halves of the stages: the same work a rank.
    idle = np.sum(list(json.loads(out)["idle_ms"].values()), axis=0)
    makespan = json.loads(out)["makespan_ms"]["mean"]
    assert makespan - idle == pytest.approx(np.full(4, 8 * 27.0))


def damaged(csv, change):
    rows = [line.split(",") for line in csv.read_text().splitlines()]
    change(rows)
    csv.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return csv


def refused(capsys, csv, *options):
    code, out, err = run(capsys, csv, *GPT, *options)
    assert (code, out) == (2, "")
    assert err.startswith("conductor: ")
    assert "Traceback" not in err
    return err.splitlines()


def test_a_missing_action(capsys, csv):
    lines = refused(capsys, damaged(csv, lambda rows: rows[2].remove("2W3")))
    assert lines[0].endswith("2W3 is missing")
    assert any("^" in line for line in lines)


def test_a_cycle(capsys, csv):
    def swap(rows):
        rows[3].insert(0, rows[3].pop(rows[3].index("3I7")))

    lines = refused(capsys, damaged(csv, swap))
    assert lines[0].startswith("conductor: rank ")
    assert "out of micro-batch order" in lines[0] or "deadlock" in lines[0]


def test_ranks_that_wait_for_each_other(capsys, tmp_path):
    path = tmp_path / "cycle.csv"
    path.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    spec = tmp_path / "two.toml"
    spec.write_text(
        "num_ranks=2\nnum_microbatches=2\nforward_ms=1\nbackward_input_ms=1\nbackward_weight_ms=1"
    )
    code, out, err = run(capsys, path, "--spec", spec)
    assert (code, out) == (2, "")
    assert "deadlock: ranks 0, 1 wait for each other" in err.splitlines()[0]


def test_a_rank_too_few(capsys, csv):
    lines = refused(capsys, damaged(csv, lambda rows: rows.pop()))
    assert lines == ["conductor: the schedule has 3 ranks, but the spec has 4"]


def test_a_stage_on_two_ranks(capsys, csv):
    lines = refused(capsys, damaged(csv, lambda rows: rows[1].append("0F0")))
    assert len(lines) == 1
    assert "line 2, cell 25: 0F0 puts stage 0 on rank 1" in lines[0]


def test_too_much_memory(capsys, csv, tmp_path):
    write_torch_csv(build("gpipe", load_preset("gpt-like").with_(memory_limit=None)), csv)
    lines = refused(capsys, csv)
    assert "rank 0, step 4: memory is exceeded" in lines[0]
    assert "4 is missing" in lines[0]


@pytest.mark.parametrize("noise", ["1.5", "-0.1", "1", "nan"])
def test_noise_out_of_range(capsys, csv, noise):
    lines = refused(capsys, csv, "--noise", noise)
    assert len(lines) == 1
    assert lines[0].startswith("conductor: noise must be in [0, 1), not ")


@pytest.mark.parametrize("options", [("--draws", "0"), ("--seed", "-1"), ("--execution", "fast")])
def test_other_options_out_of_range(capsys, csv, options):
    lines = refused(capsys, csv, *options)
    assert len(lines) == 1
    assert options[0] in lines[0]


def test_python_m_conductor_is_the_same_command(csv):
    command = [sys.executable, "-m", "conductor", "simulate", str(csv), *GPT, "--noise", "1.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "conductor: noise must be in [0, 1), not 1.5\n"


def test_the_timeline_is_written_for_perfetto(capsys, csv, tmp_path):
    code, _, err = run(capsys, csv, *GPT, "--trace", tmp_path / "t.json")
    assert code == 0
    assert "wrote the timeline" in err
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 96


@pytest.fixture
def policy(tmp_path):
    """A policy of no sense."""
    weights = random_weights(np.random.default_rng(3))
    critic = (np.zeros((16, 1), np.float32), np.zeros((1, 1), np.float32))
    save_weights(tmp_path / "policy.npz", StoredPolicy(weights=weights, critic=critic, meta={}))
    return tmp_path / "policy.npz"


def test_a_policy_decides_and_is_held_to_the_order_where_leaving_it_does_not_pay(
    capsys, csv, policy
):
    arguments = (
        csv,
        *GPT,
        "--execution",
        "policy",
        "--policy",
        policy,
        "--noise",
        0.1,
        "--draws",
        50,
    )
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    _, static, _ = run(capsys, csv, *GPT, "--noise", 0.1, "--draws", 50, "--json")
    assert json.loads(out) == json.loads(static)
    code, out, _ = run(capsys, *arguments, "--draw")
    assert "policy execution" in out
    assert "rank 3" in out


def test_what_no_policy_can_run_is_said(capsys, tmp_path, csv, policy):
    path = tmp_path / "dualpipe.csv"
    spec = load_preset("gpt-like").with_(memory_limit=None)
    write_torch_csv(build("dualpipe-v", spec), path)
    (tmp_path / "spec.toml").write_text(
        "num_ranks = 4\nnum_microbatches = 8\nplacement = 'v'\nstages_per_rank = 2\n"
        "forward_ms = 5\nbackward_input_ms = 5\nbackward_weight_ms = 3.5\n"
    )
    arguments = (path, "--spec", tmp_path / "spec.toml", "--execution", "policy")
    code, _, err = run(capsys, *arguments, "--policy", policy)
    assert (code, err.count("\n")) == (2, 1)
    assert "overlaps actions" in err
    policy.write_text("nothing")
    code, _, err = run(capsys, csv, *GPT, "--execution", "policy", "--policy", policy)
    assert (code, err.count("\n")) == (2, 1)
    assert "holds no policy" in err
    code, _, err = run(capsys, csv, *GPT, "--policy", policy)
    assert code == 2
    assert "--execution policy" in err
