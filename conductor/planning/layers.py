"""Layers of a model with their costs, and the file that lists them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conductor.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one layer (embedding and head too) costs the rank that holds it.

    Attributes:
        name: shown in tables.
        forward_ms: one micro-batch.
        backward_input_ms: one micro-batch.
        backward_weight_ms: one micro-batch.
        activation_memory: held by one micro-batch from forward to backward.
        weight_memory: held all the time: weights, gradients, optimizer state.
    """

    name: str
    forward_ms: float
    backward_input_ms: float
    backward_weight_ms: float
    activation_memory: float = 0.0
    weight_memory: float = 0.0

    @property
    def total_ms(self) -> float:
        """Work on one micro-batch."""
        return self.forward_ms + self.backward_input_ms + self.backward_weight_ms


class _Row(BaseModel):
    """One entry of a layers file: a layer, or several alike in a row."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    count: int = Field(1, ge=1)
    forward_ms: float = Field(ge=0)
    backward_input_ms: float = Field(ge=0)
    backward_weight_ms: float = Field(ge=0)
    activation_memory: float = Field(0.0, ge=0)
    weight_memory: float = Field(0.0, ge=0)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    layers: list[_Row] = Field(min_length=1)


def load_layers(path: str | Path) -> tuple[Layer, ...]:
    """Reads layers from a JSON file: `{"layers": [{"name": ..., "count": 30, "forward_ms": ...}]}`.

    The keys of an entry are the fields of `Layer`; `count` repeats it.

    Raises:
        FormatError: names the file, the entry and the field.
    """
    path = Path(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot read the layers: {error.strerror}") from None
    except ValueError as error:
        raise FormatError(f"{path}: not valid JSON: {error}") from None
    try:
        rows = _File.model_validate(values).layers
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
        ).lstrip(".")
        what = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].lower()
        raise FormatError(f"{path}: {where or 'the file'}: {what}") from None
    return tuple(
        Layer(
            name=row.name if row.count == 1 else f"{row.name}.{number}",
            **row.model_dump(exclude={"name", "count"}),
        )
        for row in rows
        for number in range(row.count)
    )
