"""Weights of a trained policy as one small file, read with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conductor.errors import FormatError
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.npz import read_arrays, write_arrays
from conductor.rl.play import Weights

FORMAT = "conductor-weights-1"
SHIPPED = Path(__file__).with_name("shipped") / "generalist.npz"
"""The policy that comes with the package."""

_DECIDING = (
    "first.weight",
    "first.bias",
    "second.weight",
    "second.bias",
    "actor.weight",
    "actor.bias",
)
_CRITIC = ("critic.weight", "critic.bias")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredPolicy:
    """A trained policy.

    Attributes:
        weights: what decides, for `play` and `record`.
        critic: weight (hidden, 1) and bias (1, 1) of the expected return, for training on.
        meta: what the policy's card says: whatever was given when it was saved (JSON values).
    """

    weights: Weights
    critic: Weights
    meta: Mapping[str, Any]

    @property
    def hidden(self) -> int:
        """Width of both hidden layers."""
        return int(self.weights[0].shape[1])


def save_weights(path: str | Path, policy: StoredPolicy) -> None:
    """Writes a policy to an .npz file.

    Raises:
        FormatError: it cannot be written.
    """
    card = {**policy.meta, "format": FORMAT, "features": NUM_FEATURES}
    arrays = dict(zip(_DECIDING + _CRITIC, policy.weights + policy.critic, strict=True))
    write_arrays(path, card, arrays)


def load_weights(path: str | Path) -> StoredPolicy:
    """Reads a policy from an .npz file.

    Raises:
        FormatError: it cannot be read, holds no policy, or one for other observations than today's.
    """
    meta, arrays = read_arrays(path, _DECIDING + _CRITIC, np.float32, "policy")
    if meta.get("format") != FORMAT:
        raise FormatError(f"{path} holds no policy (format {FORMAT})")
    if not _fits(arrays):
        raise FormatError(
            f"{path} holds a policy that observes {arrays['first.weight'].shape[0]} features,"
            f" but decisions have {NUM_FEATURES}: train it anew"
        )
    return StoredPolicy(
        weights=tuple(arrays[name] for name in _DECIDING),
        critic=tuple(arrays[name] for name in _CRITIC),
        meta=meta,
    )


@cache
def shipped_policy() -> StoredPolicy:
    """The generalist that comes with the package.

    Raises:
        FormatError: its file is missing or broken.
    """
    return load_weights(SHIPPED)


def _fits(arrays: Mapping[str, Any]) -> bool:
    """Whether each layer takes what the one before gives."""
    width = arrays["second.bias"].size
    layers = {"first": (NUM_FEATURES, width), "second": (width, width), "actor": (width, 4)}
    return all(
        arrays[f"{name}.weight"].shape == shape and arrays[f"{name}.bias"].shape == (1, shape[1])
        for name, shape in {**layers, "critic": (width, 1)}.items()
    )
