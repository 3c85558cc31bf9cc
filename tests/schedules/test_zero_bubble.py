"""The zero-bubble heuristics and greedy: uneven stages, memory limits, ties, and the plan's own clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import DoesNotFitError
from conductor.ir.validate import validate
from conductor.problem.kind import Kind
from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.schedules.kernels import times_of_plan
from conductor.schedules.registry import build
from conductor.schedules.ticks import in_ticks
from conductor.simulator.program import encode
from conductor.simulator.simulate import timeline

EVEN = PipelineSpec(
    num_ranks=4,
    num_microbatches=8,
    forward_ms=10.0,
    backward_input_ms=10.0,
    backward_weight_ms=7.0,
    transfer_ms=0.4,
)


def one_slow(stage: int, factor: float) -> PipelineSpec:
    scale = np.where(np.arange(8) == stage, factor, 1.0)
    return EVEN.with_(
        num_ranks=8,
        num_microbatches=24,
        forward_ms=tuple(10.0 * scale),
        backward_input_ms=tuple(10.0 * scale),
        backward_weight_ms=tuple(7.0 * scale),
    )


# Makespan of the published heuristic with the true times, and with the median times.
@pytest.mark.parametrize(
    ("stage", "factor", "name", "true_times", "median_times"),
    [
        (3, 1.1, "zb-1p", 799.0, 799.0),
        (3, 1.3, "zb-1p", 936.0, 906.6),
        (3, 1.3, "zb-2p", 881.4, 873.6),
        (0, 1.3, "zb-2p", 865.8, 842.4),
    ],
)
def test_uneven_stages_are_planned_with_true_and_median_times(
    stage: int, factor: float, name: str, true_times: float, median_times: float
) -> None:
    spec = one_slow(stage, factor)
    published = timeline(spec, build(name, spec, objective="stage-span"))
    ours = timeline(spec, build(name, spec))
    assert round(published.makespan_ms, 1) == true_times
    assert round(ours.makespan_ms, 1) <= median_times


@pytest.mark.parametrize("name", ["zb", "zb-v-any", "greedy"])
@given(limit=st.floats(1.0, 10.0))
def test_any_limit_of_one_micro_batch_or_more_is_kept(name: str, limit: float) -> None:
    spec = EVEN.with_(memory_limit=limit)
    validate(build(name, spec), spec)


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p", "zb", "zb-v", "zb-v-2p", "zb-v-any", "greedy"])
def test_a_rank_without_room_for_one_micro_batch_is_refused(name: str) -> None:
    spec = EVEN.with_(memory_limit=(4.0, 4.0, 0.75, 4.0))
    with pytest.raises(DoesNotFitError, match=r"on rank 2, which has 0\.75: 0\.25 is missing"):
        build(name, spec)


@pytest.mark.parametrize(("narrow", "wide"), [("zb-1p", "zb"), ("zb-v", "zb-v-any")])
def test_a_limit_of_the_spec_is_the_same_as_that_of_the_name(narrow: str, wide: str) -> None:
    assert build(narrow, EVEN) == build(wide, EVEN.with_(memory_limit=4.0))


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p", "zb-v", "zb-v-2p"])
def test_the_unit_of_time_does_not_matter(name: str) -> None:
    seconds = EVEN.with_(
        forward_ms=0.01, backward_input_ms=0.01, backward_weight_ms=0.007, transfer_ms=0.0004
    )
    assert build(name, EVEN) == build(name, seconds)


def test_blocking_sends_are_planned_for() -> None:
    spec = EVEN.with_(blocking_transfers=True)
    as_work = EVEN.with_(forward_ms=10.4, backward_input_ms=10.4, transfer_ms=0.0)
    assert build("zb-1p", spec) == build("zb-1p", as_work)


@pytest.mark.parametrize("name", ["zb-1p", "zb-v"])
def test_the_plans_clock_is_the_simulators(name: str) -> None:
    spec = one_slow(3, 1.3)
    schedule = build(name, spec)
    spec = spec.on_stages(schedule.stage_ranks)
    order = encode(spec, schedule).order
    actions = np.stack([schedule.kinds, schedule.microbatches, schedule.stages, order])
    busy = spec.duration_ms[[Kind.F, Kind.I, Kind.W]]
    makespan, span = times_of_plan(
        actions.astype(np.int32), np.array(schedule.stage_ranks), busy, spec.link_ms
    )
    times = timeline(spec, schedule)
    assert makespan == pytest.approx(times.makespan_ms, rel=1e-12)
    assert span == pytest.approx(times.stage_span_ms, rel=1e-12)


def test_greedy_is_the_papers_event_driven_zero_bubble() -> None:
    paper = load_preset("paper")
    assert timeline(paper, build("greedy", paper)).makespan_ms == pytest.approx(321.40)


def test_greedy_halves_the_step_where_memory_holds_half_as_many_as_there_are_ranks() -> None:
    spec = EVEN.with_(num_ranks=8, num_microbatches=16, memory_limit=4.0)
    greedy, zero_bubble = (timeline(spec, build(name, spec)) for name in ("greedy", "zb"))
    assert greedy.makespan_ms < zero_bubble.makespan_ms / 2


def test_ticks_are_whole_and_exact() -> None:
    busy, lag = in_ticks(EVEN)
    assert np.all(busy == np.rint(busy))
    assert (busy[0, 0] / lag[0], busy[2, 0] / lag[0]) == (25.0, 17.5)
