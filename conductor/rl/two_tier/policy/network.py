"""The weights of the policy of both tiers, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conductor.errors import ConductorError, FormatError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.npz import read_arrays, write_arrays
from conductor.rl.play import Float32Array, Weights
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.policy.kernels import NUM_OPTION_FEATURES, Policy

SHIPPED = Path(__file__).parents[2] / "shipped" / "two_tier.npz"
"""The policy that comes with the package."""

_FORMAT = "conductor-two-tier-1"
_LEAN = 20.0
_FEWER = 13
"""The feature that tells an option of fewer parts than a lender could do."""
_ORDER = (
    "first.weight", "first.bias", "second.weight", "second.bias", "actor.weight", "actor.bias",
)  # fmt: skip
_HEAD = ("from_trunk", "from_option", "bias", "last")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwoTierPolicy:
    """A learned scheduler's network with a second head, which scores lenders.

    Attributes:
        weights: both shared layers and the order head, as of the learned scheduler.
        from_trunk: float32, shape (hidden, width): from what the shared layers make of the borrower's stage.
        from_option: shape (NUM_OPTION_FEATURES, width): from what the borrower knows of an option.
        bias: shape (width,).
        last: shape (width,). Zeros are the planner's rule: the largest gain wins.
        lean: the score of a gain as long as a mean action.
        meta: what its card says (JSON values).
    """

    weights: Weights
    from_trunk: Float32Array
    from_option: Float32Array
    bias: Float32Array
    last: Float32Array
    lean: float = _LEAN
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def initial(
        cls,
        weights: Weights,
        rng: np.random.Generator,
        *,
        width: int = 16,
        lending: LendingNetwork | None = None,
    ) -> TwoTierPolicy:
        """Orders as the given weights do, and lends as the planner's rule or a lending network does.

        Args:
            weights: of the learned scheduler.
            rng: of the units that are to learn.
            width: of the lending head; a lending network takes its hidden units and two more.
            lending: what the head is to start as; None is the rule.
        """

        def random(*shape: int) -> Float32Array:
            return rng.normal(0.0, shape[0] ** -0.5, shape).astype(np.float32)

        policy = cls(
            weights=weights,
            from_trunk=0.3 * random(weights[2].shape[1], width),
            from_option=random(NUM_OPTION_FEATURES, width),
            bias=np.zeros(width, np.float32),
            last=np.zeros(width, np.float32),
        )
        if lending is not None:
            features, units = lending.first.shape
            policy.from_trunk[:, : units + 2] = 0.0
            policy.from_option[:, : units + 2] = 0.0
            policy.from_option[:features, :units] = lending.first
            policy.from_option[_FEWER, units + 1] = 1.0
            policy.bias[: units + 1] = *lending.first_bias, 1.0
            policy.last[: units + 2] = *(_LEAN * lending.last), _LEAN * lending.last_bias, -2.0
        return policy

    def compiled(
        self, instance: Instance, *, orders: bool, lends: bool, stay: float = 0.0
    ) -> Policy:
        """What the event loop takes, for a pipeline."""
        return Policy(
            orders=orders, lends=lends, stay=np.float32(stay), weights=self.weights,
            from_trunk=self.from_trunk, from_option=self.from_option, bias=self.bias, last=self.last,
            lean=self.lean, p=instance.arrays,
        )  # fmt: skip

    def save(self, path: str | Path, **meta: Any) -> None:
        """Writes an .npz file with a card.

        Raises:
            FormatError: it cannot be written.
        """
        card = {**self.meta, **meta, "format": _FORMAT, "lean": self.lean}
        arrays = dict(zip(_ORDER, self.weights, strict=True))
        write_arrays(path, card, {**arrays, **{name: getattr(self, name) for name in _HEAD}})

    @classmethod
    def load(cls, path: str | Path = SHIPPED) -> TwoTierPolicy:
        """Reads what `save` wrote; without a path the policy that comes with the package.

        Raises:
            FormatError: it cannot be read, or is none for today's observations.
        """
        meta, arrays = read_arrays(path, _ORDER + _HEAD, np.float32, "policy")
        weights = tuple(arrays.pop(name) for name in _ORDER)
        seen = len(weights[0]), len(arrays["from_option"])
        if meta.get("format") != _FORMAT or seen != (NUM_FEATURES, NUM_OPTION_FEATURES):
            raise FormatError(f"{path} holds no policy of both tiers of this version")
        return cls(weights=weights, **arrays, lean=float(meta["lean"]), meta=meta)


def runs(spec: PipelineSpec, schedule: Schedule) -> bool:
    """Whether a policy can run a schedule as it is: full backwards parted, micro-batches in order."""
    try:
        return Instance.of(spec, schedule).plan == schedule
    except ConductorError:
        return False
