"""Compiled kernels on arrays: encoding, static and ready-first execution, idle time by cause."""

from __future__ import annotations

from typing import NamedTuple

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


class ReadyTables(NamedTuple):
    """What ready-first execution reads; the streams of a rank lie side by side.

    Attributes:
        streams: int32, shape (n,); stream of each action.
        stream_offsets: int64, shape (num_ranks + 1,).
        heads: int32, shape (num_streams,); first action of each stream.
        followers: int32, shape (n,); next action of the same stream, -1 is none.
        missing: int8, shape (n,); what each action waits for.
        outputs, lags: shape (n, width); as in `Program`, no wider than needed.
        allocated, freed: float64, shape (num_streams,).
        limits: float64, shape (num_ranks,); the limit, or the plan's own peak where that is higher.
        looks_ahead: bool, shape (num_ranks,); several streams share a finite limit.
    """

    streams: np.ndarray
    stream_offsets: np.ndarray
    heads: np.ndarray
    followers: np.ndarray
    missing: np.ndarray
    outputs: np.ndarray
    lags: np.ndarray
    allocated: np.ndarray
    freed: np.ndarray
    limits: np.ndarray
    looks_ahead: np.ndarray
    ranks: np.ndarray
    rank_offsets: np.ndarray
    overlaps: np.ndarray


@numba.njit(cache=True)
def ready_tables(
    rank_offsets, ranks, streams, inputs, outputs, lags, allocated, freed, limits, overlaps
):
    """Makes `ReadyTables` of a program's arrays."""
    n = len(ranks)
    num_ranks = len(rank_offsets) - 1
    local = np.full(streams.max() + 1, -1, np.int32)
    stream_of = np.empty(n, np.int32)
    stream_offsets = np.zeros(num_ranks + 1, np.int64)
    heads = np.empty(len(local), np.int32)
    tails = np.empty(len(local), np.int32)
    followers = np.full(n, -1, np.int32)
    missing = np.zeros(n, np.int8)
    stream_allocated = np.zeros(len(local))
    stream_freed = np.zeros(len(local))
    highest = limits.copy()
    looks_ahead = np.zeros(num_ranks, np.bool_)
    count = 0
    for rank in range(num_ranks):
        memory = 0.0
        allocating = 0
        for i in range(rank_offsets[rank], rank_offsets[rank + 1]):
            stream = local[streams[i]]
            if stream < 0:
                stream = count
                local[streams[i]] = stream
                heads[stream] = i
                stream_allocated[stream] = allocated[i]
                stream_freed[stream] = freed[i]
                allocating += allocated[i] > 0.0
                count += 1
            else:
                followers[tails[stream]] = i
            stream_of[i] = stream
            tails[stream] = i
            memory += allocated[i]
            highest[rank] = max(highest[rank], memory)
            memory -= freed[i]
        stream_offsets[rank + 1] = count
        looks_ahead[rank] = allocating > 1 and limits[rank] < np.inf
        highest[rank] *= 1.0 + TOLERANCE
    width = 1
    for i in range(n):
        for slot in range(inputs.shape[1]):
            missing[i] += inputs[i, slot] >= 0
        for slot in range(outputs.shape[1]):
            if outputs[i, slot] >= 0:
                width = max(width, slot + 1)
    for i in range(n):
        # The second of a pair never starts by itself; the first also waits for the second's turn.
        if overlaps[i]:
            missing[i + 1] += 1
        if followers[i] > 0 and overlaps[followers[i] - 1]:
            missing[followers[i] - 1] += 1
    return ReadyTables(
        stream_of, stream_offsets, heads[:count].copy(), followers, missing,
        outputs[:, :width].copy(), lags[:, :width].copy(), stream_allocated[:count].copy(),
        stream_freed[:count].copy(), highest, looks_ahead, ranks, rank_offsets, overlaps,
    )  # fmt: skip


@numba.njit(cache=True)
def _fits(tables, rank, i, memory, cursor, done):
    """Whether action i may start now and the rest of the plan, in its order, still fits the limit."""
    more = tables.allocated[tables.streams[i]]
    limit = tables.limits[rank]
    if memory + more > limit:
        return False
    if tables.looks_ahead[rank]:
        for k in range(cursor, i):
            if not done[k]:
                memory += tables.allocated[tables.streams[k]]
                if memory + more > limit:
                    return False
                memory -= tables.freed[tables.streams[k]]
    return True


@numba.njit(cache=True)
def _set_wake(wake, winner, rank, time):
    """Changes a rank's wake time in the tournament tree; the lower rank wins a tie."""
    node = len(wake) // 2 + rank
    wake[node] = time
    while node > 1:
        node >>= 1
        better = 2 * node + (wake[2 * node + 1] < wake[2 * node])
        wake[node] = wake[better]
        winner[node] = winner[better]


