"""Common random draws: every schedule of the same actions is judged on the same durations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conductor.ir.schedule import FloatArray, Schedule
from conductor.simulator.program import Program

DurationDraws = Callable[[Program], FloatArray]
"""Makes realised durations, shape (draws, n), of a program; the same each time it is called."""


class CommonDraws:
    """Draws made once for a set of actions and carried from one order of them to another.

    A draw belongs to its action (stage, kind, micro-batch, split) and moves with it.
    """

    def __init__(self, make: DurationDraws) -> None:
        """Args: make: called once for each set of actions."""
        self._make = make
        self._made: dict[tuple[bytes, bytes], FloatArray] = {}

    def of(self, schedule: Schedule, program: Program) -> FloatArray:
        """Durations of a schedule, shape (draws, n), program order."""
        identity = np.stack(
            [schedule.splits, schedule.microbatches, schedule.kinds, schedule.stages]
        )
        by_identity = np.lexsort(identity)
        key = (
            np.asarray(schedule.stage_ranks, np.int32).tobytes(),
            np.ascontiguousarray(identity[:, by_identity]).tobytes(),
        )
        if key not in self._made:
            self._made[key] = np.asarray(self._make(program), np.float64)[:, by_identity]
        durations = np.empty_like(self._made[key])
        durations[:, by_identity] = self._made[key]
        return durations
