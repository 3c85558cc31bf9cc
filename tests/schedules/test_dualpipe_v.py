"""DualPipeV: overlapping pairs, idle time, memory, the counts it takes."""

from __future__ import annotations

import pytest

from conductor.errors import DoesNotFitError
from conductor.ir.validate import validate
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.dualpipe_v import dualpipe_v
from conductor.simulator.simulate import timeline

SIZES = [(1, 2), (2, 4), (3, 9), (4, 8), (8, 20)]


def profile(num_ranks: int, num_microbatches: int, overlap_factor: float = 1.0) -> PipelineSpec:
    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        overlap_factor=overlap_factor,
    )


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_idle_time_and_memory_without_overlap(p: int, m: int) -> None:
    times = timeline(profile(p, m), dualpipe_v(p, m))
    assert times.makespan_ms == pytest.approx(m * 27.0 + (p - 1) * (10.0 + 2 * 10.0 - 7.0) / 2)
    assert list(times.peak_memory) == [p + 0.5] * p


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_pairs_are_a_forward_and_a_whole_backward_of_the_other_chunk(p: int, m: int) -> None:
    schedule = dualpipe_v(p, m)
    validate(schedule)
    pairs = [index for index in range(schedule.num_actions) if schedule.overlaps[index]]
    assert len(pairs) == sum(2 * (m - 2 * p + rank + 1) + p - rank - 1 for rank in range(p)) - 1
    for index in pairs:
        forward, backward = schedule.action(index), schedule.action(index + 1)
        assert (forward.kind, backward.kind) == (Kind.F, Kind.B)
        assert forward.stage + backward.stage == 2 * p - 1


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_overlap_saves_its_share_of_each_pair_on_rank_0(p: int, m: int) -> None:
    schedule = dualpipe_v(p, m)
    alone = timeline(profile(p, m), schedule).makespan_ms
    together = timeline(profile(p, m, overlap_factor=0.75), schedule).makespan_ms
    pairs = int(schedule.overlaps[: schedule.rank_offsets[1]].sum())
    assert together <= alone - 0.25 * pairs * 27.0 / 2 + 1e-9


def test_too_few_micro_batches() -> None:
    with pytest.raises(DoesNotFitError, match="takes 8 micro-batches or more on 4 ranks, not 7"):
        dualpipe_v(4, 7)
