"""Compiled lower bounds."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def bound(order, inputs, lags, outputs, output_lags, tables, room, busy):
    """Lower bounds of one draw.

    busy has shape (n,); room int32, shape (n, any): actions that must end first for memory's sake, -1
    is none; order is a topological order of all this.

    Returns:
        One-machine bound of each rank (ranks,); longest chain.
    """
    followers = tables.nodes[:, 0]
    heads, tails = _heads_and_tails(
        order, inputs, lags, outputs, output_lags, followers, room, busy
    )
    ranks = np.empty(len(tables.rank_offsets) - 1)
    for rank in range(len(ranks)):
        ranks[rank] = _one_machine(tables, rank, heads, tails, busy)
    return ranks, (heads + busy + tails).max()


@numba.njit(cache=True, nogil=True)
def bound_draws(order, inputs, lags, outputs, output_lags, tables, busy):
    """The larger of both bounds of each draw; busy has shape (draws, n), the result (draws,)."""
    bounds = np.empty(len(busy))
    room = np.empty((len(order), 0), np.int32)
    for draw in range(len(busy)):
        ranks, path = bound(order, inputs, lags, outputs, output_lags, tables, room, busy[draw])
        bounds[draw] = max(path, ranks.max())
    return bounds


@numba.njit(cache=True)
def _heads_and_tails(order, inputs, lags, outputs, output_lags, followers, room, busy):
    """Earliest start of each action, and the longest chain after its end; ranks never make it wait."""
    n = len(busy)
    heads = np.zeros(n)
    tails = np.zeros(n)
    for i in order:
        for slot in range(inputs.shape[1]):
            source = inputs[i, slot]
            if source < 0:
                break
            heads[i] = max(heads[i], heads[source] + busy[source] + lags[i, slot])
        for source in room[i]:
            if source >= 0:
                heads[i] = max(heads[i], heads[source] + busy[source])
        if followers[i] >= 0:
            heads[followers[i]] = max(heads[followers[i]], heads[i] + busy[i])
    for i in order[::-1]:
        if followers[i] >= 0:
            tails[i] = max(tails[i], busy[followers[i]] + tails[followers[i]])
        for slot in range(outputs.shape[1]):
            target = outputs[i, slot]
            if target < 0:
                break
            tails[i] = max(tails[i], output_lags[i, slot] + busy[target] + tails[target])
        for source in room[i]:
            if source >= 0:
                tails[source] = max(tails[source], busy[i] + tails[i])
    return heads, tails


@numba.njit(cache=True)
def _one_machine(tables, rank, heads, tails, busy):
    """Jackson's preemptive bound: of the actions that could be there, always the one with the longest tail.

    Within a stream heads rise and tails fall, so only the first action left of each stream counts.
    """
    first, last = tables.stream_offsets[rank], tables.stream_offsets[rank + 1]
    head = tables.heads[first:last].copy()
    left = busy[head]
    time = 0.0
    bound = 0.0
    while True:
        best = -1
        following = np.inf
        for stream in range(last - first):
            i = head[stream]
            if i < 0:
                continue
            if heads[i] > time:
                following = min(following, heads[i])
            elif best < 0 or tails[i] > tails[head[best]]:
                best = stream
        if best < 0:
            if following == np.inf:
                return bound
            time = following
        elif time + left[best] > following:
            left[best] -= following - time
            time = following
        else:
            time += left[best]
            bound = max(bound, time + tails[head[best]])
            head[best] = tables.nodes[head[best], 0]
            if head[best] >= 0:
                left[best] = busy[head[best]]
