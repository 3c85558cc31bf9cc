"""Compiled kernels of the V-shaped building blocks: fill, pull to the left, squeeze, label.

A grid has one row a rank and one column a slot. An entry is `type * m + microbatch` for the four
types, `4 * m + i` for the i-th weight gradient of the rank, -1 for a free slot. In `fused_order` a
backward takes two slots; the second holds `BUSY`.
"""

from __future__ import annotations

import numba
import numpy as np

BUSY = np.int64(-2)


@numba.njit(cache=True)
def lay_blocks(offsets, num_microbatches, period, fused):
    """Repeats each rank's block every `period` slots.

    `offsets` is the slot of each type's first micro-batch, shape (4, num_ranks).

    Returns:
        The grid and the slot of each (rank, type, micro-batch).
    """
    m = num_microbatches
    p = offsets.shape[1]
    grid = np.full((p, offsets.max() + period * m + 2 * m + 2), -1, np.int64)
    slots = np.empty((p, 4, m), np.int64)
    for rank in range(p):
        for kind in range(4):
            for j in range(m):
                slot = offsets[kind, rank] + period * j
                grid[rank, slot] = kind * m + j
                slots[rank, kind, j] = slot
                if fused and kind >= 2:
                    grid[rank, slot + 1] = BUSY
    return grid, slots


@numba.njit(cache=True)
def _earliest(slots, rank, kind, j, backward_slots):
    """First slot after what an F or a backward waits for."""
    p = slots.shape[0]
    size = backward_slots if kind >= 2 else 1
    after = 0
    if kind == 0 or kind == 2:
        if rank > 0:
            after = slots[rank - 1, kind, j] + size
    elif rank < p - 1:
        after = slots[rank + 1, kind, j] + size
    if kind > 0:
        before = backward_slots if kind == 3 else 1
        after = max(after, slots[rank, kind - 1, j] + before)
    if j > 0:
        after = max(after, slots[rank, kind, j - 1] + size)
    return after


@numba.njit(cache=True)
def fill_weights(grid, num_microbatches):
    """Puts a weight gradient into every free slot that has a backward before it without one."""
    for rank in range(grid.shape[0]):
        pending = 0
        count = 0
        for slot in range(grid.shape[1]):
            entry = grid[rank, slot]
            if entry < 0:
                if pending:
                    grid[rank, slot] = 4 * num_microbatches + count
                    count += 1
                    pending -= 1
            elif entry >= 2 * num_microbatches:
                pending += 1


@numba.njit(cache=True)
def drop_weights(grid, num_microbatches):
    """Takes the weight gradients out again, in place."""
    for rank in range(grid.shape[0]):
        for slot in range(grid.shape[1]):
            if grid[rank, slot] >= 4 * num_microbatches:
                grid[rank, slot] = -1


@numba.njit(cache=True)
def _held(row, num_microbatches):
    """Chunk activations held after each slot, freed by W entries."""
    held = np.empty(len(row), np.int64)
    now = 0
    for slot in range(len(row)):
        if row[slot] >= 4 * num_microbatches:
            now -= 1
        elif 0 <= row[slot] < 2 * num_microbatches:
            now += 1
        held[slot] = now
    return held


@numba.njit(cache=True)
def _virtual_peak(row, num_microbatches):
    """Most chunk activations held if every free slot did a pending weight gradient."""
    now = 0
    peak = 0
    pending = 0
    for slot in range(len(row)):
        entry = row[slot]
        if entry < 0:
            if pending:
                pending -= 1
                now -= 1
        elif entry < 2 * num_microbatches:
            now += 1
            peak = max(peak, now)
        else:
            pending += 1
    return peak


@numba.njit(cache=True)
def pull_left(grid, slots):
    """Moves the actions of warm-up and cool-down, W among them, to earlier free slots.

    The steady middle stays: from the first backward down on rank 0 to its last forward up. No
    rank's memory may grow beyond the largest peak there is.
    """
    p, _, m = slots.shape
    held = np.empty_like(grid)
    cap = 0
    for rank in range(p):
        held[rank] = _held(grid[rank], m)
        cap = max(cap, held[rank].max())
    warmup_end = slots[0, 3, 0]
    last_forward = slots[0, 0, m - 1]
    backward_times = np.empty((p, 2 * m), np.int64)
    num_backwards = np.zeros(p, np.int64)
    for slot in range(grid.shape[1]):
        for rank in range(p):
            entry = grid[rank, slot]
            if entry < 0:
                continue
            kind, j = entry // m, entry % m
            is_weight = entry >= 4 * m
            target = slot
            if slot < warmup_end or (slot, rank) > (last_forward, 0):
                if is_weight:
                    first = backward_times[rank, entry - 4 * m] + 1
                else:
                    first = _earliest(slots, rank, kind, j, 1)
                if kind < 2:
                    low = slot
                    while low > first and held[rank, low - 1] < cap:
                        low -= 1
                    first = low
                for free in range(first, slot):
                    if grid[rank, free] < 0:
                        target = free
                        break
            if target < slot:
                grid[rank, slot] = -1
                grid[rank, target] = entry
                change = -1 if is_weight else 1 if kind < 2 else 0
                for x in range(target, slot):
                    held[rank, x] += change
            if not is_weight:
                slots[rank, kind, j] = target
                if kind >= 2:
                    at = num_backwards[rank]
                    while at and backward_times[rank, at - 1] > target:
                        backward_times[rank, at] = backward_times[rank, at - 1]
                        at -= 1
                    backward_times[rank, at] = target
                    num_backwards[rank] += 1


