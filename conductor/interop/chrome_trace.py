"""Timelines and traces as Chrome traces, which Perfetto and chrome://tracing open.

One process is a replica of the pipeline, one thread a rank. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from conductor.errors import FormatError
from conductor.interop.columns import Progress
from conductor.interop.json_events import Events
from conductor.ir.action import Action
from conductor.ir.helps import Helps
from conductor.ir.schedule import FloatArray
from conductor.ir.trace import LABELS, Operation, Trace
from conductor.problem.kind import Kind
from conductor.simulator.timeline import Timeline

COLOURS = {
    Kind.F: "rail_response",
    Kind.I: "rail_animation",
    Kind.W: "rail_idle",
    Kind.B: "rail_load",
}

Event = dict[str, Any]

_MOVED = "migration"
_HEAD = '{"displayTimeUnit": "ms", "otherData": {"plan": '


def write_chrome_trace(timeline: Timeline, path: str | Path, *, helps: Helps | None = None) -> None:
    """Writes a simulated or measured timeline, with work that moved between ranks.

    Each rank has a slice an action and a counter of its activation memory; an arrow goes from each
    action to the one on another rank that waits for it. What a rank does for another is a slice named
    after the action helped, with an arrow from it.

    Raises:
        FormatError: the file cannot be written.
    """
    events = chain(_timeline_events(timeline), _helps(timeline, helps) if helps else ())
    _write(path, events, {"plan": timeline.schedule.name})


def write_trace(trace: Trace, path: str | Path) -> None:
    """Writes the operations of a trace, step after step; transfers overlap and have their own threads.

    Raises:
        FormatError: the file cannot be written.
    """
    _write(path, _trace_events(trace), {"trace": trace.name})


def is_chrome_timeline(path: str | Path) -> bool:
    """Whether a file begins like one of `write_chrome_trace`."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_HEAD)) == _HEAD.encode()
    except OSError:
        return False


def read_chrome_timeline(path: str | Path, *, on_progress: Progress | None = None) -> Trace:
    """Reads what `write_chrome_trace` wrote, as a trace of one step.

    Raises:
        FormatError: the file cannot be read, or has no action in it.
    """
    path = Path(path)
    events = Events(path, on_progress=on_progress)
    rows: list[tuple[int, Action, float, float]] = []
    try:
        for event in events:
            if event.get("ph") == "X" and event.get("cat") != _MOVED:
                times = float(event["ts"]) / 1000.0, float(event["dur"]) / 1000.0
                rows.append((int(event["tid"]), Action.parse(event["name"]), *times))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: slice {len(rows)} has no {error}") from None
    return Trace(
        name=path.stem,
        steps=np.zeros(len(rows), np.int64),
        dp_ranks=np.zeros(len(rows), np.int32),
        ranks=np.array([rank for rank, *_ in rows], np.int32),
        stages=np.array([action.stage for _, action, *_ in rows], np.int32),
        microbatches=np.array([action.microbatch for _, action, *_ in rows], np.int32),
        operations=np.array([action.kind for _, action, *_ in rows], np.int8),
        start_ms=np.array([start for *_, start, _ in rows], np.float64),
        duration_ms=np.array([duration for *_, duration in rows], np.float64),
        notes=(f"{events.note}: kept the {len(rows)} actions before the damage",)
        if events.note
        else (),
    ).checked()


def _write(path: str | Path, events: Iterable[Event], about: dict[str, str]) -> None:
    """Event by event, so that a large trace is never held as text."""
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "otherData": ' + json.dumps(about))
            file.write(', "traceEvents": [')
            for number, event in enumerate(events):
                file.write((",\n" if number else "\n") + json.dumps(event))
            file.write("\n]}\n")
    except OSError as error:
        raise FormatError(f"{path}: cannot write the trace: {error.strerror}") from None


def _name(what: str, name: str, process: int, thread: int = 0) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _timeline_events(timeline: Timeline) -> Iterator[Event]:
    program, schedule = timeline.program, timeline.schedule
    for rank in range(schedule.num_ranks):
        yield _name("thread_name", f"rank {rank}", 0, rank)
    for index in timeline.sequence.tolist():
        action = schedule.action(index)
        start, end = float(timeline.start_ms[index]), float(timeline.end_ms[index])
        yield {
            "name": str(action),
            "cat": action.kind.name,
            "ph": "X",
            "pid": 0,
            "tid": int(program.ranks[index]),
            "ts": 1000.0 * start,
            "dur": 1000.0 * (end - start),
            "cname": COLOURS[action.kind],
            "args": {"stage": action.stage, "microbatch": action.microbatch},
        }
    yield from _arrows(timeline)
    for rank in range(schedule.num_ranks):
        yield from _memory(timeline, rank)


