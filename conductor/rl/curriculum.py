"""Curriculum: random pipelines of all sorts, small ones first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan
from conductor.rl.random_problem import random_spec, random_variation
from conductor.rl.source import Task
from conductor.search.improve import improve

_TRAINING, _HELD_OUT, _EVALUATION = 0, 1, 2
"""Streams of the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """Random pipelines, made from a seed.

    A training draws from the smallest ones first, then from more and more.

    Attributes:
        seed: of all tasks.
        num_tasks: to train on.
        num_held_out: to compare policies on; never trained on.
        tasks_per_update: how many different ones an update draws.
        num_cloned: on how many an expert is cloned.
        ranks: numbers of ranks in training; all others have any between the first and the last.
        first_share: of the tasks, the smallest ones, that a training begins with.
        full_at: progress at which it draws from all.
        search_evaluations: of the search that half of the plans come from; the others are the best
            published ones.
    """

    seed: int
    num_tasks: int = 512
    num_held_out: int = 32
    tasks_per_update: int = 16
    num_cloned: int = 128
    ranks: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16)
    first_share: float = 0.3
    full_at: float = 0.5
    search_evaluations: int = 4000

    @property
    def relative(self) -> bool:
        """Scores are makespans over the bound."""
        return True

    def cloning_tasks(self) -> Sequence[Task]:
        """Tasks of all sizes."""
        count = min(self.num_cloned, self.num_tasks)
        return [self._smallest(k * self.num_tasks // count) for k in range(count)]

    def training_tasks(self, progress: float, rng: np.random.Generator) -> Sequence[Task]:
        """Different tasks, up to the size for this progress."""
        share = self.first_share + (1.0 - self.first_share) * progress / self.full_at
        reach = max(1, round(min(share, 1.0) * self.num_tasks))
        chosen = rng.choice(reach, min(self.tasks_per_update, reach), replace=False)
        return [self._smallest(int(k)) for k in chosen]

    def held_out_tasks(self) -> Sequence[Task]:
        """Tasks from another stream of the seed."""
        return [_task(self, _HELD_OUT, index) for index in range(self.num_held_out)]

    def evaluation_tasks(self, count: int) -> Sequence[Task]:
        """Tasks from a third stream, which no choice of a training has seen."""
        return [_task(self, _EVALUATION, index) for index in range(count)]

    def _smallest(self, place: int) -> Task:
        return _task(self, _TRAINING, _by_size(self)[place])


@cache
def _by_size(curriculum: Curriculum) -> Sequence[int]:
    """Indices of the tasks to train on, fewest actions first."""
    specs = [_spec(curriculum, _TRAINING, index)[0] for index in range(curriculum.num_tasks)]
    return sorted(range(len(specs)), key=lambda k: specs[k].num_stages * specs[k].num_microbatches)


@cache
def _task(curriculum: Curriculum, stream: int, index: int) -> Task:
    spec, rng = _spec(curriculum, stream, index)
    plan = best_plan(spec)
    if rng.random() < 0.5:
        evaluations = curriculum.search_evaluations
        plan = improve(spec, [plan], evaluations=evaluations, seed=index).schedule
    return Task(instance=Instance.of(spec, plan), variation=random_variation(rng, spec))


def _spec(
    curriculum: Curriculum, stream: int, index: int
) -> tuple[PipelineSpec, np.random.Generator]:
    """The spec of a task, and the generator of what is random beside it."""
    rng = np.random.default_rng([curriculum.seed, stream, index])
    ranks: Sequence[int] = curriculum.ranks
    if stream != _TRAINING:
        ranks = range(ranks[0], ranks[-1] + 1)
    return random_spec(rng, ranks), rng
