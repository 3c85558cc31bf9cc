"""Compiled ready-first execution."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from conductor.simulator.kernels import TOLERANCE


class ReadyTables(NamedTuple):
    """What ready-first execution reads, packed for it; the streams of a rank lie side by side.

    Attributes:
        nodes: int32, shape (n, 1 + width); of each action the next one of its stream and its outputs,
            one column for each stream that the stream's outputs are in, -1 is none.
        missing: int8, shape (n,); number of things that each action waits for.
        streams: int32, shape (n,); stream of each action.
        targets: int32, shape (num_streams, width); stream of each column of outputs, -1 is none.
        lags: float64, shape (num_streams, width); transfer time to it.
        ranks: int32, shape (num_streams,).
        heads: int32, shape (num_streams,); first action of each stream.
        allocated, freed: float64, shape (num_streams,).
        stream_offsets: int64, shape (num_ranks + 1,).
        rank_offsets: int64, shape (num_ranks + 1,).
        limits: float64, shape (num_ranks,); the limit, or the plan's own peak where that is higher.
        looks_ahead: bool, shape (num_ranks,); several streams share a finite limit.
        overlaps: bool, shape (n,), or (0,) where nothing overlaps.
    """

    nodes: np.ndarray
    missing: np.ndarray
    streams: np.ndarray
    targets: np.ndarray
    lags: np.ndarray
    ranks: np.ndarray
    heads: np.ndarray
    allocated: np.ndarray
    freed: np.ndarray
    stream_offsets: np.ndarray
    rank_offsets: np.ndarray
    limits: np.ndarray
    looks_ahead: np.ndarray
    overlaps: np.ndarray


@numba.njit(cache=True)
def ready_tables(
    rank_offsets, ranks, streams, inputs, outputs, lags, allocated, freed, limits, overlaps
):
    """Makes `ReadyTables` of a program's arrays."""
    n = len(ranks)
    num_ranks = len(rank_offsets) - 1
    most = outputs.shape[1] * 2
    nodes = np.full((n, 1 + most), -1, np.int32)
    missing = np.zeros(n, np.int8)
    stream_of = np.empty(n, np.int32)
    local = np.full(streams.max() + 1, -1, np.int32)
    stream_ranks = np.empty(len(local), np.int32)
    heads = np.empty(len(local), np.int32)
    tails = np.empty(len(local), np.int32)
    stream_allocated = np.zeros(len(local))
    stream_freed = np.zeros(len(local))
    targets = np.full((len(local), most), -1, np.int32)
    stream_lags = np.zeros((len(local), most))
    stream_offsets = np.zeros(num_ranks + 1, np.int64)
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
                stream_ranks[stream] = rank
                heads[stream] = i
                stream_allocated[stream] = allocated[i]
                stream_freed[stream] = freed[i]
                allocating += allocated[i] > 0.0
                count += 1
            else:
                nodes[tails[stream], 0] = i
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
        stream = stream_of[i]
        for slot in range(outputs.shape[1]):
            if inputs[i, slot] >= 0:
                missing[i] += 1
            j = outputs[i, slot]
            if j < 0:
                continue
            column = 0
            while targets[stream, column] >= 0 and (
                targets[stream, column] != stream_of[j]
                or stream_lags[stream, column] != lags[i, slot]
                or nodes[i, 1 + column] >= 0
            ):
                column += 1
            targets[stream, column] = stream_of[j]
            stream_lags[stream, column] = lags[i, slot]
            nodes[i, 1 + column] = j
            width = max(width, column + 1)
        # The second of a pair never starts by itself; the first also waits for the second's turn.
        if overlaps[i]:
            missing[i + 1] += 1
        if nodes[i, 0] > 0 and overlaps[nodes[i, 0] - 1]:
            missing[nodes[i, 0] - 1] += 1
    return ReadyTables(
        nodes[:, : 1 + width].copy(), missing, stream_of, targets[:count, :width].copy(),
        stream_lags[:count, :width].copy(), stream_ranks[:count].copy(), heads[:count].copy(),
        stream_allocated[:count].copy(), stream_freed[:count].copy(), stream_offsets, rank_offsets,
        highest, looks_ahead, overlaps if overlaps.any() else overlaps[:0].copy(),
    )  # fmt: skip