@numba.njit(cache=True)
def pull_cooldown(grid, slots):
    """As `pull_left`, but for a grid without W entries and for the cool-down alone.

    Memory is counted as if every free slot did a pending weight gradient.
    """
    p, _, m = slots.shape
    cap = 0
    for rank in range(p):
        cap = max(cap, _virtual_peak(grid[rank], m))
    last_forward = slots[0, 0, m - 1]
    for slot in range(last_forward, grid.shape[1]):
        for rank in range(p):
            entry = grid[rank, slot]
            if entry < 0 or (slot == last_forward and rank == 0):
                continue
            kind, j = entry // m, entry % m
            for free in range(_earliest(slots, rank, kind, j, 1), slot):
                if grid[rank, free] >= 0:
                    continue
                grid[rank, slot] = -1
                grid[rank, free] = entry
                if _virtual_peak(grid[rank], m) <= cap:
                    slots[rank, kind, j] = free
                    break
                grid[rank, slot] = entry
                grid[rank, free] = -1


@numba.njit(cache=True)
def squeeze(grid, slots):
    """Every entry as soon as possible in the order of the grid; `slots` in place."""
    p, _, m = slots.shape
    squeezed = np.full_like(grid, -1)
    end = np.zeros(p, np.int64)
    for slot in range(grid.shape[1]):
        for rank in range(p):
            entry = grid[rank, slot]
            if entry < 0:
                continue
            target = end[rank]
            if entry < 4 * m:
                target = max(target, _earliest(slots, rank, entry // m, entry % m, 1))
                slots[rank, entry // m, entry % m] = target
            squeezed[rank, target] = entry
            end[rank] = target + 1
    return squeezed


@numba.njit(cache=True)
def greedy_order(offsets, num_microbatches, period):
    """The whole heuristic of V-Half and V-Min.

    Returns:
        Kind (0 F, 1 I, 2 W), type and micro-batch of each action, each of shape (num_ranks, 6 * m).
    """
    p = offsets.shape[1]
    m = num_microbatches
    grid, slots = lay_blocks(offsets, m, period, False)
    fill_weights(grid, m)
    pull_left(grid, slots)
    grid = squeeze(grid, slots)
    drop_weights(grid, m)
    pull_cooldown(grid, slots)
    fill_weights(grid, m)
    grid = squeeze(grid, slots)
    drop_weights(grid, m)
    fill_weights(grid, m)
    kinds = np.empty((p, 6 * m), np.int64)
    types = np.empty((p, 6 * m), np.int64)
    microbatches = np.empty((p, 6 * m), np.int64)
    for rank in range(p):
        at = 0
        seen = np.zeros(2, np.int64)
        done = np.zeros(2, np.int64)
        for slot in range(grid.shape[1]):
            entry = grid[rank, slot]
            if entry < 0:
                continue
            kind, j = entry // m, entry % m
            if entry >= 4 * m:
                way = 0 if done[0] < seen[0] else 1
                kinds[rank, at], types[rank, at], microbatches[rank, at] = 2, 2 + way, done[way]
                done[way] += 1
            else:
                kinds[rank, at], types[rank, at], microbatches[rank, at] = kind // 2, kind, j
                if kind >= 2:
                    seen[kind - 2] += 1
            at += 1
    return kinds, types, microbatches


@numba.njit(cache=True)
def fused_order(offsets, num_microbatches, period):
    """The whole heuristic of V1F1B: blocks pulled to the left, backwards of two slots.

    A forward moves only as far as the largest peak there was at the start allows.

    Returns:
        Type and micro-batch of each action, each of shape (num_ranks, 4 * m).
    """
    p = offsets.shape[1]
    m = num_microbatches
    grid, slots = lay_blocks(offsets, m, period, True)
    held = np.empty_like(grid)
    cap = 0
    for rank in range(p):
        now = 0
        for slot in range(grid.shape[1]):
            if grid[rank, slot] == BUSY:
                now -= 1
            elif 0 <= grid[rank, slot] < 2 * m:
                now += 1
            held[rank, slot] = now
        cap = max(cap, held[rank].max())
    for slot in range(grid.shape[1]):
        for rank in range(p):
            entry = grid[rank, slot]
            if entry < 0:
                continue
            kind, j = entry // m, entry % m
            first = _earliest(slots, rank, kind, j, 2)
            target = slot
            grid[rank, slot] = -1
            if kind < 2:
                low = slot
                while low > first and held[rank, low - 1] < cap:
                    low -= 1
                for free in range(low, slot):
                    if grid[rank, free] == -1:
                        target = free
                        break
                for x in range(target, slot):
                    held[rank, x] += 1
            else:
                grid[rank, slot + 1] = -1
                for free in range(first, slot):
                    if grid[rank, free] == -1 and grid[rank, free + 1] == -1:
                        target = free
                        break
                for x in range(target + 1, slot + 1):
                    held[rank, x] -= 1
                grid[rank, target + 1] = BUSY
            grid[rank, target] = entry
            slots[rank, kind, j] = target
    types = np.empty((p, 4 * m), np.int64)
    microbatches = np.empty((p, 4 * m), np.int64)
    for rank in range(p):
        at = 0
        for slot in range(grid.shape[1]):
            entry = grid[rank, slot]
            if entry >= 0:
                types[rank, at], microbatches[rank, at] = entry // m, entry % m
                at += 1
    return types, microbatches
