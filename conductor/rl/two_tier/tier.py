"""The learned lending tier on a plan with migration: ready to run, and its runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from conductor.errors import InvalidScheduleError
from conductor.ir.schedule import FloatArray
from conductor.migration import kernels as migration
from conductor.migration.execution import (
    MigrationDraws,
    MigrationRules,
    MigrationRun,
    Prepared,
    check_progress,
    finished,
)
from conductor.rl.instance import Instance
from conductor.rl.two_tier import kernels
from conductor.rl.two_tier.guesses import Guesses
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.policy.kernels import Policy, make_desk
from conductor.rl.two_tier.policy.network import TwoTierPolicy

_NEUTRAL: FloatArray = np.eye(kernels.NUM_CLUES)[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tier:
    """What ranks decide with beside the planner's rules; nothing of it is the planner's loop.

    Attributes:
        guesses: what actions will take; None is their expected times.
        network: what lenders are worth; None is the time they save.
        patience: with ready-first execution, an action may overtake the plan's next one where that is
            expected to be so many times its duration away; None is at any time.
        policy: the policy of both tiers; None is nothing of it.
        orders: whether it decides what ranks do next; with ready-first execution only.
        stay: then, how much the plan's next action, or waiting for it, is preferred.
        lends: whether it picks lenders.
        warned_rules: of ranks that have heard of a late link, which no plan knew; with them a network is
            asked. None changes nothing.
        warned_network: that network, where there is no other.
    """

    guesses: Guesses | None = None
    network: LendingNetwork | None = None
    patience: float | None = None
    policy: TwoTierPolicy | None = None
    orders: bool = False
    stay: float = 0.0
    lends: bool = False
    warned_rules: MigrationRules | None = None
    warned_network: LendingNetwork | None = None

    @property
    def name(self) -> str:
        """What decides, in words."""
        learned = self.guesses is not None or self.network is not None or self.lends
        lending = f"{'learned' if learned else 'planned'} lending"
        if not self.orders:
            return f"policy's {lending}" if self.lends else lending
        return f"policy held by {self.stay:g}, {lending}"

    def mind(self, prepared: Prepared, planned: Prepared | None = None) -> kernels.Mind:
        """What the compiled event loop takes, beside a policy.

        Args:
            prepared: with the links as they are.
            planned: with the links as planned; None if they are the same.
        """
        layout = (planned or prepared).layout
        guesses, network = self.guesses, self.network or self.warned_network
        near, far, lent = (guesses.near, guesses.far, guesses.lent) if guesses else (_NEUTRAL,) * 3
        durations = prepared.layout.duration_ms
        blank = np.zeros((kernels.NUM_FEATURES, 1))
        return kernels.Mind(
            guesses=guesses is not None,
            near=near,
            far=far,
            lent=lent,
            scores=self.network is not None,
            first=network.first if network else blank,
            first_bias=network.first_bias if network else blank[0],
            last=network.last if network else blank[0],
            last_bias=network.last_bias if network else 0.0,
            patience=-1.0 if self.patience is None else self.patience,
            unit_ms=float(durations.mean()) or 1.0,
            input_lag_ms=layout.input_lag_ms,
            output_lag_ms=layout.output_lag_ms,
            warned=self.warned_rules is not None,
            warned_rules=(
                prepared.with_rules(self.warned_rules) if self.warned_rules else prepared
            ).rules,
        )

    def compiled_policy(self, prepared: Prepared, planned: Prepared | None = None) -> Policy | None:
        """The policy as the loop takes it, None where it decides nothing; arguments as of `mind`.

        Raises:
            InvalidScheduleError: it cannot run the schedule.
        """
        if self.policy is None or not (self.orders or self.lends):
            return None
        planned = planned or prepared
        instance = Instance.of(planned.spec, planned.schedule)
        if instance.plan != prepared.schedule:
            raise InvalidScheduleError(
                f"{prepared.schedule.name} has full backwards or micro-batches out of order"
            )
        lags = prepared.layout.input_lag_ms
        met = replace(instance, arrays=instance.arrays._replace(input_lags=lags))
        return self.policy.compiled(met, orders=self.orders, lends=self.lends, stay=self.stay)


def run(
    prepared: Prepared,
    tier: Tier,
    durations_ms: npt.ArrayLike | None = None,
    planned: Prepared | None = None,
) -> MigrationRun:
    """One step; arguments and errors as `conductor.migration.execution.run`, `planned` as of `Tier.mind`."""
    mind = tier.mind(prepared, planned)
    durations, factors = prepared.realise(durations_ms)
    n, num_ranks = prepared.program.num_actions, prepared.program.num_ranks
    state = migration.make_state(n, num_ranks, len(prepared.layout.stream_offsets) - 1)
    memory = kernels.make_memory(prepared.costs.where.shape[2], num_ranks, n)
    policy = tier.compiled_policy(prepared, planned)
    desk = None if policy is None else make_desk(policy)
    log = migration.make_log(n)
    makespan = kernels.run(
        prepared.layout, prepared.costs, prepared.rules, mind, desk, state, memory, log, durations[0],
        factors[0],
    )  # fmt: skip
    return finished(prepared, makespan, log)


def run_draws(
    prepared: Prepared, tier: Tier, durations_ms: npt.ArrayLike, planned: Prepared | None = None
) -> MigrationDraws:
    """Many steps; arguments and errors as `conductor.migration.execution.run_draws`, `planned` as of
    `Tier.mind`."""
    durations, factors = prepared.realise(durations_ms)
    moved = np.zeros((len(durations), 2), np.int64)
    work = np.zeros(len(durations))
    makespans = kernels.run_draws(
        prepared.layout, prepared.costs, prepared.rules, tier.mind(prepared, planned),
        tier.compiled_policy(prepared, planned), durations, factors, moved, work,
    )  # fmt: skip
    check_progress(prepared, makespans)
    total = prepared.program.duration_ms.sum()
    return MigrationDraws(makespan_ms=makespans, helps=moved[:, 1], moved_share=work / total)
