"""Drawings of a schedule as text: a grid of unit times, and a window around one action."""

from __future__ import annotations

from collections.abc import Collection

from conductor.errors import InvalidScheduleError
from conductor.ir.action import Action
from conductor.ir.replay import UNIT_TIMES, replay
from conductor.ir.schedule import Schedule


def draw(schedule: Schedule) -> str:
    """Draws a schedule: one row a rank, one column a unit of time (F, I and W take one, B two).

    Each action stands where it starts when everything runs as soon as possible and transfers take
    no time; blanks are idle. With one stage a rank the stage is left out. A `+` joins a forward to
    the backward that it overlaps with.

    >>> rows = ["0F0 0F1 0B0 0B1", "1F0 1I0 1F1 1I1 1W0 1W1"]
    >>> schedule = Schedule.from_actions(
    ...     [[Action.parse(text) for text in row.split()] for row in rows],
    ...     name="example", stage_ranks=(0, 1), num_microbatches=2,
    ... )
    >>> print(draw(schedule))
    rank 0 | F0 F1    B0--- B1---
    rank 1 |    F0 I0 F1 I1 W0 W1

    Raises:
        InvalidScheduleError: the schedule gets stuck (`validate` says where).
    """
    rows, starts = schedule.rows, replay(schedule)
    if any(len(row) != len(times) for row, times in zip(rows, starts, strict=True)):
        raise InvalidScheduleError(f"{schedule.name} gets stuck, so it has no grid: validate it")
    texts = [[_text(schedule, action) for action in row] for row in rows]
    width = 1 + max((len(text) for row in texts for text in row), default=0)
    lines = []
    for rank, row in enumerate(rows):
        line = ""
        first = int(schedule.rank_offsets[rank])
        for step, (action, start, text) in enumerate(
            zip(row, starts[rank], texts[rank], strict=True)
        ):
            cell = text.ljust(
                width * UNIT_TIMES[action.kind] - 1, "-" if action.kind.name == "B" else " "
            )
            joint = "+" if step and schedule.overlaps[first + step - 1] else " "
            line = line.ljust(width * start) + joint + cell
        lines.append(f"{_label(schedule, rank)}{line.rstrip()}")
    return "\n".join(lines)


def draw_around(
    schedule: Schedule, rank: int, step: int, *, also: Collection[int] = (), reach: int = 6
) -> str:
    """Draws the order (not the times) near one action, with an arrow at it.

    Args:
        schedule: may be incomplete or wrong.
        rank: the action's rank.
        step: its place in the rank's row; the row's length points behind its end.
        also: other ranks to show, besides the neighbours.
        reach: steps shown on either side.
    """
    shown = sorted({*also, *range(max(rank - 1, 0), min(rank + 2, schedule.num_ranks))})
    rows = schedule.rows
    window = range(max(step - reach, 0), step + reach + 1)
    width = max(
        (
            len(_text(schedule, action))
            for row in rows
            for action in row[window.start : window.stop]
        ),
        default=1,
    )
    lines = []
    for other in shown:
        row = rows[other]
        cells = [_text(schedule, row[at]) if at < len(row) else "" for at in window]
        before = "... " if window.start else ""
        after = " ..." if window.stop < len(row) else ""
        body = " ".join(cell.ljust(width) for cell in cells).rstrip()
        lines.append(f"{_label(schedule, other)} {before}{body}{after}".rstrip())
        if other == rank:
            indent = len(_label(schedule, other)) + 1 + len(before)
            lines.append(" " * (indent + window.index(step) * (width + 1)) + "^")
    return "\n".join(lines)


def _label(schedule: Schedule, rank: int) -> str:
    return f"rank {rank:>{len(str(schedule.num_ranks - 1))}} |"


def _text(schedule: Schedule, action: Action) -> str:
    """An action, without its stage where each rank holds one."""
    text = str(action)
    return text if schedule.num_stages > schedule.num_ranks else text.lstrip("0123456789")
