"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conductor.cli import completion
from conductor.errors import ConductorError

if TYPE_CHECKING:
    from conductor.problem.spec import PipelineSpec
    from conductor.variation.variation import Variation

PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="A built-in profile; see `conductor presets`.",
        autocompletion=completion.presets,
    ),
]
SpecOption = Annotated[
    Path | None,
    typer.Option("--spec", metavar="FILE", help="A spec file, .toml or .json."),
]
NoiseOption = Annotated[
    float | None,
    typer.Option(
        "--noise",
        metavar="X",
        help="Every action takes 1 + U(-X, X) times its expected time.",
    ),
]
VariationOption = Annotated[
    Path | None,
    typer.Option(
        "--variation",
        metavar="FILE.toml",
        help="A variation file, as `conductor fit` writes it, instead of --noise.",
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="A policy, .npz, or a training of `conductor train`, .pt, instead of the package's own.",
    ),
]
ExecutionOption = Annotated[
    Literal["static", "ready-first"],
    typer.Option(
        "--execution", help="Strictly in order, or the first action in order that is ready."
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Seed of everything that is drawn.")
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Threads of the simulator; they change no result.",
    ),
]
LayersOption = Annotated[
    int, typer.Option("--layers", metavar="N", min=1, help="Layers of the GPT.")
]
WidthOption = Annotated[int, typer.Option("--width", metavar="N", min=4, help="Width of the GPT.")]
HeadsOption = Annotated[
    int, typer.Option("--heads", metavar="N", min=1, help="Attention heads of the GPT.")
]
ProfileOption = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE.toml", help="Write the expected times as a spec file."),
]
InputShareOption = Annotated[
    float | None,
    typer.Option(
        "--input-share",
        metavar="X",
        min=0.0,
        max=1.0,
        help="Share of a full backward that is for the input, where the trace does not say (0.588).",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output instead of a table.")
]


class UsageError(ConductorError):
    """Options that do not go together: the message says which."""


def chosen_variation(
    noise: float | None, variation_file: Path | None, *, links: bool = False
) -> Variation | None:
    """The variation of `--noise` or `--variation`; None where neither is given, or a noise of 0.

    Args:
        noise: of `--noise`.
        variation_file: of `--variation`.
        links: whether the command takes delays of links.

    Raises:
        UsageError: both are given, or the file delays links and the command does not take that.
        ConductorError: the level or the file is wrong.
    """
    if variation_file is not None:
        if noise is not None:
            raise UsageError("give one of --noise X and --variation FILE")
        from conductor.variation.links import LinkDelay
        from conductor.variation.variation_file import load_variation

        variation = load_variation(variation_file)
        if not links and any(isinstance(part, LinkDelay) for part in variation.parts):
            raise UsageError(
                f"{variation_file} delays links, which only `simulate` and `evaluate` take into account"
            )
        return variation
    if not noise:
        return None
    from conductor.variation.uniform import UniformNoise

    return UniformNoise(noise)


def chosen_spec(preset: str | None, spec_file: Path | None) -> PipelineSpec:
    """The spec of `--preset` or `--spec`.

    Raises:
        UsageError: both or neither is given.
        ConductorError: the preset or the file is wrong.
    """
    if (preset is None) == (spec_file is None):
        raise UsageError("give one of --preset NAME and --spec FILE")
    if preset is not None:
        from conductor.problem.presets import load_preset

        return load_preset(preset)
    from conductor.problem.spec_file import load_spec

    assert spec_file is not None
    return load_spec(spec_file)
