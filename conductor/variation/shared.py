"""Factors that many actions share: of a micro-batch, a stage, a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.variation.variation import Actions, Factor, check_level, check_range, check_share


def _bulk_and_heavy(
    rng: np.random.Generator,
    shape: tuple[int, int],
    level: float,
    heavy_share: float,
    heavy: tuple[float, float],
) -> FloatArray:
    """Factors near 1, and a share of them in the heavy range."""
    bulk = rng.uniform(1.0 - level, 1.0 + level, shape)
    return np.where(rng.random(shape) < heavy_share, rng.uniform(*heavy, shape), bulk)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchFactor(Factor):
    """A slow micro-batch is slow on every stage, forward and backward alike.

    Attributes:
        level: most micro-batches have a factor in 1 +- level.
        heavy_share: share of micro-batches with a factor in the heavy range instead.
        heavy: the range.

    Source: variable sequence lengths in arXiv 2505.05713 and its traces.
    """

    level: float = 0.08
    heavy_share: float = 0.115
    heavy: tuple[float, float] = (1.5, 2.9)

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        check_level("level", self.level)
        check_share("heavy_share", self.heavy_share)
        check_range("heavy", self.heavy)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """One factor a draw and micro-batch."""
        shape = (draws, int(program.microbatches.max()) + 1)
        shared = _bulk_and_heavy(rng, shape, self.level, self.heavy_share, self.heavy)
        return np.ascontiguousarray(shared[:, program.microbatches])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFactor(Factor):
    """A rank is slow, or fast, for the whole step.

    Attributes:
        level: most ranks have a factor in 1 +- level.
        slow_share: share of ranks with a factor in the slow range instead.
        slow: the range.

    Source: worker factors of arXiv 2505.05713.
    """

    level: float = 0.01
    slow_share: float = 0.02
    slow: tuple[float, float] = (1.2, 3.0)

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        check_level("level", self.level)
        check_share("slow_share", self.slow_share)
        check_range("slow", self.slow)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """One factor a draw and rank."""
        shape = (draws, len(program.rank_offsets) - 1)
        shared = _bulk_and_heavy(rng, shape, self.level, self.slow_share, self.slow)
        return np.ascontiguousarray(shared[:, program.ranks])


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFactor(Factor):
    """A stage takes longer than planned for the whole step; the last one most of all.

    Attributes:
        level: all stages but the last have a factor in 1 +- level.
        last: range of the last stage's factor (its output head and loss).

    Source: stage factors of arXiv 2505.05713.
    """

    level: float = 0.0
    last: tuple[float, float] = (1.4, 2.1)

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        check_level("level", self.level)
        check_range("last", self.last)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """One factor a draw and stage."""
        num_stages = int(program.stages.max()) + 1
        shared = rng.uniform(1.0 - self.level, 1.0 + self.level, (draws, num_stages))
        shared[:, -1] = rng.uniform(*self.last, draws)
        return np.ascontiguousarray(shared[:, program.stages])
