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

WAYS = (
    *((Decider.NETWORK, stay) for stay in (0.0, 1.0, 2.0, 4.0, 8.0)),
    (Decider.READY_FIRST, 0.0),
    (Decider.REPLAY, 0.0),
)
"""How a plan may be executed: by the policy, more and more held to it; as ready-first; strictly in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyExecution:
    """Runs `plan` for `simulate` and `timeline`: what starts next is the policy's choice.

    The policy knows the expected times and links of its instance; the durations and links of the simulation
    it meets as they happen.

    Attributes:
        instance: the pipeline as it is expected to be, and the plan.
        weights: of the policy.
        stay: how much the plan's next action, or waiting for it, is preferred.
        decider: the network, or a rule in its place.
    """

    instance: Instance
    weights: Weights
    stay: float = 0.0
    decider: Decider = Decider.NETWORK

    @property
    def name(self) -> str:
        """How it decides, in words."""
        if self.decider != Decider.NETWORK:
            return "ready-first" if self.decider == Decider.READY_FIRST else "static"
        return f"policy held by {self.stay:g}" if self.stay else "policy"

    @property
    def plan(self) -> Schedule:
        """The plan that it runs: full backwards are parted."""
        return self.instance.plan

    def __call__(self, program: Program, busy_ms: FloatArray) -> tuple[FloatArray, Int32Array]:
        """Starts and sequences, as of `conductor.simulator.simulate.execute`."""
        if not np.array_equal(program.streams, self.instance.program.streams):
            raise ValueError("a policy runs its own plan only")
        if self.decider == Decider.REPLAY:
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
        return play(
            instance, durations_ms, self.decider, weights=self.weights, stay=self.stay
        )  # fmt: skip


def loosest(instance: Instance, weights: Weights, durations_ms: FloatArray) -> PolicyExecution:
    """The policy, held to the plan no more than pays; a rule in its place where that is better.

    Args:
        instance: the pipeline and its plan.
        weights: of the policy.
        durations_ms: draws to try on, shape (draws, n), program order. Of `WAYS` it is the first that is not
            measurably worse than the best: what it meets may be worse than these draws.
    """
    tried = [
        PolicyExecution(instance=instance, weights=weights, decider=decider, stay=stay)
        for decider, stay in WAYS
    ]
    makespans = np.stack([execution.makespans_ms(durations_ms) for execution in tried])
    more = makespans - makespans[makespans.mean(axis=1).argmin()]
    error = more.std(axis=1) / np.sqrt(more.shape[1])
    return tried[int(np.argmax(more.mean(axis=1) <= error + 1e-9 * makespans.mean()))]
