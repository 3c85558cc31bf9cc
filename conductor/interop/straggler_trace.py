"""Straggler traces: the Parquet files of the public what-if study of large training jobs.

One row an operation: dp_rank, stage (a pipeline rank), step, optype, start_ts and duration in seconds,
seq_id (order of its kind on its worker in the step), mc (chunk on the rank), gmc (chunk in the model:
our stage) and mb_id (compute only).

Source: arXiv 2505.05713 and its artifact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conductor.interop.columns import Progress, read_columns
from conductor.ir.schedule import BoolArray, Int64Array
from conductor.ir.trace import Operation, Trace

OPTYPES = {
    "forward-compute": Operation.FORWARD,
    "backward-compute": Operation.BACKWARD,
    "forward-send": Operation.FORWARD_SEND,
    "forward-recv": Operation.FORWARD_RECV,
    "backward-send": Operation.BACKWARD_SEND,
    "backward-recv": Operation.BACKWARD_RECV,
    "params-all-gather": Operation.PARAMS_ALL_GATHER,
    "gc": Operation.GC,
    "layernorm-grads-all-reduce": Operation.LAYERNORM_GRADS_ALL_REDUCE,
    "embedding-grads-all-reduce": Operation.EMBEDDING_GRADS_ALL_REDUCE,
    "grads-reduce-scatter": Operation.GRADS_REDUCE_SCATTER,
    "optimizer-clip-main-grad": Operation.OPTIMIZER_CLIP,
    "optimizer": Operation.OPTIMIZER,
}
COLUMNS = (
    "dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc"
)  # fmt: skip
"""The columns that a straggler trace has."""

_PARTNERS = {
    Operation.FORWARD_SEND: (Operation.FORWARD, +1),
    Operation.FORWARD_RECV: (Operation.FORWARD, -1),
    Operation.BACKWARD_SEND: (Operation.BACKWARD, -1),
    Operation.BACKWARD_RECV: (Operation.BACKWARD, +1),
}
"""The compute of a transfer, and where the peer's stage lies."""


def read_straggler_trace(path: str | Path, *, on_progress: Progress | None = None) -> Trace:
    """Reads a trace.

    A send gets stage and micro-batch of the compute that it follows, a receive of the one that it
    precedes: the n-th of its worker in the step. Where a worker transfers at the ends of the pipeline
    too, those transfers lead nowhere and are left out.

    Raises:
        FormatError: the file cannot be read, lacks a column, or has no pipeline in it.
    """
    path = Path(path)
    table = read_columns(path, COLUMNS, on_progress=on_progress)
    operations = table.text("optype").mapped({name: int(op) for name, op in OPTYPES.items()})
    known = operations >= 0
    duration = table.real("duration")[known]
    ends_early = ~(duration >= 0.0)
    dp_rank, rank, step, seq, chunk, stage, microbatch = (
        table.whole(name)[known]
        for name in ("dp_rank", "stage", "step", "seq_id", "mc", "gmc", "mb_id")
    )
    operations, start = operations[known], table.real("start_ts")[known]
    is_action = operations <= Operation.BACKWARD
    needed = np.ones(len(operations), np.bool_)
    if is_action.any():
        worker = np.unique(np.stack((step, dp_rank, rank)), axis=1, return_inverse=True)[1]
        last_stage = int(stage[is_action].max())
        for operation, (compute, offset) in _PARTNERS.items():
            mine = np.flatnonzero(operations == operation)
            action = np.flatnonzero(operations == compute)
            if not len(action):
                needed[mine] = False
                continue
            peer = stage[action] + offset
            has_peer = (peer >= 0) & (peer <= last_stage)
            found = _partners(
                worker[mine], _nth(worker[mine], start[mine], seq[mine]),
                worker[action], start[action], has_peer,
            )  # fmt: skip
            stage[mine] = np.where(found >= 0, stage[action][found], -1)
            microbatch[mine] = np.where(found >= 0, microbatch[action][found], -1)
            needed[mine] = (found >= 0) & has_peer[found]
        # A collective is for the weights of a chunk.
        for owner, part, its in np.unique(np.stack((rank, chunk, stage))[:, is_action], axis=1).T:
            of_chunk = (rank == owner) & (chunk == part)
            stage[of_chunk & (operations >= Operation.PARAMS_ALL_GATHER)] = its
    names = sorted(set(table.text("optype").values) - set(OPTYPES))
    notes = [
        f"left out {count} {what}"
        for count, what in (
            ((~known).sum(), f"operations of unknown type: {', '.join(names)}"),
            (ends_early.sum(), "operations that end before they start"),
            ((~needed).sum(), "transfers that no compute needs"),
        )
        if count
    ]
    keep = needed & ~ends_early
    return Trace(
        name=path.stem,
        steps=step[keep],
        dp_ranks=dp_rank[keep].astype(np.int32),
        ranks=rank[keep].astype(np.int32),
        stages=stage[keep].astype(np.int32),
        microbatches=microbatch[keep].astype(np.int32),
        operations=operations[keep].astype(np.int8),
        start_ms=1000.0 * start[keep],
        duration_ms=1000.0 * duration[keep],
        notes=tuple(notes),
    ).checked()


def _nth(worker: Int64Array, *order: npt.NDArray[Any]) -> Int64Array:
    """Place of each entry among those of its worker, by `order` (its last is the first key)."""
    by = np.lexsort((*order, worker))
    of_worker = worker[by]
    nth = np.empty(len(by), np.int64)
    nth[by] = np.arange(len(by)) - np.searchsorted(of_worker, of_worker)
    return nth


def _partners(
    worker: Int64Array,
    nth: Int64Array,
    action_worker: Int64Array,
    action_start: npt.NDArray[np.float64],
    has_peer: BoolArray,
) -> Int64Array:
    """The action of each transfer, -1 is none.

    A worker that transfers as often as it acts does so at the ends of the pipeline too; any other only
    where the action has a peer.
    """
    size = 1 + max(int(worker.max(initial=0)), int(action_worker.max()))
    for_all = np.bincount(worker, minlength=size) == np.bincount(action_worker, minlength=size)
    counted = np.flatnonzero(has_peer | for_all[action_worker])
    if not len(counted):
        return np.full(len(worker), -1)
    width = 1 + max(len(worker), len(action_worker))
    keys = action_worker[counted] * width + _nth(action_worker[counted], action_start[counted])
    wanted = worker * width + nth
    by = np.argsort(keys)
    place = by[np.minimum(np.searchsorted(keys, wanted, sorter=by), len(by) - 1)]
    return np.where(keys[place] == wanted, counted[place], -1)
