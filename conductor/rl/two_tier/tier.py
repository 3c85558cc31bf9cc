"""The learned lending tier on a plan with migration: ready to run, and its runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray
from conductor.migration import kernels as migration
from conductor.migration.execution import (
    MigrationDraws,
    MigrationRun,
    Prepared,
    check_progress,
    finished,
)
from conductor.rl.two_tier import kernels
from conductor.rl.two_tier.guesses import Guesses
from conductor.rl.two_tier.network import LendingNetwork

_NEUTRAL: FloatArray = np.eye(kernels.NUM_CLUES)[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tier:
    """What ranks decide with beside the planner's rules; nothing of it is the planner's loop.

    Attributes:
        guesses: what actions will take; None is their expected times.
        network: what lenders are worth; None is the time they save.
        patience: with ready-first execution, an action may overtake the plan's next one where that is
            expected to be so many times its duration away; None is at any time.
    """

    guesses: Guesses | None = None
    network: LendingNetwork | None = None
    patience: float | None = None

    def mind(self, prepared: Prepared) -> kernels.Mind:
        """What the compiled event loop takes."""
        guesses, network = self.guesses, self.network
        near, far, lent = (guesses.near, guesses.far, guesses.lent) if guesses else (_NEUTRAL,) * 3
        durations = prepared.layout.duration_ms
        blank = np.zeros((kernels.NUM_FEATURES, 1))
        return kernels.Mind(
            guesses=guesses is not None,
            near=near,
            far=far,
            lent=lent,
            scores=network is not None,
            first=network.first if network else blank,
            first_bias=network.first_bias if network else blank[0],
            last=network.last if network else blank[0],
            last_bias=network.last_bias if network else 0.0,
            patience=-1.0 if self.patience is None else self.patience,
            unit_ms=float(durations.mean()) or 1.0,
        )


def run(prepared: Prepared, tier: Tier, durations_ms: npt.ArrayLike | None = None) -> MigrationRun:
    """One step; arguments and errors as `conductor.migration.execution.run`."""
    durations, factors = prepared.realise(durations_ms)
    n, num_ranks = prepared.program.num_actions, prepared.program.num_ranks
    state = migration.make_state(n, num_ranks, len(prepared.layout.stream_offsets) - 1)
    memory = kernels.make_memory(prepared.costs.where.shape[2], num_ranks, n)
    log = migration.make_log(n)
    makespan = kernels.run(
        prepared.layout, prepared.costs, prepared.rules, tier.mind(prepared), state, memory, log,
        durations[0], factors[0],
    )  # fmt: skip
    return finished(prepared, makespan, log)


def run_draws(prepared: Prepared, tier: Tier, durations_ms: npt.ArrayLike) -> MigrationDraws:
    """Many steps; arguments and errors as `conductor.migration.execution.run_draws`."""
    durations, factors = prepared.realise(durations_ms)
    moved = np.zeros((len(durations), 2), np.int64)
    work = np.zeros(len(durations))
    makespans = kernels.run_draws(
        prepared.layout, prepared.costs, prepared.rules, tier.mind(prepared), durations, factors,
        moved, work,
    )  # fmt: skip
    check_progress(prepared, makespans)
    total = prepared.program.duration_ms.sum()
    return MigrationDraws(makespan_ms=makespans, helps=moved[:, 1], moved_share=work / total)
