"""Factors as they were seen in a trace: of micro-batches, and of the ranks of each replica."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.errors import InvalidSpecError
from conductor.ir.schedule import FloatArray
from conductor.variation.per_stage import by_action
from conductor.variation.variation import Actions, Factor

_LEAST = 0.05
"""No factor is below: a sum of several parts may leave what was seen."""


def probabilities(count: int) -> FloatArray:
    """The probabilities of so many quantiles, from 0 to 1, close to each other at both ends."""
    places: FloatArray = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, count))
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMicrobatches(Factor):
    """A slow micro-batch is slow on every stage, by as much as that stage feels it.

    The factor is `1 + sum over parts of load * x`, x a quantity of the micro-batch with mean 0 and variance
    1 that all stages share. The first part is mostly the micro-batch's work, the second what tells F and
    B apart.

    Attributes:
        quantiles: for each part the values of x at the n + 1 probabilities `(1 - cos(pi i / n)) / 2`, which
            lie close to each other at both ends.
        forward: for each part the load of F, by stage.
        backward: for each part that of I, W and B, by stage.

    Source: ours; a time of a N + b sum(l^2) is of this form, a and b by stage.
    """

    quantiles: tuple[tuple[float, ...], ...]
    forward: tuple[tuple[float, ...], ...]
    backward: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Checks the shapes.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        for name in ("quantiles", "forward", "backward"):
            rows = tuple(tuple(map(float, row)) for row in getattr(self, name))
            object.__setattr__(self, name, rows)
            if len(rows) != len(self.quantiles) or len({len(row) for row in rows}) > 1:
                raise InvalidSpecError(f"{name} must have one row for each part, all equally long")
        if any(len(row) < 2 or list(row) != sorted(row) for row in self.quantiles):
            raise InvalidSpecError("quantiles must be at least two numbers in order")

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """One quantity a part, draw and micro-batch."""
        shape = (draws, int(program.microbatches.max()) + 1)
        factors = np.ones((draws, len(program.kinds)))
        for values, forward, backward in zip(
            self.quantiles, self.forward, self.backward, strict=True
        ):
            x = np.interp(rng.random(shape), probabilities(len(values)), values)
            factors += x[:, program.microbatches] * by_action(
                program, forward, backward, "microbatch"
            )
        return np.maximum(factors, _LEAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedReplicas(Factor):
    """Each draw is a step of one of the replicas that were seen, with the factors of its ranks.

    Attributes:
        forward: factor of F, by replica and stage.
        backward: of I, W and B.
    """

    forward: tuple[tuple[float, ...], ...]
    backward: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Checks the factors.

        Raises:
            InvalidSpecError: one is not above 0, or the shapes differ.
        """
        for name in ("forward", "backward"):
            rows = tuple(tuple(map(float, row)) for row in getattr(self, name))
            object.__setattr__(self, name, rows)
            if not rows or any(not 0.0 < value < np.inf for row in rows for value in row):
                raise InvalidSpecError(f"{name} must be factors above 0, a row for each replica")
            if len(rows) != len(self.forward) or len({len(row) for row in rows}) > 1:
                raise InvalidSpecError(
                    f"{name} must have one row for each replica, all equally long"
                )

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """The factors of one replica a draw."""
        table = np.stack(
            [
                by_action(program, forward, backward, "replicas")
                for forward, backward in zip(self.forward, self.backward, strict=True)
            ]
        )
        return np.ascontiguousarray(table[rng.integers(len(table), size=draws)])
