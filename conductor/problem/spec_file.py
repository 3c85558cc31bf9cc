"""Spec files: a `PipelineSpec` in TOML or JSON, its fields as keys."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from conductor.errors import FormatError, InvalidSpecError
from conductor.problem.placement import PLACEMENT_NAMES
from conductor.problem.spec import PipelineSpec

_NUMBERS = "a number or a list of numbers"
_WANTED = {
    "num_ranks": "a whole number",
    "num_microbatches": "a whole number",
    "stages_per_rank": "a whole number",
    "placement": f"{', '.join(PLACEMENT_NAMES)} or a list of ranks",
    "forward_ms": _NUMBERS,
    "backward_input_ms": _NUMBERS,
    "backward_weight_ms": _NUMBERS,
    "transfer_ms": _NUMBERS,
    "blocking_transfers": "true or false",
    "activation_memory": _NUMBERS,
    "freed_at_backward_input": "a number",
    "memory_limit": _NUMBERS,
    "overlap_factor": "a number",
    "name": "a text",
    "source": "a text",
}


def load_spec(path: str | Path) -> PipelineSpec:
    """Reads a spec from a `.toml` or `.json` file.

    Raises:
        FormatError: no such file, a syntax error, an unknown or missing key, a wrong type.
        InvalidSpecError: a value that cannot be. Both name file, line and field.
    """
    path = Path(path)
    if path.suffix not in (".toml", ".json"):
        raise FormatError(f"{path}: a spec file ends in .toml or .json")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FormatError(f"{path}: cannot read the spec file: {reason}") from None
    try:
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise FormatError(f"{path}: not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(values, dict):
        raise FormatError(f"{path}: a spec file holds one object of keys and values")
    try:
        # JSON mode: strict types, but a list may become a tuple.
        checked = _model().model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        raise FormatError(_complain(path, text, error.errors())) from None
    try:
        return PipelineSpec(**{"name": path.stem, **checked.model_dump(exclude_unset=True)})
    except InvalidSpecError as error:
        key = re.match(r"\w+", str(error))
        raise InvalidSpecError(f"{_place(path, text, key and key[0])}: {error}") from None


def save_spec(spec: PipelineSpec, path: str | Path) -> None:
    """Writes a spec to a `.toml` or `.json` file; fields at their default are left out.

    Raises:
        FormatError: another suffix.
    """
    path = Path(path)
    values = {
        field.name: getattr(spec, field.name)
        for field in fields(PipelineSpec)
        if field.default is MISSING or getattr(spec, field.name) != field.default
    }
    if path.suffix == ".json":
        text = json.dumps(values, indent=2) + "\n"
    elif path.suffix == ".toml":
        text = "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
    else:
        raise FormatError(f"{path}: a spec file ends in .toml or .json")
    path.write_text(text, encoding="utf-8")


@cache
def _model() -> type[BaseModel]:
    """A pydantic model with the fields of `PipelineSpec`; what the values mean is checked there."""
    types = get_type_hints(PipelineSpec)
    columns: dict[str, Any] = {
        field.name: (types[field.name], ... if field.default is MISSING else field.default)
        for field in fields(PipelineSpec)
    }
    return create_model("SpecFile", __config__=ConfigDict(extra="forbid"), **columns)


def _toml(value: object) -> str:
    """A number, text, list or truth value: in TOML as in JSON, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _complain(path: Path, text: str, errors: list[ErrorDetails]) -> str:
    """One sentence about one thing that is wrong: an unknown key may be why another is missing."""
    order = ("extra_forbidden", "missing")
    first = min(errors, key=lambda error: (*(error["type"] != kind for kind in order),))
    key = str(first["loc"][0])
    # Of a list, the item that is wrong.
    error = max((e for e in errors if e["loc"][0] == key), key=lambda e: len(e["loc"]))
    if error["type"] == "missing":
        return f"{path}: {key} is missing"
    where = _place(path, text, key)
    if error["type"] == "extra_forbidden":
        near = get_close_matches(key, _WANTED, n=1)
        return f"{where}: unknown key {key!r}" + (f" (did you mean {near[0]}?)" if near else "")
    return f"{where}: {key} must be {_WANTED[key]}, not {json.dumps(error['input'])}"


def _place(path: Path, text: str, key: str | None) -> str:
    """File and line of a key."""
    if key is None:
        return str(path)
    name = re.escape(key)
    quoted = rf'"{name}"\s*:' if path.suffix == ".json" else rf'^\s*["\'[]*{name}["\'\]]*\s*[=\n]'
    match = re.search(quoted, text + "\n", re.M)
    if match is None:
        return str(path)
    start = match.end() - len(match[0].lstrip())
    return f"{path}, line {text.count(chr(10), 0, start) + 1}"
