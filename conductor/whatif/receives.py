"""Transfers of a trace that records none: seen from the gaps between actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conductor.ir.schedule import BoolArray, Int64Array
from conductor.ir.trace import Operation, Trace
from conductor.whatif.graph import Graph, build_graph, look_up, numbers

_CLOCK_MS = 0.1
"""Clocks that differ by less agree."""


def has_transfers(trace: Trace) -> bool:
    """Whether sends or receives were recorded."""
    return bool(_is_transfer(trace).any())


def _is_transfer(trace: Trace) -> BoolArray:
    return (trace.operations >= Operation.FORWARD_SEND) & (
        trace.operations <= Operation.BACKWARD_RECV
    )


def graph_of(trace: Trace) -> Graph:
    """The dependencies of a trace, with transfers in any order where it records none.

    Raises:
        FormatError: operations wait for each other in a circle.
    """
    if not has_transfers(trace):
        return build_graph(with_transfers(trace), in_order=False)
    graph = build_graph(trace)
    ends_early = graph.trace.end_ms < graph.latest_of_group(graph.trace.start_ms) - _CLOCK_MS
    count = int((ends_early & _is_transfer(graph.trace)).sum())
    if count:
        note = f"{count} sends and receives end before both sides have started: the ranks' clocks disagree"
        return replace(graph, trace=graph.trace.noted(note))
    return graph


def with_transfers(trace: Trace) -> Trace:
    """The trace with a send and a receive for each action whose input comes from another rank.

    The send starts when the input's action ends, the receive when the receiver's action before ends; both
    end when the action starts. So the time after the later of the two starts is the transfer (and what
    the launch took), and what comes before it is waiting.
    """
    if has_transfers(trace) or trace.num_ranks == 1:
        return trace
    kind, end = trace.operations, trace.end_ms
    step = np.unique(trace.steps, return_inverse=True)[1]
    worker = numbers(step, trace.dp_ranks, trace.ranks)
    actions = np.flatnonzero(trace.is_action)
    actions = actions[np.lexsort((trace.start_ms[actions], worker[actions]))]
    before = np.full(len(trace), -1, np.int64)
    same = worker[actions[1:]] == worker[actions[:-1]]
    before[actions[1:][same]] = actions[:-1][same]

    added: list[Trace] = []
    early = 0
    for is_backward, offset in ((False, -1), (True, +1)):
        mine = actions[
            np.isin(kind[actions], (Operation.BACKWARD, Operation.BACKWARD_INPUT))
            if is_backward
            else kind[actions] == Operation.FORWARD
        ]
        key = (step[mine], trace.dp_ranks[mine], trace.microbatches[mine])
        stages = trace.stages[mine].astype(np.int64)
        peer = np.where(stages + offset < trace.num_stages, stages + offset, -1)
        both = numbers(*(np.tile(k, 2) for k in key), np.concatenate((stages, peer)))
        source = look_up(both[: len(mine)], mine, both[len(mine) :])
        crosses = (source >= 0) & (trace.ranks[source] != trace.ranks[mine])
        mine, source = mine[crosses], source[crosses]
        early += int((end[source] > trace.start_ms[mine] + _CLOCK_MS).sum())
        free = np.where(before[mine] >= 0, end[before[mine]], 0.0)
        send = Operation.BACKWARD_SEND if is_backward else Operation.FORWARD_SEND
        added += [
            _transfer(trace, source, send, end[source], trace.start_ms[mine]),
            _transfer(trace, mine, Operation(send + 1), free, trace.start_ms[mine]),
        ]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in (trace, *added)])
        for name in (
            "steps", "dp_ranks", "ranks", "stages", "microbatches", "operations", "start_ms",
            "duration_ms",
        )
    }  # fmt: skip
    notes = (
        (f"{early} actions start before their input ends: the ranks' clocks disagree",)
        if early
        else ()
    )
    return replace(trace, **columns, notes=(*trace.notes, *notes))


def _transfer(
    trace: Trace,
    actions: Int64Array,
    operation: Operation,
    start: np.ndarray[tuple[int], np.dtype[np.float64]],
    end: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> Trace:
    """Half of a transfer, with the stage and micro-batch of its action."""
    return replace(
        trace.where(actions),
        operations=np.full(len(actions), operation, np.int8),
        start_ms=np.minimum(start, end),
        duration_ms=np.maximum(end - start, 0.0),
    )
