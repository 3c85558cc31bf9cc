"""Timelines in JSON, our own format: the spec, the order with start and end of each action, nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from conductor.errors import ConductorError, FormatError
from conductor.ir.action import Action
from conductor.ir.helps import Helps
from conductor.ir.schedule import Schedule
from conductor.ir.trace import Trace
from conductor.problem.spec import PipelineSpec
from conductor.simulator.timeline import Timeline

FORMAT = "conductor-timeline-1"
_COLUMNS = ("actions", "lenders", "parts", "decided_ms", "start_ms", "end_ms")


class _Helps(BaseModel):
    model_config = ConfigDict(extra="forbid")

    of_parts: int
    rows: tuple[tuple[int, int, int, float, float, float], ...]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: str
    name: str
    spec: dict[str, Any]
    stage_ranks: tuple[int, ...]
    num_splits: int
    ranks: tuple[tuple[tuple[str, float, float], ...], ...]
    overlaps: tuple[int, ...]
    helps: _Helps | None = None


def write_timeline(timeline: Timeline, path: str | Path, *, helps: Helps | None = None) -> None:
    """Writes a timeline, with work that moved; `.gz` compresses it.

    Raises:
        FormatError: the file cannot be written.
    """
    from dataclasses import asdict

    schedule, path = timeline.schedule, Path(path)
    times = np.stack((timeline.start_ms, timeline.end_ms), axis=1).tolist()
    bounds = schedule.rank_offsets.tolist()
    value = {
        "format": FORMAT,
        "name": schedule.name,
        "spec": asdict(timeline.spec),
        "stage_ranks": schedule.stage_ranks,
        "num_splits": schedule.num_splits,
        "ranks": [
            [[str(schedule.action(i)), *times[i]] for i in range(first, last)]
            for first, last in zip(bounds[:-1], bounds[1:], strict=True)
        ],
        "overlaps": np.flatnonzero(schedule.overlaps).tolist(),
    }
    if helps is not None:
        columns = (getattr(helps, name).tolist() for name in _COLUMNS)
        value["helps"] = {"of_parts": helps.of_parts, "rows": list(zip(*columns, strict=True))}
    text = json.dumps(value)
    try:
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
        else:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{path}: cannot write the timeline: {error.strerror}") from None


def is_timeline(path: str | Path) -> bool:
    """Whether a file begins like a timeline of ours."""
    path = Path(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return FORMAT.encode() in file.read(200)
    except (OSError, EOFError):
        return False


def read_timeline(path: str | Path) -> Timeline:
    """Reads a timeline.

    Raises:
        FormatError: the file cannot be read or something in it cannot be; names it.
    """
    file = _read(Path(path))
    try:
        spec = PipelineSpec(**{key: _tupled(value) for key, value in file.spec.items()})
        schedule = Schedule.from_actions(
            [[Action.parse(text) for text, _, _ in row] for row in file.ranks],
            name=file.name,
            stage_ranks=file.stage_ranks,
            num_microbatches=spec.num_microbatches,
            num_splits=file.num_splits,
        )
        schedule.overlaps[list(file.overlaps)] = True
        times = np.array([entry[1:] for row in file.ranks for entry in row], np.float64)
        return Timeline.measured(spec, schedule, times[:, 0], times[:, 1])
    except (ConductorError, TypeError, IndexError) as error:
        raise FormatError(f"{path}: {error}") from None


def read_helps(path: str | Path) -> Helps | None:
    """Reads the work that moved in a timeline's file; None where it has none. Raises as `read_timeline`."""
    found = _read(Path(path)).helps
    if found is None:
        return None
    columns = np.array(found.rows, np.float64).reshape(-1, len(_COLUMNS)).T
    return Helps(
        of_parts=found.of_parts,
        actions=columns[0].astype(np.int32),
        lenders=columns[1].astype(np.int32),
        parts=columns[2].astype(np.int32),
        decided_ms=columns[3],
        start_ms=columns[4],
        end_ms=columns[5],
    )


def _read(path: Path) -> _File:
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        return _File.model_validate_json(text)
    except (OSError, EOFError) as error:
        raise FormatError(f"{path}: cannot read the timeline: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FormatError(f"{path}: {where}: {first['msg']}") from None


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def trace_of_timeline(timeline: Timeline, *, name: str = "timeline", step: int = 0) -> Trace:
    """The actions of a timeline as a trace of one step."""
    schedule, program = timeline.schedule, timeline.program
    return Trace(
        name=name,
        steps=np.full(schedule.num_actions, step, np.int64),
        dp_ranks=np.zeros(schedule.num_actions, np.int32),
        ranks=program.ranks,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        operations=schedule.kinds,
        start_ms=timeline.start_ms,
        duration_ms=timeline.end_ms - timeline.start_ms,
    )
