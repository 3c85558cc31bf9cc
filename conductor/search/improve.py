"""Anytime local search on orders, from given schedules."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.search.common_draws import DurationDraws
from conductor.search.objective import SearchObjective
from conductor.search.race import Race, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best schedule that a search found.

    Attributes:
        schedule: never worse than the best start.
        value: its objective, ms.
        start: name of the start it grew from.
        start_value: objective of the best start, ms.
        evaluations: orders evaluated.
        elapsed_ms: without compilation.
        stopped_by: `budget`; `bound`: it cannot get better; `interrupt`: Ctrl-C; `no moves`: no
            order but the starts can be reached.
    """

    schedule: Schedule
    value: float
    start: str
    start_value: float
    evaluations: int
    elapsed_ms: float
    stopped_by: StopReason


def improve(
    spec: PipelineSpec,
    starts: Sequence[Schedule],
    *,
    budget_ms: float | None = None,
    evaluations: int | None = None,
    objective: SearchObjective = "makespan",
    durations: DurationDraws | None = None,
    bound_ms: float | None = None,
    seed: int = 0,
    on_progress: Callable[[int, float], None] | None = None,
) -> SearchResult:
    """Improves schedules by simulated annealing on their orders.

    Every kind keeps its order on its stage; what changes is how a rank interleaves its stages and
    kinds. Planned memory stays within the limits. Starts race: after each round the better half goes
    on, with twice the evaluations, and the last one goes on alone from its best order. Full
    backwards are tried split too. A start with overlapping pairs counts as it is.

    The orders visited depend on the seed only: a larger budget continues where a smaller one stops.

    Args:
        spec: expected times, links and memory; a rank-level profile is split over the stages of
            each start.
        starts: any placements the spec allows.
        budget_ms: stops at this time; 0 only evaluates the starts.
        evaluations: stops at so many evaluated orders. One of the two must be given.
        objective: see `SearchObjective`.
        durations: for `mean` and `p95`, makes the draws.
        bound_ms: no schedule is better than this: the search stops when it is reached.
        seed: of every choice.
        on_progress: called with the evaluations so far and the best objective.

    Raises:
        ValueError: no start, no budget, or draws missing or given without need.
        InvalidSpecError: a start does not go with the spec.
        InvalidScheduleError: a start is incomplete or deadlocks.
        DoesNotFitError: every start needs more memory than there is.
    """
    if not starts:
        raise ValueError("the search needs a schedule to start from")
    if budget_ms is None and evaluations is None:
        raise ValueError("the search needs budget_ms or evaluations")
    if (durations is not None) != (objective in ("mean", "p95")):
        raise ValueError("durations go with the objectives mean and p95, and only with them")
    race = Race(spec, starts, objective, durations, seed)
    started = time.perf_counter()
    stopped_by: StopReason = "interrupt"
    with suppress(KeyboardInterrupt):
        stopped_by = race.run(
            deadline=math.inf if budget_ms is None else started + budget_ms / 1000.0,
            evaluations=evaluations,
            target=-math.inf if bound_ms is None else bound_ms * (1.0 + 1e-9),
            on_progress=on_progress,
        )
    schedule, start = race.best()
    return SearchResult(
        schedule=schedule,
        value=race.best_value,
        start=start,
        start_value=race.start_value,
        evaluations=race.evaluations,
        elapsed_ms=(time.perf_counter() - started) * 1000.0,
        stopped_by=stopped_by,
    )
