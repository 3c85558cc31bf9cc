"""plan() with a budget: search, CP-SAT, bounds, draws, Ctrl-C, the command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from conductor.cli.app import main
from conductor.ir.validate import validate
from conductor.planning import deepen as deepening
from conductor.planning.plan import LEARNED, plan
from conductor.problem.presets import load_preset
from conductor.search.objective import objective_value
from conductor.simulator.program import encode
from conductor.variation.uniform import UniformNoise


@pytest.fixture(scope="module")
def gpt_like():
    return load_preset("gpt-like")


def test_a_budget_never_makes_the_best_worse_and_reaches_the_proved_optimum(gpt_like):
    before = plan(gpt_like)
    after = plan(gpt_like, budget_ms=1500)
    assert after.best.value_ms <= before.best.value_ms
    assert after.best.value_ms == pytest.approx(234.6)
    assert after.best.name.endswith(("+search", LEARNED))
    validate(after.best.schedule, gpt_like)
    values = [candidate.value_ms for candidate in after.candidates]
    assert values == sorted(values)
    assert values == [candidate.timeline.makespan_ms for candidate in after.candidates]


def test_cp_sat_proves_the_optimum_where_there_is_time(gpt_like):
    pytest.importorskip("ortools")
    phases = []
    result = plan(
        gpt_like.with_(num_microbatches=4),
        budget_ms=8000,
        on_progress=lambda progress: phases.append(progress.phase),
    )
    assert list(dict.fromkeys(phases)) == ["search", "cp-sat"]
    assert result.best.value_ms == pytest.approx(result.best.lower_bound_ms)


def test_a_plan_at_the_bound_ends_early(gpt_like):
    result = plan(gpt_like, schedules=["zb-1p"], budget_ms=60_000)
    assert result.best.value_ms == pytest.approx(result.best.lower_bound_ms)
    assert result.best.plan_ms < 10_000
    assert [candidate.name for candidate in result.candidates] == ["zb-1p"]


def test_the_mean_is_that_of_draws_the_search_has_not_seen(gpt_like):
    noise = UniformNoise(0.3)
    result = plan(
        gpt_like,
        schedules=["zb-1p", "1f1b"],
        objective="mean",
        variation=noise,
        budget_ms=500,
        seed=4,
    )
    best = result.best
    assert best.name.endswith("+search")
    program = encode(gpt_like, best.schedule)
    durations = noise.sample(program, 1000, np.random.default_rng(5))
    assert best.value_ms == objective_value(gpt_like, best.schedule, "mean", durations)
    assert best.value_ms < result.candidates[1].value_ms


def test_ctrl_c_returns_the_best_so_far(gpt_like):
    def stop(progress):
        if progress.value_ms < 236.0:
            raise KeyboardInterrupt

    result = plan(gpt_like, budget_ms=600_000, on_progress=stop)
    assert result.interrupted
    assert result.best.value_ms < 236.0


def test_without_the_solver_the_search_has_the_whole_budget(gpt_like, monkeypatch):
    monkeypatch.setattr(deepening, "find_spec", lambda name: None)
    phases = set()
    plan(gpt_like, budget_ms=2500, on_progress=lambda progress: phases.add(progress.phase))
    assert phases == {"search"}


def test_the_command_takes_a_budget_and_noise(capsys):
    arguments = ["plan", "--preset", "gpt-like", "--schedule", "zb-1p", "--budget-ms", "500"]
    assert main([*arguments, "--objective", "mean", "--noise", "0.3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"] == "zb-1p+search"
    assert answer["candidates"][0]["value_ms"] > answer["candidates"][0]["makespan_ms"]
    assert main([*arguments, "--objective", "p95", "--noise", "0.3"]) == 0
    assert "p95 ms" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--objective", "mean"], ["--noise", "0.1"]])
def test_the_command_refuses_noise_and_objectives_that_do_not_go_together(capsys, wrong):
    assert main(["plan", "--preset", "gpt-like", *wrong]) == 2
    assert "with --objective mean or p95" in capsys.readouterr().err
