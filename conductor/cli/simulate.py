"""`conductor simulate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

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
    from conductor.ir.schedule import Schedule
    from conductor.problem.spec import PipelineSpec
    from conductor.rl.execution import PolicyExecution
    from conductor.simulator.simulate import Execution, Simulation

DEFAULT_DRAWS = 1000

EXAMPLES = (
    "conductor plan --preset gpt-like --out best.csv",
    "conductor simulate best.csv --preset gpt-like --draw",
    "conductor simulate best.csv --preset gpt-like --noise 0.1 --execution ready-first --json",
    "conductor simulate best.csv --preset gpt-like --noise 0.3 --execution policy",
)


def simulate(
    schedule: Annotated[
        Path, typer.Argument(metavar="SCHEDULE.csv", help="A schedule in torch's compute_only CSV.")
    ],
    preset: PresetOption = None,
    spec: SpecOption = None,
    noise: NoiseOption = None,
    variation: VariationOption = None,
    draws: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help=f"Draws of the times (default {DEFAULT_DRAWS})."),
    ] = None,
    seed: SeedOption = 0,
    execution: Annotated[
        Literal["static", "ready-first", "policy"],
        typer.Option(
            help="Strictly in order, or the first action in order that is ready, or as a learned policy"
            " decides, held to the order as far as that pays on other draws."
        ),
    ] = "static",
    policy: PolicyOption = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw the timeline with the expected times.")
    ] = False,
    critical_path: Annotated[
        bool,
        typer.Option(
            "--critical-path",
            help="With the expected times, the chain of actions that the makespan hangs on, drawn.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the timeline with the expected times as a Chrome trace (Perfetto).",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """What a schedule takes: time, idle time and why, memory."""
    import numpy as np

    from conductor.cli import console
    from conductor.interop.torch_csv import read_torch_csv
    from conductor.ir.validate import validate
    from conductor.simulator.program import encode
    from conductor.simulator.simulate import simulate as run
    from conductor.variation.links import split_links

    if policy is not None and execution != "policy":
        raise UsageError("--policy goes with --execution policy")
    model = chosen_variation(noise, variation, links=True)
    profile = chosen_spec(preset, spec)
    order = read_torch_csv(schedule)
    validate(order, profile)
    durations, actual = None, profile
    if model is not None:
        model, actual = split_links(model, profile)
    executor: Execution | PolicyExecution
    if execution == "policy":
        from conductor.rl.execution import decided
        from conductor.rl.shipped import policy_weights
        from conductor.variation import NoVariation

        weights = policy_weights(policy)
        executor = decided(profile, order, weights, model or NoVariation(), seed=seed)
        order = executor.plan
    else:
        executor = execution
    if model is not None:
        draws = draws or DEFAULT_DRAWS
        durations = model.sample(encode(profile, order), draws, np.random.default_rng(seed))
    else:
        if draws not in (None, 1):
            console.note(
                "without --noise or --variation all draws are alike: --draws has no effect"
            )
        draws = 1
    result = run(actual, order, durations, execution=executor)
    if trace is not None:
        from conductor.interop.chrome_trace import write_chrome_trace
        from conductor.simulator.simulate import timeline

        write_chrome_trace(timeline(profile, order, execution=executor), trace)
        console.note(f"wrote the timeline to {trace}")
    if draw or critical_path:
        _draw(profile, order, executor, critical_path=critical_path, stderr=json)
    if json:
        console.print_json(_as_json(result, draws, seed))
    else:
        _print(result, draws, f"{order.name} on {profile.name}, {execution} execution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean of a quantity over draws, its 95 % interval, quantiles and maximum."""

    mean: float
    ci95: tuple[float, float]
    p50: float
    p95: float
    max: float


def spread(values: Any) -> Spread:
    """Of an array of shape (draws,); the interval is that of the mean (normal approximation)."""
    import numpy as np

    mean = float(np.mean(values))
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    p50, p95 = (float(q) for q in np.quantile(values, (0.5, 0.95)))
    return Spread(
        mean=mean, ci95=(mean - half, mean + half), p50=p50, p95=p95, max=float(np.max(values))
    )


def _as_json(result: Simulation, draws: int, seed: int) -> dict[str, Any]:
    from conductor.simulator.idle import IdleCause

    return {
        "makespan_ms": asdict(spread(result.makespan_ms)),
        "bubble_ratio": float(result.bubble_ratio.mean()),
        "idle_ms": {cause.name.lower(): result.idle_ms[cause].tolist() for cause in IdleCause},
        "peak_memory": result.peak_memory.tolist(),
        "draws": draws,
        "seed": seed,
    }


def _print(result: Simulation, draws: int, title: str) -> None:
    from conductor.cli import console
    from conductor.simulator.idle import IdleCause

    out = console.console()
    time = spread(result.makespan_ms)
    line = f"makespan {time.mean:.2f} ms"
    if draws > 1:
        low, high = time.ci95
        line += (
            f" (95 % interval of the mean {low:.2f} to {high:.2f}; median {time.p50:.2f},"
            f" 95 % of {draws} draws below {time.p95:.2f}, longest {time.max:.2f})"
        )
    out.print(title, style="bold")
    bubble = 100.0 * float(result.bubble_ratio.mean())
    out.print(
        f"{line}, bubble ratio {bubble:.2f} %, bubble over ideal {100.0 * bubble / (100.0 - bubble):.2f} %",
        soft_wrap=True,
    )
    table = console.new_table(
        "Idle by cause, mean ms", "rank", "previous stage", "next stage", "memory", "nothing left",
        "busy ms", "peak memory",
    )  # fmt: skip
    for rank in range(len(result.busy_ms)):
        idle = (f"{result.idle_ms[cause, rank]:.2f}" for cause in IdleCause)
        busy, peak = result.busy_ms[rank], result.peak_memory[rank]
        table.add_row(str(rank), *idle, f"{busy:.2f}", f"{peak:.4g}")
    out.print(table)


def _draw(
    spec: PipelineSpec,
    schedule: Schedule,
    execution: Execution | PolicyExecution,
    *,
    critical_path: bool,
    stderr: bool,
) -> None:
    from conductor.cli import console
    from conductor.ir.draw_timeline import draw_timeline
    from conductor.simulator.simulate import timeline

    out = console.console(stderr=stderr)
    times = timeline(spec, schedule, execution=execution)
    path = times.critical_path.tolist() if critical_path else []
    drawing = draw_timeline(times, out.width, critical_path=path)
    out.print(console.coloured(drawing), soft_wrap=True)
    if path:
        work = float((times.end_ms - times.start_ms)[path].sum())
        out.print(
            f"critical path: {len(path)} actions, {work:.2f} ms of work and"
            f" {times.makespan_ms - work:.2f} ms between them:"
            f" {' '.join(str(schedule.action(index)) for index in path)}",
            soft_wrap=True,
        )
