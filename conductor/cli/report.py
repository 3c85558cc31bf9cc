"""`conductor report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conductor.cli import completion
from conductor.cli.options import ExecutionOption, PresetOption, SpecOption, UsageError, chosen_spec

if TYPE_CHECKING:
    from conductor.ir.schedule import Schedule
    from conductor.problem.spec import PipelineSpec
    from conductor.report.entry import Entry

MOST_AT_ONCE = 4
"""Of more timelines a page shows one at first."""

PICTURES = (".png", ".svg", ".pdf")

EXAMPLES = (
    "conductor report --preset gpt-like -o report.html",
    "conductor report best.csv other.csv --preset gpt-like -o comparison.html",
    "conductor report best.csv --preset paper --migrate -o migration.html",
    "conductor report job.parquet --steps 8 -o run.html",
    "conductor report best.csv --preset gpt-like -o timeline.svg",
)


def report(
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INPUT...",
            help="Schedules in torch's compute_only CSV (with --preset or --spec); timelines in JSON;"
            " traces, as `conductor whatif` reads them. Without any, the spec is planned and the best"
            " schedules are shown.",
        ),
    ] = None,
    preset: PresetOption = None,
    spec: SpecOption = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also this schedule; may be given several times.",
            autocompletion=completion.schedules,
        ),
    ] = None,
    best: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many schedules of a plan to show.")
    ] = 3,
    execution: ExecutionOption = "static",
    steps: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="How many steps of a trace to show, evenly spread."),
    ] = 6,
    dp_rank: Annotated[
        int | None,
        typer.Option(metavar="N", help="Which data-parallel rank of a trace to show (the first)."),
    ] = None,
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate", help="Show each schedule with work moved between ranks too (simple model)."
        ),
    ] = False,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory/--no-memory",
            help="In a picture, the memory of the ranks under each timeline.",
        ),
    ] = True,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="A page (.html) or picture (.png, .svg, .pdf)."
        ),
    ] = Path("report.html"),
) -> None:
    """A page or a picture of schedules and runs.

    It shows timelines, idle time and why, memory, and work that moved.
    """
    check_name(out)
    schedules, runs = _sorted_inputs(inputs or [])
    if runs and not (schedules or schedule) and (preset or spec or migrate):
        raise UsageError(
            "runs bring their own spec: without a schedule --preset, --spec and --migrate have no effect"
        )
    titles = _titles(inputs or [])
    entries = _runs(runs, titles, steps, dp_rank)
    name = ", ".join(titles.values())
    if schedules or schedule or not runs:
        problem = chosen_spec(preset, spec)
        name = problem.name
        orders = _orders(problem, schedules, titles, schedule or [], best)
        entries += _simulated(problem, orders, execution, migrate)
    write(entries, out, name=name, memory=memory)


def check_name(out: Path) -> None:
    """Refuses a file that is no report by its name.

    Raises:
        UsageError: it ends otherwise.
    """
    if out.suffix not in (".html", *PICTURES):
        raise UsageError(f"{out}: a report ends in .html, {', '.join(PICTURES)}")


def write(entries: list[Entry], out: Path, *, name: str, memory: bool = True) -> None:
    """Writes a page or a picture, and says so."""
    from conductor.cli import console

    if out.suffix == ".html":
        from conductor.report.page import write_page

        note = "Timelines on one time axis." if len(entries) > 1 else ""
        few = len(entries) <= MOST_AT_ONCE
        write_page(entries, out, title=f"Conductor: {name}", note=note, one_at_a_time=not few)
    else:
        from conductor.report.picture import write_picture

        write_picture(entries, out, memory=memory)
    console.note(f"wrote {', '.join(entry.title for entry in entries)} to {out}")


def _sorted_inputs(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """Files of schedules, and files and folders of runs."""
    schedules = [path for path in paths if path.suffix == ".csv" and not _is_table(path)]
    return schedules, [path for path in paths if path not in schedules]


def _is_table(path: Path) -> bool:
    """Whether a CSV file has names of columns, as traces do, in its first line."""
    try:
        with path.open(encoding="utf-8") as file:
            return "micro" in file.readline()
    except (OSError, UnicodeDecodeError):
        return False


def _runs(
    paths: list[Path], titles: dict[Path, str], steps: int, dp_rank: int | None
) -> list[Entry]:
    from conductor.cli.whatif import read
    from conductor.interop.timeline_json import is_timeline, read_helps, read_timeline
    from conductor.report.traced import measured, traced

    entries = []
    for path in paths:
        if is_timeline(path):
            entries.append(
                measured(read_timeline(path), title=titles[path], helps=read_helps(path))
            )
        else:
            entries += traced(read([path]), title=titles[path], num_steps=steps, dp_rank=dp_rank)
    return entries


def _orders(
    problem: PipelineSpec,
    paths: list[Path],
    titles: dict[Path, str],
    schedules: list[str],
    best: int,
) -> list[Schedule]:
    """Those of files, then those named; without any of both the best of a plan."""
    from conductor.interop.torch_csv import read_torch_csv
    from conductor.ir.validate import validate
    from conductor.planning.plan import plan

    orders = [read_torch_csv(path).named(titles[path]) for path in paths]
    for order in orders:
        validate(order, problem)
    if schedules or not paths:
        planned: list[Schedule] = []
        for candidate in plan(problem, schedules=schedules or None).candidates:
            # Heuristics often find the same order: it is shown once.
            if schedules or (len(planned) < best and candidate.schedule not in planned):
                planned.append(candidate.schedule)
        orders += planned
    return orders


def _simulated(
    problem: PipelineSpec,
    orders: list[Schedule],
    execution: Literal["static", "ready-first"],
    migrate: bool,
) -> list[Entry]:
    from conductor.report.simulated import migrated, simulated

    entries = []
    for order in orders:
        entries.append(simulated(problem, order, title=order.name, execution=execution))
        if migrate:
            entries.append(migrated(problem, order, title=f"{order.name}, migrating"))
    return entries


def _titles(paths: list[Path]) -> dict[Path, str]:
    """The files' names; with their folders where two are alike."""
    names = [path.stem for path in paths]
    return {
        path: path.stem if names.count(path.stem) == 1 else str(path.with_suffix(""))
        for path in paths
    }
