"""Compiled kernels on arrays: encoding and static execution."""

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

    For the arrays see `Program`; busy is what each action keeps its rank busy for.

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


@numba.njit(cache=True, nogil=True)
def static_draws(order, rank_offsets, ranks, inputs, lags, busy):
    """`static_starts` of many draws; busy and result have shape (draws, n)."""
    draws, n = busy.shape
    starts = np.empty((draws, n))
    for draw in range(draws):
        free = np.zeros(len(rank_offsets) - 1)
        _run_static(order, ranks, inputs, lags, busy[draw], starts[draw], np.empty(n), free)
    return starts


@numba.njit(cache=True, nogil=True)
def static_makespans(order, rank_offsets, ranks, inputs, lags, busy):
    """Makespan of many draws in static execution; busy has shape (draws, n), the result (draws,)."""
    draws, n = busy.shape
    makespans = np.empty(draws)
    for draw in range(draws):
        free = np.zeros(len(rank_offsets) - 1)
        scratch = np.empty(n)
        _run_static(order, ranks, inputs, lags, busy[draw], scratch, scratch, free)
        makespans[draw] = free.max()
    return makespans
