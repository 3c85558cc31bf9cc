"""Any trace that Conductor reads, told by its name and its first bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conductor.errors import FormatError
from conductor.interop.columns import Progress
from conductor.ir.trace import Trace

TABLES = (".parquet", ".csv")
JSONS = (".json", ".json.gz")


def read_trace(path: str | Path, *more: str | Path, on_progress: Progress | None = None) -> Trace:
    """Reads a trace: a straggler trace, a plain table, a timeline of ours, or profiler traces of torch.

    Args:
        path: the file, or a folder of one profiler trace a rank.
        more: further files, where each rank has its own.
        on_progress: called while a large file is read.

    Raises:
        FormatError: no such file, another format, or something wrong in it.
    """
    paths = [Path(path), *map(Path, more)]
    for each in paths:
        if not each.exists():
            raise FormatError(f"{each}: no such file")
    if len(paths) == 1 and paths[0].is_dir():
        folder = paths[0]
        paths = sorted(each for each in folder.iterdir() if each.name.endswith(JSONS))
        if not paths:
            raise FormatError(f"{folder}: no .json or .json.gz file in this folder")
    if all(each.name.endswith(JSONS) for each in paths):
        return _read_json(paths, on_progress)
    if len(paths) > 1:
        raise FormatError(f"{paths[1]}: several files must be profiler traces, one a rank")
    only = paths[0]
    if only.suffix not in TABLES:
        raise FormatError(f"{only}: a trace ends in {', '.join((*TABLES, *JSONS))}")
    from conductor.interop.columns import column_names
    from conductor.interop.straggler_trace import read_straggler_trace
    from conductor.interop.table import read_table

    if "optype" in column_names(only):
        return read_straggler_trace(only, on_progress=on_progress)
    return read_table(only, on_progress=on_progress)


def _read_json(paths: Sequence[Path], on_progress: Progress | None) -> Trace:
    from conductor.interop.chrome_trace import is_chrome_timeline, read_chrome_timeline
    from conductor.interop.kineto import read_kineto
    from conductor.interop.timeline_json import is_timeline, read_timeline, trace_of_timeline

    if len(paths) == 1 and is_timeline(paths[0]):
        return trace_of_timeline(read_timeline(paths[0]), name=paths[0].stem)
    if len(paths) == 1 and is_chrome_timeline(paths[0]):
        return read_chrome_timeline(paths[0], on_progress=on_progress)
    return read_kineto(paths, on_progress=on_progress)
