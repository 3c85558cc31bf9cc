"""Drawing of a timeline as text, to scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from conductor.ir.schedule import FloatArray, Schedule


class Timed(Protocol):
    """A schedule with times: `Timeline` is one."""

    @property
    def schedule(self) -> Schedule:
        """The order."""

    @property
    def start_ms(self) -> FloatArray:
        """Shape (n,), program order."""

    @property
    def end_ms(self) -> FloatArray:
        """Shape (n,), program order."""


def draw_timeline(
    timeline: Timed,
    width: int = 100,
    end_ms: float | None = None,
    critical_path: Sequence[int] = (),
) -> str:
    """Draws a timeline to scale: one row a rank, time to the right, blanks are idle.

    An action shows its kind, and its micro-batch where there is room; dashes fill its time. On
    ranks with several stages the first one's letters are capital, the others' small. Each column
    shows what runs at its middle.

    Args:
        timeline: what to draw.
        width: columns in all.
        end_ms: time at the right edge; None is the makespan. Two drawings with one edge compare.
        critical_path: program indices in order of time; one more row says at which rank (its last digit)
            the path is, and dashes where it is on its way between ranks.
    """
    schedule = timeline.schedule
    edge = float(timeline.end_ms.max()) if end_ms is None else end_ms
    first_stages = {rank: stage for stage, rank in reversed([*enumerate(schedule.stage_ranks)])}
    starts, ends = timeline.start_ms.copy(), timeline.end_ms.copy()
    pairs = np.flatnonzero(schedule.overlaps)
    ends[pairs] = starts[pairs + 1] = (starts[pairs] + ends[pairs]) / 2.0
    label_width = len(str(schedule.num_ranks - 1))
    columns = max(width - len("rank  |") - label_width, 1)
    middles = (np.arange(columns) + 0.5) * (edge / columns)
    lines = []
    for rank in range(schedule.num_ranks):
        mine = np.arange(schedule.rank_offsets[rank], schedule.rank_offsets[rank + 1])
        mine = mine[np.argsort(starts[mine], kind="stable")]
        place = np.searchsorted(starts[mine], middles, side="right") - 1
        shown = np.where((place >= 0) & (middles < ends[mine[place]]), mine[place], -1)
        line = ""
        for run in np.split(shown, np.flatnonzero(np.diff(shown)) + 1):
            if run[0] < 0:
                line += " " * len(run)
                continue
            action = schedule.action(int(run[0]))
            letter = action.kind.name
            if action.stage != first_stages[rank]:
                letter = letter.lower()
            text = f"{letter}{action.microbatch}"
            line += (text if len(text) <= len(run) else letter).ljust(len(run), "-")
        lines.append(f"rank {rank:>{label_width}} |{line}".rstrip())
    if len(critical_path):
        path = np.asarray(critical_path)
        place = np.searchsorted(starts[path], middles, side="right") - 1
        on_rank = (place >= 0) & (middles < ends[path[place]])
        ranks = np.asarray(schedule.stage_ranks)[schedule.stages[path[place]]] % 10
        digits = np.where(on_rank, ranks.astype(str), "-")
        digits[middles >= ends[path[-1]]] = " "
        lines.append(f"{'path':<{label_width + 5}} |{''.join(digits)}".rstrip())
    scale = f"{edge:.4g} ms".rjust(columns - 1)
    return "\n".join([*lines, f"{' ' * (label_width + 5)} |0{scale}"])
