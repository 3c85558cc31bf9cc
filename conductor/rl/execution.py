"""Executing a plan in the simulator as a policy decides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.rl.instance import Instance
from conductor.rl.plans import sequence
from conductor.rl.play import Decider, Played, Weights, play
from conductor.simulator.program import Program
from conductor.simulator.simulate import execute

STAYS = (0.0, np.inf)
"""How much a policy may be held to its plan, the least first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyExecution:
    """Runs `plan` for `simulate` and `timeline`: what starts next is the policy's choice.

    The policy knows the expected times and links of its instance; the durations and links of the simulation
    it meets as they happen.

    Attributes:
        instance: the pipeline as it is expected to be, and the plan.
        weights: of the policy.
        stay: how much the plan's next action, or waiting for it, is preferred; infinity is static execution.
    """

    instance: Instance
    weights: Weights
    stay: float = 0.0

    @property
    def plan(self) -> Schedule:
        """The plan that it runs: full backwards are parted."""
        return self.instance.plan

    def __call__(self, program: Program, busy_ms: FloatArray) -> tuple[FloatArray, Int32Array]:
        """Starts and sequences, as of `conductor.simulator.simulate.execute`."""
        if not np.array_equal(program.streams, self.instance.program.streams):
            raise ValueError("a policy runs its own plan only")
        if self.stay == np.inf:
            return execute(program, busy_ms, "static")
        met = replace(
            self.instance,
            program=replace(program, send_ms=np.zeros_like(program.send_ms)),  # in `busy_ms`
            arrays=self.instance.arrays._replace(input_lags=program.input_lag_ms),
        )
        end_ms = self._play(met, busy_ms).end_ms
        sequences = np.stack([sequence(met, ends) for ends in end_ms]).astype(np.int32)
        return end_ms - busy_ms, sequences

    def makespans_ms(self, durations_ms: FloatArray) -> FloatArray:
        """Under draws of durations and the expected links, shape (draws,)."""
        return self._play(self.instance, durations_ms).makespan_ms

    def _play(self, instance: Instance, durations_ms: FloatArray) -> Played:
        decider = Decider.REPLAY if self.stay == np.inf else Decider.NETWORK
        return play(instance, durations_ms, decider, weights=self.weights)


def loosest(instance: Instance, weights: Weights, durations_ms: FloatArray) -> PolicyExecution:
    """The policy, held to the plan no more than pays.

    Args:
        instance: the pipeline and its plan.
        weights: of the policy.
        durations_ms: draws to try on, shape (draws, n), program order. Of all ways to hold to the plan it is
            the loosest that is not measurably worse than the best: what it meets may be worse than these.
    """
    tried = [PolicyExecution(instance=instance, weights=weights, stay=stay) for stay in STAYS]
    makespans = np.stack([execution.makespans_ms(durations_ms) for execution in tried])
    more = makespans - makespans[makespans.mean(axis=1).argmin()]
    error = more.std(axis=1) / np.sqrt(more.shape[1])
    return tried[int(np.argmax(more.mean(axis=1) <= error + 1e-9 * makespans.mean()))]
