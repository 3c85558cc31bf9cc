"""Schedules of a fixed form, by their closed forms at unit times."""

from __future__ import annotations

import pytest

from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline


def unit(num_ranks: int, num_microbatches: int) -> PipelineSpec:
    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=1.0,
        backward_input_ms=1.0,
        backward_weight_ms=1.0,
    )


@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 7), (4, 8), (6, 11)])
class TestUnitTimes:
    def test_gpipe(self, p: int, m: int) -> None:
        times = timeline(unit(p, m), build("gpipe", unit(p, m)))
        assert times.makespan_ms == 3 * (m + p - 1)
        assert list(times.peak_memory) == [m] * p

    def test_1f1b(self, p: int, m: int) -> None:
        times = timeline(unit(p, m), build("1f1b", unit(p, m)))
        assert times.makespan_ms == 3 * (m + p - 1)
        assert list(times.peak_memory) == [min(p - rank, m) for rank in range(p)]

    def test_zb_h1_light(self, p: int, m: int) -> None:
        times = timeline(unit(p, m), build("zb-h1-light", unit(p, m)))
        assert times.makespan_ms == 3 * m + p - 1
        assert list(times.peak_memory) == [p] * p

    def test_zb_1p(self, p: int, m: int) -> None:
        times = timeline(unit(p, m), build("zb-1p", unit(p, m)))
        assert times.makespan_ms == 3 * m + p - 1


@pytest.mark.parametrize(("p", "m"), [(2, 3), (3, 7), (4, 8), (6, 11)])
def test_handmade_zb_v_has_no_idle_time_on_rank_0_but_the_fill(p: int, m: int) -> None:
    times = timeline(unit(p, m), build("zb-v-handmade", unit(p, m)))
    assert times.makespan_ms == 3 * m + (p - 1) / 2
    assert list(times.peak_memory) == [p] * p


@pytest.mark.parametrize("m", [1, 2, 4])
def test_handmade_zb_v_leaves_out_what_there_is_not(m: int) -> None:
    whole = build("zb-v-handmade", unit(3, 5))
    part = build("zb-v-handmade", unit(3, m))
    kept = [[action for action in row if action.microbatch < m] for row in whole.rows]
    assert [list(row) for row in part.rows] == kept


def test_zb_h1_light_holds_back_as_many_w_as_the_rank_is_far() -> None:
    schedule = build("zb-h1-light", unit(4, 8))
    for rank, row in enumerate(schedule.rows):
        assert all(action.kind == Kind.W for action in row[len(row) - rank :])
        assert row[len(row) - rank - 1].kind != Kind.F
