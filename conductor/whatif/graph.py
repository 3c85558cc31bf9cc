"""The dependencies between the operations of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conductor.errors import FormatError
from conductor.ir.schedule import FloatArray, Int64Array
from conductor.ir.trace import Operation, Trace
from conductor.whatif.kernels import group_order, latest, replay, step_ends

_TAIL = (
    Operation.GC,
    Operation.LAYERNORM_GRADS_ALL_REDUCE,
    Operation.EMBEDDING_GRADS_ALL_REDUCE,
    Operation.GRADS_REDUCE_SCATTER,
    Operation.OPTIMIZER_CLIP,
    Operation.OPTIMIZER,
)
"""What a rank does after its last action, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A trace with what each operation waits for.

    Attributes:
        trace: its operations, those of one group next to each other, groups in topological order.
        group_offsets: int64; group g holds the operations `[offsets[g], offsets[g + 1])`. They start
            together: the send and the receive of one transfer, the ranks of a collective.
        inputs: int64, shape (n, 4); operations that each one waits for, -1 is none.
        step_numbers: int64, shape (steps,); as the trace names them.
        step_index: int64, shape (n,).
    """

    trace: Trace
    group_offsets: Int64Array
    inputs: Int64Array
    step_numbers: Int64Array
    step_index: Int64Array

    def step_ms(self, durations_ms: FloatArray) -> FloatArray:
        """Time of each step when every operation starts as soon as it can, shape (steps,)."""
        times: FloatArray = step_ends(
            self.group_offsets, self.inputs, durations_ms, self.step_index, len(self.step_numbers)
        )
        return times

    def end_ms(self, durations_ms: FloatArray) -> FloatArray:
        """End of each operation in the replay, shape (n,)."""
        ends: FloatArray = replay(self.group_offsets, self.inputs, durations_ms)
        return ends

    def latest_of_group(self, values: FloatArray) -> FloatArray:
        """The greatest value in each operation's group, shape (n,)."""
        result: FloatArray = latest(self.group_offsets, values)
        return result


def numbers(*columns: npt.NDArray[np.integer]) -> Int64Array:
    """One number for each combination of values; -1 where any value is below 0."""
    number = np.zeros(len(columns[0]), np.int64)
    missing = np.zeros(len(number), np.bool_)
    for column in columns:
        missing |= column < 0
        number = number * (int(column.max(initial=0)) + 1) + column
    number[missing] = -1
    return number


def look_up(keys: Int64Array, rows: Int64Array, wanted: Int64Array) -> Int64Array:
    """The row with each wanted key, -1 where there is none."""
    by = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys, wanted, sorter=by), len(by) - 1)
    found = by[place] if len(by) else np.full(len(wanted), -1)
    if not len(by):
        return found
    return np.where((keys[found] == wanted) & (wanted >= 0), rows[found], -1)


def build_graph(trace: Trace, *, in_order: bool = True) -> Graph:
    """Finds what every operation waits for.

    A rank's actions run in the order of their starts. Sends and receives of either direction are four
    more sequences. A receive precedes its action and follows the action before that one; a send follows
    its action; both wait for each other. Collectives wait for all their ranks. The weights of a stage
    are gathered before its first forward; the rest of the step follows the rank's last action.

    Args:
        trace: with its transfers.
        in_order: whether each of a rank's sends, or receives, waits for the one before it. Where that
            makes a circle it does not, which is noted.

    Raises:
        FormatError: operations wait for each other in a circle.
    """
    step_numbers, step = np.unique(trace.steps, return_inverse=True)
    kind = trace.operations.astype(np.int64)
    n = len(trace)
    worker = numbers(step, trace.dp_ranks, trace.ranks)
    inputs = np.full((n, 4), -1, np.int64)
    actions = np.flatnonzero(trace.is_action)
    actions = actions[np.lexsort((trace.end_ms[actions], trace.start_ms[actions], worker[actions]))]
    _chain(actions, worker, inputs, 0)

    # Actions by stage and micro-batch, and the one before each on its rank.
    direction = (kind != Operation.FORWARD).astype(np.int64)
    micro = numbers(step, trace.dp_ranks, trace.stages, trace.microbatches)
    starts_flow = actions[kind[actions] != Operation.BACKWARD_WEIGHT]
    key_of_action = 2 * micro[starts_flow] + direction[starts_flow]
    for operation in (
        Operation.FORWARD_SEND, Operation.FORWARD_RECV, Operation.BACKWARD_SEND, Operation.BACKWARD_RECV,
    ):  # fmt: skip
        mine = np.flatnonzero(kind == operation)
        mine = mine[np.lexsort((trace.start_ms[mine], worker[mine]))]
        if in_order:
            _chain(mine, worker, inputs, 0)
        backward = int(operation >= Operation.BACKWARD_SEND)
        action = look_up(key_of_action, starts_flow, 2 * micro[mine] + backward)
        if operation in (Operation.FORWARD_SEND, Operation.BACKWARD_SEND):
            inputs[mine, 1] = action
        else:
            known = action >= 0
            inputs[action[known], 1] = mine[known]
            inputs[mine[known], 1] = inputs[action[known], 0]
    _weights_first(trace, step, actions, inputs)
    _tail_last(trace, worker, actions, inputs)

    groups = _groups(trace, step, worker)
    order, reached = group_order(groups, inputs, int(groups.max()) + 1)
    if reached < len(order) and in_order:
        note = "transfers between two ranks overtake each other: their order is not kept"
        return build_graph(trace.noted(note), in_order=False)
    if reached < len(order):
        raise FormatError(
            f"{trace.name}: operations wait for each other in a circle; do the ranks' clocks agree?"
        )
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    by = np.argsort(position[groups], kind="stable")
    new = np.empty(n + 1, np.int64)
    new[by], new[n] = np.arange(n), -1
    return Graph(
        trace=trace.where(by),
        group_offsets=np.concatenate(([0], np.cumsum(np.bincount(position[groups])))),
        inputs=np.ascontiguousarray(new[inputs[by]]),
        step_numbers=step_numbers,
        step_index=step[by],
    )


