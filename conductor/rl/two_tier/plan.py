"""The learned two-tier dispatcher for one pipeline: the planner's plan, and the lending tier where it pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray, Schedule
from conductor.migration.execution import (
    Execution,
    MigrationDraws,
    MigrationRules,
    Prepared,
    prepare,
)
from conductor.migration.model import SimpleModel
from conductor.migration.plan import MigrationPlan, plan_migration
from conductor.problem.spec import PipelineSpec
from conductor.rl.execution import STAYS
from conductor.rl.two_tier.guesses import Guesses, fit_guesses
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.policy.network import TwoTierPolicy, runs
from conductor.rl.two_tier.tier import Tier, run_draws
from conductor.rl.two_tier.training import FITTING_DRAWS, PATIENCE, generous
from conductor.simulator.program import Program
from conductor.variation import NoVariation, Variation

_ACTIONS = 100_000
"""Actions simulated for each candidate, in 64 to 512 draws."""
_STEADFAST = 1e9
"""Patience of a rank that keeps to the plan."""
_LATE, _LATE_DRAWS = 3.0, 8
"""How late a link is imagined to be, in mean actions, and on how many draws."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwoTierPlan:
    """What ranks do: an order, the planner's rules and the learned tier on top.

    Attributes:
        spec: that was planned for.
        schedule: the order.
        execution: static or ready-first.
        rules: of lending.
        model: what moves and what it costs.
        tier: empty where the planner's own rules are better.
        plan_ms: mean makespan on the planning draws.
        planner_ms: of the best of the planner's plans on the same draws.
    """

    spec: PipelineSpec
    schedule: Schedule
    execution: Execution
    rules: MigrationRules
    model: SimpleModel
    tier: Tier
    plan_ms: float
    planner_ms: float

    def prepared(self, spec: PipelineSpec | None = None) -> Prepared:
        """Ready for `tier.run` and `tier.run_draws`.

        Args:
            spec: with the links as they are; None is as planned.
        """
        return prepare(
            spec or self.spec, self.schedule, model=self.model, rules=self.rules,
            execution=self.execution,
        )  # fmt: skip

    def run_draws(
        self, durations_ms: npt.ArrayLike, spec: PipelineSpec | None = None
    ) -> MigrationDraws:
        """Many steps; arguments as of `tier.run_draws` and `prepared`."""
        return run_draws(self.prepared(spec), self.tier, durations_ms, self.prepared())


