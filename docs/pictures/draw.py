"""Draws the pictures of the documentation: `make pictures`.

Equal schedules give equal files, so a changed picture is a changed schedule.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from conductor import load_preset
from conductor.cli.app import main
from conductor.problem.kind import Kind
from conductor.report.entry import Entry
from conductor.report.picture import STYLE, draw_figure
from conductor.report.simulated import simulated
from conductor.schedules.registry import build

REPORTS = {
    "schedules": "--preset gpt-like --schedule 1f1b --schedule zb-1p --schedule zb-v --no-memory",
    "idle": "--preset gpt-like --schedule zb-1p --no-memory",
    "memory": "--preset gpt-like --schedule zb-v --schedule v-half",
    "migration": "--preset paper --schedule zb-1p --migrate --no-memory",
}
"""Pictures that are a command: `conductor report OPTIONS -o NAME.svg`."""


def draw(folder: Path) -> None:
    """Writes all pictures into a folder."""
    for name, options in REPORTS.items():
        main(["report", *options.split(), "-o", str(folder / f"{name}.svg")])
    spec = load_preset("gpt-like")
    entry = simulated(spec, build("1f1b", spec), title="1f1b")
    with matplotlib.rc_context(STYLE):
        figure = draw_figure([entry], memory=False)
        _mark_phases(figure.axes[0], entry)
        FigureCanvasAgg(figure)
        figure.savefig(folder / "phases.svg", metadata={"Date": None})


def _mark_phases(axes: Axes, entry: Entry) -> None:
    """Two stairs across the ranks: before the first backward, and after the last forward."""
    drawn = entry.timeline
    stairs = []
    for rank in range(drawn.schedule.num_ranks):
        own = drawn.program.ranks == rank
        forward = own & (drawn.program.kinds == Kind.F)
        stairs.append((drawn.start_ms[own & ~forward].min(), drawn.end_ms[forward].max()))
    edges = np.repeat(np.arange(len(stairs) + 1) - 0.5, 2)[1:-1]
    for column in np.array(stairs).T:
        axes.plot(np.repeat(column, 2), edges, color="black", linewidth=1.2)
    warmup, cooldown = stairs[0]
    for name, start, end in (
        ("warm-up", 0.0, warmup), ("steady", warmup, cooldown), ("cool-down", cooldown, entry.last_ms),
    ):  # fmt: skip
        axes.text((start + end) / 2, -0.6, name, ha="center", va="bottom")
    axes.set_title("", loc="left")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
