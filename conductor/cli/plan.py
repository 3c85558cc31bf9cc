"""`conductor plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conductor.cli.options import JsonOption, ObjectiveOption, PresetOption, SpecOption, chosen_spec

if TYPE_CHECKING:
    from conductor.planning.plan import Candidate, Plan

EXAMPLES = (
    "conductor plan --preset gpt-like",
    "conductor plan --preset gpt-28.3b-p32-m128 --objective stage-span --json",
    "conductor plan --spec mine.toml --schedule zb-1p --schedule zb-v --out best.csv",
)


def plan(
    preset: PresetOption = None,
    spec: SpecOption = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this schedule; may be given several times."),
    ] = None,
    objective: ObjectiveOption = "makespan",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write the best as torch's compute_only CSV."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Every schedule that fits a spec, best first."""
    from conductor.cli import console
    from conductor.planning.plan import plan as make_plan

    result = make_plan(chosen_spec(preset, spec), schedules=schedule or None, objective=objective)
    if out is not None:
        from conductor.interop.torch_csv import write_torch_csv

        write_torch_csv(result.best.schedule, out)
        console.note(f"wrote {result.best.name} to {out}")
    if json:
        console.print_json(_as_json(result))
        return
    console.console().print(_table(result))
    for name, reason in result.rejected.items():
        console.note(f"left out {name}: {reason.removeprefix(name).lstrip()}")


def _as_json(result: Plan) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "spec": asdict(result.spec),
        "candidates": [
            {
                "schedule": candidate.name,
                "makespan_ms": candidate.timeline.makespan_ms,
                "bubble_ratio": candidate.timeline.bubble_ratio,
                "stage_span_bubble_ratio": candidate.timeline.stage_span_bubble_ratio,
                "peak_memory": candidate.timeline.peak_memory.tolist(),
                "plan_ms": candidate.plan_ms,
                "lower_bound_ms": candidate.lower_bound_ms,
            }
            for candidate in result.candidates
        ],
        "best": result.best.name,
    }


def _table(result: Plan) -> Any:
    from conductor.cli import console

    spec = result.spec
    table = console.new_table(
        f"{spec.name}: {spec.num_ranks} ranks, {spec.num_microbatches} micro-batches",
        "schedule", "makespan ms", "over bound", "bubble ratio", "stage-span bubble", "peak memory",
        "planned in ms",
    )  # fmt: skip
    for candidate in result.candidates:
        table.add_row(*_cells(candidate))
    return table


def _cells(candidate: Candidate) -> tuple[str, ...]:
    times = candidate.timeline
    return (
        candidate.name,
        f"{times.makespan_ms:.2f}",
        f"{100.0 * max(times.makespan_ms / candidate.lower_bound_ms - 1.0, 0.0):.2f} %",
        f"{100.0 * times.bubble_ratio:.2f} %",
        f"{100.0 * times.stage_span_bubble_ratio:.2f} %",
        f"{times.peak_memory.max():.4g}",
        f"{candidate.plan_ms:.1f}",
    )
