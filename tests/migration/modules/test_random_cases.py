"""Random shapes, splits, types, masks and fates: heads bitwise, slices close and the same every time."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.migration.modules.cases import check_attention, check_mlp


def check(seeds, case):
    moved = 0
    for seed in seeds:
        try:
            moved += case(np.random.default_rng(seed)) > 0
        except AssertionError as error:
            raise AssertionError(f"case {seed}") from error
    assert moved > len(seeds) / 2


@pytest.mark.parametrize("case", [check_attention, check_mlp])
def test_a_hundred_cases(case):
    check(range(50), case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [check_attention, check_mlp])
def test_a_thousand_cases(case):
    check(range(1_000, 1_500), case)


@pytest.mark.slow
def test_heads_are_bitwise_equal_on_several_threads():
    torch.set_num_threads(2)
    check(range(2_000, 2_020), partial(check_attention, whole_lines=True))
