"""Timelines as compact arrays in a page."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray, Int32Array
from conductor.report.entry import Entry, idle_pieces
from conductor.simulator.program import Program
from conductor.simulator.timeline import Timeline

TICKS = 2**32 - 1
"""Times are whole ticks: the end of the timeline is so many."""


def pack(entry: Entry) -> dict[str, Any]:
    """What the page's script reads of an entry.

    Actions stand rank after rank in the order in which they ran; places below are places in it.
    """
    timeline, program = entry.timeline, entry.timeline.program
    sequence, schedule = timeline.sequence, entry.timeline.schedule
    place = np.empty(len(sequence) + 1, np.int64)
    place[sequence], place[-1] = np.arange(len(sequence)), -1
    tick = (entry.last_ms or 1.0) / TICKS

    def times(values: FloatArray) -> dict[str, str]:
        return _packed(np.rint(np.clip(values / tick, 0, TICKS)), "u4")

    idle = idle_pieces(entry)
    num_ranks = schedule.num_ranks
    arrays = {
        "offsets": _packed(program.rank_offsets, "u4"),
        "start": times(timeline.start_ms[sequence]),
        "end": times(timeline.end_ms[sequence]),
        "kind": _packed(program.kinds[sequence], "u1"),
        "stage": _packed(program.stages[sequence], "u2"),
        "microbatch": _packed(program.microbatches[sequence], "u4"),
        "split": _packed(schedule.splits[sequence], "u1"),
        "overlap": _packed(program.overlaps[sequence], "u1"),
        "source": _packed(place[_last_inputs(timeline)[sequence]], "i4"),
        "path": _packed(place[timeline.critical_path], "u4"),
        "idleOffsets": _packed(np.searchsorted(idle.ranks, np.arange(num_ranks + 1)), "u4"),
        "idleStart": times(idle.start_ms),
        "idleEnd": times(idle.end_ms),
        "idleCause": _packed(idle.causes, "u1"),
        "idleAction": _packed(place[idle.actions], "i4"),
    }
    if entry.helps is not None:
        arrays |= {
            "helpAction": _packed(place[entry.helps.actions], "u4"),
            "helpLender": _packed(entry.helps.lenders, "u2"),
            "helpDecided": times(entry.helps.decided_ms),
            "helpStart": times(entry.helps.start_ms),
            "helpEnd": times(entry.helps.end_ms),
        }
    return {
        "title": entry.title,
        "note": entry.note,
        "ranks": num_ranks,
        "splits": schedule.num_splits,
        "makespan": timeline.makespan_ms,
        "last": entry.last_ms,
        "tick": tick,
        "allocated": _by_kind_and_stage(program, program.allocated),
        "freed": _by_kind_and_stage(program, program.freed),
        "limits": [float(limit) if np.isfinite(limit) else None for limit in program.memory_limits],
        "peaks": timeline.peak_memory.tolist(),
        "helpDoes": _does(entry),
        "arrays": arrays,
    }


def _does(entry: Entry) -> list[str]:
    """What each help does, in words."""
    if entry.helps is None:
        return []
    if entry.pieces:
        return list(entry.pieces)
    return [f"{parts} of {entry.helps.of_parts} parts" for parts in entry.helps.parts.tolist()]


def _packed(values: npt.ArrayLike, kind: str) -> dict[str, str]:
    raw = np.asarray(values).astype(f"<{kind}").tobytes()
    return {"type": kind, "data": base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()}


def _last_inputs(timeline: Timeline) -> Int32Array:
    """The input of each action that arrives last, program order; -1 is none."""
    inputs = timeline.program.inputs
    arrival = np.where(inputs >= 0, timeline.end_ms[inputs] + timeline.program.input_lag_ms, -1.0)
    latest: Int32Array = inputs[np.arange(len(inputs)), arrival.argmax(axis=1)]
    return latest


def _by_kind_and_stage(program: Program, values: FloatArray) -> list[list[float]]:
    """A per-action amount that depends on kind and stage alone, as a table."""
    table = np.zeros((int(program.kinds.max()) + 1, int(program.stages.max()) + 1))
    table[program.kinds, program.stages] = values
    return table.tolist()
