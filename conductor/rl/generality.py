"""A policy on many pipelines that it has not seen, against executing their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.rl.evaluation import GREEDY, POLICY, READY_FIRST, interval95
from conductor.rl.play import Decider, Weights, play
from conductor.rl.source import Task
from conductor.simulator.bounds import realised_bound

PLAN = "plan"
_DECIDERS = {
    PLAN: Decider.REPLAY,
    READY_FIRST: Decider.READY_FIRST,
    GREEDY: Decider.GREEDY,
    POLICY: Decider.NETWORK,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generality:
    """How far above the bound the tasks end.

    Attributes:
        over_bound: by name, float64 of shape (tasks,): mean makespan over the mean per-rank bound, on the same
            draws for all. `plan` is strict replay of the given plan, `ready-first` runs its first action
            that is ready, `greedy` starts what it can, I before F before W.
    """

    over_bound: dict[str, FloatArray]

    def mean(self, name: str) -> float:
        """Mean over the tasks."""
        return float(self.over_bound[name].mean())

    def ci95(self, name: str, minus: str | None = None) -> tuple[float, float]:
        """95 % interval of the mean over the tasks, or of its paired difference to another row."""
        values = self.over_bound[name]
        if minus is not None:
            values = values - self.over_bound[minus]
        return interval95(values)


def evaluate_on_tasks(
    tasks: Sequence[Task], weights: Weights, *, draws: int, seed: int, threads: int = 1
) -> Generality:
    """Plays a policy and the executions of the plan on every task.

    Args:
        tasks: at least one.
        weights: of the policy.
        draws: of each task.
        seed: of the draws; a training with this seed has seen none of them.
        threads: for the episodes.
    """
    over_bound = {name: np.empty(len(tasks)) for name in _DECIDERS}
    for index, task in enumerate(tasks):
        program = task.instance.program
        durations = task.variation.sample(program, draws, np.random.default_rng([seed, 2, index]))
        bound = realised_bound(program, durations).mean()
        for name, decider in _DECIDERS.items():
            played = play(task.instance, durations, decider, weights=weights, threads=threads)
            over_bound[name][index] = played.makespan_ms.mean() / bound
    return Generality(over_bound=over_bound)
