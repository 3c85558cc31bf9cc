"""Kinds of action, and what each waits for and does to memory.

Kinds are data: the encoder, the validator and the reference all read `KIND_RULES`. A new kind is a new row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """Kinds of action, in the letters of `torch.distributed.pipelining`."""

    F = 0
    """Forward."""
    I = 1
    """Backward for the input."""
    W = 2
    """Backward for the weights."""
    B = 3
    """Full backward: I and W in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An action waits for one of `kinds` on stage `stage + stage_offset`, same micro-batch.

    A stage beyond either end of the pipeline is no input.
    """

    kinds: tuple[Kind, ...]
    stage_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRule:
    """What a kind waits for and does.

    Attributes:
        inputs: what must have ended before it starts.
        split_step: of the sequence splits of one micro-batch on one stage, the neighbour that must come
            first: -1 the earlier one (forward), +1 the later one (backward), 0 none.
        allocates: share of the stage's activation memory taken when it starts.
        sends: whether its output goes to a neighbour stage (it then pays a blocking transfer).
    """

    inputs: tuple[Input, ...]
    split_step: int
    allocates: float
    sends: bool


_BACKWARD_INPUTS = (
    Input(kinds=(Kind.F,), stage_offset=0),
    Input(kinds=(Kind.I, Kind.B), stage_offset=1),
)

KIND_RULES: dict[Kind, KindRule] = {
    Kind.F: KindRule(
        inputs=(Input(kinds=(Kind.F,), stage_offset=-1),), split_step=-1, allocates=1.0, sends=True
    ),
    Kind.I: KindRule(inputs=_BACKWARD_INPUTS, split_step=1, allocates=0.0, sends=True),
    Kind.W: KindRule(
        inputs=(Input(kinds=(Kind.I,), stage_offset=0),), split_step=0, allocates=0.0, sends=False
    ),
    Kind.B: KindRule(inputs=_BACKWARD_INPUTS, split_step=1, allocates=0.0, sends=True),
}