def _chain(sequence: Int64Array, worker: Int64Array, inputs: Int64Array, slot: int) -> None:
    """Each operation of a worker's sequence waits for the one before it."""
    same = worker[sequence[1:]] == worker[sequence[:-1]]
    inputs[sequence[1:][same], slot] = sequence[:-1][same]


def _weights_first(trace: Trace, step: Int64Array, actions: Int64Array, inputs: Int64Array) -> None:
    gathers = np.flatnonzero(trace.operations == Operation.PARAMS_ALL_GATHER)
    if not len(gathers):
        return
    stage = numbers(step, trace.dp_ranks, trace.stages)
    forwards = actions[trace.operations[actions] == Operation.FORWARD]
    _, first = np.unique(stage[forwards], return_index=True)  # `actions` are in the order of starts
    first = forwards[first]
    inputs[first, 2] = look_up(stage[gathers], gathers, stage[first])


def _tail_last(trace: Trace, worker: Int64Array, actions: Int64Array, inputs: Int64Array) -> None:
    place = np.full(len(Operation), -1)
    place[list(_TAIL)] = np.arange(len(_TAIL))
    rank = place[trace.operations]
    tail = np.flatnonzero(rank >= 0)
    tail = tail[np.lexsort((trace.start_ms[tail], rank[tail], worker[tail]))]
    _chain(tail, worker, inputs, 0)
    _, first = np.unique(worker[tail], return_index=True)
    ends = np.flatnonzero(np.diff(worker[actions], append=-1) != 0)
    inputs[tail[first], 0] = look_up(worker[actions[ends]], actions[ends], worker[tail[first]])


def _groups(trace: Trace, step: Int64Array, worker: Int64Array) -> Int64Array:
    """The group of each operation."""
    kind = trace.operations.astype(np.int64)
    n = len(kind)
    # The n-th of its kind on its worker (and stage) meets the n-th of the others.
    by = np.lexsort((trace.start_ms, trace.stages, kind, worker))
    same = numbers(worker, kind, trace.stages + 1)[by]
    starts = np.flatnonzero(np.diff(same, prepend=-1))
    nth = np.empty(n, np.int64)
    nth[by] = np.arange(n) - np.repeat(starts, np.diff(starts, append=n))
    stages, replica = trace.stages, (step, trace.dp_ranks)
    # A transfer is named after the stage that it comes from.
    forward = np.where(kind == Operation.FORWARD_RECV, stages - 1, stages)
    backward = np.where(kind == Operation.BACKWARD_RECV, stages + 1, stages)
    groups = np.arange(n)
    for operations, key in (
        ((Operation.PARAMS_ALL_GATHER,), (step, trace.ranks, stages + 1, nth)),
        ((Operation.GRADS_REDUCE_SCATTER,), (step, trace.ranks, stages + 1, nth)),
        ((Operation.EMBEDDING_GRADS_ALL_REDUCE,), (*replica, nth)),
        ((Operation.OPTIMIZER_CLIP,), (step, nth)),
        (
            (Operation.FORWARD_SEND, Operation.FORWARD_RECV),
            (*replica, forward, trace.microbatches),
        ),
        (
            (Operation.BACKWARD_SEND, Operation.BACKWARD_RECV),
            (*replica, backward, trace.microbatches),
        ),
    ):
        mine = np.flatnonzero(np.isin(kind, operations))
        names = numbers(*(column[mine] for column in key))
        mine, names = mine[names >= 0], names[names >= 0]
        _, first, member = np.unique(names, return_index=True, return_inverse=True)
        groups[mine] = mine[first][member]
    return np.unique(groups, return_inverse=True)[1]
