"""`conductor report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conductor.cli.options import PresetOption, SpecOption, UsageError, chosen_spec

if TYPE_CHECKING:
    from conductor.ir.schedule import Schedule
    from conductor.problem.spec import PipelineSpec
    from conductor.report.entry import Entry

PICTURES = (".png", ".svg", ".pdf")

EXAMPLES = (
    "conductor report --preset gpt-like -o report.html",
    "conductor report best.csv other.csv --preset gpt-like -o comparison.html",
    "conductor report best.csv --preset paper --migrate -o migration.html",
    "conductor report measured.json -o run.html",
    "conductor report best.csv --preset gpt-like -o timeline.svg",
)


def report(
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INPUT...",
            help="Schedules in torch's compute_only CSV (with --preset or --spec), and timelines in"
            " JSON. Without any, the spec is planned and the best schedules are shown.",
        ),
    ] = None,
    preset: PresetOption = None,
    spec: SpecOption = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also this schedule; may be given several times."),
    ] = None,
    best: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many schedules of a plan to show.")
    ] = 3,
    execution: Annotated[
        Literal["static", "ready-first"],
        typer.Option(help="Strictly in order, or the first action in order that is ready."),
    ] = "static",
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate", help="Show each schedule with work moved between ranks too (simple model)."
        ),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="A page (.html) or picture (.png, .svg, .pdf)."
        ),
    ] = Path("report.html"),
) -> None:
    """One page, or a picture, of schedules and runs: timelines, idle time and why, memory."""
    from conductor.cli import console

    if out.suffix not in (".html", *PICTURES):
        raise UsageError(f"{out}: a report ends in .html, {', '.join(PICTURES)}")
    entries, title = _entries(inputs or [], preset, spec, schedule or [], best, execution, migrate)
    if out.suffix == ".html":
        from conductor.report.page import write_page

        note = "Timelines on one time axis." if len(entries) > 1 else ""
        write_page(entries, out, title=title, note=note)
    else:
        from conductor.report.picture import write_picture

        write_picture(entries, out)
    console.note(f"wrote {', '.join(entry.title for entry in entries)} to {out}")


def _entries(
    inputs: list[Path],
    preset: str | None,
    spec_file: Path | None,
    schedules: list[str],
    best: int,
    execution: Literal["static", "ready-first"],
    migrate: bool,
) -> tuple[list[Entry], str]:
    """Timelines read, then schedules read, named and planned, each simulated; and a title."""
    from conductor.interop.timeline_json import is_timeline, read_timeline
    from conductor.interop.torch_csv import read_torch_csv
    from conductor.ir.validate import validate
    from conductor.planning.plan import plan
    from conductor.report.simulated import measured, migrated, simulated

    files = {path: is_timeline(path) for path in inputs}
    needs_spec = schedules or not all(files.values()) or not inputs
    if not needs_spec and (preset or spec_file or migrate):
        raise UsageError(
            "timelines hold their own spec: --preset, --spec and --migrate have no effect"
        )
    problem: PipelineSpec | None = chosen_spec(preset, spec_file) if needs_spec else None
    titles = _titles(inputs)
    entries: list[Entry] = []
    orders: list[Schedule] = []
    for path, is_ours in files.items():
        if is_ours:
            entries.append(measured(read_timeline(path), title=titles[path]))
        else:
            order = read_torch_csv(path).named(titles[path])
            validate(order, problem)
            orders.append(order)
    if problem is not None and (schedules or not inputs):
        planned: list[Schedule] = []
        for candidate in plan(problem, schedules=schedules or None).candidates:
            # Heuristics often find the same order: it is shown once.
            if schedules or (len(planned) < best and candidate.schedule not in planned):
                planned.append(candidate.schedule)
        orders += planned
    subject = ", ".join(titles.values()) if problem is None else problem.name
    for order in orders:
        assert problem is not None
        entries.append(simulated(problem, order, title=order.name, execution=execution))
        if migrate:
            entries.append(migrated(problem, order, title=f"{order.name}, migrating"))
    return entries, f"Conductor: {subject}"


def _titles(paths: list[Path]) -> dict[Path, str]:
    """The files' names; with their folders where two are alike."""
    names = [path.stem for path in paths]
    return {
        path: path.stem if names.count(path.stem) == 1 else str(path.with_suffix(""))
        for path in paths
    }
