"""`conductor evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conductor.cli import completion
from conductor.cli.options import JsonOption, PolicyOption, SeedOption

if TYPE_CHECKING:
    from conductor.evaluation.clairvoyance import Clairvoyant
    from conductor.evaluation.evaluate import Row, ScenarioResult
    from conductor.evaluation.scenario import Scenario

EXAMPLES = (
    "conductor evaluate --scenario paper-10",
    "conductor evaluate --scenario slow-rank --schedulers zb-1p,searched,searched+migration",
    "conductor evaluate --draws 200 --markdown",
)


def evaluate(
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            autocompletion=completion.scenarios,
            help="A named scenario or a .toml file; may be repeated. Default: all.",
        ),
    ] = None,
    schedulers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Schedulers, separated by commas: SCHEDULE[+ready-first|+policy][+migration], where SCHEDULE"
            " is one of `conductor schedules`, best or searched; joint+migration. rl alone is the learned"
            " scheduler as a whole, rl+migration lends as well; rl+policy+migration, one policy for both,"
            " compiles for two minutes at first. Default: all but that.",
        ),
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", min=2, help="Fresh paired draws.")] = 1000,
    policy: PolicyOption = None,
    seed: SeedOption = 0,
    search_ms: Annotated[
        float, typer.Option(metavar="MS", min=1.0, help="Budget of `searched` in each scenario.")
    ] = 5000.0,
    joint_steps: Annotated[
        int, typer.Option(metavar="N", min=0, help="Search steps of `joint` in each scenario.")
    ] = 2000,
    clairvoyant: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Solve so many of the draws to optimality, knowing their durations.",
        ),
    ] = 0,
    movable: Annotated[
        float, typer.Option(metavar="X", help="Migration: share of an F or I that can move.")
    ] = 0.6,
    latency_ms: Annotated[
        float, typer.Option(metavar="MS", help="Migration: latency of a message.")
    ] = 0.05,
    part_ms: Annotated[
        float, typer.Option(metavar="MS", help="Migration: transfer of 1/32 of the movable share.")
    ] = 0.01,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Markdown tables, for documents.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the named scenarios and stop.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare schedulers on scenarios of variation.

    With fresh paired draws, intervals, and the gap to the bounds.
    """
    from conductor.cli import console
    from conductor.evaluation.evaluate import default_schedulers
    from conductor.evaluation.evaluate import evaluate as run
    from conductor.evaluation.scenario import load_scenario, scenario_names
    from conductor.migration.model import SimpleModel

    if listing:
        for name in scenario_names():
            print(f"{name:20}{load_scenario(name).summary}")
        return
    chosen = [_scenario(text) for text in scenario or scenario_names()]
    names = [name for text in schedulers or () for name in text.split(",") if name]
    model = SimpleModel(movable=movable, latency_ms=latency_ms, part_ms=part_ms)
    names = names or list(default_schedulers())
    with console.progress() as bar:
        task = bar.add_task("evaluating", total=len(chosen) * len(names))
        results = run(
            chosen,
            names,
            draws=draws,
            seed=seed,
            search_ms=search_ms,
            joint_steps=joint_steps,
            clairvoyant=clairvoyant,
            model=model,
            policy=policy,
            on_progress=lambda where, what: bar.update(
                task, advance=1, description=f"{where}: {what}"
            ),
        )
    if json:
        console.print_json(
            {"scenarios": [_as_json(result) for result in results], "draws": draws, "seed": seed}
        )
    elif markdown:
        print("\n\n".join(_markdown(result) for result in results))
    else:
        for result in results:
            _print(result, draws)


def _scenario(text: str) -> Scenario:
    """A named scenario, or one of a file."""
    if text.endswith(".toml"):
        from conductor.evaluation.scenario_file import load_scenario_file

        return load_scenario_file(text)
    from conductor.evaluation.scenario import load_scenario

    return load_scenario(text)


def _as_json(result: ScenarioResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "bounds_ms": result.bounds_ms,
        "schedulers": [asdict(row) for row in result.schedulers],
        "left_out": result.left_out,
        "clairvoyant": asdict(result.clairvoyant) if result.clairvoyant else None,
    }


COLUMNS = (
    "scheduler", "mean ms", "95 % interval", "p95 ms", "vs best static", "over bound", "decision us",
    "moved", "helps",
)  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    low, high = row.ci95_ms
    less, more = row.vs_best_static_ci95
    moves = row.migrations > 0.0
    name = row.name if row.name.startswith(row.schedule) else f"{row.name} ({row.schedule})"
    return (
        name,
        f"{row.mean_ms:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{row.p95_ms:.2f}",
        f"{100.0 * row.vs_best_static:+.2f} % ({100.0 * less:+.2f} to {100.0 * more:+.2f})",
        f"{100.0 * row.over_bound:.2f} %",
        f"{row.decision_us:.2f}" if row.decision_us else "",
        f"{100.0 * row.moved_share:.1f} %" if moves else "",
        f"{row.migrations:.0f}" if moves else "",
    )


def _heading(result: ScenarioResult) -> str:
    summary = f": {result.summary}" if result.summary else ""
    return f"{result.name}{summary}. Bounds in ms: {_bounds(result)}"


def _bounds(result: ScenarioResult) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.2f}" for name, value in result.bounds_ms.items()
    )


def _print(result: ScenarioResult, draws: int) -> None:
    from conductor.cli import console

    table = console.new_table(_heading(result), *COLUMNS)
    for row in result.schedulers:
        table.add_row(*_cells(row))
    out = console.console()
    out.print(table)
    out.print(
        f"{draws} fresh paired draws; over bound: mean over the mean per-rank bound of the draws"
    )
    if result.clairvoyant is not None:
        out.print(_clairvoyance(result.clairvoyant))
    for name, reason in result.left_out.items():
        console.note(f"{name} left out: {reason}")


def _clairvoyance(known: Clairvoyant) -> str:
    rows = ", ".join(
        f"{name} {100.0 * (mean / known.optimum_ms - 1.0):+.2f} %"
        for name, mean in sorted(known.mean_ms.items(), key=lambda item: item[1])
    )
    return (
        f"Clairvoyant optimum of {known.draws} draws ({known.proved} proved): mean {known.optimum_ms:.2f} ms,"
        f" bound {known.bound_ms:.2f} ms. Against it on these draws: {rows}"
    )


def _markdown(result: ScenarioResult) -> str:
    lines = [
        f"**{result.name}**: {result.summary}." if result.summary else f"**{result.name}**",
        "",
        f"Bounds in ms: {_bounds(result)}.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * (len(COLUMNS) - 1),
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in result.schedulers]
    if result.clairvoyant is not None:
        lines += ["", _clairvoyance(result.clairvoyant)]
    return "\n".join(lines)
