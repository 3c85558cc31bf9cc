"""The page: one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from conductor.errors import FormatError
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
)
from conductor.report.entry import Entry
from conductor.report.metrics import metrics
from conductor.report.pack import pack
from conductor.simulator.idle import IdleCause

SCRIPTS = ("data", "theme", "lanes", "details", "view", "chart", "page")
"""In this order, in one script."""


def write_page(
    entries: Sequence[Entry],
    path: str | Path,
    *,
    title: str,
    note: str = "",
    one_at_a_time: bool = False,
) -> None:
    """Writes timelines as one HTML page, on one time axis.

    Args:
        entries: at least one.
        path: of the page.
        title: its heading.
        note: a sentence under it.
        one_at_a_time: shows the first alone until the reader moves the slider.

    Raises:
        FormatError: the file cannot be written.
    """
    try:
        Path(path).write_text(
            page(entries, title=title, note=note, one_at_a_time=one_at_a_time), encoding="utf-8"
        )
    except OSError as error:
        raise FormatError(f"{path}: cannot write the report: {error.strerror}") from None


def page(
    entries: Sequence[Entry], *, title: str, note: str = "", one_at_a_time: bool = False
) -> str:
    """The page's text; arguments as in `write_page`."""
    parts = {
        "title": escape(title),
        "note": escape(note),
        "style": _asset("uplot/uPlot.min.css") + _asset("page.css"),
        "library": _asset("uplot/uPlot.iife.min.js"),
        "script": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
        "metrics": _table(entries),
        "meanings": _meanings(entries),
        "helps": (
            '<button id="helps" aria-pressed="true" title="who helps whom (h); arrows where 600 or'
            ' fewer are in view">migrations</button>'
            if any(entry.helps is not None for entry in entries)
            else ""
        ),
        "slider": (
            '<label class="group">show <input id="one" type="range" min="0" step="1"'
            f' max="{len(entries)}" value="{int(one_at_a_time)}"> <span id="one-name">all</span></label>'
            if len(entries) > 1
            else ""
        ),
        "data": _data(entries),
    }
    # In one pass: what goes in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files("conductor.report") / "assets" / name).read_text(encoding="utf-8")


def _data(entries: Sequence[Entry]) -> str:
    value = {
        "kinds": [
            {
                "letter": kind.name,
                "name": KIND_NAMES[kind],
                "colour": KIND_COLOURS[kind],
                "ink": KIND_INKS[kind],
            }
            for kind in Kind
        ],
        "causes": [
            {
                "name": CAUSE_NAMES[cause],
                "colour": CAUSE_COLOURS[cause],
                "hatch": CAUSE_HATCHES[cause],
                "memory": cause is IdleCause.MEMORY,
            }
            for cause in IdleCause
        ],
        "pale": PALE,
        "memory": MEMORY_COLOUR,
        "limit": LIMIT_COLOUR,
        "entries": [pack(entry) for entry in entries],
    }
    # A name with </script> in it must not end the script.
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _table(entries: Sequence[Entry]) -> str:
    """One row an entry, one column a metric."""
    columns = metrics(entries)
    groups = "".join(
        f'<th colspan="{len(list(same))}" scope="colgroup">{escape(group)}</th>'
        for group, same in groupby(column.group for column in columns)
    )
    names = "".join(
        f'<th scope="col" title="{escape(column.meaning)}">{escape(column.name)}</th>'
        for column in columns
    )
    lines = [f"<thead><tr><td></td>{groups}</tr><tr><td></td>{names}</tr></thead>", "<tbody>"]
    for row, entry in enumerate(entries):
        cells = "".join(
            f"<td{' class=best' * column.best[row]}>{escape(column.values[row])}</td>"
            for column in columns
        )
        lines.append(f'<tr><th scope="row">{escape(entry.title)}</th>{cells}</tr>')
    caption = "<caption>The least of each column is bold.</caption>" if len(entries) > 1 else ""
    return "\n".join([caption, *lines, "</tbody>"])


def _meanings(entries: Sequence[Entry]) -> str:
    return "".join(
        f"<dt>{escape(column.name)}</dt><dd>{escape(column.meaning)}</dd>"
        for column in metrics(entries)
    )
