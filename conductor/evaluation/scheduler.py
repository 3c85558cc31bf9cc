"""Schedulers by name: a schedule and how it is executed.

A name is a schedule with what is added to it, joined by `+`: `zb-1p`, `best+ready-first`, `zb-1p+policy`,
`searched+migration`. The schedule is one of `conductor schedules`, `best` (the best of them on planning
draws), `searched` (local search from all of them on planning draws), `rl` (what the learned planner makes of
all these, likewise) or, with migration, `joint` (order and migration searched together, likewise). `rl` alone
is the learned scheduler as a whole: its plan, and the policy deciding during the step. `rl+migration` is the
best migration planned for all these with a network that picks lenders where that pays;
`rl+policy+migration` are both learned tiers as one policy, which orders actions and picks lenders, where that
pays.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.evaluation.scenario import Scenario
from conductor.ir.schedule import FloatArray, Schedule
from conductor.migration.execution import MigrationDraws, prepare, run_draws
from conductor.migration.model import SimpleModel
from conductor.migration.plan import MigrationPlan, plan_migration
from conductor.problem.spec import PipelineSpec
from conductor.rl.execution import PolicyExecution, loosest
from conductor.rl.instance import Instance
from conductor.rl.planner import plan_learned
from conductor.rl.play import Weights
from conductor.rl.shipped import policy_weights
from conductor.rl.two_tier.plan import TwoTierPlan, plan_two_tier
from conductor.rl.two_tier.policy.network import TwoTierPolicy
from conductor.schedules.registry import POOL, SCHEDULES, build
from conductor.search.improve import improve
from conductor.simulator.program import Program, encode
from conductor.simulator.simulate import Execution, Executor, simulate

MODIFIERS = ("ready-first", "policy", "migration")
PLANNING_DRAWS = 64
"""Draws that `best`, `searched` and `rl` are chosen on; never those that schedulers are evaluated on."""

TWO_TIER = ("searched", "best+ready-first", "joint")
"""Whose migration both learned tiers start from."""

CHOICES = ("best", "searched", "rl", "joint")
"""Schedules that are chosen or searched, not one of `conductor schedules`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerName:
    """A parsed name.

    Attributes:
        schedule: name of a schedule, or one of `CHOICES`.
        execution: `static` or `ready-first`.
        decides: whether a policy decides instead, during the step.
        migrates: whether ranks lend each other compute.
    """

    schedule: str
    execution: Execution = "static"
    decides: bool = False
    migrates: bool = False

    @classmethod
    def parse(cls, text: str) -> SchedulerName:
        """Reads `SCHEDULE[+ready-first|+policy][+migration]`.

        Raises:
            InvalidSpecError: names what is unknown.
        """
        schedule, *modifiers = text.split("+")
        if schedule not in SCHEDULES and schedule not in CHOICES:
            raise InvalidSpecError(
                f"no schedule is named {schedule!r} (in scheduler {text!r}); there are"
                f" {', '.join((*SCHEDULES, *CHOICES))}"
            )
        for modifier in modifiers:
            if modifier not in MODIFIERS:
                raise InvalidSpecError(
                    f"{modifier!r} in scheduler {text!r} is none of {', '.join(MODIFIERS)}"
                )
        if schedule == "joint" and modifiers != ["migration"]:
            raise InvalidSpecError(
                f"joint is planned with migration only: joint+migration, not {text!r}"
            )
        decides = "policy" in modifiers or (schedule == "rl" and not modifiers)
        both = schedule == "rl" and modifiers == ["policy", "migration"]
        if len(modifiers) > 1 and (decides or schedule == "rl") and not both:
            raise InvalidSpecError(
                f"a policy decides alone: {text!r} adds {' and '.join(modifiers)}"
            )
        return cls(
            schedule=schedule,
            execution="ready-first" if "ready-first" in modifiers else "static",
            decides=decides,
            migrates="migration" in modifiers,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a scheduler does over the draws.

    Attributes:
        makespan_ms: shape (draws,).
        moved_share: share of the work that moved, mean over draws.
        migrations: in a step, mean over draws.
        bytes: sent for them a step; None where the model of moving counts time alone.
    """

    makespan_ms: FloatArray
    moved_share: float = 0.0
    migrations: float = 0.0
    bytes: float | None = 0.0


@dataclass(slots=True, kw_only=True)
class Planner:
    """Makes schedules for one scenario, each once.

    Attributes:
        scenario: what they are for.
        seed: of the planning draws and the search.
        search_ms: budget of `searched`.
        joint_steps: of the search of `joint`.
        model: what migration moves and what it costs.
        policy: of the learned scheduler, see `conductor.planning.plan.plan`.
    """

    scenario: Scenario
    seed: int
    search_ms: float
    joint_steps: int
    model: SimpleModel
    policy: str | Path | Weights | None = None
    _made: dict[str, Schedule] = field(default_factory=dict)
    _migrating: dict[SchedulerName, MigrationPlan] = field(default_factory=dict)

    def fitting(self) -> tuple[str, ...]:
        """Names of the schedules that fit the scenario's spec."""
        return tuple(name for name in POOL if self._fits(name))

    def schedule(self, name: str) -> Schedule:
        """The schedule of a name, from expected times and planning draws alone.

        Raises:
            DoesNotFitError: it cannot take the scenario's spec.
        """
        if name not in self._made:
            if name == "best":
                made = min(map(self.schedule, self.fitting()), key=self.planned_mean)
            elif name == "searched":
                made = self._searched()
            elif name == "rl":
                made = self._learned()
            else:
                made = build(name, self.scenario.spec)
            self._made[name] = made
        return self._made[name]

    def migration(self, name: SchedulerName) -> MigrationPlan:
        """Who may lend when, for a scheduler that migrates; from the same knowledge.

        Raises:
            DoesNotFitError: the schedule cannot take the scenario's spec.
        """
        if name not in self._migrating:
            joint = name.schedule == "joint"
            self._migrating[name] = plan_migration(
                self.scenario.spec,
                None if joint else [self.schedule(name.schedule)],
                model=self.model,
                variation=self.scenario.variation,
                executions=("static", "ready-first") if joint else (name.execution,),
                draws=PLANNING_DRAWS,
                steps=self.joint_steps if joint else 0,
                seed=self.seed,
            )
        return self._migrating[name]

    def two_tier(self, *, decides: bool = False) -> TwoTierPlan:
        """The learned lending tier on the best that is planned with migration.

        Args:
            decides: whether the policy of both tiers is tried as well.

        Raises:
            FormatError: the package has no network of lenders, or no such policy.
        """
        plans = []
        for name in TWO_TIER:
            with suppress(DoesNotFitError):
                plans.append(self.migration(SchedulerName.parse(f"{name}+migration")))
        return plan_two_tier(
            self.scenario.spec, plans or None, model=self.model, variation=self.scenario.variation,
            policy=TwoTierPolicy.load() if decides else None, seed=self.seed,
        )  # fmt: skip

    def policy_execution(self, name: str) -> PolicyExecution:
        """The policy on the schedule of a name, held to it as far as that pays on draws of its own.

        Raises:
            DoesNotFitError: the schedule cannot take the scenario's spec, or the policy not the schedule.
        """
        plan = self.schedule(name)
        if plan.num_splits > 1 or plan.overlaps.any():
            raise DoesNotFitError(
                f"{plan.name} splits sequences or overlaps actions: no policy runs that"
            )
        instance = Instance.of(self.scenario.spec, plan)
        return loosest(
            instance, policy_weights(self.policy), self._planning_draws(instance.program, stream=3)
        )

    def _fits(self, name: str) -> bool:
        try:
            self.schedule(name)
        except DoesNotFitError:
            return False
        return True

    def _planning_draws(self, program: Program, stream: int = 1) -> FloatArray:
        rng = np.random.default_rng((self.seed, stream))
        return self.scenario.variation.sample(program, PLANNING_DRAWS, rng)

    def planned_mean(self, schedule: Schedule) -> float:
        """Mean makespan on the planning draws, in static execution."""
        spec = self.scenario.spec
        durations = self._planning_draws(encode(spec, schedule))
        return float(simulate(spec, schedule, durations).makespan_ms.mean())

    def _searched(self) -> Schedule:
        starts = [self.schedule(name) for name in self.fitting()]
        return improve(
            self.scenario.spec,
            starts,
            budget_ms=self.search_ms,
            objective="mean",
            durations=self._planning_draws,
            seed=self.seed,
        ).schedule

    def _learned(self) -> Schedule:
        starts = [self.schedule(name) for name in ("searched", *self.fitting())]
        return plan_learned(
            self.scenario.spec,
            policy_weights(self.policy),
            starts,
            objective="mean",
            durations=self._planning_draws,
            seed=self.seed,
        ).schedule


def execute(
    spec: PipelineSpec,
    schedule: Schedule,
    execution: Execution | Executor,
    durations_ms: npt.ArrayLike,
) -> Outcome:
    """Runs a schedule over draws of durations.

    Args:
        spec: with the links as they are.
        schedule: from a `Planner`.
        execution: static, ready-first or a policy's.
        durations_ms: realised, shape (draws, n), program order.
    """
    return Outcome(
        makespan_ms=simulate(spec, schedule, durations_ms, execution=execution).makespan_ms
    )


def execute_migrating(
    spec: PipelineSpec, plan: MigrationPlan, model: SimpleModel, durations_ms: npt.ArrayLike
) -> Outcome:
    """Runs a plan with migration over draws of durations; arguments as of `execute`."""
    prepared = prepare(spec, plan.schedule, model=model, rules=plan.rules, execution=plan.execution)
    return _migrated(run_draws(prepared, durations_ms))


def execute_two_tier(spec: PipelineSpec, plan: TwoTierPlan, durations_ms: npt.ArrayLike) -> Outcome:
    """Runs both learned tiers over draws of durations; arguments as of `execute`."""
    return _migrated(plan.run_draws(durations_ms, spec))


def _migrated(draws: MigrationDraws) -> Outcome:
    return Outcome(
        makespan_ms=draws.makespan_ms,
        moved_share=float(draws.moved_share.mean()),
        migrations=float(draws.helps.mean()),
        bytes=None,
    )
