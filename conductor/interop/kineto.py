"""Profiler traces of PyTorch (Kineto): one JSON file a rank, which may be compressed.

Read are the ranges that our runtime records, `Conductor:2F3`, and those of `torch.distributed.pipelining`:
`PP:2F3`, `PP:2I3`, `PP:2W3`, `PP:2B3` of its pipeline runtime (any order read from a file), and `Forward 3` and
`Backward 3` of GPipe. torch waits for an action's input inside its range; so on a CPU its action is what lies
between the first and the last operation on tensors in the range. On a GPU an action is the range as the
device saw it, and NCCL's sends and receives are read too (`nccl`).
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from conductor.errors import FormatError
from conductor.interop.columns import Progress
from conductor.interop.json_events import Events
from conductor.interop.nccl import Row, Transfer, end_of_transfer, match_transfers
from conductor.ir.schedule import FloatArray, Int64Array
from conductor.ir.trace import Trace
from conductor.problem.kind import Kind

_SINGLE = re.compile(r"(Forward|Backward) (\d+)")
_MULTI = re.compile(r"(?:PP|Conductor):(\d+)(F|I|W|B)(\d+)")
_OURS = "Conductor:"
_RANK = re.compile(r'"rank"\s*:\s*(\d+)')
_RANK_IN_NAME = re.compile(r"rank[-_ ]?(\d+)", re.I)
_RANGES = frozenset({"user_annotation", "cpu_op"})
_ON_GPU = "gpu_user_annotation"

Action = tuple[int | None, Kind, int]
"""Stage (None: the rank's only one), kind, micro-batch."""


@dataclass(frozen=True, slots=True)
class _Range:
    """`thread` has the operations that tell when it worked; None: it worked all the time."""

    action: Action
    thread: object
    start: float
    end: float


@dataclass(slots=True)
class _Rank:
    """What one file says, times in microseconds.

    Attributes:
        path: the file.
        rank: of the pipeline.
        host: ranges of the threads that launch the work.
        device: ranges on the GPU.
        ops: start and end of each operation on tensors, one after another, by thread.
        transfers: NCCL's sends and receives, by the category of the events that tell of them.
        notes: what was left out.
    """

    path: Path
    rank: int
    host: list[_Range] = field(default_factory=list)
    device: list[_Range] = field(default_factory=list)
    ops: dict[object, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    transfers: dict[object, list[Transfer]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)

    def ranges(self) -> list[_Range]:
        """When each action really ran, in order of time."""
        found = self.device or [self._worked(each) for each in self.host]
        return sorted(found, key=lambda each: each.start)

    def sort_ops(self) -> None:
        """Brings each thread's operations into order; `_worked` needs it."""
        for thread, flat in self.ops.items():
            pairs = np.frombuffer(flat).reshape(-1, 2)
            self.ops[thread] = array("d", pairs[np.argsort(pairs[:, 0])].tobytes())

    def _worked(self, each: _Range) -> _Range:
        """From the first to the last operation on tensors in a range; the whole one if there is none."""
        if each.thread not in self.ops:
            return each
        pairs = np.frombuffer(self.ops[each.thread]).reshape(-1, 2)
        first, last = np.searchsorted(pairs[:, 0], (each.start, each.end))
        if first == last:
            return each
        return _Range(each.action, each.thread, float(pairs[first, 0]),
                      min(each.end, float(pairs[first:last, 1].max())))  # fmt: skip


def read_kineto(paths: Sequence[str | Path], *, on_progress: Progress | None = None) -> Trace:
    """Reads the profiler traces of a pipeline's ranks.

    The n-th range of an action is that of step n. Files with the same stages are of data-parallel ranks.
    Ranks whose clocks do not meet are set to start their steps together, which is said.

    Args:
        paths: one file a rank; the file or its name says which (`"rank": 2` or `rank2`), or else the
            order does.
        on_progress: called with bytes read of all files.

    Raises:
        FormatError: a file cannot be read, or none has a pipeline's ranges.
    """
    files = [Path(path) for path in paths]
    sizes = [path.stat().st_size if path.exists() else 0 for path in files]
    ranks: list[_Rank] = []
    for number, path in enumerate(files):

        def told(done: int, _: int, before: int = sum(sizes[:number])) -> None:
            if on_progress is not None:
                on_progress(before + done, sum(sizes))

        ranks.append(_read_file(path, number, told))
    notes = [note for rank in ranks for note in rank.notes]
    notes += [
        f"{r.path}: no ranges of a pipeline: left out" for r in ranks if not (r.host or r.device)
    ]
    ranks = sorted((r for r in ranks if r.host or r.device), key=lambda rank: rank.rank)
    if not ranks:
        raise FormatError(
            f"{files[0]}: no ranges of a pipeline (PP:0F0, Conductor:0F0 or Forward 0) in"
            f" {'this trace' if len(files) == 1 else f'these {len(files)} traces'}"
        )
    for one, other in zip(ranks[:-1], ranks[1:], strict=True):
        if one.rank == other.rank:
            raise FormatError(f"{one.path} and {other.path} are both of rank {one.rank}")
    return _trace(files[0], ranks, notes)


def _read_file(path: Path, number: int, on_progress: Progress) -> _Rank:
    events = Events(path, on_progress=on_progress)
    found = _Rank(path=path, rank=number)
    wrong = 0
    for event in events:
        name, category = event.get("name"), event.get("cat")
        if event.get("ph") != "X" or not isinstance(name, str):
            continue
        start, duration = event.get("ts"), event.get("dur")
        on_gpu = category == _ON_GPU
        action = _action(name) if on_gpu or category in _RANGES else None
        transfer = end_of_transfer(event) if action is None else None
        is_op = category == "cpu_op" and name.startswith("aten::")
        if action is None and transfer is None and not is_op:
            continue
        if (
            not isinstance(start, int | float)
            or not isinstance(duration, int | float)
            or duration < 0
        ):
            wrong += action is not None
            continue
        thread = event.get("tid")
        if transfer is not None:
            is_send, peer = transfer
            found.transfers[category].append(
                Transfer(is_send=is_send, peer=peer, start=start, end=start + duration)
            )
        elif action is None:
            found.ops[thread].extend((start, start + duration))
        else:
            place = found.device if on_gpu else found.host
            waits = not name.startswith(_OURS)
            place.append(_Range(action, thread if waits else None, start, start + duration))
    found.sort_ops()
    if wrong:
        found.notes.append(f"{path}: left out {wrong} ranges that have no time or a negative one")
    if events.note is not None:
        kept = len(found.device or found.host)
        found.notes.append(f"{events.note}: kept the {kept} ranges before the damage")
    told = _RANK.search(events.head) or _RANK.search(events.tail) or _RANK_IN_NAME.search(path.name)
    if told is not None:
        found.rank = int(told[1])
    return found


def _action(name: str) -> Action | None:
    match = _MULTI.fullmatch(name)
    if match is not None:
        return int(match[1]), Kind[match[2]], int(match[3])
    match = _SINGLE.fullmatch(name)
    if match is not None:
        return None, Kind.F if match[1] == "Forward" else Kind.B, int(match[2])
    return None


def _trace(path: Path, files: Sequence[_Rank], notes: list[str]) -> Trace:
    places = _places(files)
    num_ranks = 1 + max(rank for rank, _ in places)
    if [file.rank for file in files] != list(range(len(files))):
        named = ", ".join(
            f"{file.rank} as {rank}" for file, (rank, _) in zip(files, places, strict=True)
        )
        notes.append(f"pipeline ranks are told by their stages, or the order of the files: {named}")
    rows: list[Row] = []
    times: list[tuple[float, float]] = []
    for (rank, replica), file in zip(places, files, strict=True):
        seen: dict[Action, int] = defaultdict(int)
        for each in file.ranges():
            stage, kind, microbatch = each.action
            stage = rank if stage is None else stage
            rows.append((seen[each.action], replica, rank, stage, microbatch, kind))
            times.append((each.start, each.end))
            seen[each.action] += 1
    # A kernel that names its peer lies inside a range of that name.
    transfers = {
        (replica, rank): file.transfers.get("kernel") or file.transfers.get(_ON_GPU, [])
        for (rank, replica), file in zip(places, files, strict=True)
    }
    if any(transfers.values()):
        matched = match_transfers(rows, times, transfers)
        if matched is None:
            notes.append(
                "left out NCCL's sends and receives: their numbers do not fit those of the actions"
            )
        for row, time in matched or ():
            rows.append(row)
            times.append(time)
    step, replica_of, rank_of, stage_of, microbatch_of, kind_of = np.array(rows, np.int64).T
    clock = np.array(times) / 1000.0
    worker = replica_of * num_ranks + rank_of
    if _clocks_disagree(step, worker, clock):
        notes.append("the ranks' clocks disagree: each rank's step is taken to start at 0")
        group = step * len(files) + worker
    else:
        group = step
    first = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(first, group, clock[:, 0])
    return Trace(
        name=path.name.removesuffix(".gz").removesuffix(".json"),
        steps=step,
        dp_ranks=replica_of.astype(np.int32),
        ranks=rank_of.astype(np.int32),
        stages=stage_of.astype(np.int32),
        microbatches=microbatch_of.astype(np.int32),
        operations=kind_of.astype(np.int8),
        start_ms=clock[:, 0] - first[group],
        duration_ms=clock[:, 1] - clock[:, 0],
        notes=tuple(notes),
    ).checked()


def _places(files: Sequence[_Rank]) -> list[tuple[int, int]]:
    """Pipeline rank and data-parallel rank of each file.

    Files with the same stages are of data-parallel ranks; where ranges name no stage, each file is one
    pipeline rank.
    """
    places: list[tuple[int, int]] = []
    ranks: dict[object, int] = {}
    replicas: dict[object, int] = defaultdict(int)
    for number, file in enumerate(files):
        stages = frozenset(each.action[0] for each in (file.device or file.host))
        key = number if None in stages else stages
        places.append((ranks.setdefault(key, len(ranks)), replicas[key]))
        replicas[key] += 1
    return places


def _clocks_disagree(step: Int64Array, worker: Int64Array, clock: FloatArray) -> bool:
    """Whether some rank ends its first step before another one begins it."""
    mine = step == 0
    workers = np.unique(worker)
    begins = [clock[mine & (worker == w), 0].min(initial=np.inf) for w in workers]
    ends = [clock[mine & (worker == w), 1].max(initial=-np.inf) for w in workers]
    return bool(max(begins) > min(ends))
