"""Plain tables: one row an operation, in CSV or Parquet.

Columns `rank`, `stage`, `kind`, `microbatch`, `start_ms`, `duration_ms`, and if need be `step` and `dp_rank`.
A kind is a letter (F, I, W, B) or a name of the straggler traces (`forward-send`, `gc`); where an operation
has no stage or micro-batch, the cell is -1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from conductor.interop.columns import Progress, column_names, read_columns
from conductor.interop.straggler_trace import OPTYPES
from conductor.ir.trace import Operation, Trace
from conductor.problem.kind import Kind

COLUMNS = ("rank", "stage", "kind", "microbatch", "start_ms", "duration_ms")
"""What a table must have."""
OPTIONAL = ("step", "dp_rank")
"""What it may have; 0 otherwise."""

KINDS = {**OPTYPES, **{kind.name: Operation(kind) for kind in Kind}}


def read_table(path: str | Path, *, on_progress: Progress | None = None) -> Trace:
    """Reads a table.

    Raises:
        FormatError: the file cannot be read, lacks a column, or has no pipeline in it.
    """
    path = Path(path)
    optional = [name for name in OPTIONAL if name in column_names(path)]
    table = read_columns(path, (*COLUMNS, *optional), on_progress=on_progress)
    operations = table.text("kind").mapped({name: int(op) for name, op in KINDS.items()})
    duration = table.real("duration_ms")
    unknown, ends_early = operations < 0, ~(duration >= 0.0)
    names = sorted(set(table.text("kind").values) - set(KINDS))
    notes = [
        f"left out {count} {what}"
        for count, what in (
            (unknown.sum(), f"operations of unknown kind: {', '.join(names)}"),
            (ends_early.sum(), "operations that end before they start"),
        )
        if count
    ]
    keep = ~(unknown | ends_early)
    none = np.zeros(len(operations), np.int64)
    step, dp_rank = (table.whole(name) if name in optional else none for name in OPTIONAL)
    start = table.real("start_ms")[keep]
    # Each step starts at 0.
    number = np.unique(step[keep], return_inverse=True)[1]
    first = np.full(number.max(initial=-1) + 1, np.inf)
    np.minimum.at(first, number, start)
    return Trace(
        name=path.stem,
        steps=step[keep],
        dp_ranks=dp_rank[keep].astype(np.int32),
        ranks=table.whole("rank")[keep].astype(np.int32),
        stages=table.whole("stage")[keep].astype(np.int32),
        microbatches=table.whole("microbatch")[keep].astype(np.int32),
        operations=operations[keep].astype(np.int8),
        start_ms=start - first[number],
        duration_ms=duration[keep],
        notes=tuple(notes),
    ).checked()
