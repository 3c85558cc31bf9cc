from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conductor.cli import train as command
from conductor.cli import training_report
from conductor.cli.app import main
from conductor.rl.curriculum import Curriculum
from conductor.rl.two_tier.policy.network import TwoTierPolicy
from conductor.rl.weights import SHIPPED, load_weights

GPT_LIKE = ("--preset", "gpt-like", "--noise", "0.3", "--config", "paper")
QUICK = (*GPT_LIKE, "--episodes", "50", "--seed", "1")


def run(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["train", *options, "--threads", "1", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["train", *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished training: its checkpoint, its policy, its log."""
    folder = tmp_path_factory.mktemp("trained")
    files = (f"--{option}={folder / name}" for option, name in (
        ("save", "training.pt"), ("export", "policy.npz"), ("log", "log"),
    ))  # fmt: skip
    assert main(["train", *QUICK, *files, "--threads", "1"]) == 0
    return folder


def test_an_exported_policy_has_its_card_with_it(trained: Path) -> None:
    card = load_weights(trained / "policy.npz").meta
    assert card["spec"]["name"] == "gpt-like"
    assert card["config"]["name"] == "paper"
    assert (card["seed"], card["training"]["episodes"]) == (1, 50)
    assert card["evaluation"]["makespan_ms"]["policy"]["mean"] > 259.8


def test_a_finished_training_gives_its_policy_again(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again.npz"
    run(
        capsys, "--resume", str(trained / "training.pt"), "--export", str(again),
        "--save", str(tmp_path / "again.pt"),
    )  # fmt: skip
    ours, theirs = load_weights(trained / "policy.npz"), load_weights(again)
    for one, other in zip(ours.weights + ours.critic, theirs.weights + theirs.critic, strict=True):
        assert np.array_equal(one, other)


def test_a_training_goes_on_from_a_policy_on_another_spec(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(
        capsys, "--preset", "paper", "--noise", "0.1", "--config", "paper", "--episodes", "0",
        "--from", str(trained / "policy.npz"),
    )  # fmt: skip
    assert result["training"]["cloned_from"] is None
    assert result["spec"]["name"] == "paper"
    assert [episodes for episodes, _ in result["training"]["validation_ms"]] == [0]


@pytest.mark.skipif(not SHIPPED.exists(), reason="no policy comes with the package yet")
def test_the_shipped_policy_can_be_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, *GPT_LIKE, "--episodes", "0", "--from-shipped", "--clone")
    assert result["training"]["cloned_from"] == "replay"


def test_scalars_are_written_for_tensorboard(trained: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = accumulator.EventAccumulator(str(trained / "log"))
    log.Reload()
    tags = set(log.Tags()["scalars"])
    assert {"update/reward", "update/entropy", "update/kl", "update/decisions_per_s"} <= tags
    assert {f"held-out/{name}" for name in ("policy", "best", "plan", "ready-first")} <= tags
    assert [event.step for event in log.Scalars("held-out/policy")] == [0, 25, 50]
    assert [event.step for event in log.Scalars("update/reward")] == [25, 50]


def test_without_tensorboard_its_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "conductor-pipeline[log]" in refusal(capsys, *GPT_LIKE, "--log", str(tmp_path))


def test_a_generalist_is_compared_on_new_pipelines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = Curriculum(
        seed=4, num_tasks=6, num_held_out=2, tasks_per_update=3, num_cloned=6, ranks=(2, 3),
        search_evaluations=50,
    )  # fmt: skip
    monkeypatch.setattr(command, "_random_pipelines", lambda seed: small)
    monkeypatch.setattr(training_report, "TASKS", 4)
    monkeypatch.setattr(training_report, "DRAWS", 5)
    file = tmp_path / "policy.npz"
    result = run(capsys, "--curriculum", "--episodes", "16", "--export", str(file))
    assert set(result["evaluation"]["makespan_over_bound"]) == {
        "plan", "ready-first", "greedy", "policy",
    }  # fmt: skip
    for row in result["evaluation"]["makespan_over_bound"].values():
        assert row["ci95"][0] <= row["mean"] <= row["ci95"][1]
        assert row["mean"] >= 1.0 - 1e-9
    assert sum(result["training"]["cloned_from"].values()) == 6
    assert load_weights(file).meta["curriculum"]["seed"] == 4
    assert main(["train", "--curriculum", "--episodes", "0", "--threads", "1"]) == 0
    assert "4 new pipelines, 5 draws of each" in capsys.readouterr().out


@pytest.mark.slow
def test_the_policy_of_both_tiers_is_trained_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, policy, log = tmp_path / "both.pt", tmp_path / "both.npz", tmp_path / "log"
    assert main(["train", "--migration", "--episodes", "48", "--save", str(both), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [updates for updates, _ in result["of_planner"]] == [0, 1]
    again = ("--migration", "--resume", str(both), "--export", str(policy), "--log", str(log))
    assert main(["train", *again]) == 0
    assert TwoTierPolicy.load(policy).meta["of_planner"] == result["of_planner"]
    assert any(log.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--migration", "--preset", "paper"], "--migration makes its own specs"),
        (["--resume", "x.pt", "--seed", "1"], "--resume takes all settings"),
        (["--resume", "x.pt", "--curriculum"], "--resume takes all settings"),
        (["--curriculum", "--preset", "paper"], "--curriculum makes its own specs"),
        (["--preset", "paper", "--from", "a.npz", "--from-shipped"], "give one of --from"),
        (["--preset", "paper", "--clone"], "--clone goes with"),
        (["--preset", "paper", "--from", "missing.npz"], "cannot read missing.npz"),
        (["--preset", "paper", "--export", "missing/a.npz"], "there is no folder missing"),
        (["--preset", "paper", "--save", "missing/a.pt"], "there is no folder missing"),
        (["--preset", "paper", "--config", "best"], "no configuration is named 'best'"),
        (["--preset", "paper", "--device", "tpu"], "the device is cpu or cuda"),
        ([], "give one of --preset NAME and --spec FILE"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(capsys, *options)
