"""`conductor whatif`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conductor.cli.options import InputShareOption, JsonOption, ProfileOption

if TYPE_CHECKING:
    from conductor.ir.trace import Trace
    from conductor.whatif.whatif import Remedy, WhatIf

EXAMPLES = (
    "conductor whatif job.parquet",
    "conductor whatif profiler-traces/ --draw",
    "conductor whatif job.parquet --profile job.toml --trace job.json",
)

SHOWN = 5
"""Rows of each table of causes, worst first."""

TraceArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="A straggler trace or a table (.parquet, .csv), a timeline or profiler traces"
        " (.json, .json.gz; a folder or several files, one a rank).",
    ),
]


def whatif(
    trace: TraceArgument,
    input_share: InputShareOption = None,
    profile: ProfileOption = None,
    dp_rank: Annotated[
        int | None,
        typer.Option(metavar="N", help="Write the profile of this data-parallel rank alone."),
    ] = None,
    chrome_trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            help="Write the slowest step as a Chrome trace (Perfetto).",
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw the slowest step of the replica that ends it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Where a job's time went, and what each remedy would give."""
    from conductor.cli import console
    from conductor.errors import ConductorError
    from conductor.whatif.levers import lever_remedies
    from conductor.whatif.profile import INPUT_SHARE
    from conductor.whatif.profile import profile as make_profile
    from conductor.whatif.whatif import analyse, straggler_remedies

    share = INPUT_SHARE if input_share is None else input_share
    if dp_rank is not None and profile is None:
        console.note("without --profile, --dp-rank has no effect")
    found = analyse(read(trace))
    for note in found.graph.trace.notes:
        console.note(note)
    remedies = straggler_remedies(found)
    try:
        remedies += lever_remedies(found, input_share=share)
    except ConductorError as error:
        console.note(f"no order can be tried: {error}")
    if profile is not None:
        from conductor.problem.spec_file import save_spec

        save_spec(make_profile(found.graph, dp_rank=dp_rank, input_share=share), profile)
        console.note(f"wrote the expected times to {profile}")
    if chrome_trace is not None:
        from conductor.interop.chrome_trace import write_trace

        step = max(found.by_step, key=found.by_step.__getitem__)
        whole = found.graph.trace
        write_trace(whole.where(whole.steps == step), chrome_trace)
        console.note(f"wrote step {step} to {chrome_trace}")
    if draw:
        _draw(found, share, stderr=json)
    if json:
        console.print_json(_as_json(found, remedies))
    else:
        _print(found, remedies)


def read(paths: Sequence[Path]) -> Trace:
    """The trace of the command line, with a progress bar."""
    from conductor.cli import console
    from conductor.interop.read_trace import read_trace

    with console.progress() as bar:
        task = bar.add_task("reading")
        return read_trace(
            *paths, on_progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _as_json(found: WhatIf, remedies: Sequence[Remedy]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "slowdown": found.slowdown,
        "by_stage": _texts(found.by_stage),
        "by_dp_rank": _texts(found.by_dp_rank),
        "by_worker": {f"{dp}/{rank}": ratio for (dp, rank), ratio in found.by_worker.items()},
        "by_kind": found.by_kind,
        "by_step": _texts(found.by_step),
        "replay_error": found.replay_error,
        "step_ms": {
            "traced": float(found.traced_ms.mean()),
            "replayed": float(found.replay_ms.mean()),
            "ideal": float(found.ideal_step_ms.mean()),
        },
        "remedies": [asdict(remedy) for remedy in remedies],
        "notes": list(found.graph.trace.notes),
    }


def _texts(ratios: Mapping[int, float]) -> dict[str, float]:
    return {str(key): ratio for key, ratio in ratios.items()}


def _print(found: WhatIf, remedies: Sequence[Remedy]) -> None:
    from conductor.cli import console

    out = console.console()
    trace = found.graph.trace
    replicas = len(found.by_dp_rank)
    out.print(
        f"{trace.name}: {len(found.by_step)} steps, {replicas} data-parallel x {trace.num_ranks} pipeline"
        f" ranks, {trace.num_stages} stages",
        style="bold",
    )
    out.print(
        f"step {found.traced_ms.mean():.1f} ms traced, {found.replay_ms.mean():.1f} ms replayed"
        f" ({100.0 * found.replay_error:+.2f} %), {found.ideal_step_ms.mean():.1f} ms if all were alike:"
        f" slowdown {found.slowdown:.3f}",
        soft_wrap=True,
    )
    for line in blame(found):
        out.print(line, soft_wrap=True)
    causes: tuple[tuple[str, Mapping[Any, float]], ...] = (
        ("pipeline rank", found.by_stage),
        ("data-parallel rank", found.by_dp_rank),
        ("worker (data-parallel/pipeline rank)",
         {f"{dp}/{rank}": ratio for (dp, rank), ratio in found.by_worker.items()}),
        ("kind", found.by_kind),
        ("step", found.by_step),
    )  # fmt: skip
    table = console.new_table("Slowdown with only one group as it was", "by", "group", "slowdown",
                              "share", left=2)  # fmt: skip
    for title, ratios in causes:
        worst = sorted(ratios.items(), key=lambda item: -item[1])[:SHOWN]
        for place, (group, ratio) in enumerate(worst):
            share = "" if title == "step" else f"{100.0 * found.share(ratio):.1f} %"
            table.add_row("" if place else title, str(group), f"{ratio:.3f}", share)
    out.print(table)
    table = console.new_table("What would help", "remedy", "step ms", "gain")
    for remedy in sorted(remedies, key=lambda remedy: remedy.step_ms):
        table.add_row(remedy.name, f"{remedy.step_ms:.1f}", f"{100.0 * remedy.gain:+.1f} %")
    out.print(table)


def _draw(found: WhatIf, input_share: float, *, stderr: bool) -> None:
    import numpy as np

    from conductor.cli import console
    from conductor.ir.draw_timeline import draw_timeline
    from conductor.whatif.profile import profile, traced_timeline

    trace = found.graph.trace
    step = max(found.by_step, key=found.by_step.__getitem__)
    actions = trace.where(trace.is_action & (trace.steps == step))
    dp_rank = int(actions.dp_ranks[np.argmax(actions.end_ms)])
    times = traced_timeline(trace, profile(found.graph, input_share=input_share), step, dp_rank)
    out = console.console(stderr=stderr)
    out.print(f"step {step} of data-parallel rank {dp_rank}, as traced", style="bold")
    out.print(console.coloured(draw_timeline(times, out.width)), soft_wrap=True)


def blame(found: WhatIf) -> list[str]:
    """Sentences on what causes the slowdown."""
    if found.slowdown < 1.02:
        return ["no straggler costs this job more than 2 %"]
    lines = []
    (dp_rank, rank), worker = max(found.by_worker.items(), key=lambda item: item[1])
    stage, whole = max(found.by_stage.items(), key=lambda item: item[1])
    kind, of_kind = max(found.by_kind.items(), key=lambda item: item[1])
    if found.share(worker) > 0.5:
        lines.append(
            f"rank {rank} of data-parallel rank {dp_rank} alone explains"
            f" {100.0 * found.share(worker):.0f} % of it"
        )
    elif found.share(whole) > 0.5:
        lines.append(
            f"pipeline rank {stage} explains {100.0 * found.share(whole):.0f} % of it, in every replica:"
            " its work, not its machine"
        )
    else:
        lines.append("no single rank explains half of it: the micro-batches differ")
    lines.append(f"{kind} alone explains {100.0 * found.share(of_kind):.0f} %")
    return lines
