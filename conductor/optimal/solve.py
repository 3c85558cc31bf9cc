"""The best schedule for a spec, and a proof or a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.ir.schedule import Schedule
from conductor.optimal.instance import Instance, split_backwards
from conductor.optimal.memory_need import memory_shortfalls
from conductor.optimal.result import OptimalResult, Progress, Status
from conductor.optimal.search import Budget, PlacementSearch
from conductor.optimal.windows import find_windows
from conductor.problem.placement import PlacementName, stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.info import Objective
from conductor.schedules.memory import check_memory
from conductor.schedules.registry import SCHEDULES, adapt, build
from conductor.simulator.simulate import timeline

_ROUNDING = 1e-9
"""Share of a time by which sums of floats in another order may differ."""
_REPORT_S = 1.0
"""A progress report comes at least so often."""


def solve(
    spec: PipelineSpec,
    *,
    objective: Objective = "makespan",
    placement: PlacementName | Sequence[PlacementName] | None = None,
    durations_ms: npt.ArrayLike | None = None,
    warm_start: Schedule | None = None,
    time_limit_s: float = 60.0,
    workers: int = 2,
    seed: int = 0,
    deterministic: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> OptimalResult:
    """Searches the order with the least makespan (or stage span) within the memory limits, and proves it.

    Stops at the time limit or at Ctrl-C with the best found so far. All orders of F, I and W in
    which each kind of a stage goes in micro-batch order are considered. For hundreds to some thousands of
    actions: the first bounds take about 10 s for 6,000, and grow faster than that.

    Args:
        spec: expected times, links and memory.
        objective: what to minimise.
        placement: the placement, or several to choose among; a rank-level profile is split over one stage
            a rank for `sequential`, else over two. None is the spec's own.
        durations_ms: what each F, I and W takes, shape (3, num_stages, num_microbatches), instead of the
            expected times: the order of someone who knows the future.
        warm_start: a schedule to begin with, for one of the placements; None is the best of the registry.
        time_limit_s: how long, without the time to build the first bounds.
        workers: threads of the solver.
        seed: of all that is random.
        deterministic: the same result in every run: the limit counts the solver's deterministic seconds
            (roughly those of the clock on an idle machine).
        on_progress: called in this thread when something changes and at least every second.

    Raises:
        InvalidSpecError: the spec cannot be placed so.
        InvalidScheduleError: the warm start is incomplete or deadlocks.
        DoesNotFitError: the warm start is over the memory limits, has overlapping pairs or sequence
            splits, or no placement that is asked for.
        ValueError: durations of another shape.
    """
    begin = time.perf_counter()
    specs = _placed(spec, placement)
    if warm_start is not None:
        _check_warm_start(warm_start, specs)
    feasible = [one for one in specs if not memory_shortfalls(one)]
    if not feasible:
        return OptimalResult(
            schedule=None, spec=spec, status="infeasible", value_ms=np.inf, makespan_ms=np.inf,
            bound_ms=np.inf, wall_s=time.perf_counter() - begin,
        )  # fmt: skip
    searches = []
    for one in feasible:
        instance = Instance.of(one, durations_ms)
        windows = find_windows(instance, stage_span=objective == "stage-span")
        schedule = _first_schedule(instance, warm_start, objective)
        searches.append(
            PlacementSearch(
                instance, windows, schedule, stage_span=objective == "stage-span", workers=workers,
                seed=seed,
            )
        )  # fmt: skip
    searches.sort(key=lambda search: search.bound_ms)
    reporter = _Reporter(searches, on_progress, begin)
    status: Status = "feasible"
    try:
        reporter()
        _run(searches, time_limit_s, deterministic, reporter)
    except KeyboardInterrupt:
        status = "interrupted"
    best = min(searches, key=lambda search: search.value_ms)
    value, bound = reporter.state()
    if bound >= value:
        status = "optimal"
    instance = best.instance
    schedule = instance.schedule_of(best.starts)
    times = instance.durations_ms[schedule.kinds, schedule.stages, schedule.microbatches]
    run = timeline(instance.spec, schedule, times)
    exact = run.makespan_ms if objective == "makespan" else run.stage_span_ms
    return OptimalResult(
        schedule=schedule,
        spec=instance.spec,
        status=status,
        value_ms=exact,
        makespan_ms=run.makespan_ms,
        bound_ms=exact if math.isclose(bound, exact, rel_tol=_ROUNDING) else min(bound, exact),
        wall_s=time.perf_counter() - begin,
    )


def lower_bound_ms(
    spec: PipelineSpec,
    *,
    objective: Objective = "makespan",
    durations_ms: npt.ArrayLike | None = None,
) -> float:
    """A bound on every schedule's value that knows the memory limits, without search.

    It is inf where nothing fits, and leaves overlapping pairs and sequence splits aside.
    """
    if memory_shortfalls(spec):
        return float("inf")
    instance = Instance.of(spec, durations_ms)
    windows = find_windows(instance, stage_span=objective == "stage-span")
    return instance.to_ms(windows.bound)


def _placed(
    spec: PipelineSpec, placement: PlacementName | Sequence[PlacementName] | None
) -> list[PipelineSpec]:
    if placement is None:
        return [spec]
    names = [placement] if isinstance(placement, str) else list(placement)
    if not names:
        raise InvalidSpecError("placement names none to choose among")
    placed: dict[tuple[int, ...], PipelineSpec] = {}
    for name in names:
        per_rank = spec.num_stages // spec.num_ranks
        if spec.is_rank_level and name != "sequential":
            per_rank = 2
        one = spec.on_stages(stage_ranks(name, spec.num_ranks, per_rank))
        placed.setdefault(one.stage_ranks, one)
    return list(placed.values())


def _check_warm_start(schedule: Schedule, specs: list[PipelineSpec]) -> None:
    if schedule.num_splits > 1 or schedule.overlaps.any():
        raise DoesNotFitError(
            f"{schedule.name} has sequence splits or overlapping pairs, which an exact solve has not"
        )
    for spec in specs:
        if spec.stage_ranks == schedule.stage_ranks:
            check_memory(spec, schedule)
            return
    raise DoesNotFitError(
        f"{schedule.name} places stages on ranks {list(schedule.stage_ranks)}, the exact solve on"
        f" {' or '.join(str(list(spec.stage_ranks)) for spec in specs)}"
    )


def _first_schedule(
    instance: Instance, warm_start: Schedule | None, objective: Objective
) -> Schedule:
    """The warm start, or the best schedule of the registry for the placement, with split backwards."""
    spec = instance.spec
    candidates = [instance.serial]
    if warm_start is not None and warm_start.stage_ranks == spec.stage_ranks:
        candidates.append(split_backwards(warm_start))
    else:
        for name, info in SCHEDULES.items():
            try:
                if adapt(info, spec).stage_ranks != spec.stage_ranks:
                    continue
                schedule = build(name, spec, objective=objective)
            except InvalidSpecError:
                continue
            if schedule.num_splits == 1 and not schedule.overlaps.any():
                candidates.append(split_backwards(schedule))
    span = objective == "stage-span"
    return min(
        candidates,
        key=lambda one: instance.value_of(instance.starts_of(one), stage_span=span),
    )


def _run(
    searches: list[PlacementSearch], limit_s: float, deterministic: bool, reporter: _Reporter
) -> None:
    """One placement after another, the most promising first, each an equal share of what is left."""
    left = limit_s
    for done, search in enumerate(searches):
        budget = Budget(left / (len(searches) - done), deterministic=deterministic)
        rival = min((other.value_ms for other in searches if other is not search), default=np.inf)
        share = budget.left_s
        search.run(budget, rival, reporter)
        left -= share - budget.left_s


class _Reporter:
    """Tells the caller how far the searches are."""

    def __init__(
        self,
        searches: list[PlacementSearch],
        on_progress: Callable[[Progress], None] | None,
        begin: float,
    ) -> None:
        self._searches = searches
        self._tell = on_progress
        self._begin = begin
        self._last: tuple[float, float] = (np.inf, -np.inf)
        self._last_at = -np.inf

    def state(self) -> tuple[float, float]:
        """Best value and bound, milliseconds."""
        value = min(search.value_ms for search in self._searches)
        bound = min(search.bound_ms for search in self._searches)
        return value, min(bound, value)

    def __call__(self) -> None:
        """Reports what has changed, or that time goes by."""
        if self._tell is None:
            return
        now, state = time.perf_counter() - self._begin, self.state()
        if state != self._last or now - self._last_at >= _REPORT_S:
            self._last, self._last_at = state, now
            self._tell(Progress(value_ms=state[0], bound_ms=state[1], elapsed_s=now))
