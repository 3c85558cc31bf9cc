"""plan() with the learned planner: when it is asked, from which weights, and that it never makes worse."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from conductor.cli.app import main
from conductor.errors import DoesNotFitError, FormatError
from conductor.migration.scenarios import equal_ranks
from conductor.planning import plan as planning
from conductor.planning.plan import LEARNED, plan
from conductor.problem.presets import load_preset
from conductor.rl import weights as stored
from conductor.rl.weights import StoredPolicy, save_weights
from conductor.schedules.registry import POOL
from conductor.variation import UniformNoise
from tests.rl.test_kernels import random_weights

GPT_LIKE = load_preset("gpt-like")
WEIGHTS = random_weights(np.random.default_rng(3))


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.npz"
    critic = (np.zeros((16, 1), np.float32), np.zeros((1, 1), np.float32))
    save_weights(path, StoredPolicy(weights=WEIGHTS, critic=critic, meta={}))
    return path


@pytest.fixture
def without_shipped(monkeypatch, tmp_path):
    monkeypatch.setattr("conductor.rl.shipped.SHIPPED", tmp_path / "none.npz")
    monkeypatch.setattr(stored, "SHIPPED", tmp_path / "none.npz")
    stored.shipped_policy.cache_clear()
    yield
    stored.shipped_policy.cache_clear()


@pytest.mark.parametrize("spec", [GPT_LIKE, equal_ranks(8, 24, 8.0, {3: 1.3})])
def test_it_is_a_candidate_and_never_worse_than_the_others(spec):
    found = {one.name: one for one in plan(spec, policy=WEIGHTS).candidates}
    others = [found[name].value_ms for name in POOL if name in found]
    assert found[LEARNED].value_ms <= min(others)
    assert found[LEARNED].timeline.makespan_ms == found[LEARNED].value_ms


def test_alone_it_starts_from_the_others_all_the_same():
    alone = plan(GPT_LIKE, schedules=[LEARNED], policy=WEIGHTS)
    assert [one.name for one in alone.candidates] == [LEARNED]
    assert not alone.rejected
    among = plan(GPT_LIKE, policy=WEIGHTS)
    assert alone.best.schedule == next(
        one.schedule for one in among.candidates if one.name == LEARNED
    )


@pytest.mark.parametrize("objective", ["stage-span", "mean", "p95"])
def test_every_objective(objective):
    variation = UniformNoise(0.3) if objective in ("mean", "p95") else None
    result = plan(GPT_LIKE, objective=objective, variation=variation, policy=WEIGHTS)
    value = next(one.value_ms for one in result.candidates if one.name == LEARNED)
    if variation is None:
        assert value == result.best.value_ms
    assert value <= 1.01 * result.best.value_ms  # chosen on other draws


def test_with_a_budget_the_search_goes_on_from_it():
    result = plan(GPT_LIKE, schedules=[LEARNED], policy=WEIGHTS, budget_ms=300)
    names = [one.name for one in result.candidates]
    assert names in ([LEARNED], [f"{LEARNED}+search", LEARNED])


def test_where_nothing_else_fits_the_rule_of_ready_ranks_is_the_start():
    spec = GPT_LIKE.with_(placement=(0, 1, 1, 2, 3, 0), memory_limit=3.0)
    assert [one.name for one in plan(spec, policy=WEIGHTS).candidates] == [LEARNED]


def test_memory_below_one_microbatch_is_a_reason():
    with pytest.raises(DoesNotFitError):
        plan(GPT_LIKE.with_(memory_limit=0.2), schedules=[LEARNED], policy=WEIGHTS)


def test_unasked_it_is_left_out_where_it_takes_long(monkeypatch):
    monkeypatch.setattr(planning, "LEARNED_ACTIONS", 50)
    assert "give one" in plan(GPT_LIKE, policy=WEIGHTS).rejected[LEARNED]
    assert plan(GPT_LIKE, policy=WEIGHTS, schedules=[LEARNED]).best.name == LEARNED


@pytest.mark.usefixtures("without_shipped")
def test_without_weights_it_is_only_missed_when_asked_for():
    result = plan(GPT_LIKE)
    assert sorted([*(one.name for one in result.candidates), *result.rejected]) == sorted(POOL)
    with pytest.raises(FormatError, match=r"none\.npz"):
        plan(GPT_LIKE, schedules=[LEARNED])


def test_the_command_takes_a_policy(policy, capsys):
    arguments = ["plan", "--preset", "gpt-like", "--schedule", "rl", "--policy", str(policy)]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == LEARNED
    policy.write_bytes(b"nothing")
    assert main(arguments) == 2
    assert "holds no policy" in capsys.readouterr().err
    assert main(["plan", "--preset", "gpt-like", "--schedule", "zb-1p", *arguments[-2:]]) == 2
    assert "--schedule rl" in capsys.readouterr().err


def test_it_plans_without_torch(policy):
    code = (
        "import sys, conductor;"
        f"conductor.plan(conductor.load_preset('gpt-like'), schedules=['rl'], policy={str(policy)!r});"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert not {"torch", "gymnasium"} & set(loaded.split())
