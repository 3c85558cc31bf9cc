"""`python -m conductor_rl.train`, run as the paper's readers run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*options: str, module: str = "conductor_rl.train") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_standard_output_is_one_json_object_with_the_papers_keys() -> None:
    done = run("--noise", "0.1", "--episodes", "20", "--seed", "1", "--threads", "1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == ["paper_configuration", "ppo", "training", "evaluation"]
    assert report["paper_configuration"] == {
        "devices": 4, "micro_batches": 8, "micro_batch_size": 32, "max_memory": 4.0,
        "noise": 0.1, "episodes": 20, "seed": 1,
    }  # fmt: skip
    assert report["ppo"] == {
        "learning_rate": 3e-4, "clip": 0.2, "discount_factor": 0.99, "update_epochs": 10,
        "batch_size": 64, "behavioral_cloning_rollouts": 64, "behavioral_cloning_epochs": 10,
        "value_loss_coefficient": 0.5, "entropy_coefficient": 0.01,
    }  # fmt: skip
    evaluation = report["evaluation"]
    lock_step, policy = evaluation["zbpp_completion_time"], evaluation["ppo_completion_time"]
    assert evaluation["improvement_ratio"] == pytest.approx((lock_step - policy) / lock_step)
    assert evaluation["throughput_improvement_ratio"] == pytest.approx(lock_step / policy - 1.0)
    assert evaluation["decision_count"] > 80
    assert evaluation["avg_policy_call_ms"] > 0.0
    assert evaluation["p99_policy_call_ms"] > 0.0
    assert evaluation["per_rank_bound"] <= policy < lock_step
    assert evaluation["ready_first_completion_time"] < lock_step
    assert "20/20" in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--noise", "1.5"), "noise must be in [0, 1), not 1.5"),
        (("--noise", "-0.1"), "noise must be in [0, 1), not -0.1"),
        (("--episodes", "-1"), "--episodes: must be a whole number of at least 0, not -1"),
        (("--devices", "0"), "--devices: must be a whole number of at least 1, not 0"),
        (("--max-memory", "0.5"), "rank 0 needs 1 for one micro-batch, its limit is 0.5"),
        (("--device", "abacus"), "the device is cpu or cuda, not 'abacus'"),
        (("--save", "/no/such/folder/x.pt"), "there is no folder /no/such/folder"),
        (("--no-such-option",), "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from conductor_rl.train import main

    try:
        code = main(options)
    except SystemExit as stopped:
        code = stopped.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    file = tmp_path / "stopped.pt"
    with subprocess.Popen(
        [sys.executable, "-m", "conductor_rl.train", "--episodes", "1000000", "--threads", "1",
         "--save", str(file)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        seen = ""
        while "best" not in seen:  # the first update is done
            seen += process.stderr.read(1)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert output == ""
    assert f"go on with: conductor train --resume {file}" in " ".join(errors.split())
    assert file.exists()
