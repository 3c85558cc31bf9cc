"""What the registry knows about a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from conductor.ir.schedule import Schedule
from conductor.problem.placement import PlacementName
from conductor.problem.spec import PipelineSpec

Objective = Literal["makespan", "stage-span"]
"""What a heuristic minimises: the last action's end, or the longest span of a single rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule by name.

    Attributes:
        name: as on the command line.
        build: makes it; gets a spec with this placement. `registry.build` is the front door.
        placement: the placement it is made for.
        stages_per_rank: stages that a rank-level profile is split into on each rank.
        any_stages_per_rank: whether it also takes a spec that gives other numbers of stages.
        by_name_only: whether it must be asked for by name, because it needs more of the trainer than
            another order (sequence splits).
        summary: one line.
        memory: peak activation memory, in micro-batches of a whole rank.
        formula: idle time of a rank until the step ends, with even stages and no transfer time, in
            F, I, W, number of ranks p and of micro-batches m; empty where there is none.
        source: where it was published.
    """

    name: str
    build: Callable[[PipelineSpec, Objective], Schedule]
    placement: PlacementName
    stages_per_rank: int = 1
    any_stages_per_rank: bool = False
    by_name_only: bool = False
    summary: str
    memory: str
    formula: str = ""
    source: str
