"""Stragglers that come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.variation.kernels import markov_factors
from conductor.variation.variation import Actions, Factor, check_range, check_share


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovStragglers(Factor):
    """Each rank turns slow and recovers at random, from action to action in the order of its plan.

    Attributes:
        factor: of the durations of a slow rank.
        p_slow: probability that a rank turns slow before an action.
        p_recover: probability that a slow rank recovers before an action.
    """

    factor: float = 2.0
    p_slow: float = 0.03
    p_recover: float = 0.3

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        check_range("factor", (self.factor, self.factor))
        check_share("p_slow", self.p_slow)
        check_share("p_recover", self.p_recover)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """`factor` where the rank is slow, 1 elsewhere; every rank starts at its full speed."""
        chance = rng.random((draws, len(program.ranks)))
        factors: FloatArray = markov_factors(
            chance, program.rank_offsets, self.factor, self.p_slow, self.p_recover
        )
        return factors
