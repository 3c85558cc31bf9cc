"""Independent uniform noise, the paper's model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.problem.kind import Kind
from conductor.variation.variation import Actions, Factor, check_level


@dataclass(frozen=True, slots=True)
class UniformNoise(Factor):
    """Each action takes its expected time times 1 + U(-level, level), independently.

    Draws are paired: with the same generator an action (stage, kind, micro-batch) has the same factor
    in every schedule on the same number of stages.

    Attributes:
        level: in [0, 1).

    Source: the Conductor paper's simulator.
    """

    level: float

    def __post_init__(self) -> None:
        """Checks the level.

        Raises:
            InvalidSpecError: it is not in [0, 1).
        """
        check_level("noise", self.level)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """Independent factors of all actions."""
        num_stages, num_units = int(program.stages.max()) + 1, int(program.units.max()) + 1
        grid = rng.uniform(
            1.0 - self.level, 1.0 + self.level, (draws, num_stages * num_units * len(Kind))
        )
        cells = (program.stages * num_units + program.units) * len(Kind) + program.kinds
        return np.ascontiguousarray(grid[:, cells])
