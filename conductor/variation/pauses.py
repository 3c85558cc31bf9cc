"""Pauses that hit forwards only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.problem.kind import Kind
from conductor.variation.variation import Actions, Factor, check_range, check_share


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPauses(Factor):
    """Now and then a forward is held up, as by the garbage collection of a rank's Python process.

    A backward is not: autograd launches it without Python.

    Attributes:
        chance: of each forward.
        pause_ms: range of the pause.

    Source: pauses of 100 to 500 ms in arXiv 2505.05713.
    """

    chance: float = 0.01
    pause_ms: tuple[float, float] = (100.0, 500.0)

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        check_share("chance", self.chance)
        check_range("pause_ms", self.pause_ms)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """1 but for forwards that are held up; an action without time has no pause."""
        shape = (draws, len(program.kinds))
        held = (
            (rng.random(shape) < self.chance)
            & (program.kinds == Kind.F)
            & (program.duration_ms > 0.0)
        )
        expected = np.where(program.duration_ms > 0.0, program.duration_ms, 1.0)
        factors: FloatArray = np.where(
            held, 1.0 + rng.uniform(*self.pause_ms, shape) / expected, 1.0
        )
        return factors
