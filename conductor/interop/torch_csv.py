"""The `compute_only` CSV of `torch.distributed.pipelining`: one row a rank, one cell an action.

torchtitan (`pipeline_parallel_schedule_csv`) and NeMo AutoModel (`pp_schedule_csv`) read it.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from conductor.errors import FormatError
from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind

_PAIR = re.compile(r"\(([^;]*);([^;]*)\)OVERLAP_F_B")


def read_torch_csv(path: str | Path) -> Schedule:
    """Reads a schedule, named after the file.

    Blank cells are idle and are skipped: only the order counts. A stage lies on the rank whose row
    has its actions. `(3F1;0B0)OVERLAP_F_B` is a forward that overlaps with a backward. What the
    file says may still be wrong: `validate` it.

    Raises:
        FormatError: names file, line and cell.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    except OSError as error:
        raise FormatError(f"{path}: cannot read the schedule: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise FormatError(f"{path}: not a CSV file in UTF-8") from None
    while lines and not any(cell.strip() for cell in lines[-1]):
        lines.pop()
    rows: list[list[Action]] = []
    overlaps: list[bool] = []
    ranks: dict[int, int] = {}
    for rank, cells in enumerate(lines):
        row: list[Action] = []
        for column, cell in enumerate(cells, 1):
            where = f"{path}, line {rank + 1}, cell {column}"
            actions = _parse(cell.strip(), where)
            for action in actions:
                if ranks.setdefault(action.stage, rank) != rank:
                    raise FormatError(
                        f"{where}: {action} puts stage {action.stage} on rank {rank}, but line"
                        f" {ranks[action.stage] + 1} has it on rank {ranks[action.stage]}"
                    )
            row += actions
            overlaps += [len(actions) == 2, False][: len(actions)]
        if not row:
            raise FormatError(f"{path}, line {rank + 1}: rank {rank} has no action")
        rows.append(row)
    if not rows:
        raise FormatError(f"{path}: the schedule is empty")
    for stage in range(max(ranks)):
        if stage not in ranks:
            raise FormatError(
                f"{path}: no rank has stage {stage}, but there is a stage {max(ranks)}"
            )
    schedule = Schedule.from_actions(
        rows,
        name=path.stem,
        stage_ranks=[ranks[stage] for stage in range(len(ranks))],
        num_microbatches=1 + max(action.microbatch for row in rows for action in row),
    )
    schedule.overlaps[:] = overlaps
    return schedule


def write_torch_csv(schedule: Schedule, path: str | Path) -> None:
    """Writes a schedule.

    Raises:
        FormatError: the file cannot be written, or the format cannot hold the schedule.
    """
    path = Path(path)
    if schedule.num_splits > 1:
        raise FormatError(
            f"{path}: {schedule.name} splits sequences, which the CSV of torch cannot hold"
        )
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            for rank, row in enumerate(schedule.rows):
                start = int(schedule.rank_offsets[rank])
                overlaps = schedule.overlaps[start : start + len(row)]
                cells = [str(action) for action in row]
                for step in overlaps.nonzero()[0]:
                    cells[step] = f"({cells[step]};{cells[step + 1]})OVERLAP_F_B"
                    cells[step + 1] = ""  # inside the cell before it
                writer.writerow(filter(None, cells))
    except OSError as error:
        raise FormatError(f"{path}: cannot write the schedule: {error.strerror}") from None


def _parse(cell: str, where: str) -> list[Action]:
    """The actions of a cell: none, one, or an overlapping pair."""
    if not cell:
        return []
    pair = _PAIR.fullmatch(cell)
    try:
        actions = [Action.parse(text) for text in (pair.groups() if pair else (cell,))]
    except FormatError as error:
        hint = "; is this a compute_comms file?" if re.search("SEND|RECV|SHARD", cell) else ""
        raise FormatError(f"{where}: {error}{hint}") from None
    if any(action.split for action in actions):
        raise FormatError(f"{where}: {cell!r} has a sequence split, which this format has not")
    if pair and (actions[0].kind != Kind.F or actions[1].kind not in (Kind.I, Kind.B)):
        raise FormatError(f"{where}: {cell!r} overlaps other actions than a forward and a backward")
    return actions
