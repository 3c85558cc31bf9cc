"""`conductor run`: real ranks from the command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conductor.rl.weights import StoredPolicy, save_weights
from tests.rl.test_kernels import random_weights


def conductor(*arguments, before=(sys.executable, "-m")):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    return subprocess.run(
        [*before, "conductor", "run", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip


SMALL = ("--layers", 4, "--width", 16, "--microbatches", 2)


def test_two_ranks_learn_and_write_what_they_did(tmp_path):
    trace = tmp_path / "trace.json"
    done = conductor(
        "--ranks",
        2,
        "--schedule",
        "zb-1p",
        "--steps",
        12,
        *SMALL,
        "--json",
        "--trace",
        trace,
        "--timeline",
        tmp_path / "step.json",
        "--save",
        tmp_path / "checkpoint",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    losses = [step["loss"] for step in result["steps"]]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.1
    assert set(result["steps"][0]) == {"step", "loss", "time_ms", "bubble_ratio", "plan"}
    assert result["median_ms"] > 0
    assert result["simulated_ms"] is None
    from conductor.interop.timeline_json import read_timeline

    assert read_timeline(tmp_path / "step.json").makespan_ms == result["steps"][-1]["time_ms"]
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["rank-0.pt", "rank-1.pt"]
    assert sum(e["ph"] == "X" for e in json.loads(trace.read_text())["traceEvents"]) == 2 * 2 * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--noise", 0.1), "--noise, --variation and --straggler vary emulated times"),
        (("--emulate", "gpt-like", "--straggler", "rank=x"), "a straggler looks like"),
        (
            ("--emulate", "gpt-like", "--straggler", "rank=9,factor=2"),
            "--straggler rank=9: there are ranks 0 to 3",
        ),
        (("--emulate", "gpt-like", "--ranks", 3), "gpt-like has 4 ranks, not 3"),
        (("--policy", "mine.npz"), "--policy goes with --execution policy"),
        (("--execution", "policy", "--policy", "none.npz"), "cannot read none.npz"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(capsys, arguments, message):
    from conductor.cli.app import main

    assert main(["run", *map(str, arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_emulated_ranks_take_at_least_the_simulated_time():
    done = conductor(
        "--emulate", "gpt-like", "--schedule", "1f1b", "--steps", 3, "--layers", 4, "--width", 16,
        "--straggler", "rank=1,factor=2,from=2", "--json",
    )  # fmt: skip
    result = json.loads(done.stdout)
    times = [step["time_ms"] for step in result["steps"]]
    assert min(times) >= result["simulated_ms"] * 0.999
    assert times[2] >= result["simulated_ms"] * 1.2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks the ranks up in /proc")
def test_a_killed_rank_ends_the_run_with_an_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "conductor", "run", "--ranks", "2", "--steps", "100000",
         *map(str, SMALL)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline().startswith("step")
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(ranks) == 2
    os.kill(int(ranks[1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "conductor: rank 0" in errors


@pytest.mark.slow
def test_a_policy_from_a_file_decides(tmp_path):
    weights = random_weights(np.random.default_rng(0))
    critic = np.zeros((16, 1), np.float32), np.zeros((1, 1), np.float32)
    save_weights(tmp_path / "wild.npz", StoredPolicy(weights=weights, critic=critic, meta={}))
    options = ("--ranks", 2, "--steps", 2, "--schedule", "1f1b", *SMALL, "--json")
    policy = ("--execution", "policy", "--policy", tmp_path / "wild.npz")
    plain, decided = (conductor(*options, *more) for more in ((), policy))
    assert decided.returncode == 0, decided.stderr
    losses = [
        [step["loss"] for step in json.loads(run.stdout)["steps"]] for run in (plain, decided)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_torchrun_starts_the_ranks_as_well():
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m")
    done = conductor("--ranks", 2, "--steps", 2, *SMALL, "--json", before=torchrun)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["steps"]) == 2


@pytest.mark.slow
def test_the_command_from_python_starts_its_own_arguments(capfd):
    from conductor.cli.app import main

    assert main(["run", "--ranks", "2", "--steps", "1", "--json", *map(str, SMALL)]) == 0
    assert len(json.loads(capfd.readouterr().out)["steps"]) == 1


@pytest.mark.slow
def test_a_model_too_small_for_the_plan_ends_every_rank_with_the_reason():
    done = conductor("--ranks", 2, "--layers", 1)
    assert done.returncode == 2
    assert done.stderr.count("conductor: 1 layers do not fill") == 1
    assert "Traceback" not in done.stderr
