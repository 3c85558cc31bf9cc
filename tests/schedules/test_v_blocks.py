"""V-Half, V-Min and V1F1B: memory and idle time by closed forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.ir.schedule import Schedule
from conductor.ir.validate import validate
from conductor.problem.spec import PipelineSpec
from conductor.schedules.memory import peak_memory
from conductor.schedules.v1f1b import v1f1b
from conductor.schedules.v_half import v_half
from conductor.schedules.v_min import v_min
from conductor.simulator.simulate import timeline


def unit(schedule: Schedule) -> PipelineSpec:
    return PipelineSpec(
        num_ranks=schedule.num_ranks,
        num_microbatches=schedule.num_microbatches,
        forward_ms=1.0,
        backward_input_ms=1.0,
        backward_weight_ms=1.0,
    ).on_stages(schedule.stage_ranks)


def idle(schedule: Schedule) -> float:
    return timeline(unit(schedule), schedule).makespan_ms - 3 * schedule.num_microbatches


def peak(schedule: Schedule) -> float:
    return float(peak_memory(unit(schedule), schedule).max())


@pytest.mark.parametrize("p", range(3, 18))
def test_v_half(p: int) -> None:
    schedule = v_half(p, 3 * p)
    assert peak(schedule) == p // 2 + 1
    assert idle(schedule) == 1.5 * p - (2.0 if p % 2 else 3.5)


@pytest.mark.parametrize("p", range(2, 18))
def test_v_min(p: int) -> None:
    schedule = v_min(p, 3 * p)
    assert peak(schedule) == (p + 4) // 3
    assert idle(schedule) == 2 * p - (2.5 if p % 3 else 3.5)


@pytest.mark.parametrize("p", range(1, 18))
def test_v1f1b(p: int) -> None:
    schedule = v1f1b(p, 3 * p)
    assert peak(schedule) == 2 * p // 3 + 1
    if p % 3 == 1:
        assert idle(schedule) == 2.5 * (p - 1)


@pytest.mark.parametrize("make", [v_half, v_min, v1f1b])
@given(p=st.integers(1, 14), m=st.integers(1, 40))
def test_any_size_is_valid(make: Callable[[int, int], Schedule], p: int, m: int) -> None:
    schedule = make(p, m)
    validate(schedule)
    assert schedule.num_actions == p * m * (4 if make is v1f1b else 6)
