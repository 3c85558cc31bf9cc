"""Polish: one cooling from one start, for budgets too short for a race."""

from __future__ import annotations

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.search.objective import SearchObjective
from conductor.search.split_backward import split_backward
from conductor.search.walk import Walk
from conductor.simulator.program import encode

HOT, COLD = 0.12, 0.02
"""Temperatures in mean action times: not so hot that a short walk is lost."""


def polish(
    spec: PipelineSpec,
    start: Schedule,
    *,
    evaluations: int,
    objective: SearchObjective = "makespan",
    seed: int = 0,
) -> Schedule:
    """The best order of a short annealing; the start itself where none is better.

    Args:
        spec: expected times, links and memory.
        start: full backwards are parted; with overlapping pairs it comes back as it is.
        evaluations: orders to evaluate.
        objective: `makespan` or `stage-span`.
        seed: of every choice.
    """
    parted = split_backward(start)
    program = encode(spec, parted)
    if start.overlaps.any():
        return start
    walk = Walk(
        parted, program, program.busy_ms(program.duration_ms),
        is_span=objective == "stage-span", seed=seed,
    )  # fmt: skip
    before = walk.best_value
    walk.begin_round(evaluations, HOT, COLD)
    walk.advance(evaluations)
    return walk.best_schedule if walk.best_value < before else start
