"""Links that are slower than expected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.errors import InvalidSpecError
from conductor.ir.schedule import FloatArray
from conductor.problem.spec import PipelineSpec
from conductor.variation.per_stage import Levels, check_levels
from conductor.variation.variation import Actions, Factor, Product, Variation


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDelay(Factor):
    """Transfers take `factor` times their expected time and `extra_ms`, in every draw.

    No action takes longer for it, so it is no factor of durations: `split_links` puts it into the spec, for
    whoever simulates. Planners know the expected links alone.

    Attributes:
        factor: one number, or one for each pair of consecutive stages.
        extra_ms: likewise.

    Source: ours.
    """

    factor: Levels = 1.0
    extra_ms: Levels = 0.0

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: one is below 0, or no number.
        """
        check_levels("factor", self.factor)
        check_levels("extra_ms", self.extra_ms)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """Refuses.

        Raises:
            InvalidSpecError: always.
        """
        raise InvalidSpecError("the variation delays links, which durations do not hold")

    def delayed(self, spec: PipelineSpec) -> PipelineSpec:
        """The spec with its links as they are.

        Raises:
            InvalidSpecError: the spec has another number of links.
        """
        num_links = spec.num_stages - 1
        for name in ("factor", "extra_ms"):
            levels = getattr(self, name)
            if isinstance(levels, tuple) and len(levels) != num_links:
                raise InvalidSpecError(
                    f"{name} lists {len(levels)} numbers for {num_links} pairs of consecutive stages"
                )
        expected = np.broadcast_to(np.asarray(spec.transfer_ms, np.float64), (num_links,))
        actual = expected * np.asarray(self.factor) + np.asarray(self.extra_ms)
        return spec.with_(transfer_ms=tuple(actual.tolist()))


def split_links(variation: Variation, spec: PipelineSpec) -> tuple[Variation, PipelineSpec]:
    """What varies the actions, and the spec with its links as they are.

    Raises:
        InvalidSpecError: the spec has another number of links than a delay.
    """
    parts = variation.parts if isinstance(variation, Product) else (variation,)
    if not any(isinstance(part, LinkDelay) for part in parts):
        return variation, spec
    for part in parts:
        if isinstance(part, LinkDelay):
            spec = part.delayed(spec)
    factors = (p for p in parts if isinstance(p, Factor) and not isinstance(p, LinkDelay))
    return Product(tuple(factors)), spec
