"""Compiled kernels on arrays: encoding, static and ready-first execution, idle time by cause."""

from __future__ import annotations

import numba
import numpy as np

TOLERANCE = 1e-9
"""Relative rounding allowed to sums of memory."""


@numba.njit(cache=True)
def link_inputs(
    kinds, stages, units, num_stages, num_units, num_splits, rules, split_steps, max_inputs, link_ms
):
    """Finds every action's inputs and their reverse.

    Returns:
        inputs, lags, outputs, output lags (each (n, max_inputs)), and whether an action stands twice
        or misses an input.
    """
    n = len(kinds)
    num_kinds = rules.shape[0]
    where = np.full((num_stages, num_units, num_kinds), -1, np.int32)
    inputs = np.full((n, max_inputs), -1, np.int32)
    lags = np.zeros((n, max_inputs))
    outputs = np.full((n, max_inputs), -1, np.int32)
    output_lags = np.zeros((n, max_inputs))
    out_count = np.zeros(n, np.int64)
    for i in range(n):
        if where[stages[i], units[i], kinds[i]] >= 0:
            return inputs, lags, outputs, output_lags, True
        where[stages[i], units[i], kinds[i]] = i
    for i in range(n):
        stage, unit, kind = stages[i], units[i], kinds[i]
        count = 0
        for slot in range(rules.shape[1] + 1):
            lag = 0.0
            found = -1
            if slot < rules.shape[1]:
                mask, offset = rules[kind, slot, 0], rules[kind, slot, 1]
                other = stage + offset
                if mask == 0 or other < 0 or other >= num_stages:
                    continue
                for k in range(num_kinds):
                    if mask & (1 << k) and where[other, unit, k] >= 0:
                        found = where[other, unit, k]
                if offset != 0:
                    lag = link_ms[min(stage, other)]
            else:
                step = split_steps[kind]
                split = unit % num_splits + step
                if step == 0 or split < 0 or split >= num_splits:
                    continue
                found = where[stage, unit + step, kind]
            if found < 0:
                return inputs, lags, outputs, output_lags, True
            inputs[i, count] = found
            lags[i, count] = lag
            count += 1
            if out_count[found] == max_inputs:
                return inputs, lags, outputs, output_lags, True
            outputs[found, out_count[found]] = i
            output_lags[found, out_count[found]] = lag
            out_count[found] += 1
    return inputs, lags, outputs, output_lags, False


@numba.njit(cache=True)
def topological_order(rank_offsets, inputs, outputs):
    """A topological order of static execution, and whether it is complete (no deadlock).

    A stack of ranks: each goes as far as it can, and wakes the ranks that wait for what it did.
    """
    n = inputs.shape[0]
    num_ranks = len(rank_offsets) - 1
    order = np.empty(n, np.int32)
    done = np.zeros(n, np.bool_)
    cursor = rank_offsets[:-1].copy()
    rank_of = np.empty(n, np.int32)
    for rank in range(num_ranks):
        rank_of[rank_offsets[rank] : rank_offsets[rank + 1]] = rank
    stack = np.empty(num_ranks, np.int64)
    queued = np.ones(num_ranks, np.bool_)
    for rank in range(num_ranks):
        stack[rank] = num_ranks - 1 - rank
    depth = num_ranks
    count = 0
    while depth:
        depth -= 1
        rank = stack[depth]
        queued[rank] = False
        while cursor[rank] < rank_offsets[rank + 1]:
            i = cursor[rank]
            ready = True
            for slot in range(inputs.shape[1]):
                if inputs[i, slot] >= 0 and not done[inputs[i, slot]]:
                    ready = False
                    break
            if not ready:
                break
            done[i] = True
            order[count] = i
            count += 1
            cursor[rank] += 1
            for slot in range(outputs.shape[1]):
                j = outputs[i, slot]
                if j >= 0:
                    other = rank_of[j]
                    if other != rank and not queued[other] and cursor[other] == j:
                        queued[other] = True
                        stack[depth] = other
                        depth += 1
    return order, count == n


@numba.njit(cache=True)
def join_overlapping(firsts, inputs, lags, outputs, output_lags):
    """Makes the first action of each overlapping pair wait for the inputs of the second too, in place."""
    for first in firsts:
        for slot in range(inputs.shape[1]):
            source = inputs[first + 1, slot]
            if source >= 0 and source != first:
                free = 0
                while inputs[first, free] >= 0:
                    free += 1
                inputs[first, free] = source
                lags[first, free] = lags[first + 1, slot]
                free = 0
                while outputs[source, free] >= 0:
                    free += 1
                outputs[source, free] = first
                output_lags[source, free] = lags[first + 1, slot]


@numba.njit(cache=True)
def static_starts(order, rank_offsets, ranks, inputs, lags, busy):
    """Start of every action in static execution: each rank strictly in program order.

    Args:
        order, rank_offsets, ranks, inputs, lags: see `Program`.
        busy: float64, shape (n,); what each action keeps its rank busy for.

    Returns:
        float64, shape (n,), in program order.
    """
    starts = np.empty(len(order))
    free = np.zeros(len(rank_offsets) - 1)
    _run_static(order, ranks, inputs, lags, busy, starts, np.empty(len(order)), free)
    return starts


