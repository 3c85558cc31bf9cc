"""Traces made by hand: a pipeline of known times, with and without its communication."""

import numpy as np

from conductor.ir.trace import Operation, Trace


def trace_of(rows, name="made"):
    """Rows of (step, dp_rank, rank, stage, micro-batch, operation, start, duration)."""
    columns = list(zip(*rows, strict=True))
    return Trace(
        name=name,
        steps=np.array(columns[0], np.int64),
        dp_ranks=np.array(columns[1], np.int32),
        ranks=np.array(columns[2], np.int32),
        stages=np.array(columns[3], np.int32),
        microbatches=np.array(columns[4], np.int32),
        operations=np.array(columns[5], np.int8),
        start_ms=np.array(columns[6], np.float64),
        duration_ms=np.array(columns[7], np.float64),
    )


def two_ranks(
    forward=(10.0, 20.0), backward=(30.0, 40.0), transfer=1.0, delay=0.0, step=0, dp_rank=0
):
    """One micro-batch through two ranks, each with its transfers; every operation `delay` late."""
    F, B = Operation.FORWARD, Operation.BACKWARD
    key = (step, dp_rank)
    time = delay
    rows = [(*key, 0, 0, 0, F, time, forward[0])]
    time += forward[0] + delay
    # The receive waits from the step's start.
    rows += [
        (*key, 0, 0, 0, Operation.FORWARD_SEND, time, transfer),
        (*key, 1, 1, 0, Operation.FORWARD_RECV, 0.0, time + transfer),
    ]
    time += transfer + delay
    rows.append((*key, 1, 1, 0, F, time, forward[1]))
    time += forward[1] + delay
    rows.append((*key, 1, 1, 0, B, time, backward[1]))
    time += backward[1] + delay
    sent = forward[0] + 2 * delay
    rows += [
        (*key, 1, 1, 0, Operation.BACKWARD_SEND, time, transfer),
        (*key, 0, 0, 0, Operation.BACKWARD_RECV, sent, time + transfer - sent),
    ]
    time += transfer + delay
    rows.append((*key, 0, 0, 0, B, time, backward[0]))
    return rows
