"""Bounds, time windows and implied orders hold in every schedule."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conductor.optimal.instance import Instance, split_backwards
from conductor.optimal.solve import lower_bound_ms
from conductor.optimal.windows import find_windows
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.simulator.simulate import timeline
from tests.strategies import problems


@settings(max_examples=100)
@given(problems(max_microbatches=5, max_splits=1), st.sampled_from(["makespan", "stage-span"]))
def test_the_bound_is_below_every_schedule(problem, objective):
    spec, schedule = problem
    assume(not schedule.overlaps.any())
    run = timeline(spec, schedule)
    value = run.makespan_ms if objective == "makespan" else run.stage_span_ms
    assert lower_bound_ms(spec, objective=objective) <= value + 1e-6 * max(1.0, value)


@settings(max_examples=100)
@given(problems(max_microbatches=5, max_splits=1), st.booleans())
def test_windows_and_implied_orders_hold_in_every_schedule(problem, stage_span):
    spec, schedule = problem
    assume(not schedule.overlaps.any())
    instance = Instance.of(spec)
    windows = find_windows(instance, stage_span=stage_span)
    starts = instance.starts_of(split_backwards(schedule))
    ends = starts + instance.busy
    assert (starts >= windows.heads).all()
    assert (ends + windows.tails <= instance.value_of(starts, stage_span=stage_span)).all()
    late = [arc for arc in windows.arcs if ends[arc[0]] + arc[2] > starts[arc[1]]]
    assert late == []


@pytest.mark.parametrize(
    ("placement", "limit", "bound"),
    [
        # m (F + I + W) + (p - 1) (F + transfer), on a V with half the forward
        ("sequential", None, 8 * 27 + 3 * 10.4),
        ("v", None, 8 * 27 + 3 * 5.4),
        # the proved optima at the memory of 1F1B
        ("sequential", 4.0, 259.8),
        ("v", 4.0, 234.6),
        # one micro-batch after another
        ("sequential", 1.0, 8 * (4 * 20 + 6 * 0.4 + 7)),
    ],
)
def test_closed_forms_at_four_ranks_and_eight_microbatches(placement, limit, bound):
    spec = PipelineSpec(
        num_ranks=4, num_microbatches=8, forward_ms=10, backward_input_ms=10, backward_weight_ms=7,
        transfer_ms=0.4, memory_limit=limit,
    )  # fmt: skip
    spec = spec.on_stages(stage_ranks(placement, 4, 2 if placement == "v" else 1))
    assert lower_bound_ms(spec) == pytest.approx(bound, abs=1e-9)
