"""Where output goes: results on standard output, notes on standard error."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

KIND_STYLES = {"F": "black on #56b4e9", "I": "black on #e69f00", "W": "black on #f0e442",
               "B": "white on #0072b2"}  # fmt: skip
"""Colours of the kinds, told apart by colour-blind readers too (Okabe and Ito's palette)."""


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


def note(message: str) -> None:
    """A line on standard error."""
    print(message, file=sys.stderr)


def new_table(title: str, *columns: str, left: int = 1) -> Table:
    """An empty table; the first columns are flush left, the others right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=not index)
    return table


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; wide enough for a table when it is no terminal."""
    made = Console(stderr=stderr, highlight=False, markup=False)
    if not made.is_terminal:
        made.width = 120
    return made


def coloured(drawing: str) -> Text:
    """A drawing with one colour a kind, where the terminal has colours."""
    text = Text(drawing, no_wrap=True)
    for kind, style in KIND_STYLES.items():
        pattern = rf"(?:{kind}|{kind.lower()})(?:\d+(?:\.\d+)?)?-*"
        for line in re.finditer(r"\|(.*)", drawing):
            for match in re.finditer(pattern, line[1]):
                text.stylize(style, line.start(1) + match.start(), line.start(1) + match.end())
    return text


def progress() -> Progress:
    """A progress bar on standard error; silent where that is no terminal."""
    out = console(stderr=True)
    return Progress(
        TextColumn("{task.description}", table_column=None),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
