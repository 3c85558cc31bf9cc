"""Emulated devices: every action is stretched to a given time by sleeping.

Sleeping takes no CPU, so many emulated ranks run side by side on few cores as real devices would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from conductor.ir.schedule import FloatArray, Schedule
from conductor.problem.spec import PipelineSpec
from conductor.simulator.program import encode
from conductor.variation.variation import NoVariation, Variation


class Pace(Protocol):
    """How long actions take at least."""

    def targets_ms(self, schedule: Schedule, step: int) -> FloatArray:
        """Shape (n,), program order of all ranks; every rank must get the same."""
        ...

    def lag_ms(self, schedule: Schedule) -> dict[int, float]:
        """Transfer time between stage s and s + 1, by s."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that is slower for a while.

    Attributes:
        rank: which one.
        factor: on all its actions.
        first: step at which it begins.
        last: step at which it ends, itself not slow; None is never.
    """

    rank: int
    factor: float
    first: int = 0
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """The times of a spec, varied.

    Attributes:
        spec: a rank-level profile is split over the stages of each schedule.
        variation: of the expected times, drawn anew each step.
        stragglers: on top of it.
        seed: of the variation.
    """

    spec: PipelineSpec
    variation: Variation = field(default_factory=NoVariation)
    stragglers: Sequence[Straggler] = ()
    seed: int = 0

    def targets_ms(self, schedule: Schedule, step: int) -> FloatArray:
        """As `Pace`: realised times of one step, blocking sends with them."""
        program = encode(self.spec, schedule)
        rng = np.random.default_rng([self.seed, step])
        durations = self.variation.sample(program, 1, rng)[0]
        for straggler in self.stragglers:
            if straggler.first <= step and (straggler.last is None or step < straggler.last):
                durations[program.ranks == straggler.rank] *= straggler.factor
        realised: FloatArray = durations + program.send_ms
        return realised

    def lag_ms(self, schedule: Schedule) -> dict[int, float]:
        """As `Pace`; none where the sender pays."""
        spec = self.spec.on_stages(schedule.stage_ranks)
        if spec.blocking_transfers:
            return {}
        return dict(enumerate(spec.link_ms.tolist()))