@numba.njit(cache=True)
def _leaves_room(streams, allocated, freed, done, cursor, i, memory, limit):
    """Whether all of the rank's plan that is left before action i, in its order, fits the limit."""
    for k in range(cursor, i):
        if not done[k]:
            memory += allocated[streams[k]]
            if memory > limit:
                return False
            memory -= freed[streams[k]]
    return True


@numba.njit(cache=True)
def _set_wake(wake, keys, winner, rank, time):
    """Changes a rank's wake time in the tournament tree; the lower rank wins a tie."""
    node = len(wake) // 2 + rank
    wake[node] = time
    key = keys[node]
    while node > 1:
        other = keys[node ^ 1]
        other_rank = winner[node ^ 1]
        loses = other < key + (node & 1)
        key = other if loses else key
        rank = other_rank if loses else rank
        node >>= 1
        keys[node] = key
        winner[node] = rank


@numba.njit(cache=True)
def _lower_wake(wake, winner, rank, time):
    """`_set_wake` for an earlier time: goes up only as far as it wins."""
    node = len(wake) // 2 + rank
    while node > 0 and (time < wake[node] or (time == wake[node] and rank < winner[node])):
        wake[node] = time
        winner[node] = rank
        node >>= 1


@numba.njit(cache=True)
def _run_ready_first(tables, busy, starts, sequence):
    """Fills `starts` and `sequence`, unless empty; returns the makespan and the number of actions run.

    Events are the wake times of ranks, smallest first, from a tournament tree. A rank wakes when it
    comes free, or, when nothing is ready then, at the first arrival at the head of one of its streams.

    Why nothing hangs: every rank can do what is left of its plan, in its order, within its memory
    limit; an action that overtakes others is taken only if that stays true. What is left of a plan
    without deadlock has none. So the first action of its topological order can start.
    """
    # Arrays, not the tuple, go into what is called in the loop: passing that costs more than all else.
    nodes, streams, targets, lags = tables.nodes, tables.streams, tables.targets, tables.lags
    ranks, allocated, freed = tables.ranks, tables.allocated, tables.freed
    stream_offsets, rank_offsets = tables.stream_offsets, tables.rank_offsets
    limits, looks_ahead, overlaps = tables.limits, tables.looks_ahead, tables.overlaps
    n = len(busy)
    num_ranks = len(rank_offsets) - 1
    missing = tables.missing.copy()
    arrival = np.zeros(n)
    head = tables.heads.copy()
    head_arrival = np.where(missing[head] == 0, 0.0, np.inf)
    head_busy = busy[head]
    memory = np.zeros(num_ranks)
    free = np.zeros(num_ranks)
    place = rank_offsets[:-1].copy()
    cursor = rank_offsets[:-1].copy()
    done = np.zeros(n if looks_ahead.any() else 0, np.bool_)
    leaves = 2
    while leaves < num_ranks:
        leaves *= 2
    wake = np.full(2 * leaves, np.inf)
    keys = wake.view(np.int64)  # times are never negative: they sort as their bits do
    winner = np.zeros(2 * leaves, np.int64)
    winner[leaves:] = np.arange(leaves)
    for rank in range(num_ranks):
        _set_wake(wake, keys, winner, rank, 0.0)
    makespan = 0.0
    count = 0
    while wake[1] < np.inf:
        time = wake[1]
        rank = winner[1]
        first, last = stream_offsets[rank], stream_offsets[rank + 1]
        best = n
        chosen = 0
        soonest = np.inf
        for stream in range(first, last):
            if head_arrival[stream] <= time:
                more = allocated[stream]
                if head[stream] < best and memory[rank] + more <= limits[rank]:
                    if (
                        more == 0.0
                        or not looks_ahead[rank]
                        or _leaves_room(
                            streams, allocated, freed, done, cursor[rank], head[stream],
                            memory[rank], limits[rank] - more,
                        )
                    ):  # fmt: skip
                        best = head[stream]
                        chosen = stream
            else:
                soonest = min(soonest, head_arrival[stream])
        if best == n:
            _set_wake(wake, keys, winner, rank, soonest)
            continue
        end = time + head_busy[chosen]
        free[rank] = end
        makespan = max(makespan, end)
        for i in range(best, best + 1 + (len(overlaps) > 0 and overlaps[best])):
            if i > best:
                chosen = streams[i]
            if len(starts):
                starts[i] = time if i == best else end
                sequence[place[rank]] = i
                place[rank] += 1
            count += 1
            memory[rank] += allocated[chosen]
            memory[rank] -= freed[chosen]
            if looks_ahead[rank]:
                done[i] = True
            follower = nodes[i, 0]
            head[chosen] = follower
            head_arrival[chosen] = np.inf
            if follower >= 0:
                head_busy[chosen] = busy[follower]  # fetched long before it is wanted
                if missing[follower] == 0:
                    head_arrival[chosen] = arrival[follower]
                elif len(overlaps) and follower > 0 and overlaps[follower - 1]:
                    missing[follower - 1] -= 1
                    other = streams[follower - 1]
                    if missing[follower - 1] == 0 and head[other] == follower - 1:
                        head_arrival[other] = arrival[follower - 1]
            for slot in range(lags.shape[1]):
                j = nodes[i, 1 + slot]
                if j < 0:
                    continue
                target = targets[chosen, slot]
                latest = max(arrival[j], end + lags[chosen, slot])
                arrival[j] = latest
                missing[j] -= 1
                if missing[j] == 0 and head[target] == j:
                    head_arrival[target] = latest
                    _lower_wake(wake, winner, ranks[target], max(latest, free[ranks[target]]))
        if looks_ahead[rank]:
            while cursor[rank] < rank_offsets[rank + 1] and done[cursor[rank]]:
                cursor[rank] += 1
        soonest = np.inf
        for stream in range(first, last):
            if memory[rank] + allocated[stream] <= limits[rank]:
                soonest = min(soonest, head_arrival[stream])
        _set_wake(wake, keys, winner, rank, max(end, soonest))
    return makespan, count


