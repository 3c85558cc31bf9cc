"""`conductor partition`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from conductor.cli.options import JsonOption

if TYPE_CHECKING:
    from conductor.planning.partition import Partition

EXAMPLES = (
    "conductor partition layers.json --ranks 8 --microbatches 32",
    "conductor partition layers.json --ranks 8 --placement v --memory-limit 70 --out spec.toml",
)


def partition(
    layers: Annotated[
        Path,
        typer.Argument(
            metavar="LAYERS.json",
            help='{"layers": [{"name": "block", "count": 30, "forward_ms": 1.2,'
            ' "backward_input_ms": 1.3, "backward_weight_ms": 1.1, "activation_memory": 0.4,'
            ' "weight_memory": 3}, ...]}, embedding and head included.',
        ),
    ],
    ranks: Annotated[int, typer.Option(metavar="N", min=1, help="Pipeline-parallel ranks.")],
    microbatches: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Micro-batches in a step (default: four a rank)."),
    ] = None,
    placement: Annotated[
        Literal["sequential", "loop", "v"],
        typer.Option(help="How stages lie on ranks."),
    ] = "sequential",
    stages_per_rank: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Stages a rank (default: 1; 2 for loop and v)."),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="X", min=0, help="Of a rank, for weights and activations, in the file's unit."
        ),
    ] = None,
    transfer_ms: Annotated[
        float,
        typer.Option(metavar="MS", min=0, help="Of one micro-batch between two ranks."),
    ] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the stages as a spec file, .toml or .json."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Split layers over stages.

    Least work on the fullest rank first, then the earliest end.
    """
    from conductor.cli import console
    from conductor.planning.layers import load_layers
    from conductor.planning.partition import partition as split

    result = split(
        load_layers(layers),
        ranks,
        num_microbatches=4 * ranks if microbatches is None else microbatches,
        placement=placement,
        stages_per_rank=stages_per_rank,
        memory_limit=memory_limit,
        transfer_ms=transfer_ms,
    )
    if out is not None:
        from conductor.problem.spec_file import save_spec

        save_spec(result.spec.with_(name=layers.stem), out)
        console.note(f"wrote {out}")
    if json:
        console.print_json(_as_json(result))
        return
    console.console().print(_table(result))
    best = result.candidate
    console.note(
        f"{best.name} ends after {best.timeline.makespan_ms:.2f} ms;"
        f" the fullest rank works {result.rank_ms.max():.2f} ms a micro-batch,"
        f" {'the least possible is' if result.is_proved else 'at least'} {result.least_rank_ms:.2f}"
    )


def _as_json(result: Partition) -> dict[str, Any]:
    return {
        "first_layers": list(result.cuts[:-1]),
        "stages": [[layer.name for layer in stage] for stage in result.stages],
        "stage_ranks": list(result.spec.stage_ranks),
        "rank_ms": result.rank_ms.tolist(),
        "least_rank_ms": result.least_rank_ms,
        "is_proved": result.is_proved,
        "schedule": result.candidate.name,
        "makespan_ms": result.candidate.timeline.makespan_ms,
        "lower_bound_ms": result.candidate.lower_bound_ms,
    }


def _table(result: Partition) -> Any:
    from conductor.cli import console

    spec = result.spec
    table = console.new_table(
        f"{len(result.layers)} layers on {spec.num_ranks} ranks, {spec.placement}",
        "stage", "layers", "rank", "number", "F ms", "I ms", "W ms", "weights", "activations",
        left=2,
    )  # fmt: skip
    times = spec.duration_ms
    for stage, layers in enumerate(result.stages):
        names = layers[0].name if len(layers) == 1 else f"{layers[0].name} .. {layers[-1].name}"
        table.add_row(
            str(stage), names, str(spec.stage_ranks[stage]), str(len(layers)),
            *(f"{time:.2f}" for time in times[:3, stage]),
            f"{sum(layer.weight_memory for layer in layers):.4g}",
            f"{sum(layer.activation_memory for layer in layers):.4g}",
        )  # fmt: skip
    return table
