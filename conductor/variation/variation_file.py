"""Variation files: any number of `[[variation]]` tables in TOML, whose factors are multiplied."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from conductor.errors import ConductorError, FormatError, InvalidSpecError
from conductor.variation.links import LinkDelay
from conductor.variation.lognormal import LognormalNoise
from conductor.variation.markov import MarkovStragglers
from conductor.variation.pauses import ForwardPauses
from conductor.variation.sequence_lengths import SequenceLengths
from conductor.variation.shared import MicrobatchFactor, RankFactor, StageFactor
from conductor.variation.step import StepFactor
from conductor.variation.traced import TracedMicrobatches, TracedReplicas
from conductor.variation.uniform import UniformNoise
from conductor.variation.variation import Factor, Product

VARIATIONS: dict[str, type[Factor]] = {
    "uniform": UniformNoise,
    "lognormal": LognormalNoise,
    "microbatch": MicrobatchFactor,
    "sequence-lengths": SequenceLengths,
    "rank": RankFactor,
    "stage": StageFactor,
    "step": StepFactor,
    "markov": MarkovStragglers,
    "forward-pauses": ForwardPauses,
    "links": LinkDelay,
    "traced-microbatches": TracedMicrobatches,
    "traced-replicas": TracedReplicas,
}
"""What `kind` in a `[[variation]]` table may be; the other keys are the model's attributes."""


def load_variation(path: str | Path) -> Product:
    """Reads a variation file.

    Raises:
        FormatError: the file cannot be read, or holds something else.
        InvalidSpecError: a value that cannot be. Both name the file.
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot read the variation: {error.strerror}") from None
    except ValueError as error:
        raise FormatError(f"{path}: not valid TOML: {error}") from None
    entries = values.pop("variation", None)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"{path}: a variation file holds [[variation]] tables")
    if values:
        raise FormatError(f"{path}: unknown key {next(iter(values))!r}")
    try:
        return Product(tuple(factor_of(entry) for entry in entries))
    except ConductorError as error:
        raise type(error)(f"{path}: {error}") from None


def save_variation(variation: Product, path: str | Path) -> None:
    """Writes a variation file.

    Raises:
        FormatError: the file cannot be written.
    """
    try:
        Path(path).write_text(variation_text(variation.parts), encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{path}: cannot write the variation: {error.strerror}") from None


def variation_text(parts: Sequence[Factor]) -> str:
    """The `[[variation]]` tables of some factors."""
    names = {model: name for name, model in VARIATIONS.items()}
    return "\n".join(
        "".join(
            [
                f'[[variation]]\nkind = "{names[type(part)]}"\n',
                *(
                    f"{key} = {json.dumps(value)}\n"
                    for key, value in asdict(part).items()  # type: ignore[call-overload]  # all are dataclasses
                ),
            ]
        )
        for part in parts
    )


def factor_of(entry: dict[str, Any]) -> Factor:
    """The factor of a `[[variation]]` table.

    Raises:
        InvalidSpecError: an unknown kind or key, or a value that cannot be.
    """
    values = {key: _tupled(value) for key, value in entry.items()}
    kind = values.pop("kind", None)
    if kind not in VARIATIONS:
        raise InvalidSpecError(
            f"variation kind must be one of {', '.join(VARIATIONS)}, not {kind!r}"
        )
    known = [field.name for field in fields(VARIATIONS[kind])]  # type: ignore[arg-type]  # all are dataclasses
    for key in values:
        if key not in known:
            raise InvalidSpecError(
                f"variation {kind!r} has no key {key!r}; it has {', '.join(known)}"
            )
    try:
        return VARIATIONS[kind](**values)
    except (TypeError, ValueError) as error:
        raise InvalidSpecError(f"variation {kind!r}: {error}") from None


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
