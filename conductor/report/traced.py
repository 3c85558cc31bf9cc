"""Entries of measured runs: our own timelines, and steps of traces."""

from __future__ import annotations

import numpy as np

from conductor.ir.helps import Helps
from conductor.ir.schedule import Int64Array
from conductor.ir.trace import Trace
from conductor.report.entry import Entry, size_of
from conductor.simulator.timeline import Timeline
from conductor.whatif.graph import build_graph
from conductor.whatif.profile import one_step, profile, traced_schedule


def measured(result: Timeline, *, title: str, helps: Helps | None = None) -> Entry:
    """A timeline as it is, from a file or a run, and the work that moved in it."""
    note = f"{size_of(result)}, read from a file"
    return Entry(title=title, note=note, timeline=result, helps=helps)


def traced(
    trace: Trace, *, title: str, num_steps: int = 1, dp_rank: int | None = None
) -> list[Entry]:
    """Steps of one replica of a traced job, from their first action on.

    Transfers count as in the trace's own profile; a trace knows no memory, so each stage's share of a
    rank counts as such.

    Args:
        trace: where they are from.
        title: of all; each step's number is added.
        num_steps: so many, evenly spread over the trace.
        dp_rank: the replica; None is the first.

    Raises:
        FormatError: a step is not whole.
    """
    dp_rank = int(trace.dp_ranks.min()) if dp_rank is None else dp_rank
    spec = profile(build_graph(trace), dp_rank=dp_rank).with_(memory_limit=None)
    entries = []
    for step in _spread(np.unique(trace.steps[trace.dp_ranks == dp_rank]), num_steps).tolist():
        schedule = traced_schedule(trace, step, dp_rank)
        actions = one_step(trace, step, dp_rank)
        # The rows of the schedule, in its order.
        actions = actions.where(np.lexsort((actions.end_ms, actions.start_ms, actions.ranks)))
        first = actions.start_ms.min()
        result = Timeline.measured(spec, schedule, actions.start_ms - first, actions.end_ms - first)
        entries.append(
            Entry(
                title=f"{title}, step {step}",
                note=f"{size_of(result)}, measured, data-parallel rank {dp_rank}",
                timeline=result,
            )
        )
    return entries


def _spread(steps: Int64Array, count: int) -> Int64Array:
    """So many of the steps, the first and the last among them."""
    chosen = np.linspace(0, len(steps) - 1, min(count, len(steps)))
    return steps[np.unique(chosen.round().astype(np.int64))]
