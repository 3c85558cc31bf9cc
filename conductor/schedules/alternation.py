"""The 1F1B shape: warm-up forwards, then one forward and one backward in turn, then backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import Int64Array


def alternate(
    warmup: Sequence[int] | Int64Array, num_forwards: int
) -> tuple[npt.NDArray[np.bool_], Int64Array]:
    """Order of each rank's forwards and backwards, numbered from 0 in their own orders.

    Args:
        warmup: forwards that each rank does before its first backward, shape (num_ranks,).
        num_forwards: forwards (and backwards) of a rank.

    Returns:
        Whether each action is a backward, and its number among those; shape
        (num_ranks, 2 * num_forwards).
    """
    first = np.minimum(np.asarray(warmup, np.int64), num_forwards)[:, None]
    slot = np.arange(2 * num_forwards)
    into_pairs = slot - first
    in_pairs = (into_pairs >= 0) & (into_pairs < 2 * (num_forwards - first))
    backward = np.where(in_pairs, into_pairs % 2 == 1, into_pairs >= 0)
    number = np.where(
        in_pairs,
        into_pairs // 2 + np.where(backward, 0, first),
        np.where(backward, slot - num_forwards, slot),
    )
    return backward, number