def _arrows(timeline: Timeline) -> Iterator[Event]:
    """Transfers between ranks; an arrow leaves the middle of its slice, where no other one touches it."""
    program = timeline.program
    middle = 500.0 * (timeline.start_ms + timeline.end_ms)
    number = 0
    for target, slot in np.argwhere(program.inputs >= 0).tolist():
        source = int(program.inputs[target, slot])
        if program.ranks[source] != program.ranks[target]:
            number += 1
            arrow = {"name": "transfer", "cat": "transfer", "id": number, "pid": 0}
            yield {
                **arrow,
                "ph": "s",
                "tid": int(program.ranks[source]),
                "ts": float(middle[source]),
            }
            yield {**arrow, "ph": "f", "bp": "e", "tid": int(program.ranks[target]),
                   "ts": float(middle[target])}  # fmt: skip


def _helps(timeline: Timeline, helps: Helps) -> Iterator[Event]:
    """Slices on the lenders' threads, and arrows from the actions helped."""
    program, schedule = timeline.program, timeline.schedule
    for number, (index, lender, parts) in enumerate(
        zip(helps.actions.tolist(), helps.lenders.tolist(), helps.parts.tolist(), strict=True)
    ):
        start, end = 1000.0 * float(helps.start_ms[number]), 1000.0 * float(helps.end_ms[number])
        borrower = int(program.ranks[index])
        name = f"{schedule.action(index)} of rank {borrower}"
        yield {
            "name": name, "cat": _MOVED, "ph": "X", "pid": 0, "tid": lender, "ts": start,
            "dur": end - start, "cname": "yellow",
            "args": {"parts": parts, "of parts": helps.of_parts},
        }  # fmt: skip
        arrow = {"name": "moved", "cat": _MOVED, "id": f"help {number}", "pid": 0}
        yield {**arrow, "ph": "s", "tid": borrower, "ts": 1000.0 * float(helps.decided_ms[number])}
        yield {**arrow, "ph": "f", "bp": "e", "tid": lender, "ts": 0.5 * (start + end)}


def _memory(timeline: Timeline, rank: int) -> Iterator[Event]:
    """The rank's activation memory whenever it changes."""
    program = timeline.program
    mine = slice(int(program.rank_offsets[rank]), int(program.rank_offsets[rank + 1]))
    times = np.concatenate((timeline.end_ms[mine], timeline.start_ms[mine]))
    changes: FloatArray = np.concatenate((-program.freed[mine], program.allocated[mine]))
    by = np.argsort(times, kind="stable")  # of one moment, what is freed comes first
    held = np.maximum(np.cumsum(changes[by]).round(9), 0.0)
    for place, at in enumerate(times[by].tolist()):
        if changes[by[place]]:
            yield {"name": f"activation memory, rank {rank}", "ph": "C", "pid": 0, "tid": rank,
                   "ts": 1000.0 * at, "args": {"held": float(held[place])}}  # fmt: skip


def _trace_events(trace: Trace) -> Iterator[Event]:
    is_transfer = (trace.operations >= Operation.FORWARD_SEND) & (
        trace.operations <= Operation.BACKWARD_RECV
    )
    # Compute and collectives of a rank follow each other; its four streams of transfers do not.
    lane = np.where(is_transfer, trace.operations - Operation.FORWARD_SEND + 1, 0)
    threads = 5 * trace.ranks + lane
    for dp_rank in np.unique(trace.dp_ranks).tolist():
        yield _name("process_name", f"data-parallel rank {dp_rank}", dp_rank)
    for dp_rank, thread in np.unique(np.stack((trace.dp_ranks, threads)), axis=1).T.tolist():
        rank, stream = divmod(thread, 5)
        what = Operation(Operation.FORWARD_SEND + stream - 1).name.lower().replace("_", " ")
        yield _name("thread_name", f"rank {rank}{f' {what}' if stream else ''}", dp_rank, thread)
    numbers, step = np.unique(trace.steps, return_inverse=True)
    lengths = np.zeros(len(numbers))
    np.maximum.at(lengths, step, trace.end_ms)
    begins = np.concatenate(([0.0], np.cumsum(lengths)[:-1]))
    start, end = begins[step] + trace.start_ms, begins[step] + trace.end_ms
    # Of slices that cross by a tick of the clock, the earlier one ends where the later one begins.
    by = np.lexsort((end, start, threads, trace.dp_ranks))
    same = (threads[by[1:]] == threads[by[:-1]]) & (
        trace.dp_ranks[by[1:]] == trace.dp_ranks[by[:-1]]
    )
    end[by[:-1][same]] = np.minimum(end[by[:-1]], start[by[1:]])[same]
    for i in np.argsort(start, kind="stable").tolist():
        operation = Operation(int(trace.operations[i]))
        stage, microbatch = int(trace.stages[i]), int(trace.microbatches[i])
        is_action = operation < len(Kind)
        yield {
            "name": f"{stage}{Kind(operation).name}{microbatch}"
            if is_action
            else LABELS[operation],
            "cat": LABELS[operation],
            "ph": "X",
            "pid": int(trace.dp_ranks[i]),
            "tid": int(threads[i]),
            "ts": 1000.0 * float(start[i]),
            "dur": 1000.0 * float(end[i] - start[i]),
            "args": {"step": int(trace.steps[i]), "stage": stage, "microbatch": microbatch},
        }
