"""Compiled passes over timelines: idle time by cause, memory, critical path."""

from __future__ import annotations

import numba
import numpy as np

from conductor.simulator.kernels import TOLERANCE


@numba.njit(cache=True)
def summarise(
    start, end, sequence, rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits
):
    """What a timeline shows.

    A gap before an action waits for the previous stage (a forward, bound by a forward) or the next one
    (all else). The part of it in which a later forward of the rank had its input, but would have put
    the rank above its limit before its turn, is memory. The rest of the step after a rank's last action
    is nothing left. For the arrays see `Timeline` and `Program`.

    Returns:
        Stage span, the longest time from a rank's first start to its last end; busy (ranks,); idle
        (causes, ranks), in the order of `IdleCause`; peak memory (ranks,).
    """
    num_ranks = len(rank_offsets) - 1
    busy = np.zeros(num_ranks)
    idle = np.zeros((4, num_ranks))
    peak = np.zeros(num_ranks)
    span = _summarise(
        start, end, sequence, rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits,
        busy, idle, peak, np.empty((0, 4)),
    )  # fmt: skip
    return span, busy, idle, peak


@numba.njit(cache=True)
def idle_before(
    start, end, sequence, rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits
):
    """Idle time right before each action by cause, shape (n, 4): the terms of `summarise`'s sums."""
    num_ranks = len(rank_offsets) - 1
    gaps = np.zeros((len(start), 4))
    _summarise(
        start, end, sequence, rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits,
        np.zeros(num_ranks), np.zeros((4, num_ranks)), np.zeros(num_ranks), gaps,
    )  # fmt: skip
    return gaps


@numba.njit(cache=True, nogil=True)
def summarise_draws(
    starts, ends, sequences, rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits
):
    """`summarise` of many draws; starts and ends have shape (draws, n), sequences that or (1, n).

    Returns:
        Stage spans (draws,); busy (draws, ranks); idle (draws, causes, ranks); peak (draws, ranks).
    """
    draws = starts.shape[0]
    num_ranks = len(rank_offsets) - 1
    spans = np.empty(draws)
    busy = np.zeros((draws, num_ranks))
    idle = np.zeros((draws, 4, num_ranks))
    peak = np.zeros((draws, num_ranks))
    for draw in range(draws):
        spans[draw] = _summarise(
            starts[draw], ends[draw], sequences[draw % len(sequences)], rank_offsets,
            kinds, streams, inputs, lags, allocated, freed, limits,
            busy[draw], idle[draw], peak[draw], np.empty((0, 4)),
        )  # fmt: skip
    return spans, busy, idle, peak


@numba.njit(cache=True)
def _summarise(
    start, end, sequence, rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits,
    busy, idle, peak, gaps,
):  # fmt: skip
    """Fills `busy`, `idle`, `peak` and, where it has rows, `gaps`, which are zero at entry; returns the
    stage span."""
    makespan = end.max()
    span = 0.0
    num_streams = streams.max() + 1
    left = np.zeros(num_streams, np.int64)
    seen = np.full(num_streams, -1, np.int64)
    for rank in range(len(rank_offsets) - 1):
        first, last = rank_offsets[rank], rank_offsets[rank + 1]
        limit = limits[rank] * (1.0 + TOLERANCE)
        alive = 0
        for k in range(first, last):
            i = sequence[k]
            if allocated[i] > 0.0:
                alive += left[streams[i]] == 0
                left[streams[i]] += 1
        memory = 0.0
        clock = 0.0
        for k in range(first, last):
            i = sequence[k]
            if start[i] > clock:
                gap = start[i] - clock
                blocked = 0.0
                if limit < np.inf:
                    since = _blocked_since(
                        k, last, memory, limit, alive, start[i], sequence, streams, seen,
                        inputs, lags, end, allocated, freed,
                    )  # fmt: skip
                    blocked = min(gap, start[i] - since)
                cause = 1
                if kinds[i] == 0:
                    source, _ = _last_input(i, inputs, lags, end)
                    if source < 0 or kinds[source] == 0:
                        cause = 0
                idle[cause, rank] += gap - blocked
                idle[2, rank] += blocked
                if len(gaps):
                    gaps[i, cause] = gap - blocked
                    gaps[i, 2] = blocked
            busy[rank] += max(0.0, end[i] - max(start[i], clock))
            clock = max(clock, end[i])
            memory += allocated[i]
            peak[rank] = max(peak[rank], memory)
            memory -= freed[i]
            if allocated[i] > 0.0:
                left[streams[i]] -= 1
                alive -= left[streams[i]] == 0
        idle[3, rank] = makespan - clock
        span = max(span, clock - start[sequence[first]])
    return span


@numba.njit(cache=True)
def _last_input(i, inputs, lags, end):
    """The input of action i that arrives last (-1 where there is none), and when it arrives."""
    found = -1
    arrival = 0.0
    for slot in range(inputs.shape[1]):
        source = inputs[i, slot]
        if source < 0:
            break
        if found < 0 or end[source] + lags[i, slot] > arrival:
            arrival = end[source] + lags[i, slot]
            found = source
    return found, arrival


@numba.njit(cache=True)
def _blocked_since(
    k,
    last,
    memory,
    limit,
    alive,
    until,
    sequence,
    streams,
    seen,
    inputs,
    lags,
    end,
    allocated,
    freed,
):
    """Since when memory alone keeps a next forward of the rank from starting, at most `until`.

    Looks at the next allocating action of each stream behind position k: moved to the front it adds
    its memory to every action before its turn.
    """
    since = until
    highest = memory
    found = 0
    for q in range(k, last):
        if found == alive:
            break
        i = sequence[q]
        if allocated[i] > 0.0 and seen[streams[i]] != k:
            seen[streams[i]] = k
            found += 1
            if q > k and highest + allocated[i] > limit:
                _, arrival = _last_input(i, inputs, lags, end)
                since = min(since, arrival)
        memory += allocated[i]
        highest = max(highest, memory)
        memory -= freed[i]
    return since


@numba.njit(cache=True)
def critical_path(end, sequence, ranks, inputs, lags, overlaps):
    """Walks back from the last end, each time to whatever held the action up longest.

    Returns:
        int32, program indices from first to last.
    """
    n = len(end)
    before = np.full(n, -1, np.int32)
    for k in range(1, n):
        if ranks[sequence[k]] == ranks[sequence[k - 1]]:
            before[sequence[k]] = sequence[k - 1]
    path = np.empty(n, np.int32)
    count = 0
    i = np.int64(np.argmax(end))
    while i >= 0:
        path[count] = i
        count += 1
        if i > 0 and overlaps[i - 1] and ranks[i - 1] == ranks[i]:
            i -= 1  # a pair starts together: what held up its first held up both
        source, arrival = _last_input(i, inputs, lags, end)
        if before[i] >= 0 and (source < 0 or end[before[i]] >= arrival):
            source = before[i]
        i = source
    return path[:count][::-1].copy()
