"""Validation: how good a policy is on held-out tasks and draws, the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.rl.play import NO_WEIGHTS, Decider, Weights, play
from conductor.rl.processes import Processes
from conductor.rl.source import Source, Task
from conductor.rl.training import Training
from conductor.simulator.bounds import realised_bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """Held-out tasks with their draws.

    Attributes:
        tasks: that no gradient has seen.
        durations_ms: of each task, shape (draws, n).
        units_ms: what makespans of each task are divided by.
    """

    tasks: Sequence[Task]
    durations_ms: Sequence[FloatArray]
    units_ms: FloatArray

    @classmethod
    def of(cls, training: Training[Source]) -> Validation:
        """The same for equal sources, settings and seeds."""
        tasks = training.source.held_out_tasks()
        durations = [held_out_draws(training, task) for task in tasks]
        units = np.ones(len(tasks))
        if training.source.relative:
            bounds = zip(tasks, durations, strict=True)
            units[:] = [realised_bound(t.instance.program, d).mean() for t, d in bounds]
        return cls(tasks=tasks, durations_ms=durations, units_ms=units)

    def score(
        self, decider: Decider, weights: Weights = NO_WEIGHTS, *, processes: Processes, threads: int
    ) -> float:
        """Mean over the tasks of the mean makespan, in the task's unit."""
        means = []
        for task, durations in zip(self.tasks, self.durations_ms, strict=True):
            draws = np.arange(len(durations))
            share = processes.share(len(draws))
            played = play(
                task.instance, durations[share], decider, weights=weights, threads=threads
            )
            means.append(processes.joined(played.makespan_ms, draws[share], len(draws)).mean())
        return float(np.mean(means / self.units_ms))


def held_out_draws(training: Training[Source], task: Task) -> FloatArray:
    """Draws of a task that serve no gradient, shape (draws, n)."""
    rng = np.random.default_rng([training.seed, 1])
    draws = training.config.validation_draws
    return task.variation.sample(task.instance.program, draws, rng)
