"""`conductor fit`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conductor.cli.options import InputShareOption, JsonOption, ProfileOption, SeedOption
from conductor.cli.whatif import TraceArgument, read

if TYPE_CHECKING:
    from conductor.variation.fit import Fit
    from conductor.variation.markov import MarkovStragglers
    from conductor.variation.pauses import ForwardPauses

EXAMPLES = (
    "conductor fit job.parquet",
    "conductor fit job.parquet --out variation.toml --profile job.toml",
    "conductor simulate best.csv --spec job.toml --variation variation.toml",
)


def fit(
    trace: TraceArgument,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Write the model; `--variation` reads it."),
    ] = None,
    profile: ProfileOption = None,
    input_share: InputShareOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """How a job's times vary, as a model to draw from."""
    from conductor.cli import console
    from conductor.variation.fit import fit as make_fit
    from conductor.variation.variation_file import save_variation

    seen = read(trace)
    for note in seen.notes:
        console.note(note)
    fitted = make_fit(seen, seed=seed)
    if out is not None:
        save_variation(fitted.variation, out)
        console.note(f"wrote the model to {out}")
    if profile is not None:
        from conductor.problem.spec_file import save_spec
        from conductor.whatif.profile import INPUT_SHARE
        from conductor.whatif.profile import profile as make_profile
        from conductor.whatif.receives import graph_of

        share = INPUT_SHARE if input_share is None else input_share
        spec = make_profile(graph_of(seen), input_share=share)
        if fitted.spells is not None:
            # The model adds them: expected times are those without.
            forward, backward = fitted.usual_share
            shares = {
                "forward_ms": forward,
                "backward_input_ms": backward,
                "backward_weight_ms": backward,
            }
            spec = spec.with_(
                **{name: tuple((spec.per_stage(name) * by).tolist()) for name, by in shares.items()}
            )
        save_spec(spec, profile)
        console.note(f"wrote the expected times to {profile}")
    elif input_share is not None:
        console.note("without --profile, --input-share has no effect")
    if json:
        console.print_json(_as_json(fitted))
    else:
        _print(fitted, seen.name)


def _as_json(fitted: Fit) -> dict[str, Any]:
    direction, replica, stage, factor = fitted.slowest
    return {
        "levels": fitted.levels,
        "shares": fitted.shares,
        "slowest": {"direction": direction, "dp_rank": replica, "stage": stage, "factor": factor},
        "correlation_error": fitted.correlation_error,
        "quantile_errors": {f"p{100 * q:g}": e for q, e in fitted.quantile_errors.items()},
        "distance": fitted.distance,
        "num_microbatches": fitted.num_microbatches,
        "spells": asdict(fitted.spells) if fitted.spells else None,
    }


def _print(fitted: Fit, name: str) -> None:
    from conductor.cli import console
    from conductor.variation.fit import TERMS

    out = console.console()
    table = console.new_table(
        f"{name}: what varies (standard deviation of the logarithm, share of its variance)",
        "term", "forward", "share", "backward", "share",
    )  # fmt: skip
    for term in TERMS:
        cells = [
            text
            for direction in fitted.levels
            for text in (
                f"{100.0 * fitted.levels[direction][term]:.2f} %",
                f"{100.0 * fitted.shares[direction][term]:.1f} %",
            )
        ]
        table.add_row(term, *cells)
    out.print(table)
    direction, replica, stage, factor = fitted.slowest
    out.print(
        f"slowest: stage {stage} of data-parallel rank {replica}, {factor:.3f} times its stage's median"
        f" ({direction})"
    )
    if fitted.spells is not None:
        out.print(_said(fitted.spells), soft_wrap=True)
    errors = ", ".join(f"p{100 * q:g} {100.0 * e:.2f} %" for q, e in fitted.quantile_errors.items())
    out.print(
        f"samples against {fitted.num_microbatches} traced micro-batches: correlations within"
        f" {fitted.correlation_error:.3f}, quantiles within {errors}, distributions within"
        f" {fitted.distance:.3f}",
        soft_wrap=True,
    )


def _said(spells: ForwardPauses | MarkovStragglers) -> str:
    from conductor.variation.pauses import ForwardPauses

    if isinstance(spells, ForwardPauses):
        low, high = spells.pause_ms
        return f"pauses: {100.0 * spells.chance:.2f} % of forwards are held up by {low:.4g} to {high:.4g} ms"
    return (
        f"slow spells: ranks turn {spells.factor:.2f} times slower before {100.0 * spells.p_slow:.2f} % of"
        f" their actions and recover before {100.0 * spells.p_recover:.1f} %"
    )
