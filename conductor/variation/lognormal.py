"""Independent lognormal noise: what is left when nothing is shared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.problem.kind import Kind
from conductor.variation.per_stage import Levels, by_action, check_levels
from conductor.variation.variation import Actions, Factor


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalNoise(Factor):
    """Each action has its own factor of mean 1; draws are paired as in `UniformNoise`.

    Attributes:
        forward: standard deviation of the logarithm, of F: a number, or one a stage.
        backward: of I, W and B.

    Source: 0.005 to 0.013 in the traces of arXiv 2505.05713.
    """

    forward: Levels = 0.01
    backward: Levels = 0.01

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        check_levels("forward", self.forward)
        check_levels("backward", self.backward)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """Independent factors of all actions."""
        num_stages, num_units = int(program.stages.max()) + 1, int(program.units.max()) + 1
        grid = rng.standard_normal((draws, num_stages * num_units * len(Kind)))
        cells = (program.stages * num_units + program.units) * len(Kind) + program.kinds
        level = by_action(program, self.forward, self.backward, "lognormal")
        factors: FloatArray = np.exp(level * grid[:, cells] - 0.5 * level * level)
        return factors
