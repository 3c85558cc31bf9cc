"""Scenario files: a spec, its variation and its links as they are, in TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from conductor.errors import ConductorError, FormatError
from conductor.evaluation.scenario import Scenario
from conductor.problem.presets import load_preset
from conductor.problem.spec_file import load_spec
from conductor.variation.variation import Product
from conductor.variation.variation_file import factor_of, load_variation


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)

    preset: str | None = None
    spec: str | None = None
    summary: str = ""
    actual_transfer_ms: float | tuple[float, ...] | None = None
    variation_file: str | None = None
    variation: tuple[dict[str, Any], ...] = ()


def load_scenario_file(path: str | Path) -> Scenario:
    """Reads a scenario.

    The file names a `preset` or a `spec` file (relative to itself), and may have a `summary`,
    `actual_transfer_ms`, a `variation_file` (as `conductor fit` writes it) and any number of `[[variation]]`
    tables; all factors are multiplied.

    Raises:
        FormatError: the file cannot be read, a key is unknown or missing or of a wrong type.
        InvalidSpecError: a value that cannot be. Both name the file.
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot read the scenario: {error.strerror}") from None
    except ValueError as error:
        raise FormatError(f"{path}: not valid TOML: {error}") from None
    try:
        file = _File.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = ", ".join(_File.model_fields)
            raise FormatError(f"{path}: unknown key {where!r}; a scenario has {known}") from None
        raise FormatError(f"{path}: {where}: {first['msg']}") from None
    if (file.preset is None) == (file.spec is None):
        raise FormatError(f"{path}: give one of preset and spec")
    try:
        spec = (
            load_preset(file.preset)
            if file.preset is not None
            else load_spec(path.parent / str(file.spec))
        )
        parts = (
            load_variation(path.parent / file.variation_file).parts if file.variation_file else ()
        )
        scenario = Scenario(
            name=path.stem,
            spec=spec,
            variation=Product((*parts, *map(factor_of, file.variation))),
            actual_transfer_ms=file.actual_transfer_ms,
            summary=file.summary,
        )
    except ConductorError as error:
        raise type(error)(f"{path}: {error}") from None
    return scenario
