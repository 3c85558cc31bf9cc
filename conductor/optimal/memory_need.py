"""Which limits no schedule can keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.problem.spec import PipelineSpec

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShortfall:
    """A rank whose limit no order keeps.

    Attributes:
        rank: which.
        needed: one micro-batch on all stages of the rank.
        limit: what it has.
    """

    rank: int
    needed: float
    limit: float

    def __str__(self) -> str:
        """One sentence."""
        return (
            f"rank {self.rank} must hold one micro-batch on all its stages, which takes"
            f" {self.needed:.6g} of activation memory, but its limit is {self.limit:.6g}:"
            f" {self.needed - self.limit:.6g} is missing"
        )


def memory_shortfalls(spec: PipelineSpec) -> tuple[MemoryShortfall, ...]:
    """The ranks that make a spec infeasible, empty when there is a schedule for it.

    A micro-batch is held on every stage of a rank when its backward begins, and one micro-batch after
    another needs no more than that. So this is the whole condition.
    """
    need = np.bincount(
        spec.stage_ranks, spec.per_stage("activation_memory"), minlength=spec.num_ranks
    )
    return tuple(
        MemoryShortfall(rank=rank, needed=float(need[rank]), limit=float(limit))
        for rank, limit in enumerate(spec.memory_limits)
        if need[rank] > limit * (1.0 + _TOLERANCE)
    )
