"""`conductor evaluate`."""

import json

import pytest

from conductor.cli.app import main

QUICK = (
    "evaluate",
    "--scenario",
    "paper-10",
    "--schedulers",
    "zb-1p,zb-1p+migration",
    "--draws",
    "20",
)


def test_json_is_one_object_with_the_promised_keys(capsys):
    assert main([*QUICK, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"scenarios", "draws", "seed"} == set(answer)
    (scenario,) = answer["scenarios"]
    assert scenario["name"] == "paper-10"
    assert set(scenario["bounds_ms"]) >= {"per_rank", "balanced_work"}
    assert [row["name"] for row in scenario["schedulers"]] == ["zb-1p+migration", "zb-1p"]
    for row in scenario["schedulers"]:
        assert set(row) >= {
            "name", "mean_ms", "ci95_ms", "p95_ms", "vs_best_static", "decision_us", "moved_share", "bytes",
        }  # fmt: skip


def test_markdown_has_a_row_a_scheduler(capsys):
    assert main([*QUICK, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| zb")] == [
        "| zb-1p+migration", "| zb-1p",
    ]  # fmt: skip


def test_the_table_names_schedulers_and_bounds(capsys):
    assert main([*QUICK]) == 0
    out = capsys.readouterr().out
    assert "zb-1p+migration" in out
    assert "balanced work" in out


def test_the_list_names_every_scenario(capsys):
    assert main(["evaluate", "--list"]) == 0
    assert "markov-stragglers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--scenario", "paper-11"), "paper-11"),
        (("--scenario", "nowhere.toml"), "nowhere.toml"),
        (("--schedulers", "zb-9p"), "zb-9p"),
        (("--draws", "0"), "--draws"),
        (("--movable", "1.5"), "movable"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, arguments, word):
    assert main(["evaluate", *arguments]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert len(error.strip().splitlines()) == 1
