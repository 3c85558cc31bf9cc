"""`conductor plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from conductor.cli import completion
from conductor.cli.options import (
    JsonOption,
    NoiseOption,
    PolicyOption,
    PresetOption,
    SeedOption,
    SpecOption,
    UsageError,
    VariationOption,
    chosen_spec,
    chosen_variation,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conductor.planning.deepen import PlanProgress
    from conductor.planning.plan import Candidate, Plan
    from conductor.variation.variation import Variation

EXAMPLES = (
    "conductor plan --preset gpt-like",
    "conductor plan --preset gpt-28.3b-p32-m128 --objective stage-span --json",
    "conductor plan --spec mine.toml --schedule zb-1p --schedule zb-v --out best.csv",
    "conductor plan --preset gpt-like --budget-ms 2000 --objective mean --noise 0.3",
    "conductor plan --spec mine.toml --schedule rl --policy mine.npz",
)


def plan(
    preset: PresetOption = None,
    spec: SpecOption = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this schedule; may be given several times.",
            autocompletion=completion.schedules,
        ),
    ] = None,
    objective: Annotated[
        Literal["makespan", "stage-span", "mean", "p95"],
        typer.Option(
            help="What to minimise: the end of the last action; the longest span of a single rank (the"
            " zero-bubble papers' cost); the mean or 95th percentile of the end under --noise or --variation."
        ),
    ] = "makespan",
    budget_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Search better orders for so long: local search, then CP-SAT where it is installed"
            " and the pipeline small enough. Ctrl-C ends it with the best so far.",
        ),
    ] = None,
    noise: NoiseOption = None,
    variation: VariationOption = None,
    policy: PolicyOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write the best as torch's compute_only CSV."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Every schedule that fits a spec, best first."""
    from conductor.cli import console
    from conductor.planning.plan import plan as make_plan

    if policy is not None and schedule and "rl" not in schedule:
        raise UsageError("--policy goes with --schedule rl, or with no --schedule")
    problem = chosen_spec(preset, spec)
    model = _variation(objective, noise, variation)
    with console.progress() as bar:
        result = make_plan(
            problem,
            schedules=schedule or None,
            objective=objective,
            budget_ms=budget_ms,
            variation=model,
            policy=policy,
            seed=seed,
            on_progress=None if budget_ms is None else _shown_on(bar),
        )
    if result.interrupted:
        console.note("stopped: this is the best so far")
    if out is not None:
        from conductor.interop.torch_csv import write_torch_csv

        write_torch_csv(result.best.schedule, out)
        console.note(f"wrote {result.best.name} to {out}")
    if json:
        console.print_json(_as_json(result))
        return
    console.console().print(_table(result, objective))
    for name, reason in result.rejected.items():
        console.note(f"left out {name}: {reason.removeprefix(name).lstrip()}")


def _variation(objective: str, noise: float | None, file: Path | None) -> Variation | None:
    over_draws = objective in ("mean", "p95")
    if over_draws != (noise is not None or file is not None):
        raise UsageError(
            "--noise and --variation go with --objective mean or p95, and only with them"
        )
    model = chosen_variation(noise, file)
    if over_draws and model is None:
        from conductor.variation.variation import NoVariation

        return NoVariation()
    return model


def _shown_on(bar: Any) -> Callable[[PlanProgress], None]:
    """One bar for the whole budget, with the gap to the best bound."""
    task = bar.add_task("search", total=100)

    def show(progress: PlanProgress) -> None:
        gap = ""
        if 0.0 < progress.bound_ms < float("inf"):
            gap = f", {100.0 * (progress.value_ms / progress.bound_ms - 1.0):.2f} % over the bound"
        bar.update(
            task,
            completed=round(100 * progress.share),
            description=f"{progress.phase}: {progress.value_ms:.2f} ms{gap}",
        )

    return show


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
                "value_ms": candidate.value_ms,
            }
            for candidate in result.candidates
        ],
        "best": result.best.name,
    }


def _table(result: Plan, objective: str) -> Any:
    from conductor.cli import console

    spec = result.spec
    over_draws = objective in ("mean", "p95")
    table = console.new_table(
        f"{spec.name}: {spec.num_ranks} ranks, {spec.num_microbatches} micro-batches",
        "schedule", *([f"{objective} ms"] if over_draws else []), "makespan ms", "over bound",
        "bubble ratio", "stage-span bubble", "peak memory", "planned in ms",
    )  # fmt: skip
    for candidate in result.candidates:
        name, *cells = _cells(candidate)
        table.add_row(name, *([f"{candidate.value_ms:.2f}"] if over_draws else []), *cells)
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
