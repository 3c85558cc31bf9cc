"""All schedules by name."""

from __future__ import annotations

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.ir.schedule import Schedule
from conductor.problem.placement import placement_name, stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules import (
    dualpipe_v,
    gpipe,
    greedy,
    grouped_interleaved,
    interleaved_1f1b,
    looped_bfs,
    one_f_one_b,
    seq1f1b,
    v1f1b,
    v_cost,
    v_half,
    v_min,
    zb_h1_light,
    zb_v,
    zb_v_handmade,
    zero_bubble,
)
from conductor.schedules.info import Objective, ScheduleInfo
from conductor.schedules.memory import check_memory

__all__ = ["POOL", "SCHEDULES", "Objective", "ScheduleInfo", "adapt", "build"]

_FILES = (
    gpipe, one_f_one_b, interleaved_1f1b, looped_bfs, grouped_interleaved, zero_bubble,
    greedy, zb_h1_light, zb_v, zb_v_handmade, v1f1b, v_half, v_min, v_cost, dualpipe_v, seq1f1b,
)  # fmt: skip

SCHEDULES: dict[str, ScheduleInfo] = {info.name: info for file in _FILES for info in file.INFOS}

POOL: tuple[str, ...] = tuple(name for name, info in SCHEDULES.items() if not info.by_name_only)
"""Schedules that planners consider unasked."""


def build(name: str, spec: PipelineSpec, *, objective: Objective = "makespan") -> Schedule:
    """Makes a schedule for a spec.

    Args:
        name: a key of `SCHEDULES`.
        spec: a rank-level profile (it is split over the schedule's stages), or one of stages.
        objective: what a heuristic minimises; schedules of a fixed form have no choice.

    Raises:
        InvalidSpecError: there is no schedule of this name.
        DoesNotFitError: the schedule cannot take this spec; the message says which rank misses how
            much memory, which micro-batch counts it takes or which placement it needs.
    """
    if name not in SCHEDULES:
        raise InvalidSpecError(f"no schedule is named {name!r}; there are {', '.join(SCHEDULES)}")
    info = SCHEDULES[name]
    spec = adapt(info, spec)
    schedule = info.build(spec, objective)
    check_memory(spec, schedule)
    return schedule


def adapt(info: ScheduleInfo, spec: PipelineSpec) -> PipelineSpec:
    """The spec on the stages of a schedule.

    Raises:
        DoesNotFitError: the spec gives stages that the schedule cannot take.
    """
    per_rank = info.stages_per_rank
    if info.any_stages_per_rank and not spec.is_rank_level:
        per_rank = spec.num_stages // spec.num_ranks
    try:
        return spec.on_stages(stage_ranks(info.placement, spec.num_ranks, per_rank))
    except InvalidSpecError:
        count = "any number of" if info.any_stages_per_rank else per_rank
        given = placement_name(spec.stage_ranks, spec.num_ranks)
        raise DoesNotFitError(
            f"{info.name} needs {info.placement} placement with {count} stage(s) a rank, but the"
            f" spec gives {spec.num_stages} stages in {given or 'a listed'} placement"
        ) from None
