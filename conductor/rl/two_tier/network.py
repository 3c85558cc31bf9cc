"""The network that says what a lender is worth, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conductor.errors import FormatError
from conductor.ir.schedule import FloatArray
from conductor.rl.npz import read_arrays, write_arrays
from conductor.rl.two_tier.kernels import NUM_FEATURES

SHIPPED = Path(__file__).parents[1] / "shipped" / "lending.npz"
"""The network that comes with the package."""

_FORMAT = "conductor-lending-1"
_ARRAYS = ("first", "first_bias", "last", "last_bias")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LendingNetwork:
    """One hidden layer of ReLU: from what a borrower knows of a lender to what asking it is worth.

    The output, times the mean expected time of an action, is added to the time that a lender saves. All
    zeros is the planner's rule.

    Attributes:
        first: float64, shape (NUM_FEATURES, hidden).
        first_bias: shape (hidden,).
        last: shape (hidden,).
        last_bias: the output's.
        meta: what its card says (JSON values).
    """

    first: FloatArray
    first_bias: FloatArray
    last: FloatArray
    last_bias: float
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def initial(cls, hidden: int, rng: np.random.Generator) -> LendingNetwork:
        """Random features and a last layer of zeros: decides exactly as the planner's rule."""
        return cls(
            first=rng.normal(0.0, 0.4, (NUM_FEATURES, hidden)),
            first_bias=rng.normal(0.0, 0.1, hidden),
            last=np.zeros(hidden),
            last_bias=0.0,
        )

    @property
    def parameters(self) -> FloatArray:
        """All of them, one after the other."""
        parts = (self.first.ravel(), self.first_bias, self.last, [self.last_bias])
        return np.concatenate(parts)

    def with_parameters(self, flat: FloatArray) -> LendingNetwork:
        """The same network with other parameters."""
        edges = np.cumsum([self.first.size, self.first_bias.size, self.last.size])
        first, first_bias, last, last_bias = np.split(flat, edges)
        return LendingNetwork(
            first=first.reshape(self.first.shape).copy(),
            first_bias=first_bias.copy(),
            last=last.copy(),
            last_bias=float(last_bias[0]),
            meta=self.meta,
        )

    def save(self, path: str | Path, **meta: Any) -> None:
        """Writes an .npz file with a card.

        Raises:
            FormatError: it cannot be written.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in _ARRAYS}
        write_arrays(path, {**self.meta, **meta, "format": _FORMAT}, arrays)

    @classmethod
    def load(cls, path: str | Path = SHIPPED) -> LendingNetwork:
        """Reads what `save` wrote; without a path the network that comes with the package.

        Raises:
            FormatError: it cannot be read, or is none for today's features.
        """
        meta, arrays = read_arrays(path, _ARRAYS, np.float64, "network")
        if meta.get("format") != _FORMAT or len(arrays["first"]) != NUM_FEATURES:
            raise FormatError(f"{path} holds no lending network of this version")
        last_bias = float(arrays.pop("last_bias")[0])
        return cls(**arrays, last_bias=last_bias, meta=meta)
