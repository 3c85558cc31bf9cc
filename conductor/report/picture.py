"""Pictures of timelines for papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from conductor.errors import FormatError
from conductor.ir.schedule import BoolArray, FloatArray
from conductor.problem.kind import Kind
from conductor.report.colours import (
    CAUSE_COLOURS,
    CAUSE_HATCHES,
    CAUSE_NAMES,
    KIND_COLOURS,
    KIND_INKS,
    KIND_NAMES,
    PALE,
    paler,
)
from conductor.report.entry import Entry, idle_pieces
from conductor.simulator.idle import IdleCause

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

Look = dict[str, Any]
"""How matplotlib paints a shape."""

WIDTH_IN = 7.0
"""Inches: both columns of a paper."""

MOST_SHAPES = 5000
"""More than these are pixels in an .svg or .pdf; text and axes never are."""

_STYLE: dict[Any, Any] = {
    "font.size": 7.0,
    "font.family": "sans-serif",
    "hatch.linewidth": 0.4,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "conductor",  # equal timelines give equal files
    "pdf.fonttype": 42,
}


def write_picture(entries: Sequence[Entry], path: str | Path) -> None:
    """Draws timelines one above the other, on one time axis.

    Args:
        entries: at least one.
        path: ends in `.png`, `.svg` or `.pdf`.

    Raises:
        FormatError: the file cannot be written.
        ModuleNotFoundError: matplotlib is not installed (extra `report`).
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    heights = [max(0.16 * min(entry.timeline.schedule.num_ranks, 24), 0.5) for entry in entries]
    with matplotlib.rc_context(_STYLE):
        height = sum(heights) + 0.35 * len(entries) + 0.6
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        FigureCanvasAgg(figure)
        rows = figure.subplots(len(entries), 1, sharex=True, squeeze=False, height_ratios=heights)[
            :, 0
        ]
        keys: dict[str, Patch] = {}
        for axes, entry in zip(rows, entries, strict=True):
            _draw(axes, entry, keys)
        rows[-1].set_xlabel("time in ms")
        rows[0].set_xlim(0.0, max(entry.last_ms for entry in entries) or 1.0)
        # In the order of kinds and causes, whatever came first.
        order = [KIND_NAMES[kind] for kind in Kind] + [_idle_name(cause) for cause in IdleCause]
        figure.legend(
            handles=[keys[name] for name in [*order, _HELPS] if name in keys],
            loc="outside lower center", ncols=4, frameon=False, handlelength=1.2,
        )  # fmt: skip
        try:
            metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
            figure.savefig(path, dpi=300, metadata=metadata)
        except OSError as error:
            raise FormatError(f"{path}: cannot write the picture: {error.strerror}") from None


_HELPS = "helps another rank"


def _idle_name(cause: IdleCause) -> str:
    return f"idle: {CAUSE_NAMES[cause]}"


