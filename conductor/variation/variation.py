"""Models of variation: from expected to realised durations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from conductor.errors import InvalidSpecError
from conductor.ir.schedule import FloatArray, Int8Array, Int32Array, Int64Array


class Actions(Protocol):
    """What a model of variation knows of a program; `simulator.program.Program` is one."""

    @property
    def rank_offsets(self) -> Int64Array:
        """Rank r owns the actions `[offsets[r], offsets[r + 1])`."""
        ...

    @property
    def ranks(self) -> Int32Array:
        """Rank of each action."""
        ...

    @property
    def kinds(self) -> Int8Array:
        """Kind of each action."""
        ...

    @property
    def stages(self) -> Int32Array:
        """Stage of each action."""
        ...

    @property
    def microbatches(self) -> Int32Array:
        """Micro-batch of each action."""
        ...

    @property
    def units(self) -> Int32Array:
        """Micro-batch and sequence split of each action in one number."""
        ...

    @property
    def duration_ms(self) -> FloatArray:
        """Expected duration of each action."""
        ...


class Variation(Protocol):
    """Anything that draws realised durations."""

    def sample(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """Realised durations in milliseconds, shape (draws, n), program order."""
        ...


class Factor(ABC):
    """A variation that multiplies the expected durations; factors compose by `Product`."""

    __slots__ = ()

    @abstractmethod
    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """Realised over expected duration, shape (draws, n), program order."""

    def sample(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """Realised durations in milliseconds, shape (draws, n), program order."""
        return program.duration_ms * self.factors(program, draws, rng)


@dataclass(frozen=True, slots=True)
class NoVariation(Factor):
    """Every action takes its expected time."""

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """Ones."""
        return np.ones((draws, len(program.ranks)))


@dataclass(frozen=True, slots=True)
class Product(Factor):
    """Several factors at once; they are drawn in their order and multiplied."""

    parts: tuple[Factor, ...]

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """The product of the parts' factors."""
        product = np.ones((draws, len(program.ranks)))
        for part in self.parts:
            product *= part.factors(program, draws, rng)
        return product


def check_share(name: str, value: float) -> None:
    """Checks a probability or a level.

    Raises:
        InvalidSpecError: it is not in [0, 1].
    """
    if not 0.0 <= value <= 1.0:
        raise InvalidSpecError(f"{name} must be in [0, 1], not {value!r}")


def check_level(name: str, value: float) -> None:
    """Checks a relative spread, which must leave times above 0.

    Raises:
        InvalidSpecError: it is not in [0, 1).
    """
    if not 0.0 <= value < 1.0:
        raise InvalidSpecError(f"{name} must be in [0, 1), not {value!r}")


def check_range(name: str, value: tuple[float, float]) -> None:
    """Checks a range of factors.

    Raises:
        InvalidSpecError: its ends are not above 0 and in order.
    """
    low, high = value
    if not 0.0 < low <= high < np.inf:
        raise InvalidSpecError(f"{name} must be two factors above 0 in order, not {value!r}")
