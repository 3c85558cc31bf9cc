"""The table of metrics of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.report.colours import CAUSE_NAMES
from conductor.report.entry import Entry, idle_pieces
from conductor.simulator.idle import IdleCause


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One column of the table.

    Attributes:
        name: what it is.
        group: what columns side by side have in common; empty is nothing.
        meaning: in one sentence.
        values: one text an entry.
        best: whether each entry has the best value; never where all are equal.
    """

    name: str
    group: str = ""
    meaning: str
    values: tuple[str, ...]
    best: tuple[bool, ...]


_SHORT = {
    IdleCause.PREVIOUS_STAGE: "previous stage",
    IdleCause.NEXT_STAGE: "next stage",
    IdleCause.MEMORY: "memory",
    IdleCause.NOTHING_LEFT: "nothing left",
}


def metrics(entries: Sequence[Entry]) -> list[Metric]:
    """Of each entry: makespan, bubbles, memory, idle time by cause; less is better in all of them."""
    timelines = [entry.timeline for entry in entries]
    makespans = [timeline.makespan_ms for timeline in timelines]
    bubbles = [
        1.0 - float(entry.busy_ms.mean()) / makespan if makespan else 0.0
        for entry, makespan in zip(entries, makespans, strict=True)
    ]
    columns = [_column("makespan", "end of the last action", makespans, "{:.2f} ms")]
    bounds = [entry.lower_bound_ms for entry in entries]
    if any(bounds):
        over = [
            max(makespan / bound - 1.0, 0.0) if bound else None
            for makespan, bound in zip(makespans, bounds, strict=True)
        ]
        columns.append(
            _column(
                "over the bound",
                "makespan over a lower bound of every order on this placement; with work moved, of all"
                " work spread evenly",
                over, "{:.2%}", comparable=False,
            )
        )  # fmt: skip
    columns += [
        _column("bubble ratio", "share of the ranks' time that they idle", bubbles, "{:.2%}"),
        _column(
            "stage-span bubble ratio",
            "the same over the longest time from a rank's first start to its last end (the zero-bubble"
            " papers' bubble rate)",
            [
                None if entry.helps is not None else entry.timeline.stage_span_bubble_ratio
                for entry in entries
            ],
            "{:.2%}",
        ),
        _column(
            "bubble over ideal",
            "idle time over busy time (Megatron's bubble fraction)",
            [bubble / (1.0 - bubble) if bubble < 1.0 else None for bubble in bubbles],
            "{:.2%}",
        ),
        _column(
            "peak memory",
            "highest activation memory of a rank, in the spec's unit",
            [float(timeline.peak_memory.max()) for timeline in timelines],
            "{:.4g}",
        ),
    ]
    shares = [_idle_shares(entry) for entry in entries]
    columns += [
        _column(
            _SHORT[cause],
            f"share of the ranks' time: a rank {CAUSE_NAMES[cause]}",
            [float(share[cause]) for share in shares],
            "{:.2%}",
            group="idle time by cause",
        )
        for cause in IdleCause
    ]
    if any(entry.helps is not None for entry in entries):
        helps = [entry.helps for entry in entries]
        counts = tuple("none" if each is None else str(len(each.actions)) for each in helps)
        columns.append(
            Metric(
                name="helps", meaning="times that a rank did part of another's action",
                values=counts, best=(False,) * len(counts),
            )
        )  # fmt: skip
    return columns


def _idle_shares(entry: Entry) -> FloatArray:
    """Idle time by cause as a share of the ranks' time, shape (causes,)."""
    pieces = idle_pieces(entry)
    lengths = pieces.end_ms - pieces.start_ms
    sums = np.zeros(len(IdleCause))
    np.add.at(sums, pieces.causes, lengths)
    whole = entry.timeline.makespan_ms * entry.timeline.schedule.num_ranks
    return sums / whole if whole else sums


def _column(
    name: str,
    meaning: str,
    values: Sequence[float | None],
    form: str,
    *,
    group: str = "",
    comparable: bool = True,
) -> Metric:
    texts = tuple(
        "-" if value is None else form.format(value).replace("%", " %") for value in values
    )
    known = [value for value in values if value is not None]
    least = texts[values.index(min(known))] if known else ""
    mark = comparable and len(set(texts)) > 1
    return Metric(
        name=name, group=group, meaning=meaning, values=texts,
        best=tuple(mark and text == least for text in texts),
    )  # fmt: skip
