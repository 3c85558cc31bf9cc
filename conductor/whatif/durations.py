"""What operations take by themselves, without waiting: as traced, and ideally."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.ir.trace import COMPUTE, Operation
from conductor.whatif.graph import Graph


def own_durations(graph: Graph) -> FloatArray:
    """Duration of each operation from the start of its group, shape (n,).

    Ranks that meet start when the last of them is there: what the others wait is not theirs.
    """
    trace = graph.trace
    alone = np.diff(graph.group_offsets) == 1
    own = np.maximum(trace.end_ms - graph.latest_of_group(trace.start_ms), 0.0)
    return np.where(np.repeat(alone, np.diff(graph.group_offsets)), trace.duration_ms, own)


def ideal_durations(graph: Graph, own_ms: FloatArray) -> FloatArray:
    """Duration of each operation if all of its kind were alike, shape (n,).

    Compute takes the mean over ranks and steps, communication the median: a few transfers that wait for
    something unseen would spoil a mean.
    """
    ideal = np.empty(len(own_ms))
    for operation in Operation:
        mine = graph.trace.operations == operation
        if mine.any():
            ideal[mine] = (np.mean if operation in COMPUTE else np.median)(own_ms[mine])
    return ideal
