"""Schedulers on scenarios: paired draws, baselines, bounds."""

import numpy as np
import pytest

from conductor.errors import InvalidSpecError
from conductor.evaluation.draws import fresh_draws
from conductor.evaluation.evaluate import default_schedulers, evaluate
from conductor.evaluation.scenario import Scenario, load_scenario, scenario_names
from conductor.evaluation.scheduler import Planner, SchedulerName
from conductor.migration.model import SimpleModel
from conductor.problem.presets import load_preset
from conductor.rl.two_tier import network
from conductor.rl.two_tier.network import LendingNetwork
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate
from conductor.variation import UniformNoise
from tests.rl.test_kernels import random_weights

NOISY = Scenario(name="noisy", spec=load_preset("gpt-like"), variation=UniformNoise(level=0.2))


def rows(scenario, *schedulers, draws=50, **options):
    (result,) = evaluate([scenario], schedulers, draws=draws, **options)
    return {row.name: row for row in result.schedulers}, result


def test_a_static_row_is_the_simulation_of_its_schedule_on_the_fresh_draws():
    by_name, _ = rows(NOISY, "zb-1p")
    schedule = build("zb-1p", NOISY.spec)
    durations = fresh_draws(NOISY, encode(NOISY.spec, schedule), 50, 0)
    expected = simulate(NOISY.spec, schedule, durations).makespan_ms
    assert by_name["zb-1p"].mean_ms == expected.mean()
    assert by_name["zb-1p"].p95_ms == np.quantile(expected, 0.95)


def test_two_schedules_meet_the_same_factors():
    ample = Scenario(
        name="ample", spec=NOISY.spec.with_(memory_limit=8.0), variation=NOISY.variation
    )

    def factors(name):
        program = encode(ample.spec, schedule := build(name, ample.spec))
        drawn = fresh_draws(ample, program, 3, 0) / program.duration_ms
        return {
            str(action): drawn[:, i].tolist() for i, action in enumerate(sum(schedule.rows, ()))
        }

    assert build("zb-1p", ample.spec) != build("zb-2p", ample.spec)
    assert factors("zb-1p") == factors("zb-2p")


def test_rows_are_best_first_and_compared_with_the_best_static_row():
    _, result = rows(NOISY, "1f1b", "zb-1p", "1f1b+ready-first")
    means = [row.mean_ms for row in result.schedulers]
    assert means == sorted(means)
    by_name = {row.name: row for row in result.schedulers}
    assert by_name["zb-1p"].vs_best_static == 0.0
    assert by_name["zb-1p"].vs_best_static_ci95 == (0.0, 0.0)
    low, high = by_name["1f1b"].vs_best_static_ci95
    assert 0.0 < low < by_name["1f1b"].vs_best_static < high


def test_the_best_static_schedule_is_in_every_table():
    by_name, _ = rows(NOISY, "1f1b+ready-first")
    assert set(by_name) == {"1f1b+ready-first", "best"}


def test_no_order_is_below_the_bounds_and_migration_is_below_its_schedule():
    by_name, result = rows(NOISY, "1f1b", "zb-1p", "zb-v", "zb-1p+migration")
    assert all(row.over_bound >= 0.0 for row in by_name.values())
    assert by_name["zb-1p+migration"].mean_ms < by_name["zb-1p"].mean_ms
    assert by_name["zb-1p+migration"].moved_share > 0.0
    assert result.bounds_ms["balanced_work"] <= result.bounds_ms["per_rank"]


def test_the_searched_order_is_no_worse_than_the_best_on_the_planning_draws():
    planner = Planner(scenario=NOISY, seed=0, search_ms=200.0, joint_steps=0, model=SimpleModel())
    searched, best = planner.schedule("searched"), planner.schedule("best")
    assert planner.planned_mean(searched) <= planner.planned_mean(best)


def test_what_does_not_fit_is_left_out_with_the_reason():
    _, result = rows(NOISY, "gpipe", "zb-1p")
    assert list(result.left_out) == ["gpipe"]
    assert "missing" in result.left_out["gpipe"]


def test_links_as_they_are_count_when_running_but_not_when_planning():
    late = Scenario(name="late", spec=NOISY.spec, actual_transfer_ms=30.0)
    by_name, _ = rows(late, "zb-1p")
    schedule = build("zb-1p", late.spec)
    assert by_name["zb-1p"].mean_ms == simulate(late.actual_spec, schedule).makespan_ms[0]
    assert by_name["zb-1p"].mean_ms > simulate(late.spec, schedule).makespan_ms[0]