@numba.njit(cache=True)
def _begin(tables, i, end, missing, arrival, head, head_arrival, free, wake, winner):
    """Moves on the stream of action i and tells its successors when its output arrives."""
    stream = tables.streams[i]
    follower = tables.followers[i]
    head[stream] = follower
    head_arrival[stream] = np.inf
    if follower >= 0:
        if missing[follower] == 0:
            head_arrival[stream] = arrival[follower]
        elif follower > 0 and tables.overlaps[follower - 1]:
            first = follower - 1
            missing[first] -= 1
            if missing[first] == 0 and head[tables.streams[first]] == first:
                head_arrival[tables.streams[first]] = arrival[first]
    for slot in range(tables.outputs.shape[1]):
        j = tables.outputs[i, slot]
        if j < 0:
            break
        missing[j] -= 1
        arrival[j] = max(arrival[j], end + tables.lags[i, slot])
        if missing[j] == 0 and head[tables.streams[j]] == j:
            head_arrival[tables.streams[j]] = arrival[j]
            rank = tables.ranks[j]
            time = max(arrival[j], free[rank])
            if time < wake[len(wake) // 2 + rank]:
                _set_wake(wake, winner, rank, time)


@numba.njit(cache=True)
def _run_ready_first(tables, busy, starts, sequence):
    """Fills `starts` and `sequence`; returns the makespan and the number of actions that ran.

    Events are the wake times of ranks, smallest first, from a tournament tree. A rank wakes when it
    comes free, or, when nothing was ready then, at the first arrival at the head of one of its streams.
    """
    n = len(busy)
    num_ranks = len(tables.rank_offsets) - 1
    num_streams = len(tables.heads)
    missing = tables.missing.copy()
    arrival = np.zeros(n)
    head = tables.heads.copy()
    head_arrival = np.empty(num_streams)
    for stream in range(num_streams):
        head_arrival[stream] = 0.0 if missing[head[stream]] == 0 else np.inf
    memory = np.zeros(num_ranks)
    free = np.zeros(num_ranks)
    place = tables.rank_offsets[:-1].copy()
    cursor = tables.rank_offsets[:-1].copy()
    done = np.zeros(n if tables.looks_ahead.any() else 0, np.bool_)
    leaves = 2
    while leaves < num_ranks:
        leaves *= 2
    wake = np.full(2 * leaves, np.inf)
    winner = np.zeros(2 * leaves, np.int32)
    for leaf in range(leaves):
        winner[leaves + leaf] = leaf
    for rank in range(num_ranks):
        _set_wake(wake, winner, rank, 0.0)
    makespan = 0.0
    count = 0
    while wake[1] < np.inf:
        time = wake[1]
        rank = winner[1]
        best = n
        soonest = np.inf
        for stream in range(tables.stream_offsets[rank], tables.stream_offsets[rank + 1]):
            if head_arrival[stream] <= time:
                if head[stream] < best and (
                    tables.allocated[stream] == 0.0
                    or _fits(tables, rank, head[stream], memory[rank], cursor[rank], done)
                ):
                    best = head[stream]
            else:
                soonest = min(soonest, head_arrival[stream])
        if best == n:
            _set_wake(wake, winner, rank, soonest)
            continue
        end = time + busy[best]
        free[rank] = end
        for i in range(best, best + 1 + tables.overlaps[best]):
            starts[i] = time if i == best else end
            sequence[place[rank]] = i
            place[rank] += 1
            count += 1
            memory[rank] += tables.allocated[tables.streams[i]]
            memory[rank] -= tables.freed[tables.streams[i]]
            if tables.looks_ahead[rank]:
                done[i] = True
            _begin(tables, i, end, missing, arrival, head, head_arrival, free, wake, winner)
        if tables.looks_ahead[rank]:
            while cursor[rank] < tables.rank_offsets[rank + 1] and done[cursor[rank]]:
                cursor[rank] += 1
        _set_wake(wake, winner, rank, end)
        makespan = max(makespan, end)
    return makespan, count


@numba.njit(cache=True, parallel=True)
def ready_first_draws(tables, busy):
    """Ready-first execution of many draws; busy has shape (draws, n).

    Returns:
        starts (draws, n); sequences (draws, n), program indices rank after rank in the order in which
        they ran; makespans (draws,); number of actions that ran (draws,), n unless there is a hang.
    """
    draws, n = busy.shape
    starts = np.empty((draws, n))
    sequences = np.empty((draws, n), np.int32)
    makespans = np.empty(draws)
    counts = np.empty(draws, np.int64)
    for draw in numba.prange(draws):
        makespans[draw], counts[draw] = _run_ready_first(
            tables, busy[draw], starts[draw], sequences[draw]
        )
    return starts, sequences, makespans, counts


@numba.njit(cache=True, parallel=True)
def ready_first_makespans(tables, busy):
    """Makespan of many draws in ready-first execution; busy has shape (draws, n)."""
    draws, n = busy.shape
    makespans = np.empty(draws)
    for draw in numba.prange(draws):
        makespans[draw], _ = _run_ready_first(
            tables, busy[draw], np.empty(n), np.empty(n, np.int32)
        )
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
                    source, _ = _last_input(i, inputs, lags, end)
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


@numba.njit(cache=True, parallel=True)
def bound_draws(order, inputs, lags, outputs, output_lags, tables, busy):
    """Lower bounds per draw; busy has shape (draws, n).

    Returns:
        One-machine bound of each rank (draws, ranks); longest chain (draws,).
    """
    draws = len(busy)
    ranks = np.empty((draws, len(tables.rank_offsets) - 1))
    paths = np.empty(draws)
    for draw in numba.prange(draws):
        heads, tails = _heads_and_tails(
            order, inputs, lags, outputs, output_lags, tables.followers, busy[draw]
        )
        paths[draw] = (heads + busy[draw] + tails).max()
        for rank in range(ranks.shape[1]):
            ranks[draw, rank] = _one_machine(tables, rank, heads, tails, busy[draw])
    return ranks, paths


@numba.njit(cache=True)
def _heads_and_tails(order, inputs, lags, outputs, output_lags, followers, busy):
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
        if followers[i] >= 0:
            heads[followers[i]] = max(heads[followers[i]], heads[i] + busy[i])
    for i in order[::-1]:
        if followers[i] >= 0:
            tails[i] = busy[followers[i]] + tails[followers[i]]
        for slot in range(outputs.shape[1]):
            target = outputs[i, slot]
            if target < 0:
                break
            tails[i] = max(tails[i], output_lags[i, slot] + busy[target] + tails[target])
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
            head[best] = tables.followers[head[best]]
            if head[best] >= 0:
                left[best] = busy[head[best]]