@numba.njit(cache=True)
def ready_first(tables, busy):
    """Ready-first execution of one draw; busy has shape (n,).

    Returns:
        starts (n,); sequence (n,), program indices rank after rank in the order in which they ran;
        number of actions that ran, n unless there is a hang.
    """
    starts = np.empty(len(busy))
    sequence = np.empty(len(busy), np.int32)
    _, count = _run_ready_first(tables, busy, starts, sequence)
    return starts, sequence, count


@numba.njit(cache=True, nogil=True)
def ready_first_draws(tables, busy):
    """`ready_first` of many draws; busy has shape (draws, n), the results one row a draw."""
    draws, n = busy.shape
    starts = np.empty((draws, n))
    sequences = np.empty((draws, n), np.int32)
    counts = np.empty(draws, np.int64)
    for draw in range(draws):
        _, counts[draw] = _run_ready_first(tables, busy[draw], starts[draw], sequences[draw])
    return starts, sequences, counts


@numba.njit(cache=True, nogil=True)
def ready_first_makespans(tables, busy):
    """Makespan of many draws in ready-first execution; busy has shape (draws, n)."""
    draws = len(busy)
    makespans = np.empty(draws)
    for draw in range(draws):
        makespans[draw], _ = _run_ready_first(
            tables, busy[draw], np.empty(0), np.empty(0, np.int32)
        )
    return makespans
