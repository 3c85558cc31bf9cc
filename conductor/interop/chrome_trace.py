"""Timelines as Chrome traces, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path

from conductor.errors import FormatError
from conductor.problem.kind import Kind
from conductor.simulator.timeline import Timeline

COLOURS = {
    Kind.F: "rail_response",
    Kind.I: "rail_animation",
    Kind.W: "rail_idle",
    Kind.B: "rail_load",
}


def write_chrome_trace(timeline: Timeline, path: str | Path) -> None:
    """Writes a simulated or measured timeline: one track a rank, one slice an action.

    Raises:
        FormatError: the file cannot be written.
    """
    program, schedule = timeline.program, timeline.schedule
    events: list[dict[str, object]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
        for rank in range(schedule.num_ranks)
    ]
    for index in timeline.sequence.tolist():
        action = schedule.action(index)
        start, end = float(timeline.start_ms[index]), float(timeline.end_ms[index])
        events.append(
            {
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
        )
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"plan": schedule.name}}
    try:
        Path(path).write_text(json.dumps(trace), encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{path}: cannot write the trace: {error.strerror}") from None
