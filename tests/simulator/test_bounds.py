"""Bounds hold for every schedule, and are tight where that is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.bounds import lower_bounds, realised_bound
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate, timeline
from tests.strategies import durations, problems

ABOVE = 1.0 - 1e-9

PAPER = PipelineSpec(
    num_ranks=4,
    num_microbatches=8,
    forward_ms=tuple(10 * (1 + 0.1 * rank) for rank in range(4)),
    backward_input_ms=tuple(10 * (1 + 0.1 * rank) for rank in range(4)),
    backward_weight_ms=tuple(7 * (1 + 0.1 * rank) for rank in range(4)),
    transfer_ms=0.4,
    blocking_transfers=True,
)


@pytest.mark.parametrize("execution", ["static", "ready-first"])
@settings(max_examples=300)
@given(problem=problems(max_microbatches=5))
def test_no_schedule_beats_a_bound(execution, problem):
    spec, schedule = problem
    bounds = lower_bounds(spec, num_splits=schedule.num_splits)
    makespan = timeline(spec, schedule, execution=execution).makespan_ms
    assert makespan >= bounds.makespan_ms * ABOVE
    assert makespan >= bounds.balanced_work_ms * ABOVE


@pytest.mark.parametrize("execution", ["static", "ready-first"])
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_no_draw_beats_its_realised_bound(execution, problem, seed):
    spec, schedule = problem
    program = encode(spec, schedule)
    realised = durations(program.duration_ms, seed, draws=3)
    makespans = simulate(spec, schedule, realised, execution=execution).makespan_ms
    assert (makespans >= realised_bound(program, realised) * ABOVE).all()


def test_paper_configuration_is_bound_by_its_slowest_rank():
    bounds = lower_bounds(PAPER)
    head = 10 + 11 + 12 + 3 * 0.4
    assert bounds.per_rank_ms == pytest.approx(head + 8 * (27 * 1.3 + 2 * 0.4))
    assert bounds.makespan_ms == pytest.approx(321.40)
    assert bounds.balanced_work_ms == pytest.approx(8 * (27 * 4.6 + 4 * 0.8) / 4)


@pytest.mark.parametrize(("placement", "head"), [("sequential", 1), ("v", 1 / 2)])
def test_uniform_stages_have_the_published_bounds(placement, head):
    ranks, microbatches, per_rank = 8, 16, 1 if placement == "sequential" else 2
    spec = PipelineSpec(
        num_ranks=ranks,
        num_microbatches=microbatches,
        stages_per_rank=per_rank,
        placement=placement,
        forward_ms=10 / per_rank,
        backward_input_ms=10 / per_rank,
        backward_weight_ms=7 / per_rank,
        transfer_ms=0.4,
    )
    published = microbatches * 27 + (ranks - 1) * (10 * head + 0.4)
    assert lower_bounds(spec).per_rank_ms == pytest.approx(published)


@pytest.mark.parametrize(
    ("size", "limit", "optimum"),
    [((4, 8), 4, 259.8), ((8, 16), 8, 534.2), ((4, 8), 8, 247.2), ((8, 16), 16, 504.8)],
)
def test_uniform_stages_are_bound_by_their_proved_optimum(size, limit, optimum):
    spec = PipelineSpec(
        num_ranks=size[0],
        num_microbatches=size[1],
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        transfer_ms=0.4,
        memory_limit=float(limit),
    )
    assert lower_bounds(spec).makespan_ms == pytest.approx(optimum)


def test_memory_for_one_microbatch_runs_them_one_after_another():
    spec = PipelineSpec(
        num_ranks=2,
        num_microbatches=3,
        forward_ms=2.0,
        backward_input_ms=3.0,
        backward_weight_ms=1.0,
        transfer_ms=0.5,
        memory_limit=(1.0, 2.0),
    )
    round_trip = 2 + 0.5 + 2 + 3 + 0.5 + 3 + 1
    assert lower_bounds(spec).makespan_ms == pytest.approx(3 * round_trip)
    early = spec.with_(freed_at_backward_input=1.0)  # the next forward need not wait for W
    assert lower_bounds(early).makespan_ms == pytest.approx(3 * round_trip - 2)
    assert lower_bounds(spec.with_(memory_limit=None)).makespan_ms < 2 * round_trip


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "1f1b"])
@pytest.mark.parametrize("freed", [0.0, 0.5])
def test_planned_schedules_at_their_own_memory_stay_above(name, freed):
    spec = PipelineSpec(
        num_ranks=4,
        num_microbatches=12,
        forward_ms=(10.0, 12.0, 9.0, 10.0),
        backward_input_ms=(10.0, 11.0, 10.0, 14.0),
        backward_weight_ms=7.0,
        transfer_ms=0.4,
        freed_at_backward_input=freed,
    )
    drawn = timeline(spec, build(name, spec))
    tight = drawn.spec.with_(memory_limit=tuple(drawn.peak_memory))
    bounds = lower_bounds(tight)
    assert drawn.makespan_ms >= bounds.makespan_ms * ABOVE
    assert bounds.makespan_ms >= lower_bounds(drawn.spec).makespan_ms


def test_one_microbatch_is_a_chain():
    spec = PipelineSpec(
        num_ranks=3,
        num_microbatches=1,
        forward_ms=(1.0, 2.0, 3.0),
        backward_input_ms=4.0,
        backward_weight_ms=(0.0, 50.0, 0.0),
        transfer_ms=(0.25, 0.5),
    )
    chain = (1 + 2 + 3 + 0.75) + (4 + 0.5 + 4) + 50  # the weights of stage 1 come last
    assert lower_bounds(spec).critical_path_ms == pytest.approx(chain)


def test_a_long_way_back_counts_as_tail():
    """Rank 1 has most work and ends early: after its last I, rank 0 still has long I and W."""
    spec = PipelineSpec(
        num_ranks=2,
        num_microbatches=4,
        forward_ms=(1.0, 30.0),
        backward_input_ms=(20.0, 30.0),
        backward_weight_ms=(20.0, 0.0),
    )
    assert lower_bounds(spec).per_rank_ms == pytest.approx(1 + 4 * 60 + 20 + 20)


@given(problem=problems())
def test_a_realised_bound_is_that_of_its_own_durations(problem):
    """Without noise it is at least the bound for every schedule: its backwards may be fused."""
    spec, schedule = problem[0].with_(memory_limit=None), problem[1]
    program = encode(spec, schedule)
    bounds = realised_bound(program, np.stack([program.duration_ms, 2 * program.duration_ms]))
    assert bounds[0] >= lower_bounds(spec, num_splits=schedule.num_splits).makespan_ms * ABOVE
    assert bounds[1] >= bounds[0]