def test_equal_seeds_give_equal_rows():
    def figures(seed):
        by_name, _ = rows(NOISY, "zb-1p", "best+ready-first", seed=seed)
        return [(row.name, row.mean_ms, row.ci95_ms) for row in by_name.values()]

    assert figures(3) == figures(3)
    assert figures(3) != figures(4)


@pytest.mark.parametrize(
    ("text", "word"),
    [("zb-9p", "zb-9p"), ("zb-1p+fast", "fast"), ("best+", "''"), ("joint", "joint\\+migration")],
)
def test_an_unknown_scheduler_is_named(text, word):
    with pytest.raises(InvalidSpecError, match=word):
        SchedulerName.parse(text)


def test_every_default_scheduler_and_named_scenario_is_valid():
    assert all(SchedulerName.parse(name) for name in default_schedulers())
    for name in scenario_names():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.actual_spec.num_ranks == scenario.spec.num_ranks
    with pytest.raises(InvalidSpecError, match="paper-10"):
        load_scenario("paper-11")


def test_the_clairvoyant_optimum_is_below_every_order_on_its_placement():
    (result,) = evaluate([NOISY], ["1f1b", "zb-1p", "zb-1p+ready-first"], draws=10, clairvoyant=2)
    known = result.clairvoyant
    assert known is not None
    assert (known.draws, known.proved) == (2, 2)
    assert known.bound_ms == pytest.approx(known.optimum_ms, rel=1e-6)  # times are rounded
    assert all(known.optimum_ms <= mean for mean in known.mean_ms.values())


def test_without_variation_the_clairvoyant_optimum_is_the_proved_one():
    still = Scenario(name="still", spec=NOISY.spec)
    (result,) = evaluate([still], ["zb-1p"], draws=2, clairvoyant=1)
    assert result.clairvoyant is not None
    assert result.clairvoyant.optimum_ms == pytest.approx(259.8)


WEIGHTS = random_weights(np.random.default_rng(3))


def test_the_learned_scheduler_holds_a_policy_without_sense_to_the_searched_plan():
    by_name, _ = rows(NOISY, "searched", "rl", search_ms=300.0, policy=WEIGHTS)
    rl = by_name["rl"]
    assert rl.mean_ms <= by_name["searched"].ci95_ms[1]
    assert rl.moved_share == 0.0


def test_a_policy_decides_on_any_schedule():
    by_name, _ = rows(NOISY, "zb-1p+policy", "zb-1p", policy=WEIGHTS)
    assert by_name["zb-1p+policy"].schedule.startswith("zb-1p, ")
    assert by_name["zb-1p+policy"].mean_ms <= by_name["zb-1p"].ci95_ms[1]


@pytest.mark.slow
def test_both_learned_tiers_start_from_the_best_planned_migration(monkeypatch):
    lenders = LendingNetwork.initial(4, np.random.default_rng(0))  # decides as the planner's rule
    monkeypatch.setattr(LendingNetwork, "load", lambda: lenders)
    by_name, _ = rows(
        NOISY, "joint+migration", "searched+migration", "rl+migration", search_ms=100.0, joint_steps=50
    )  # fmt: skip
    planned = min(by_name[name].mean_ms for name in ("joint+migration", "searched+migration"))
    assert by_name["rl+migration"].mean_ms <= 1.005 * planned
    assert by_name["rl+migration"].moved_share > 0.0


def test_a_schedule_that_overlaps_is_left_out_for_a_policy():
    scenario = Scenario(name="ample", spec=NOISY.spec.with_(memory_limit=None))
    _, result = rows(scenario, "dualpipe-v+policy", policy=WEIGHTS)
    assert "no policy runs that" in result.left_out["dualpipe-v+policy"]


def test_a_policy_decides_alone():
    assert SchedulerName.parse("rl+policy+migration").decides
    for name in ("zb-1p+policy+migration", "rl+ready-first+migration", "rl+migration+policy"):
        with pytest.raises(InvalidSpecError, match="a policy decides alone"):
            SchedulerName.parse(name)


def test_learned_schedulers_are_no_default_without_their_weights(monkeypatch, tmp_path):
    monkeypatch.setattr("conductor.evaluation.evaluate.SHIPPED", tmp_path)  # exists
    monkeypatch.setattr(network, "SHIPPED", tmp_path)
    assert {"rl", "rl+migration"} <= set(default_schedulers())
    monkeypatch.setattr("conductor.evaluation.evaluate.SHIPPED", tmp_path / "none")
    monkeypatch.setattr(network, "SHIPPED", tmp_path / "none")
    assert not {"rl", "rl+migration"} & set(default_schedulers())