@numba.njit(cache=True)
def _run_static(order, ranks, inputs, lags, busy, starts, ends, free):
    """Fills `starts` and `ends`; `free` is zero at entry and holds each rank's last end at exit."""
    for k in range(len(order)):
        i = order[k]
        start = free[ranks[i]]
        for slot in range(inputs.shape[1]):
            source = inputs[i, slot]
            if source < 0:
                break
            start = max(start, ends[source] + lags[i, slot])
        starts[i] = start
        ends[i] = start + busy[i]
        free[ranks[i]] = ends[i]


@numba.njit(cache=True, parallel=True)
def static_draws(order, rank_offsets, ranks, inputs, lags, busy):
    """`static_starts` of many draws; busy and result have shape (draws, n)."""
    draws, n = busy.shape
    starts = np.empty((draws, n))
    for draw in numba.prange(draws):
        free = np.zeros(len(rank_offsets) - 1)
        _run_static(order, ranks, inputs, lags, busy[draw], starts[draw], np.empty(n), free)
    return starts


@numba.njit(cache=True, parallel=True)
def static_makespans(order, rank_offsets, ranks, inputs, lags, busy):
    """Makespan of many draws in static execution; busy has shape (draws, n), the result (draws,)."""
    draws, n = busy.shape
    makespans = np.empty(draws)
    for draw in numba.prange(draws):
        free = np.zeros(len(rank_offsets) - 1)
        scratch = np.empty(n)
        _run_static(order, ranks, inputs, lags, busy[draw], scratch, scratch, free)
        makespans[draw] = free.max()
    return makespans


@numba.njit(cache=True, parallel=True)
def summarise(
    starts, ends, sequences, rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits
):
    """What timelines show, per draw.

    A gap before an action waits for the previous stage (a forward, bound by a forward) or the next one
    (all else). The part of it in which a later forward of the rank had its input, but would have put
    the rank above its limit before its turn, is memory. The rest of the step after a rank's last action
    is nothing left.

    Args:
        starts, ends: shape (draws, n), program order.
        sequences: shape (draws, n) or (1, n); program indices in the order in which each rank ran them.
        rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits: see `Program`.

    Returns:
        makespans (draws,); stage spans (draws,), longest time from a rank's first start to its last end;
        busy (draws, ranks); idle (draws, causes, ranks), in the order of `IdleCause`; peak memory
        (draws, ranks).
    """
    draws = starts.shape[0]
    num_ranks = len(rank_offsets) - 1
    makespans = np.empty(draws)
    spans = np.empty(draws)
    busy = np.zeros((draws, num_ranks))
    idle = np.zeros((draws, 4, num_ranks))
    peak = np.zeros((draws, num_ranks))
    for draw in numba.prange(draws):
        makespans[draw] = ends[draw].max()
        spans[draw] = _summarise_draw(
            starts[draw], ends[draw], sequences[np.int64(draw) % len(sequences)], makespans[draw],
            rank_offsets, kinds, streams, inputs, lags, allocated, freed, limits,
            busy[draw], idle[draw], peak[draw],
        )  # fmt: skip
    return makespans, spans, busy, idle, peak


@numba.njit(cache=True)
def _summarise_draw(
    start, end, sequence, makespan, rank_offsets, kinds, streams, inputs, lags, allocated, freed,
    limits, busy, idle, peak,
):  # fmt: skip
    """Fills `busy`, `idle` and `peak`; returns the stage span."""
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
                    source = _binding_input(i, inputs, lags, end)
                    if source < 0 or kinds[source] == 0:
                        cause = 0
                idle[cause, rank] += gap - blocked
                idle[2, rank] += blocked
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
def _binding_input(i, inputs, lags, end):
    """The input that arrives last, -1 where there is none."""
    found = -1
    latest = -np.inf
    for slot in range(inputs.shape[1]):
        source = inputs[i, slot]
        if source < 0:
            break
        if end[source] + lags[i, slot] > latest:
            latest = end[source] + lags[i, slot]
            found = source
    return found


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
                arrival = 0.0
                for slot in range(inputs.shape[1]):
                    source = inputs[i, slot]
                    if source < 0:
                        break
                    arrival = max(arrival, end[source] + lags[i, slot])
                since = min(since, arrival)
        memory += allocated[i]
        highest = max(highest, memory)
        memory -= freed[i]
    return since


@numba.njit(cache=True)
def critical_path(end, sequence, rank_offsets, ranks, inputs, lags, overlaps):
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
    i = np.argmax(end)
    while i >= 0:
        path[count] = i
        count += 1
        if i > 0 and overlaps[i - 1] and ranks[i - 1] == ranks[i]:
            i -= 1  # a pair starts together: what held up its first held up both
        latest = -np.inf
        found = -1
        if before[i] >= 0:
            found = before[i]
            latest = end[found]
        source = _binding_input(i, inputs, lags, end)
        if source >= 0:
            for slot in range(inputs.shape[1]):
                if inputs[i, slot] == source and end[source] + lags[i, slot] > latest:
                    found = source
        i = found
    return path[:count][::-1].copy()
