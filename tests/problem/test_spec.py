"""PipelineSpec: what it refuses, and how a rank-level profile is split over stages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import InvalidSpecError
from conductor.problem.kind import Kind
from conductor.problem.placement import PLACEMENT_NAMES, placement_name, stage_ranks
from conductor.problem.spec import PipelineSpec


def spec(**changes):
    fields = {
        "num_ranks": 4, "num_microbatches": 8, "forward_ms": 10.0, "backward_input_ms": 9.0,
        "backward_weight_ms": 7.0,
    }  # fmt: skip
    return PipelineSpec(**{**fields, **changes})


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("num_ranks", 0, "num_ranks"),
        ("num_microbatches", 2.5, "num_microbatches"),
        ("stages_per_rank", True, "stages_per_rank"),
        ("forward_ms", -1.0, "forward_ms"),
        ("forward_ms", float("nan"), "forward_ms"),
        ("forward_ms", "fast", "forward_ms"),
        ("forward_ms", [10, 10, "fast", 10], "forward_ms"),
        ("forward_ms", [10, 10, -3, 10], r"forward_ms\[2\]"),
        ("backward_input_ms", [1, 2], "2 numbers for 4 stages"),
        ("transfer_ms", [1, 2, 3, 4], "4 numbers for 3 pairs"),
        ("memory_limit", [1, 2], "2 numbers for 4 ranks"),
        ("freed_at_backward_input", 1.5, "freed_at_backward_input"),
        ("overlap_factor", 0.0, "overlap_factor"),
        ("placement", "spiral", "spiral"),
        ("placement", [0, 1, 2, 4], "stage 3 on rank 4"),
        ("placement", [0, 1, 1, 2], "rank 3 no stage"),
    ],
)
def test_what_cannot_be_is_refused_by_name(field, value, word):
    with pytest.raises(InvalidSpecError, match=word):
        spec(**{field: value})


def test_stages_that_do_not_fit_the_listed_placement_are_refused():
    with pytest.raises(InvalidSpecError, match="stages_per_rank is 3"):
        spec(placement=[0, 1, 2, 3, 3, 2, 1, 0], stages_per_rank=3)


def test_lists_and_arrays_are_one_number_a_stage():
    times = [1.0, 2.0, 3.0, 4.0]
    assert (
        spec(forward_ms=times) == spec(forward_ms=np.array(times)) == spec(forward_ms=(1, 2, 3, 4))
    )
    assert spec(forward_ms=times).duration_ms[Kind.F].tolist() == times


def test_a_full_backward_is_both_its_parts():
    table = spec(backward_input_ms=[1, 2, 3, 4]).duration_ms
    assert table[Kind.B].tolist() == [8.0, 9.0, 10.0, 11.0]


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(PLACEMENT_NAMES),
    st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5),
)
def test_splitting_keeps_each_ranks_work_and_memory(ranks, per_rank, placement, times):
    whole = spec(num_ranks=ranks, forward_ms=times[:ranks], activation_memory=times[:ranks])
    split = whole.on_stages(stage_ranks(placement, ranks, per_rank))
    for name in ("forward_ms", "backward_weight_ms", "activation_memory"):
        held = np.bincount(split.stage_ranks, split.per_stage(name), minlength=ranks)
        assert held == pytest.approx(whole.per_stage(name))


def test_unequal_stages_a_rank_share_its_work():
    split = spec(num_ranks=2).on_stages((0, 1, 1))
    assert split.placement == (0, 1, 1)
    assert split.per_stage("forward_ms").tolist() == [10.0, 5.0, 5.0]


def test_links_follow_their_ranks_and_the_wrap_around_is_the_slowest():
    links = spec(transfer_ms=[1.0, 2.0, 3.0])
    assert links.on_stages(stage_ranks("v", 4, 2)).link_ms.tolist() == [1, 2, 3, 0, 3, 2, 1]
    assert links.on_stages(stage_ranks("loop", 4, 2)).link_ms.tolist() == [1, 2, 3, 3, 1, 2, 3]


def test_given_stages_are_not_split_again():
    given = spec(stages_per_rank=2, placement="v")
    assert given.on_stages(given.stage_ranks) is given
    with pytest.raises(InvalidSpecError, match="cannot be placed"):
        given.on_stages(stage_ranks("loop", 4, 2))


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from(PLACEMENT_NAMES))
def test_a_placements_name_gives_the_same_list(ranks, per_rank, name):
    placed = stage_ranks(name, ranks, per_rank)
    found = placement_name(placed, ranks)
    assert found is not None
    assert stage_ranks(found, ranks, per_rank) == placed
    assert np.bincount(placed).tolist() == [per_rank] * ranks
