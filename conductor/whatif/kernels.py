"""Compiled loops of the replay. Operations that start together form a group; most are alone in theirs."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def group_order(groups, inputs, num_groups):
    """A topological order of groups.

    Args:
        groups: of each operation.
        inputs: operations that each one waits for, shape (n, slots); -1 is none.
        num_groups: how many groups there are.

    Returns:
        The order, and how many groups it reached: fewer than `num_groups` means that they wait in a circle.
    """
    n, slots = inputs.shape
    waits = np.zeros(num_groups, np.int64)
    offsets = np.zeros(num_groups + 1, np.int64)
    for i in range(n):
        for slot in range(slots):
            source = inputs[i, slot]
            if source >= 0 and groups[source] != groups[i]:
                waits[groups[i]] += 1
                offsets[groups[source] + 1] += 1
    offsets = np.cumsum(offsets)
    place = offsets.copy()
    targets = np.empty(offsets[-1], np.int64)
    for i in range(n):
        for slot in range(slots):
            source = inputs[i, slot]
            if source >= 0 and groups[source] != groups[i]:
                targets[place[groups[source]]] = groups[i]
                place[groups[source]] += 1
    order = np.empty(num_groups, np.int64)
    count = 0
    for group in range(num_groups):
        if waits[group] == 0:
            order[count] = group
            count += 1
    done = 0
    while done < count:
        group = order[done]
        done += 1
        for k in range(offsets[group], offsets[group + 1]):
            waits[targets[k]] -= 1
            if waits[targets[k]] == 0:
                order[count] = targets[k]
                count += 1
    return order, count


@numba.njit(cache=True)
def replay(offsets, inputs, durations):
    """End of each operation when it starts as soon as its whole group can.

    Args:
        offsets: group g holds the operations `[offsets[g], offsets[g + 1])`, groups in topological order.
        inputs: shape (n, slots); -1 is none.
        durations: shape (n,), from the group's start.
    """
    ends = np.empty(len(durations))
    for group in range(len(offsets) - 1):
        start = 0.0
        for i in range(offsets[group], offsets[group + 1]):
            for slot in range(inputs.shape[1]):
                source = inputs[i, slot]
                if source >= 0:
                    start = max(start, ends[source])
        for i in range(offsets[group], offsets[group + 1]):
            ends[i] = start + durations[i]
    return ends


@numba.njit(cache=True)
def step_ends(offsets, inputs, durations, steps, num_steps):
    """End of each step, shape (num_steps,), under `replay`; steps are those of the operations."""
    ends = replay(offsets, inputs, durations)
    last = np.zeros(num_steps)
    for i in range(len(ends)):
        last[steps[i]] = max(last[steps[i]], ends[i])
    return last


@numba.njit(cache=True)
def latest(offsets, values):
    """The greatest value of each operation's group, shape (n,)."""
    result = np.empty(len(values))
    for group in range(len(offsets) - 1):
        greatest = -np.inf
        for i in range(offsets[group], offsets[group + 1]):
            greatest = max(greatest, values[i])
        result[offsets[group] : offsets[group + 1]] = greatest
    return result
