"""Numbers that differ by direction and stage, as fits give them."""

from __future__ import annotations

import numpy as np

from conductor.errors import InvalidSpecError
from conductor.ir.schedule import FloatArray, Int64Array
from conductor.problem.kind import Kind
from conductor.variation.variation import Actions

Levels = float | tuple[float, ...]
"""One number, or one a stage."""


def places(program: Actions, count: int, name: str) -> Int64Array:
    """Which of `count` numbers counts for each action: that of its stage, or else of its rank.

    A fit to one stage a rank so serves schedules that give a rank several.

    Raises:
        InvalidSpecError: there is neither one a stage nor one a rank.
    """
    num_ranks = len(program.rank_offsets) - 1
    num_stages = int(program.stages.max()) + 1
    if count == num_stages:
        return program.stages.astype(np.int64)
    if count == num_ranks:
        return program.ranks.astype(np.int64)
    raise InvalidSpecError(
        f"{name} has numbers for {count} stages, but there are {num_stages} stages on {num_ranks} ranks"
    )


def by_action(program: Actions, forward: Levels, backward: Levels, name: str) -> FloatArray:
    """Each action's number, shape (n,): `forward` for F, `backward` for I, W and B."""
    values = np.empty(len(program.kinds))
    for levels, mine in (
        (forward, program.kinds == Kind.F),
        (backward, program.kinds != Kind.F),
    ):
        if isinstance(levels, tuple):
            values[mine] = np.asarray(levels)[places(program, len(levels), name)[mine]]
        else:
            values[mine] = levels
    return values


def check_levels(name: str, levels: Levels) -> None:
    """Checks relative spreads.

    Raises:
        InvalidSpecError: one is below 0, or no number.
    """
    for value in levels if isinstance(levels, tuple) else (levels,):
        if not 0.0 <= value < np.inf:
            raise InvalidSpecError(f"{name} must be at least 0, not {value!r}")
