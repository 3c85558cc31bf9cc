"""Executing a plan in the simulator as a policy decides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.plans import sequence
from conductor.rl.play import Decider, Weights, play
from conductor.simulator.program import Program
from conductor.simulator.simulate import Execution, execute, simulate
from conductor.variation import Variation

TRIED_DRAWS = 64
"""Draws on which `decided` tries the ways."""

STAYS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""How firmly a policy may be held to the plan."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyExecution:
    """Runs `plan` for `simulate` and `timeline`: what starts next is the policy's choice.

    The policy knows the expected times and links of its instance; the durations and links of the simulation
    it meets as they happen.

    Attributes:
        instance: the pipeline as it is expected to be, and the plan.
        weights: of the policy.
        stay: how much the plan's next action, or waiting for it, is preferred.
        rule: decides in the policy's place.
    """

    instance: Instance
    weights: Weights
    stay: float = 0.0
    rule: Execution | None = None

    @property
    def name(self) -> str:
        """How it decides, in words."""
        return self.rule or (f"policy held by {self.stay:g}" if self.stay else "policy")

    @property
    def plan(self) -> Schedule:
        """The plan that it runs: full backwards are parted."""
        return self.instance.plan

    def __call__(self, program: Program, busy_ms: FloatArray) -> tuple[FloatArray, Int32Array]:
        """Starts and sequences, as of `conductor.simulator.simulate.execute`."""
        if not np.array_equal(program.streams, self.instance.program.streams):
            raise ValueError("a policy runs its own plan only")
        if self.rule is not None:
            return execute(program, busy_ms, self.rule)
        met = replace(
            self.instance,
            program=replace(program, send_ms=np.zeros_like(program.send_ms)),  # in `busy_ms`
            arrays=self.instance.arrays._replace(input_lags=program.input_lag_ms),
        )
        end_ms = play(met, busy_ms, Decider.NETWORK, weights=self.weights, stay=self.stay).end_ms
        sequences = np.stack([sequence(met, ends) for ends in end_ms]).astype(np.int32)
        return end_ms - busy_ms, sequences


def loosest(instance: Instance, weights: Weights, durations_ms: FloatArray) -> PolicyExecution:
    """The policy, held to the plan as far as that pays; a rule in its place where that is better.

    Args:
        instance: the pipeline and its plan.
        weights: of the policy.
        durations_ms: draws to try on, shape (draws, n), program order. The best way over these is taken; of
            equals the loosest (ready-first waits for nothing): what a step meets may be worse than any draw.
    """
    free = PolicyExecution(instance=instance, weights=weights)
    held = [replace(free, stay=stay) for stay in STAYS]
    ways = [replace(free, rule="ready-first"), *held, replace(free, rule="static")]
    means = [
        simulate(instance.spec, instance.plan, durations_ms, execution=way).makespan_ms.mean()
        for way in ways
    ]
    return ways[int(np.argmin(np.round(means, 9)))]


def decided(
    spec: PipelineSpec, plan: Schedule, weights: Weights, variation: Variation, *, seed: int = 0
) -> PolicyExecution:
    """The `loosest` way on draws of a variation, which nothing else is drawn from.

    Raises:
        InvalidScheduleError: the plan has sequence splits or overlapping pairs, or isn't one for the spec.
        DoesNotFitError: some rank's memory holds less than one micro-batch.
    """
    instance = Instance.of(spec, plan)
    rng = np.random.default_rng((seed, 1))
    return loosest(instance, weights, variation.sample(instance.program, TRIED_DRAWS, rng))
