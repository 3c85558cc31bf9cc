"""What holds for every schedule of the registry, on every spec."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.ir.validate import validate
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.memory import peak_memory
from conductor.schedules.registry import SCHEDULES, build
from conductor.simulator.bounds import lower_bounds
from conductor.simulator.simulate import timeline

TIMES = st.sampled_from((0.0, 0.3, 1.0, 2.5, 10.0))


@st.composite
def profiles(draw: st.DrawFn) -> PipelineSpec:
    """A rank-level profile: uneven or even ranks, links, limits from tight to none."""
    num_ranks = draw(st.integers(1, 5))

    def per(length: int, numbers: st.SearchStrategy[float]) -> float | tuple[float, ...]:
        if draw(st.booleans()):
            return draw(numbers)
        return tuple(draw(st.lists(numbers, min_size=length, max_size=length)))

    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=draw(st.integers(1, 9)),
        forward_ms=per(num_ranks, TIMES),
        backward_input_ms=per(num_ranks, TIMES),
        backward_weight_ms=per(num_ranks, TIMES),
        transfer_ms=per(num_ranks - 1, TIMES),
        blocking_transfers=draw(st.booleans()),
        activation_memory=per(num_ranks, st.sampled_from((0.1, 0.3, 1.0, 1.7))),
        freed_at_backward_input=draw(st.sampled_from((0.0, 0.1, 0.5, 1.0))),
        memory_limit=draw(st.none() | st.just(per(num_ranks, st.floats(0.5, 12.0)))),
    )


@pytest.mark.parametrize("name", SCHEDULES)
@given(spec=profiles(), objective=st.sampled_from(("makespan", "stage-span")))
def test_is_valid_and_within_memory_or_refused(
    name: str, spec: PipelineSpec, objective: str
) -> None:
    try:
        schedule = build(name, spec, objective=objective)
    except DoesNotFitError:
        return
    info = SCHEDULES[name]
    assert schedule.name == name
    assert schedule.stage_ranks == stage_ranks(info.placement, spec.num_ranks, info.stages_per_rank)
    validate(schedule, spec)
    times = timeline(spec, schedule)
    assert np.all(times.peak_memory <= spec.memory_limits * (1 + 1e-6))
    if schedule.num_splits == 1:  # the bounds are for whole micro-batches
        on_stages = spec.on_stages(schedule.stage_ranks)
        assert times.makespan_ms >= lower_bounds(on_stages).makespan_ms * (1 - 1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
def test_peak_memory_is_the_timelines(name: str) -> None:
    spec = PipelineSpec(
        num_ranks=4,
        num_microbatches=8,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        activation_memory=(1.0, 2.0, 1.5, 1.0),
        freed_at_backward_input=0.25,
    )
    schedule = build(name, spec)
    peaks = peak_memory(spec.on_stages(schedule.stage_ranks), schedule)
    assert peaks.tolist() == pytest.approx(timeline(spec, schedule).peak_memory.tolist())


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(1, 1), (1, 5), (4, 1), (4, 3)])
def test_few_ranks_or_micro_batches(name: str, num_ranks: int, num_microbatches: int) -> None:
    spec = PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=1.0,
        backward_input_ms=1.0,
        backward_weight_ms=1.0,
    )
    if name == "dualpipe-v" and num_microbatches < 2 * num_ranks:
        with pytest.raises(DoesNotFitError, match="micro-batches"):
            build(name, spec)
        return
    schedule = build(name, spec)
    validate(schedule, spec)
    if num_ranks == 1:
        assert timeline(spec, schedule).bubble_ratio == 0.0


def test_unknown_name_lists_the_known() -> None:
    spec = PipelineSpec(
        num_ranks=2, num_microbatches=2, forward_ms=1, backward_input_ms=1, backward_weight_ms=1
    )
    with pytest.raises(
        InvalidSpecError, match=r"no schedule is named 'nope'; there are gpipe, 1f1b"
    ):
        build("nope", spec)


def test_another_placement_is_refused() -> None:
    spec = PipelineSpec(
        num_ranks=2,
        stages_per_rank=2,
        placement="v",
        num_microbatches=2,
        forward_ms=1,
        backward_input_ms=1,
        backward_weight_ms=1,
    )
    with pytest.raises(DoesNotFitError, match="1f1b needs sequential placement with 1 stage"):
        build("1f1b", spec)


def test_too_little_memory_says_which_rank_and_how_much() -> None:
    spec = PipelineSpec(
        num_ranks=4,
        num_microbatches=8,
        forward_ms=1,
        backward_input_ms=1,
        backward_weight_ms=1,
        memory_limit=(4.0, 1.5, 4.0, 4.0),
    )
    with pytest.raises(DoesNotFitError) as refusal:
        build("1f1b", spec)
    assert str(refusal.value) == (
        "1f1b needs 3 of activation memory on rank 1, which has 1.5: 1.5 is missing"
    )
