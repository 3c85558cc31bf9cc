"""Compiled loops of the variation models."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def markov_factors(chance, rank_offsets, factor, p_slow, p_recover):
    """Two-state chain along each rank's program order; chance has shape (draws, n), in [0, 1)."""
    factors = np.ones(chance.shape)
    for draw in range(len(chance)):
        for rank in range(len(rank_offsets) - 1):
            slow = False
            for i in range(rank_offsets[rank], rank_offsets[rank + 1]):
                slow = chance[draw, i] >= p_recover if slow else chance[draw, i] < p_slow
                if slow:
                    factors[draw, i] = factor
    return factors
