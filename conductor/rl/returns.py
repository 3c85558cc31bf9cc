"""Discounted returns of recorded decisions."""

from __future__ import annotations

import numpy as np

from conductor.rl.play import Decisions, Float32Array


def discounted_returns(decisions: Decisions, discount: float) -> Float32Array:
    """What each decision's episode still brings from there on, shape (T,).

    A decision's return is its reward plus `discount` times the next decision's return; episodes are apart.
    """
    offsets = decisions.episode_offsets
    lengths = np.diff(offsets)
    returns = np.zeros((len(lengths), int(lengths.max(initial=0))))
    used = np.arange(returns.shape[1]) < lengths[:, None]
    returns[used] = decisions.rewards
    for step in range(returns.shape[1] - 2, -1, -1):
        returns[:, step] += discount * returns[:, step + 1]
    return returns[used].astype(np.float32)
