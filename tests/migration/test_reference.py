"""The compiled event loop and the slow reference do the same, float for float."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.migration.execution import MigrationRules, latest_starts, prepare, run
from conductor.migration.model import SimpleModel
from conductor.migration.reference import Reference
from conductor.simulator.simulate import simulate, timeline
from tests.strategies import durations, problems

MODELS = st.builds(
    SimpleModel,
    movable=st.sampled_from((0.0, 0.3, 0.6, 1.0)),
    movable_weight=st.sampled_from((0.0, 0.5)),
    latency_ms=st.sampled_from((0.0, 0.05, 1.0)),
    part_ms=st.sampled_from((0.0, 0.01, 0.1)),
    parts=st.sampled_from((1, 7, 32)),
    lender_time=st.sampled_from(("own", "borrower")),
)
RULES = st.builds(
    MigrationRules,
    max_lenders=st.integers(1, 4),
    min_gain=st.sampled_from((0.0, 0.02, 0.1)),
    max_candidates=st.integers(1, 5),
    blocks=st.sampled_from((1, 2, 8)),
    postpone=st.booleans(),
    delay_share=st.sampled_from((0.0, 0.5, 1.0)),
    patience_ms=st.sampled_from((np.inf, 3.0)),
)


def prepared_problem(problem, model, rules, execution, seed):
    spec, schedule = problem
    if schedule.overlaps.any():
        execution = "static"
    prepared = prepare(spec, schedule, model=model, execution=execution)
    rng = np.random.default_rng(seed)
    return prepared.with_rules(
        rules.with_(
            latest_start_ms=latest_starts(prepared) + rng.choice([0.0, 5.0]),
            most_parts=rng.integers(0, 33, prepared.program.num_actions),
        )
    )


@settings(max_examples=80)
@given(
    problem=problems(max_ranks=5, max_microbatches=5),
    model=MODELS,
    rules=RULES,
    execution=st.sampled_from(("static", "ready-first")),
    seed=st.integers(0, 2**32),
)
def test_kernel_equals_reference(problem, model, rules, execution, seed):
    prepared = prepared_problem(problem, model, rules, execution, seed)
    realised = durations(prepared.program.duration_ms, seed)[0]
    got, expected = run(prepared, realised), Reference(prepared, realised)
    assert got.makespan_ms == expected.makespan_ms
    assert got.start_ms.tolist() == [action.start_ms for action in expected.actions]
    assert got.end_ms.tolist() == [action.end_ms for action in expected.actions]
    columns = (
        got.help_action, got.help_lender, got.help_parts, got.help_decided_ms, got.help_start_ms,
        got.help_end_ms,
    )  # fmt: skip
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (h.action, h.lender, h.parts, h.decided_ms, h.start_ms, h.end_ms) for h in expected.helps
    ]


@given(problem=problems(max_ranks=5, max_microbatches=5), seed=st.integers(0, 2**32))
def test_without_help_it_is_static_execution(problem, seed):
    prepared = prepare(*problem, rules=MigrationRules(most_parts=0))
    realised = durations(prepared.program.duration_ms, seed)[0]
    expected = timeline(*problem, realised).makespan_ms
    assert run(prepared, realised).makespan_ms == pytest.approx(expected, abs=1e-9)


@given(problem=problems(max_ranks=5, max_microbatches=5), seed=st.integers(0, 2**32))
def test_without_help_it_is_ready_first_execution(problem, seed):
    spec, schedule = problem
    if schedule.overlaps.any():
        return
    prepared = prepare(spec, schedule, rules=MigrationRules(most_parts=0), execution="ready-first")
    realised = durations(prepared.program.duration_ms, seed)[0]
    expected = simulate(spec, schedule, realised, execution="ready-first").makespan_ms[0]
    assert run(prepared, realised).makespan_ms == pytest.approx(expected, abs=1e-9)
