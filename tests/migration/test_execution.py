"""What every run with migration must keep: work, one thing at a time, memory, and the future unseen."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conductor.errors import InvalidScheduleError, InvalidSpecError
from conductor.migration.execution import MigrationRules, prepare, run, run_draws
from conductor.migration.model import SimpleModel
from conductor.problem.kind import Kind
from conductor.schedules.registry import build
from tests.migration.test_reference import MODELS, RULES, prepared_problem
from tests.migration.uniform import uniform
from tests.strategies import durations, problems

RUNS = {
    "problem": problems(max_ranks=5, max_microbatches=5),
    "model": MODELS,
    "rules": RULES,
    "execution": st.sampled_from(("static", "ready-first")),
    "seed": st.integers(0, 2**32),
}


def local_ms(prepared, own, result):
    """What each action takes its own rank, from the parts that stayed."""
    share = prepared.costs.movable / prepared.costs.parts
    return own * (1.0 - share * result.moved)


@settings(max_examples=60)
@given(**RUNS)
def test_work_is_conserved(problem, model, rules, execution, seed):
    """Parts that stay and parts that lenders do make up every action, and each is paid for."""
    prepared = prepared_problem(problem, model, rules, execution, seed)
    realised = durations(prepared.program.duration_ms, seed)[0]
    result = run(prepared, realised)
    own, factors = (array[0] for array in prepared.realise(realised))
    costs = prepared.costs
    parts = np.bincount(result.help_action, weights=result.help_parts, minlength=len(own))
    assert parts.tolist() == result.moved.tolist()
    assert (result.moved >= 0).all()
    assert (result.moved <= costs.parts).all()
    send = prepared.layout.send_ms
    took = result.end_ms - result.start_ms
    assert (took >= local_ms(prepared, own, result) + send - 1e-6).all()
    kinds, stages = costs.kinds[result.help_action], costs.stages[result.help_action]
    twin = costs.where[
        kinds, costs.stand_in[stages, result.help_lender], costs.units[result.help_action]
    ]
    factor = factors[np.where(twin >= 0, twin, result.help_action)]
    whole = costs.lend_ms[kinds, stages, result.help_lender] * factor
    share = costs.movable[result.help_action] / costs.parts
    work = (whole * share + costs.part_ms) * result.help_parts + costs.latency_ms
    assert result.help_end_ms - result.help_start_ms == pytest.approx(work, abs=1e-9)
    back = result.help_end_ms + costs.latency_ms + costs.part_ms * result.help_parts
    ends = result.end_ms[result.help_action] - send[result.help_action]
    assert (ends >= back - 1e-9).all()


@settings(max_examples=60)
@given(**RUNS)
def test_nobody_does_two_things_at_once(problem, model, rules, execution, seed):
    prepared = prepared_problem(problem, model, rules, execution, seed)
    result = run(prepared, durations(prepared.program.duration_ms, seed)[0])
    for rank in range(prepared.program.num_ranks):
        own = np.arange(*prepared.program.rank_offsets[rank : rank + 2])
        lent = np.flatnonzero(result.help_lender == rank)
        spans = [
            *zip(result.start_ms[own], result.end_ms[own], strict=True),
            *zip(result.help_start_ms[lent], result.help_end_ms[lent], strict=True),
        ]
        spans = sorted(span for span in spans if span[1] > span[0])
        for (_, end), (start, _) in zip(spans[:-1], spans[1:], strict=True):
            assert start >= end - 1e-9
        assert not np.isin(result.help_action[lent], own).any()


@settings(max_examples=60)
@given(**RUNS)
def test_dependencies_and_memory_hold(problem, model, rules, execution, seed):
    prepared = prepared_problem(problem, model, rules, execution, seed)
    program = prepared.program
    result = run(prepared, durations(program.duration_ms, seed)[0])
    second = np.flatnonzero(program.overlaps) + 1
    for slot in range(program.inputs.shape[1]):
        used = np.setdiff1d(np.flatnonzero(program.inputs[:, slot] >= 0), second)
        arrival = result.end_ms[program.inputs[used, slot]] + program.input_lag_ms[used, slot]
        assert (result.start_ms[used] >= arrival - 1e-9).all()
    for rank in range(program.num_ranks):
        own = np.arange(*program.rank_offsets[rank : rank + 2])
        order = own[np.lexsort((own, result.start_ms[own]))]
        held = np.cumsum(program.allocated[order]) - np.cumsum(program.freed[order])
        peak = (held + program.freed[order]).max(initial=0.0)
        assert peak <= prepared.layout.limits[rank] + 1e-6


def decisions(result, until):
    """Who was asked for how much, up to a moment."""
    seen = result.help_decided_ms <= until
    columns = (result.help_action, result.help_lender, result.help_parts, result.help_decided_ms)
    return [column[seen].tolist() for column in columns]


@settings(max_examples=100)
@given(**RUNS)
def test_decisions_do_not_see_the_future(problem, model, rules, execution, seed):
    """Two worlds that differ only in actions that have not told anything yet decide alike until then."""
    assume(not problem[1].overlaps.any())  # a pair's times tell of both at once
    prepared = prepared_problem(problem, model, rules, execution, seed)
    program = prepared.program
    rng = np.random.default_rng(seed)
    first = durations(program.duration_ms, seed)[0] + 0.01
    result = run(prepared, first)
    moment = float(rng.uniform(0.0, result.makespan_ms))
    # Time tells at an action's first block boundary at the earliest, and a help when it has ended.
    untold = (result.start_ms > moment) & (rng.random(len(first)) < 0.7)
    lent = np.isin(np.arange(len(first)), twins(prepared, result, moment))
    second = np.where(untold & ~lent, first * rng.uniform(1.0, 3.0, len(first)), first)
    assert decisions(run(prepared, second), moment) == decisions(result, moment)


def twins(prepared, result, moment):
    """Actions whose variation lenders have felt by then (a help varies as the lender's own action)."""
    costs = prepared.costs
    told = result.help_start_ms <= moment
    action, lender = result.help_action[told], result.help_lender[told]
    stage = costs.stand_in[costs.stages[action], lender]
    return costs.where[costs.kinds[action], stage, costs.units[action]]


def test_a_running_action_tells_nothing_before_its_first_block_ends():
    """An action that takes longer is news only at a block boundary, not at its start."""
    spec = uniform(4, 8, 4)
    prepared = prepare(spec, build("zb", spec), rules=MigrationRules(blocks=8))
    expected = prepared.program.duration_ms
    plain = run(prepared, expected)
    asked = 0
    for slow in np.flatnonzero((prepared.costs.movable > 0.0) & (plain.moved == 0)):
        longer = expected.copy()
        longer[slow] *= 3.0
        told = plain.start_ms[slow] + expected[slow] * 3.0 / 8
        if slow in twins(prepared, plain, told):
            continue
        result = run(prepared, longer)
        assert decisions(result, told - 1e-9) == decisions(plain, told - 1e-9)
        when = result.help_decided_ms[result.help_action == slow]
        assert (when >= told - 1e-9).all()
        asked += len(when)
    assert asked


def test_a_slowdown_inside_an_action_is_caught():
    spec = uniform(4, 8, 4)
    schedule = build("zb", spec)
    rng = np.random.default_rng(0)
    blind = prepare(spec, schedule)
    expected = blind.program.duration_ms
    slow = expected * np.where(rng.random((200, len(expected))) < 0.05, 3.0, 1.0)
    seeing = blind.with_rules(MigrationRules(blocks=8))
    assert (
        run_draws(seeing, slow).makespan_ms.mean()
        < 0.98 * run_draws(blind, slow).makespan_ms.mean()
    )


def test_draws_are_single_runs():
    spec = uniform(4, 8, 4)
    prepared = prepare(spec, build("zb", spec), rules=MigrationRules(blocks=4))
    realised = prepared.program.duration_ms * np.random.default_rng(1).uniform(
        0.7, 1.3, (5, prepared.program.num_actions)
    )
    draws = run_draws(prepared, realised)
    singles = [run(prepared, row) for row in realised]
    assert draws.makespan_ms.tolist() == [single.makespan_ms for single in singles]
    assert draws.helps.tolist() == [len(single.help_action) for single in singles]


def test_pairs_that_run_together_do_not_leave_the_plan():
    spec = uniform(4, 8)
    schedule = build("dualpipe-v", spec)
    with pytest.raises(InvalidScheduleError, match="runs pairs of actions together"):
        prepare(spec, schedule, execution="ready-first")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("movable", 1.5),
        ("latency_ms", -1.0),
        ("part_ms", float("nan")),
        ("parts", 0),
        ("lender_time", "x"),
    ],
)
def test_a_model_that_cannot_be_is_refused(field, value):
    with pytest.raises(InvalidSpecError, match=field):
        SimpleModel(**{field: value})


def test_heavy_work_is_heavy_wherever_it_is_done():
    """A lender takes its own time for a slow rank, and the borrower's for a heavy stage."""
    spec = uniform(4, 8, 4, {3: 1.5})
    schedule = build("zb", spec)
    slow_rank = prepare(spec, schedule)
    heavy_stage = prepare(spec, schedule, model=SimpleModel(lender_time="borrower"))
    assert slow_rank.costs.lend_ms[Kind.F, 3].tolist() == [10.0, 10.0, 10.0, 15.0]
    assert heavy_stage.costs.lend_ms[Kind.F, 3].tolist() == [15.0] * 4
    assert heavy_stage.costs.lend_ms[Kind.F, 0].tolist() == [10.0] * 4
