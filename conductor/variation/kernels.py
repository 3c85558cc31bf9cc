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


@numba.njit(cache=True)
def autoregressive(normal, correlation):
    """A stationary AR(1) sequence of unit variance from independent normals, shape (n,)."""
    sequence = normal.copy()
    fresh = np.sqrt(1.0 - correlation * correlation)
    for i in range(1, len(normal)):
        sequence[i] = correlation * sequence[i - 1] + fresh * normal[i]
    return sequence


@numba.njit(cache=True)
def expected_squares(lengths, num_tokens):
    """Mean of `packed_squares`, exactly: what one sequence adds, and then the tokens it leaves."""
    mean = np.zeros(num_tokens + 1)
    for tokens in range(1, num_tokens + 1):
        total = 0.0
        for length in lengths:
            used = min(length, tokens)
            total += float(used) * float(used) + mean[tokens - used]
        mean[tokens] = total / len(lengths)
    return mean[num_tokens]


@numba.njit(cache=True)
def packed_squares(rng, lengths, num_tokens, count):
    """Sum of squared lengths of `count` micro-batches, each filled with random sequences.

    The last sequence is cut where the micro-batch is full.
    """
    sums = np.empty(count)
    for i in range(count):
        left = num_tokens
        total = 0.0
        while left > 0:
            length = min(left, lengths[rng.integers(0, len(lengths))])
            total += float(length) * float(length)
            left -= length
        sums[i] = total
    return sums
