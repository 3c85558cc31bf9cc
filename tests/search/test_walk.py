"""The compiled incremental evaluation against a plain simulation of the same orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.ir.validate import validate
from conductor.search.common_draws import CommonDraws
from conductor.search.walk import Walk
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate
from tests.strategies import durations, problems


def _walk(spec, schedule, draws: int = 1, seed: int = 0, **objective):
    program = encode(spec, schedule)
    times = program.duration_ms[None] if draws == 1 else durations(program.duration_ms, seed, draws)
    return Walk(schedule, program, program.busy_ms(times), seed=seed, **objective), times


@settings(max_examples=25)
@given(problems(max_microbatches=6), st.integers(0, 99), st.sampled_from((1, 5)), st.booleans())
def test_every_order_visited_is_valid_and_its_objective_is_that_of_a_simulation(
    problem, seed, draws, is_span
):
    spec, schedule = problem
    if schedule.overlaps.any():
        return
    walk, times = _walk(spec, schedule, draws, seed, is_span=is_span)
    common = CommonDraws(lambda program: times)
    common.of(schedule, encode(spec, schedule))
    walk.begin_round(10, 5.0, 0.5)
    while walk.advance(1):
        order, value = walk.present
        validate(order, spec)
        simulation = simulate(spec, order, common.of(order, encode(spec, order)))
        expected = (simulation.stage_span_ms if is_span else simulation.makespan_ms).mean()
        assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("draws", [1, 8])
def test_a_round_cut_into_parts_visits_the_same_orders(draws):
    spec, schedule = zero_bubble_case()
    whole, _ = _walk(spec, schedule, draws)
    parts, _ = _walk(spec, schedule, draws)
    for walk in (whole, parts):
        walk.begin_round(1000, 0.6, 0.01)
    whole.advance(1000)
    for _ in range(100):
        parts.advance(10)
    assert whole.present == parts.present
    assert whole.best_schedule == parts.best_schedule


def test_the_percentile_is_that_of_numpy():
    spec, schedule = zero_bubble_case()
    walk, times = _walk(spec, schedule, 40, tail_share=0.05)
    assert walk.best_value == np.quantile(simulate(spec, schedule, times).makespan_ms, 0.95)


def zero_bubble_case():
    from conductor.problem.spec import PipelineSpec
    from conductor.schedules.registry import build

    spec = PipelineSpec(
        num_ranks=4, num_microbatches=8, forward_ms=10, backward_input_ms=10, backward_weight_ms=7,
        transfer_ms=0.4, memory_limit=4,
    )  # fmt: skip
    return spec, build("1f1b", spec)
