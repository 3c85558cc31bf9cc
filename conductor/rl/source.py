"""Sources: which pipelines a policy is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan, robust_plan
from conductor.variation import Variation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A pipeline to schedule.

    Attributes:
        instance: with its plan.
        variation: what realised durations are drawn from.
    """

    instance: Instance
    variation: Variation


class Source(Protocol):
    """Anything that gives tasks. Equal generators give equal tasks."""

    @property
    def relative(self) -> bool:
        """Whether tasks are scored by their makespan over the per-rank bound, not in milliseconds."""
        ...

    def cloning_tasks(self) -> Sequence[Task]:
        """Those on which an expert is cloned."""
        ...

    def training_tasks(self, progress: float, rng: np.random.Generator) -> Sequence[Task]:
        """Those of one update, at a share of the training that lies behind."""
        ...

    def held_out_tasks(self) -> Sequence[Task]:
        """Those on which policies are compared."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneInstance:
    """One pipeline, always the same.

    Attributes:
        instance: with its plan.
        variation: what realised durations are drawn from.
    """

    instance: Instance
    variation: Variation

    @property
    def relative(self) -> bool:
        """Scores are milliseconds."""
        return False

    def cloning_tasks(self) -> Sequence[Task]:
        """The one."""
        return (Task(instance=self.instance, variation=self.variation),)

    def training_tasks(self, progress: float, rng: np.random.Generator) -> Sequence[Task]:
        """The one."""
        return self.cloning_tasks()

    def held_out_tasks(self) -> Sequence[Task]:
        """The one."""
        return self.cloning_tasks()


def one_pipeline(spec: PipelineSpec, variation: Variation, *, evaluations: int = 0) -> OneInstance:
    """A pipeline with its best plan: by expected times, or by a search of so many orders for the mean."""
    plan = robust_plan(spec, variation, evaluations) if evaluations else best_plan(spec)
    return OneInstance(instance=Instance.of(spec, plan), variation=variation)