def _draw(axes: Axes, entry: Entry, keys: dict[str, Patch]) -> None:
    from matplotlib.patches import Patch

    timeline, schedule, program = entry.timeline, entry.timeline.schedule, entry.timeline.program
    raster = schedule.num_actions > MOST_SHAPES
    pieces = idle_pieces(entry)
    for cause in IdleCause:
        mine = pieces.causes == cause
        if mine.any():
            look: Look = {
                "facecolor": paler(CAUSE_COLOURS[cause], PALE),
                "edgecolor": paler(CAUSE_COLOURS[cause], 0.75),
                "hatch": "" if raster else 3 * CAUSE_HATCHES[cause],
                "linewidth": 0.0,
            }
            _bars(
                axes, pieces.ranks[mine], pieces.start_ms[mine], pieces.end_ms[mine], look, raster
            )
            keys.setdefault(_idle_name(cause), Patch(label=_idle_name(cause), **look))
    # An overlapping pair shares its lane: the forward has the upper half, the backward the lower.
    second = np.zeros(len(program.overlaps), np.bool_)
    second[1:] = program.overlaps[:-1]
    halves = np.where(program.overlaps, -0.2, np.where(second, 0.2, 0.0))
    for kind in Kind:
        mine = program.kinds == kind
        if not mine.any():
            continue
        name = KIND_NAMES[kind]
        look = {
            "facecolor": KIND_COLOURS[kind],
            "edgecolor": "white",
            "linewidth": 0.0 if raster else 0.3,
        }
        _bars(
            axes, program.ranks[mine] + halves[mine], timeline.start_ms[mine], timeline.end_ms[mine],
            look, raster, heights=np.where(halves[mine] == 0.0, 0.8, 0.4),
        )  # fmt: skip
        keys.setdefault(name, Patch(label=name, facecolor=KIND_COLOURS[kind]))
    if entry.helps is not None and len(entry.helps.actions):
        _draw_helps(axes, entry, raster, keys)
    if not raster:
        _label(axes, entry, halves == 0.0)
    num_ranks = schedule.num_ranks
    axes.set_ylim(num_ranks - 0.45, -0.55)
    step = max(1, num_ranks // 12)
    axes.set_yticks(
        range(0, num_ranks, step), [f"rank {rank}" for rank in range(0, num_ranks, step)]
    )
    axes.tick_params(length=2.0, width=0.5)
    axes.tick_params(axis="y", length=0.0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{entry.title}: {timeline.makespan_ms:.1f} ms", loc="left", fontsize=8.0)


def _bars(
    axes: Axes,
    ranks: npt.NDArray[Any],
    starts: FloatArray,
    ends: FloatArray,
    look: Look,
    raster: bool,
    heights: npt.ArrayLike = 0.8,
) -> None:
    """One collection of rectangles, centred on their ranks."""
    from matplotlib.collections import PolyCollection

    low, high = ranks - np.asarray(heights) / 2, ranks + np.asarray(heights) / 2
    corners = [(starts, low), (ends, low), (ends, high), (starts, high)]
    boxes = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    bars = PolyCollection(list(boxes), rasterized=raster, **look)
    axes.add_collection(bars, autolim=False)


def _draw_helps(axes: Axes, entry: Entry, raster: bool, keys: dict[str, Patch]) -> None:
    """What a rank does for another, hatched in the helped kind's colour; an arrow from the helped."""
    from matplotlib.patches import Patch

    helps, program = entry.helps, entry.timeline.program
    assert helps is not None
    hatched: Look = {"edgecolor": "black", "hatch": "" if raster else 5 * "/", "linewidth": 0.0}
    for kind in Kind:
        mine = program.kinds[helps.actions] == kind
        if mine.any():
            look: Look = {"facecolor": KIND_COLOURS[kind], **hatched}
            _bars(axes, helps.lenders[mine], helps.start_ms[mine], helps.end_ms[mine], look, raster)
            keys.setdefault(_HELPS, Patch(label=_HELPS, **look))
    if raster:
        return
    for action, lender, decided, start in zip(
        helps.actions, helps.lenders, helps.decided_ms, helps.start_ms, strict=True
    ):
        borrower = int(program.ranks[action])
        side = 0.4 if lender > borrower else -0.4
        axes.annotate(
            "", xy=(start, lender - side), xytext=(decided, borrower + side),
            arrowprops={"arrowstyle": "-|>", "linewidth": 0.5, "mutation_scale": 4.0, "shrinkA": 0.0,
                        "shrinkB": 0.0, "color": "black"},
        )  # fmt: skip


def _label(axes: Axes, entry: Entry, whole: BoolArray) -> None:
    """The micro-batch on each action that is wide enough."""
    timeline, schedule = entry.timeline, entry.timeline.schedule
    points_per_ms = (WIDTH_IN - 0.6) * 72.0 / (entry.last_ms or 1.0)
    size = 4.5
    for index in np.flatnonzero(whole):
        text = str(schedule.microbatches[index])
        start, end = timeline.start_ms[index], timeline.end_ms[index]
        if (end - start) * points_per_ms > 0.62 * size * len(text) + 1.0:
            kind = Kind(int(schedule.kinds[index]))
            axes.text(
                (start + end) / 2, float(timeline.program.ranks[index]), text, fontsize=size,
                color=KIND_INKS[kind], ha="center", va="center_baseline",
            )  # fmt: skip
