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
    LIMIT_COLOUR,
    MEMORY_COLOUR,
    PALE,
    paler,
)
from conductor.report.entry import Entry, idle_pieces, memory_steps
from conductor.simulator.idle import IdleCause

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Look = dict[str, Any]
"""How matplotlib paints a shape."""

WIDTH_IN = 7.0
"""Inches: both columns of a paper."""

MOST_SHAPES = 5000
"""More than these are pixels in an .svg or .pdf; text and axes never are."""

STYLE: dict[Any, Any] = {
    "font.size": 7.0,
    "font.family": "sans-serif",
    "hatch.linewidth": 0.4,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "conductor",  # equal timelines give equal files
    "pdf.fonttype": 42,
}


def write_picture(entries: Sequence[Entry], path: str | Path, *, memory: bool = True) -> None:
    """Draws timelines one above the other on one time axis, the memory of the ranks under each.

    Args:
        entries: at least one.
        path: ends in `.png`, `.svg` or `.pdf`.
        memory: whether memory is drawn.

    Raises:
        FormatError: the file cannot be written.
        ModuleNotFoundError: matplotlib is not installed (extra `report`).
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    with matplotlib.rc_context(STYLE):
        figure = draw_figure(entries, memory=memory)
        FigureCanvasAgg(figure)
        try:
            metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
            figure.savefig(path, dpi=300, metadata=metadata)
        except OSError as error:
            raise FormatError(f"{path}: cannot write the picture: {error.strerror}") from None


def draw_figure(entries: Sequence[Entry], *, memory: bool = True) -> Figure:
    """The figure of `write_picture`, under the settings of `STYLE`; its axes in the order of the entries."""
    from matplotlib.figure import Figure

    heights = []
    for entry in entries:
        lanes = min(entry.timeline.schedule.num_ranks, 24)
        heights += [max(0.16 * lanes, 0.5)] + [max(0.12 * lanes, 0.35)] * memory
    height = sum(heights) + 0.35 * len(entries) + 0.17 * memory * len(entries) + 0.6
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    keys: dict[str, Artist] = {}
    for axes, entry in zip(rows[:: 1 + memory], entries, strict=True):
        _draw(axes, entry, keys)
    for axes, entry in zip(rows[1::2] if memory else (), entries if memory else (), strict=True):
        _draw_memory(axes, entry, keys)
    for axes in rows[:-1]:
        axes.tick_params(axis="x", length=0.0)
    rows[-1].set_xlabel("time in ms")
    rows[0].set_xlim(0.0, max(entry.last_ms for entry in entries) or 1.0)
    # In the order of kinds and causes, whatever came first.
    order = [KIND_NAMES[kind] for kind in Kind] + [_idle_name(cause) for cause in IdleCause]
    figure.legend(
        handles=[keys[name] for name in [*order, _LATER, _HELPS, _MEMORY, _LIMIT] if name in keys],
        loc="outside lower center", ncols=4, frameon=False, handlelength=1.2,
    )  # fmt: skip
    return figure


_LATER, _HELPS = "a later stage of the rank", "helps another rank"
_MEMORY, _LIMIT = "activation memory", "memory limit"


def _idle_name(cause: IdleCause) -> str:
    return f"idle: {CAUSE_NAMES[cause]}"


def _draw(axes: Axes, entry: Entry, keys: dict[str, Artist]) -> None:
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
    if schedule.num_stages > schedule.num_ranks and not raster:
        _underline(axes, entry, halves, keys)
    if entry.helps is not None and len(entry.helps.actions):
        _draw_helps(axes, entry, raster, keys)
    if not raster:
        _label(axes, entry, halves == 0.0)
    _frame(axes, schedule.num_ranks, every=max(1, schedule.num_ranks // 12))
    axes.set_title(f"{entry.title}: {timeline.makespan_ms:.1f} ms", loc="left", fontsize=8.0)


def _frame(axes: Axes, num_ranks: int, *, every: int) -> None:
    """One lane a rank, and no lines round them."""
    axes.set_ylim(num_ranks - 0.45, -0.55)
    named = range(0, num_ranks, every)
    axes.set_yticks(named, [f"rank {rank}" for rank in named])
    axes.tick_params(length=2.0, width=0.5)
    axes.tick_params(axis="y", length=0.0)
    axes.spines[:].set_visible(False)


def _draw_memory(axes: Axes, entry: Entry, keys: dict[str, Artist]) -> None:
    """What each rank holds over time, and its limit, all to one scale."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    timeline = entry.timeline
    limits, num_ranks = timeline.program.memory_limits, timeline.schedule.num_ranks
    bounded = limits[np.isfinite(limits)]
    most = max(float(timeline.peak_memory.max()), float(bounded.max(initial=0.0))) or 1.0
    for rank in range(num_ranks):
        times, levels = memory_steps(timeline, rank)
        base = rank + 0.45
        tops = base - 0.85 * np.concatenate([levels, [0.0]]) / most
        axes.fill_between(
            np.append(times, entry.last_ms), tops, base, step="post", linewidth=0.0,
            facecolor=paler(MEMORY_COLOUR, 0.65), rasterized=timeline.schedule.num_actions > MOST_SHAPES,
        )  # fmt: skip
        axes.hlines(base, 0.0, entry.last_ms, colors="#d9d9d9", linewidth=0.4)
        if np.isfinite(limits[rank]):
            axes.hlines(
                base - 0.85 * limits[rank] / most,
                0.0,
                entry.last_ms,
                colors=LIMIT_COLOUR,
                linewidth=0.8,
            )
    keys.setdefault(_MEMORY, Patch(label=_MEMORY, facecolor=paler(MEMORY_COLOUR, 0.65)))
    text = f"memory: at most {timeline.peak_memory.max():.4g}"
    if len(bounded):
        keys.setdefault(_LIMIT, Line2D([], [], label=_LIMIT, color=LIMIT_COLOUR, linewidth=0.8))
        low, high = bounded.min(), bounded.max()
        text += f", limit {low:.4g}" + (f" to {high:.4g}" if high > low else "")
    _frame(axes, num_ranks, every=max(1, num_ranks // 12))
    axes.tick_params(axis="y", labelsize=5.5)
    axes.set_title(text, loc="left", fontsize=7.0, color="#565656", pad=2.0)


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


def _underline(axes: Axes, entry: Entry, halves: FloatArray, keys: dict[str, Artist]) -> None:
    """A line under the actions of all but the first stage of a rank."""
    from matplotlib.lines import Line2D

    timeline, program = entry.timeline, entry.timeline.program
    owners = timeline.schedule.stage_ranks
    later = np.array([rank in owners[:stage] for stage, rank in enumerate(owners)])
    mine = later[program.stages]
    bottom = np.where(halves[mine] == 0.0, 0.36, halves[mine] + 0.16)
    _bars(
        axes, program.ranks[mine] + bottom, timeline.start_ms[mine], timeline.end_ms[mine],
        {"facecolor": "black", "linewidth": 0.0}, False, heights=0.08,
    )  # fmt: skip
    keys.setdefault(_LATER, Line2D([], [], label=_LATER, color="black", linewidth=1.2))


def _draw_helps(axes: Axes, entry: Entry, raster: bool, keys: dict[str, Artist]) -> None:
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
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.patheffects import Normal, Stroke

    rim = [Stroke(linewidth=1.6, foreground="white"), Normal()]
    for action, lender, decided, start in zip(
        helps.actions, helps.lenders, helps.decided_ms, helps.start_ms, strict=True
    ):
        borrower = int(program.ranks[action])
        side = 0.4 if lender > borrower else -0.4
        arrow = FancyArrowPatch(
            (decided, borrower + side), (start, lender - side), arrowstyle="-|>", linewidth=0.5,
            mutation_scale=3.5, shrinkA=0.0, shrinkB=0.0, color="black", path_effects=rim,
        )  # fmt: skip
        axes.add_patch(arrow)


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
