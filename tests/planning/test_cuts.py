"""Exact cuts against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.planning.cuts import CutSearch, best_cuts, rank_loads


def all_cuts(num_layers, num_stages):
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)


@given(
    placement=st.sampled_from(("sequential", "loop", "v")),
    num_ranks=st.integers(1, 3),
    stages_per_rank=st.integers(1, 3),
    data=st.data(),
)
def test_the_fullest_rank_has_no_more_than_in_the_best_of_all_splits(
    placement, num_ranks, stages_per_rank, data
):
    passes = 1 if placement == "sequential" else stages_per_rank
    num_stages = num_ranks * passes
    num_layers = data.draw(st.integers(num_stages, max(num_stages, 9)))
    numbers = st.lists(st.integers(0, 9), min_size=num_layers, max_size=num_layers)
    time, memory = (np.array(data.draw(numbers), float) for _ in range(2))
    held = np.array(data.draw(st.lists(st.integers(1, 3), min_size=num_ranks, max_size=num_ranks)))
    limit = data.draw(st.sampled_from((5.0, 15.0, 30.0, np.inf)))
    search = CutSearch(
        loads=np.stack([np.tile(time, (num_ranks, 1)), held[:, None] * memory]),
        placement=placement,
        stages_per_rank=passes,
    )
    fixed = np.stack([np.zeros(num_ranks), np.full(num_ranks, limit)])
    scale = np.stack([np.ones(num_ranks), np.zeros(num_ranks)])
    found = best_cuts(search, fixed, scale)
    values = [
        loads[0].max()
        for loads in (rank_loads(search, cuts) for cuts in all_cuts(num_layers, num_stages))
        if (loads[1] <= limit).all()
    ]
    if not values:
        assert found is None
        return
    assert found is not None
    assert found.value == found.lower_bound == pytest.approx(min(values))
    loads = rank_loads(search, found.cuts)
    assert loads[0].max() == pytest.approx(found.value)
    assert (loads[1] <= limit).all()
