"""`conductor profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conductor.cli.options import (
    HeadsOption,
    InputShareOption,
    JsonOption,
    LayersOption,
    UsageError,
    WidthOption,
)

if TYPE_CHECKING:
    from conductor.problem.spec import PipelineSpec

EXAMPLES = (
    "conductor profile --layers 8 --width 128 --out gpt.toml",
    "conductor plan --spec gpt.toml",
    "conductor profile train.py --ranks 4 --out mine.toml -- --batch-size 8",
    "conductor profile --megatron-log job.log --ranks 4 --microbatches 16 --out job.toml",
)


_TIMES = ("forward_ms", "backward_input_ms", "backward_weight_ms")


def profile(
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCRIPT.py",
            help="Your own program, which trains with a ConductorSchedule: measured as it is, and ended"
            " after --steps steps. Options behind -- are its own.",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Of SCRIPT.", show_default=False)
    ] = None,
    model: Annotated[Literal["gpt"], typer.Option(help="What to measure.")] = "gpt",
    layers: LayersOption = 8,
    width: WidthOption = 128,
    heads: HeadsOption = 4,
    sequence: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens in a sample.")] = 128,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Samples in a micro-batch.")] = 1,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Stages, one a rank (default 4). Of SCRIPT: ranks to start, as torchrun does"
            " (default: SCRIPT starts its own).",
        ),
    ] = None,
    microbatches: Annotated[
        int, typer.Option(metavar="N", min=1, help="Micro-batches of a step, in the spec.")
    ] = 8,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Compute activations again in the backward.")
    ] = False,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Parameters and activations in bf16.")
    ] = False,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps that count.")] = 5,
    megatron_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.log",
            help="Measure nothing: read the timers of a Megatron-LM job with this many --ranks and"
            " --microbatches.",
        ),
    ] = None,
    input_share: InputShareOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the spec, .toml or .json.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure stages: times of F, I and W, activation memory.

    Of a GPT on this machine, or of your own program, with its links; or from a Megatron-LM job's log.
    """
    from conductor.cli import console
    from conductor.problem.spec_file import save_spec

    if megatron_log is not None:
        from conductor.interop.megatron_timers import read_megatron_timers
        from conductor.whatif.profile import INPUT_SHARE

        spec = read_megatron_timers(
            megatron_log,
            num_ranks=ranks or 4,
            num_microbatches=microbatches,
            input_share=INPUT_SHARE if input_share is None else input_share,
        )
        if out is not None:
            save_spec(spec, out)
        if json:
            console.print_json({name: getattr(spec, name) for name in _TIMES})
        else:
            _print_times(spec)
        return
    if input_share is not None:
        console.note("--input-share goes with --megatron-log: it has no effect")
    if script is not None:
        if not script.is_file():
            raise UsageError(f"there is no script {script}")
        from conductor.runtime.script_profile import profile_script

        spec, spread = profile_script([str(script), *(arguments or ())], ranks, steps)
    else:
        from conductor.runtime.gpt import GPTConfig
        from conductor.runtime.profile_gpt import profile_gpt

        result = profile_gpt(
            GPTConfig(
                num_layers=layers, d_model=width, num_heads=heads, sequence=sequence,
                vocabulary=256, checkpointing=checkpointing, bf16=bf16,
            ),
            num_ranks=ranks or 4,
            num_microbatches=microbatches,
            rows=rows,
            num_steps=steps,
            name=model,
        )  # fmt: skip
        spec, spread = result.spec, result.spread
    if out is not None:
        spec = spec.with_(name=out.stem)
        save_spec(spec, out)
    if json:
        fields = (*_TIMES, "transfer_ms", "activation_memory", "freed_at_backward_input")
        values = {name: getattr(spec, name) for name in fields}
        console.print_json({**values, "spread": spread})
    else:
        _print(spec, spread)


def _print(spec: PipelineSpec, spread: dict[str, float]) -> None:
    from conductor.cli import console

    table = console.new_table(
        f"{spec.name}: {spec.num_stages} stages", "stage", "F ms", "I ms", "W ms", "activation MB"
    )
    columns = [spec.per_stage(name) for name in (*_TIMES, "activation_memory")]
    for stage in range(spec.num_stages):
        f, i, w, memory = (float(column[stage]) for column in columns)
        table.add_row(str(stage), f"{f:.2f}", f"{i:.2f}", f"{w:.2f}", f"{memory / 1e6:.2f}")
    out = console.console()
    out.print(table)
    widths = ", ".join(f"{kind} {100.0 * width:.1f} %" for kind, width in spread.items())
    out.print(f"spread (middle half of the samples over the median): {widths}")
    if spec.link_ms.any():
        times = ", ".join(f"{ms:.3f}" for ms in spec.link_ms.tolist())
        out.print(f"transfers from stage to stage, ms: {times}")
    out.print(f"I frees {100.0 * spec.freed_at_backward_input:.0f} % of the activations")


def _print_times(spec: PipelineSpec) -> None:
    from conductor.cli import console

    table = console.new_table(
        f"{spec.name}: {spec.num_stages} stages", "stage", "F ms", "I ms", "W ms"
    )
    columns = [spec.per_stage(name).tolist() for name in _TIMES]
    for stage, times in enumerate(zip(*columns, strict=True)):
        table.add_row(str(stage), *(f"{time:.2f}" for time in times))
    console.console().print(table)
