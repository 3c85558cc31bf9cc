"""Interleaved 1F1B, looped BFS and grouped interleaved: closed forms at even costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.ir.schedule import Schedule
from conductor.ir.validate import validate
from conductor.problem.spec import PipelineSpec
from conductor.schedules.grouped_interleaved import grouped_interleaved
from conductor.schedules.interleaved_1f1b import interleaved_1f1b, round_sizes
from conductor.schedules.looped_bfs import looped_bfs
from conductor.schedules.memory import peak_memory
from conductor.schedules.registry import build
from conductor.schedules.seq1f1b import seq1f1b
from conductor.simulator.simulate import timeline

F, I, W = 10.0, 12.0, 7.0


def profile(num_ranks: int, num_microbatches: int, **changes: object) -> PipelineSpec:
    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=F,
        backward_input_ms=I,
        backward_weight_ms=W,
    ).with_(**changes)


def idle_ms(schedule: Schedule) -> float:
    """Idle time of rank 0 until the step ends."""
    spec = profile(schedule.num_ranks, schedule.num_microbatches)
    return timeline(spec, schedule).makespan_ms - schedule.num_microbatches * (F + I + W)


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 9), (4, 8)])
class TestIdleTime:
    def test_interleaved(self, p: int, m: int, chunks: int) -> None:
        idle = idle_ms(interleaved_1f1b(p, m, chunks))
        assert idle == pytest.approx((p - 1) * (F + I + W) / chunks)

    def test_looped(self, p: int, m: int, chunks: int) -> None:
        assert idle_ms(looped_bfs(p, m, chunks)) == pytest.approx((p - 1) * (F + I + W) / chunks)

    def test_grouped(self, p: int, m: int, chunks: int) -> None:
        idle = idle_ms(grouped_interleaved(p, m, chunks))
        assert idle == pytest.approx((p - 1) * (F + I) / chunks)

    def test_seq1f1b(self, p: int, m: int, chunks: int) -> None:
        idle = idle_ms(seq1f1b(p, m, num_splits=chunks))
        assert idle == pytest.approx((p - 1) * (F + I + W) / chunks)


@pytest.mark.parametrize(("p", "m", "chunks"), [(4, 8, 2), (4, 8, 4), (8, 24, 3)])
def test_interleaved_memory(p: int, m: int, chunks: int) -> None:
    schedule = interleaved_1f1b(p, m, chunks)
    peaks = peak_memory(profile(p, m).on_stages(schedule.stage_ranks), schedule)
    assert peaks[0] == pytest.approx(p + (p - 1) / chunks)


@given(p=st.integers(1, 9), m=st.integers(1, 40), chunks=st.integers(1, 4))
def test_interleaved_takes_any_count_without_more_idle_time(p: int, m: int, chunks: int) -> None:
    schedule = interleaved_1f1b(p, m, chunks)
    validate(schedule)
    sizes = round_sizes(p, m)
    assert sizes.sum() == m
    assert sizes.max() - sizes.min() <= 1
    if m >= p:
        assert sizes.min() >= p
        assert idle_ms(schedule) == pytest.approx((p - 1) * (F + I + W) / chunks, abs=1e-9)


@given(p=st.integers(1, 8), m=st.integers(1, 20), chunks=st.integers(1, 4), group=st.integers(1, 8))
def test_grouped_is_valid_in_any_group(p: int, m: int, chunks: int, group: int) -> None:
    validate(grouped_interleaved(p, m, chunks, group))


def test_grouped_takes_a_smaller_group_where_memory_is_short() -> None:
    free = profile(8, 16)
    tight = profile(8, 16, memory_limit=6.0)
    assert build("grouped-interleaved", free) == grouped_interleaved(8, 16, group=8)
    assert build("grouped-interleaved", tight) == grouped_interleaved(8, 16, group=4)


def test_loop_schedules_take_the_stages_of_the_spec() -> None:
    spec = profile(2, 4, stages_per_rank=3, placement="loop")
    for name in ("interleaved-1f1b", "looped-bfs", "grouped-interleaved"):
        assert build(name, spec).num_stages == 6
