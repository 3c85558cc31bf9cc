"""The solver's front door: proved optima, statuses, placements, warm starts, interruption."""

from __future__ import annotations

import math

import pytest

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.ir.validate import validate
from conductor.optimal.memory_need import memory_shortfalls
from conductor.optimal.result import Progress
from conductor.optimal.solve import solve
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build


def uneven(ranks: int, microbatches: int, limit: float | None, *, slow_stage=None, factor=1.0):
    """F 10, I 10, W 7, transfers 0.4; one stage may be slower by a factor."""

    def per_stage(time: float) -> tuple[float, ...]:
        return tuple(time * (factor if stage == slow_stage else 1.0) for stage in range(ranks))

    return PipelineSpec(
        num_ranks=ranks, num_microbatches=microbatches, forward_ms=per_stage(10.0),
        backward_input_ms=per_stage(10.0), backward_weight_ms=per_stage(7.0), transfer_ms=0.4,
        memory_limit=limit,
    )  # fmt: skip


def proves(spec: PipelineSpec, optimum: float, *, placement="sequential", time_limit_s=60.0):
    result = solve(spec, placement=placement, time_limit_s=time_limit_s)
    validate(result.schedule, result.spec)
    assert (result.status, result.gap) == ("optimal", 0.0)
    assert result.value_ms == result.makespan_ms == pytest.approx(optimum, abs=1e-6)


@pytest.mark.parametrize(
    ("placement", "limit", "optimum"),
    [
        ("sequential", 4, 259.8),
        ("sequential", 8, 247.2),
        ("v", 4, 234.6),
        ("v", 8, 232.2),
    ],
)
def test_proved_optima_of_four_ranks_and_eight_microbatches(placement, limit, optimum):
    proves(uneven(4, 8, limit), optimum, placement=placement)


@pytest.mark.parametrize(("limit", "optimum"), [(8, 534.2), (16, 504.8)])
def test_proved_optima_of_eight_ranks_and_sixteen_microbatches(limit, optimum):
    proves(uneven(8, 16, limit), optimum)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "optimum"), [(8, 475.4), (16, 469.8)])
def test_proved_optima_of_a_large_v(limit, optimum):
    proves(uneven(8, 16, limit), optimum, placement="v", time_limit_s=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "factor", "limit", "optimum"),
    [(3, 1.1, 8, 762.0), (3, 1.3, 8, 873.6), (3, 1.3, 16, 873.6), (0, 1.3, 16, 842.4)],
)
def test_proved_optima_of_uneven_stages(stage, factor, limit, optimum):
    proves(uneven(8, 24, limit, slow_stage=stage, factor=factor), optimum)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "optimum"), [(3, 255.7), (2, 301.9)])
def test_proved_optima_of_tight_memory_on_a_small_v(limit, optimum):
    """The memory of V-Half and V-Min: the published orders take 257.3 and 309.5."""
    proves(uneven(4, 8, limit), optimum, placement="v", time_limit_s=120)


@pytest.mark.timing
@pytest.mark.parametrize(("limit", "at_most"), [(5, 547.3), (4, 615.7)])
def test_tight_memory_on_a_large_v(limit, at_most):
    result = solve(uneven(8, 16, limit), placement="v", time_limit_s=120)
    validate(result.schedule, result.spec)
    assert result.bound_ms <= result.makespan_ms <= at_most + 1e-6


def test_the_best_placement_is_chosen():
    result = solve(uneven(4, 8, 4), placement=("sequential", "v"), time_limit_s=30)
    assert result.spec.stage_ranks == stage_ranks("v", 4, 2)
    assert result.status == "optimal"
    assert result.makespan_ms == pytest.approx(234.6)


def test_the_stage_span_hides_the_start_skew():
    result = solve(uneven(4, 8, 8), objective="stage-span", time_limit_s=30)
    assert result.status == "optimal"
    # the published heuristic reaches 229.8
    assert result.value_ms == pytest.approx(229.4)
    assert result.makespan_ms > result.value_ms + 10


@pytest.mark.parametrize("objective", ["makespan", "stage-span"])
def test_an_exhausted_budget_returns_the_warm_start_with_a_bound(objective):
    """The warm start takes 303.4 with full backwards, 278.4 with the same split."""
    spec = uneven(4, 8, 4)
    warm = build("1f1b", spec)
    result = solve(spec, objective=objective, warm_start=warm, time_limit_s=0.0)
    assert result.status == "feasible"
    assert result.makespan_ms == pytest.approx(278.4)
    assert result.bound_ms == pytest.approx(259.8)
    assert result.gap == pytest.approx(1 - 259.8 / 278.4)


def test_too_little_memory_is_a_status_that_can_be_explained():
    spec = uneven(2, 3, 0.75)
    result = solve(spec)
    assert (result.status, result.schedule) == ("infeasible", None)
    assert math.isinf(result.makespan_ms)
    assert [str(shortfall) for shortfall in memory_shortfalls(spec)] == [
        f"rank {rank} must hold one micro-batch on all its stages, which takes 1 of activation"
        " memory, but its limit is 0.75: 0.25 is missing"
        for rank in range(2)
    ]


def test_progress_comes_closer_until_it_is_proved():
    reports: list[Progress] = []
    solve(uneven(4, 8, 4), placement="v", time_limit_s=60, on_progress=reports.append)
    values, bounds = [one.value_ms for one in reports], [one.bound_ms for one in reports]
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    assert [one.elapsed_s for one in reports] == sorted(one.elapsed_s for one in reports)
    assert reports[0].gap > 0.0
    assert reports[-1].gap == 0.0


@pytest.mark.parametrize("after", [1, 4])
def test_ctrl_c_returns_the_best_found(after):
    """At the first report nothing runs yet, at the fourth the solver does."""
    reports: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        reports.append(progress)
        if len(reports) >= after:
            raise KeyboardInterrupt

    # V-Half's memory: no proof within the first reports.
    result = solve(uneven(4, 8, 3), placement="v", time_limit_s=60, on_progress=interrupt)
    assert result.status == "interrupted"
    assert result.makespan_ms <= reports[-1].value_ms + 1e-9
    validate(result.schedule, result.spec)


@pytest.mark.parametrize("workers", [1, 2])
def test_deterministic_runs_are_equal(workers):
    spec = uneven(4, 6, 3)
    first, second = (
        solve(
            spec, placement="v", time_limit_s=0.1, workers=workers, seed=7, deterministic=True
        )
        for _ in range(2)
    )  # fmt: skip
    assert first.schedule == second.schedule
    assert first.bound_ms == second.bound_ms


def test_a_warm_start_for_another_placement_is_refused():
    spec = uneven(4, 8, None)
    with pytest.raises(DoesNotFitError, match=r"zb-v places stages on ranks \[0, 1, 2, 3, 3"):
        solve(spec, warm_start=build("zb-v", spec))


def test_a_warm_start_over_the_limit_is_refused():
    spec = uneven(4, 8, None)
    with pytest.raises(DoesNotFitError, match="needs 4 of activation memory on rank 0"):
        solve(spec.with_(memory_limit=2.0), warm_start=build("1f1b", spec))


def test_no_placement_is_refused():
    with pytest.raises(InvalidSpecError, match="none to choose"):
        solve(uneven(2, 2, None), placement=())
