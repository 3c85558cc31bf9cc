"""ZB-V: the zero-bubble heuristic on the V placement, at any memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.choice import beats, best_plan
from conductor.schedules.info import Objective, ScheduleInfo
from conductor.schedules.memory import planning_limits, too_little
from conductor.schedules.ticks import in_ticks
from conductor.schedules.zb_v.kernels import plan


def zb_v(
    spec: PipelineSpec,
    *,
    name: str = "zb-v",
    held_microbatches: int | None = None,
    objective: Objective = "makespan",
) -> Schedule:
    """The zero-bubble idea on stages that go up the ranks and come back down.

    Two knobs are tried, and each plan again with the idle time that the ranks had in the last one.
    By stage span and on even stages the order is that of the published program.

    >>> from conductor.ir.draw import draw
    >>> spec = PipelineSpec(
    ...     num_ranks=3, stages_per_rank=2, placement="v", num_microbatches=3,
    ...     forward_ms=1, backward_input_ms=1, backward_weight_ms=1,
    ... )
    >>> print(draw(zb_v(spec, held_microbatches=3)))
    rank 0 | 0F0 0F1 0F2         5F0 5I0 5F1 5I1 5F2 5I2 0I0 5W0 0I1 5W1 0I2 5W2 0W0 0W1 0W2
    rank 1 |     1F0 1F1 1F2 4F0     4F1 4I0 4F2 4I1 1I0 4I2 1I1 4W0 1I2 4W1 1W0 4W2 1W1 1W2
    rank 2 |         2F0 3F0 2F1 3F1 2F2 3F2 3I0 2I0 3I1 2I1 3I2 2I2 3W0 2W0 3W1 2W1 3W2 2W2

    Args:
        spec: on the V placement, two stages a rank.
        name: of the schedule.
        held_microbatches: most micro-batches (of both its stages) that a rank holds; the spec's
            limits count too. None: only those.
        objective: what the plans are compared by.

    Raises:
        DoesNotFitError: a rank cannot hold one micro-batch.

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024; the heuristic
    of its program. Uneven stages, and limits at which that gets stuck: ours.
    """
    p = spec.num_ranks
    memory, limits = spec.per_stage("activation_memory"), planning_limits(spec, held_microbatches)
    both = memory[:p] + memory[: p - 1 : -1]
    if np.any(both > limits):
        rank = int(np.argmax(both - limits))
        raise too_little(name, rank, float(both[rank]), float(spec.memory_limits[rank]))
    busy, lag = in_ticks(spec)
    freed = memory * spec.freed_at_backward_input
    room = np.stack([memory, freed, limits[list(spec.stage_ranks)], np.append(lag, 0.0)])
    plans = (
        actions
        for beat in beats(busy, objective)
        for actions in _plans(np.concatenate([beat, room]), spec.num_microbatches)
    )
    return best_plan(plans, name=name, spec=spec, busy=busy, lag=lag, objective=objective)


def _plans(given: FloatArray, num_microbatches: int) -> Iterator[Int32Array]:
    """Plans of both knobs, repeated as long as the largest idle time of a rank falls."""
    for fill_backward, fill_forward in product((True, False), repeat=2):
        allowed, least = np.zeros(given.shape[1] // 2), np.inf
        while True:
            for cautious in (False, True):
                actions, complete, bubble = plan(
                    given, num_microbatches, fill_backward, fill_forward, cautious, allowed
                )
                if complete:
                    break
            yield actions
            if bubble.max() >= least:
                break
            least = bubble.max()
            allowed = least - bubble


def _info(name: str, memory: str, ranks_held: int | None) -> ScheduleInfo:
    return ScheduleInfo(
        name=name,
        build=lambda spec, objective: zb_v(
            spec,
            name=name,
            held_microbatches=None if ranks_held is None else ranks_held * spec.num_ranks,
            objective=objective,
        ),
        placement="v",
        stages_per_rank=2,
        summary=f"zero-bubble heuristic on a V of two stages a rank, memory {memory}",
        memory=memory,
        formula="(p - 1)F / 2 where F = I = W and memory allows",
        source="Qi et al., NeurIPS 2024",
    )


INFOS = (
    _info("zb-v", "p", 1),
    _info("zb-v-2p", "2p", 2),
    _info("zb-v-any", "the spec's limit", None),
)
