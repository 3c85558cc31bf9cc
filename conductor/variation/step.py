"""A factor of whole steps that changes slowly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.errors import InvalidSpecError
from conductor.ir.schedule import FloatArray
from conductor.variation.kernels import autoregressive
from conductor.variation.per_stage import Levels, by_action
from conductor.variation.variation import Actions, Factor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFactor(Factor):
    """Steps are slow or fast as a whole; draws are steps that follow each other, an AR(1).

    Factors have mean 1. A stage that a step slows while others get faster has a level below 0.

    Attributes:
        forward: standard deviation of the logarithm, of F: a number, or one a stage.
        backward: of I, W and B.
        correlation: of a step with the one before.

    Source: 0.01 to 0.02, correlation 0.3 to 0.6 in the traces of arXiv 2505.05713.
    """

    forward: Levels = 0.015
    backward: Levels = 0.015
    correlation: float = 0.5

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        for name in ("forward", "backward"):
            levels = getattr(self, name)
            if not np.isfinite(levels).all():
                raise InvalidSpecError(f"{name} must be finite, not {levels!r}")
        if not -1.0 < self.correlation < 1.0:
            raise InvalidSpecError(f"correlation must be in (-1, 1), not {self.correlation!r}")

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """One quantity a draw, which each stage feels by its level."""
        x = autoregressive(rng.standard_normal(draws), self.correlation)
        level = by_action(program, self.forward, self.backward, "step")
        factors: FloatArray = np.exp(np.outer(x, level) - 0.5 * level * level)
        return factors