def plan_two_tier(
    spec: PipelineSpec,
    plans: Sequence[MigrationPlan] | None = None,
    *,
    model: SimpleModel | None = None,
    variation: Variation | None = None,
    network: LendingNetwork | None = None,
    policy: TwoTierPolicy | None = None,
    seed: int = 0,
) -> TwoTierPlan:
    """Puts the learned tier on the planner's plans and keeps the best of all on planning draws.

    What actions will take is fitted to the variation that planners know. The network is asked with and without
    a look at an action's pace, in the plan's order and with leave to overtake; the policy, where there is one,
    in the plan's order and held to it more or less firmly. The planner's best plan stays unless a candidate is
    better by more than chance. Of equals the one that adapts most is taken: with leave to overtake where that
    costs nothing, or else only once a late link is known, and then with the network or without it, whichever
    is better when any one link is late.

    Args:
        spec: the problem, or its rank-level profile.
        plans: of `plan_migration`, for this spec, model and variation; None makes one.
        model: what moves and what it costs.
        variation: what realised durations are like.
        network: None is the one that comes with the package.
        policy: of both tiers; None is to do without.
        seed: of the draws, which are others than those of `plan_migration`.

    Raises:
        DoesNotFitError: there is no order to start from.
    """
    model = model or SimpleModel()
    variation = variation or NoVariation()
    network = network or LendingNetwork.load()
    if plans is None:
        plans = [plan_migration(spec, model=model, variation=variation, seed=seed)]
    most = max(plan.prepared.program.num_actions for plan in plans)
    draws = max(64, min(512, _ACTIONS // most))

    def value(one: TwoTierPlan) -> FloatArray:
        prepared = one.prepared()
        return run_draws(
            prepared, one.tier, _draws(variation, prepared.program, draws, (seed, 5))
        ).makespan_ms

    def tried(some: Iterable[TwoTierPlan]) -> list[tuple[TwoTierPlan, FloatArray]]:
        return [(one, value(one)) for one in some]

    stays = [_staying(spec, plan, model) for plan in plans]
    best, base = min(tried(stays), key=_mean)
    found = base
    candidates = [
        pair for stay in stays for pair in tried(_candidates(stay, variation, network, (seed, 6)))
    ]
    if policy is not None:
        lent = [
            pair for stay in stays for pair in tried(_lending(stay, variation, policy, (seed, 6)))
        ]
        candidates += lent
        if lent:
            candidates += tried(_ordering(min(lent, key=_mean)[0]))
    learned, values = min(candidates, key=_mean, default=(best, base))
    gain = base - values
    if gain.mean() > 1.64 * gain.std() / np.sqrt(len(gain)) + 1e-9 * base.mean():
        best, found = learned, values
    if best.execution == "static" and not best.schedule.overlaps.any():
        free = found.mean() * (1.0 + 1e-9)
        for patience in (PATIENCE, _STEADFAST):
            patient = replace(
                best, execution="ready-first", tier=replace(best.tier, patience=patience)
            )
            values = value(patient)
            if values.mean() <= free:
                best, found = patient, values
                break
    best = _ready_for_late_links(best, variation, network, (seed, 7))
    return replace(best, plan_ms=float(found.mean()), planner_ms=float(base.mean()))


def _ready_for_late_links(
    plan: TwoTierPlan, variation: Variation, network: LendingNetwork, seed: tuple[int, int]
) -> TwoTierPlan:
    """The plan with what is best once a late link is known: its own rules or the network."""
    links = plan.spec.num_ranks - 1
    if plan.execution == "static" or not links:
        return plan
    learned = replace(
        plan.tier,
        warned_rules=generous(plan.rules, postpone=True),
        warned_network=plan.tier.network or network,
    )
    planned = plan.prepared()
    drawn = _draws(variation, planned.program, _LATE_DRAWS, seed)
    late_ms = _LATE * float(planned.layout.duration_ms.mean())
    gain = 0.0
    for link in range(links):
        transfer_ms = np.broadcast_to(plan.spec.transfer_ms, links).astype(np.float64)
        transfer_ms[link] += late_ms
        prepared = plan.prepared(plan.spec.with_(transfer_ms=tuple(transfer_ms.tolist())))
        gain += float(
            run_draws(prepared, plan.tier, drawn, planned).makespan_ms.mean()
            - run_draws(prepared, learned, drawn, planned).makespan_ms.mean()
        )
    return replace(plan, tier=learned) if gain > 0.0 else plan


def _mean(one: tuple[TwoTierPlan, FloatArray]) -> float:
    return float(one[1].mean())


def _staying(spec: PipelineSpec, plan: MigrationPlan, model: SimpleModel) -> TwoTierPlan:
    return TwoTierPlan(
        spec=spec, schedule=plan.schedule, execution=plan.execution, rules=plan.rules, model=model,
        tier=Tier(), plan_ms=plan.plan_ms, planner_ms=plan.plan_ms,
    )  # fmt: skip


def _candidates(
    stay: TwoTierPlan, variation: Variation, network: LendingNetwork, seed: tuple[int, int]
) -> Iterator[TwoTierPlan]:
    """A plan with the learned tier, in the ways worth trying."""
    if not stay.prepared().costs.movable.any():
        return
    ways: list[tuple[Execution, float | None]] = [(stay.execution, None)]
    if not stay.schedule.overlaps.any():
        ways.append(("ready-first", PATIENCE))
    for seen in (True, False):
        guesses = _fitted(stay, variation, seen, seed)
        if guesses is None and seen:
            continue  # nothing to see: everything takes its expected time
        for execution, patience in ways:
            offered = generous(stay.rules, postpone=seen)
            plain = stay.rules.with_(blocks=offered.blocks, recheck=True, postpone=seen)
            for asked, kept in ((network, offered), (None, plain)):
                tier = Tier(guesses=guesses, network=asked, patience=patience)
                yield replace(stay, execution=execution, rules=kept, tier=tier)


def _lending(
    stay: TwoTierPlan, variation: Variation, policy: TwoTierPolicy, seed: tuple[int, int]
) -> Iterator[TwoTierPlan]:
    """A plan with lenders picked by the policy, where it can run it."""
    if not stay.prepared().costs.movable.any() or not runs(stay.spec, stay.schedule):
        return
    offered = generous(stay.rules, postpone=True)
    for guesses in dict.fromkeys((None, _fitted(stay, variation, True, seed))):
        tier = Tier(guesses=guesses, policy=policy, lends=True)
        yield replace(stay, rules=offered, tier=tier)
        patient = replace(tier, patience=PATIENCE)
        yield replace(stay, rules=offered, execution="ready-first", tier=patient)


def _ordering(lent: TwoTierPlan) -> Iterator[TwoTierPlan]:
    """The policy deciding what ranks do next as well, held more or less firmly to a patient rank's choice."""
    if lent.rules.priority is not None:
        return  # the plan's order is not the schedule's
    for stay in STAYS:
        tier = replace(lent.tier, orders=True, stay=stay, patience=PATIENCE)
        yield replace(lent, execution="ready-first", tier=tier)


def _fitted(
    stay: TwoTierPlan, variation: Variation, seen: bool, seed: tuple[int, int]
) -> Guesses | None:
    prepared = stay.prepared()
    draws = _draws(variation, prepared.program, FITTING_DRAWS, seed)
    return fit_guesses(prepared, draws, seen=seen) if len(draws) > 1 else None


def _draws(variation: Variation, program: Program, draws: int, seed: tuple[int, int]) -> FloatArray:
    sample = variation.sample(program, draws, np.random.default_rng(seed))
    return sample[:1] if (sample == sample[0]).all() else sample
