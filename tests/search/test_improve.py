"""The search as a whole: never worse, deterministic, within its budget, optimal where that is known."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import DoesNotFitError, InvalidScheduleError
from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.ir.validate import validate
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.search.improve import improve
from conductor.search.objective import objective_value
from conductor.simulator.bounds import lower_bounds
from conductor.simulator.program import encode
from conductor.variation.uniform import UniformNoise
from tests.strategies import problems

TIMES = {"forward_ms": 10, "backward_input_ms": 10, "backward_weight_ms": 7, "transfer_ms": 0.4}
SMALL = PipelineSpec(num_ranks=4, num_microbatches=8, memory_limit=4, **TIMES)


def noisy(level: float, draws: int, seed: int):
    return lambda program: UniformNoise(level).sample(program, draws, np.random.default_rng(seed))


@given(problems(), st.sampled_from(("makespan", "stage-span", "mean", "p95")), st.integers(0, 9))
def test_the_result_is_valid_never_worse_and_worth_what_it_says(problem, objective, seed):
    spec, schedule = problem
    durations = noisy(0.3, 9, seed) if objective in ("mean", "p95") else None
    result = improve(
        spec, [schedule], evaluations=60, objective=objective, durations=durations, seed=seed
    )
    validate(result.schedule, spec)

    def value(order):
        times = None if durations is None else durations(encode(spec, order))
        return objective_value(spec, order, objective, times)

    assert result.value == pytest.approx(value(result.schedule), rel=1e-9)
    assert result.value <= result.start_value <= value(schedule) * (1 + 1e-9)


def test_the_same_seed_and_evaluations_give_the_same_schedule_and_more_are_never_worse():
    starts = [build(name, SMALL) for name in ("zb-1p", "1f1b", "zb-v", "v-half")]
    results = [improve(SMALL, starts, evaluations=20_000, seed=3) for _ in range(2)]
    assert results[0].schedule == results[1].schedule
    assert results[0].evaluations == results[1].evaluations == 20_000
    values = [
        improve(SMALL, starts, evaluations=count, seed=3).value for count in (0, 100, 3000, 20_000)
    ]
    assert values == sorted(values, reverse=True)


def test_common_draws_do_not_depend_on_the_order_that_asks():
    starts = [build(name, SMALL) for name in ("zb-1p", "zb")]
    values = [
        improve(SMALL, order, evaluations=0, objective="mean", durations=noisy(0.3, 50, 1)).value
        for order in (starts, starts[::-1])
    ]
    assert values[0] == values[1]


def every_order(num_ranks: int, num_microbatches: int):
    """All orders of a sequential pipeline with one stage a rank."""

    def rows(stage, done):
        if done == (num_microbatches,) * 3:
            yield []
        for kind in range(3):
            if done[kind] < (num_microbatches if kind == 0 else done[kind - 1]):
                after = tuple(count + (other == kind) for other, count in enumerate(done))
                for rest in rows(stage, after):
                    yield [Action(stage, Kind(kind), done[kind], 0), *rest]

    for chosen in itertools.product(*(list(rows(s, (0, 0, 0))) for s in range(num_ranks))):
        yield Schedule.from_actions(
            chosen, name="brute", stage_ranks=range(num_ranks), num_microbatches=num_microbatches
        )


@pytest.mark.parametrize(("limit", "microbatches"), [(1, 3), (1.5, 2), (2, 2), (None, 2)])
def test_tiny_pipelines_reach_the_optimum_of_brute_force(limit, microbatches):
    rng = np.random.default_rng(microbatches)
    spec = PipelineSpec(
        num_ranks=2,
        num_microbatches=microbatches,
        forward_ms=tuple(rng.integers(1, 9, 2)),
        backward_input_ms=tuple(rng.integers(1, 9, 2)),
        backward_weight_ms=tuple(rng.integers(1, 9, 2)),
        transfer_ms=float(rng.integers(0, 4)),
        memory_limit=limit,
        freed_at_backward_input=0.5,
    )
    best = np.inf
    for order in every_order(2, microbatches):
        try:
            validate(order, spec)
        except InvalidScheduleError:
            continue
        best = min(best, objective_value(spec, order, "makespan"))
    serial = [
        [
            Action(stage, kind, m, 0)
            for m in range(microbatches)
            for kind in (Kind.F, Kind.I, Kind.W)
        ]
        for stage in range(2)
    ]
    start = Schedule.from_actions(
        serial, name="serial", stage_ranks=range(2), num_microbatches=microbatches
    )
    assert improve(spec, [start], evaluations=4000).value == best


def test_it_stops_at_the_bound():
    spec = SMALL.with_(memory_limit=None)
    bound = lower_bounds(spec).makespan_ms
    result = improve(spec, [build("1f1b", spec)], budget_ms=20_000, bound_ms=bound)
    assert result.stopped_by == "bound"
    assert result.value == pytest.approx(bound)


def test_ctrl_c_returns_the_best_so_far():
    def stop(evaluations, value):
        if evaluations > 2000:
            raise KeyboardInterrupt

    start = build("1f1b", SMALL)
    result = improve(SMALL, [start], evaluations=10**9, on_progress=stop)
    assert result.stopped_by == "interrupt"
    assert result.value < result.start_value


def test_a_budget_in_milliseconds_is_kept():
    start = build("1f1b", SMALL)
    improve(SMALL, [start], evaluations=1)  # compiles
    begin = time.perf_counter()
    result = improve(SMALL, [start], budget_ms=200)
    assert result.stopped_by == "budget"
    assert result.evaluations > 0
    assert time.perf_counter() - begin < 2.0


def test_no_budget_at_all_returns_the_best_start():
    starts = [build(name, SMALL) for name in ("1f1b", "zb-1p")]
    result = improve(SMALL, starts, budget_ms=0)
    assert result.schedule == starts[1]
    assert (result.start, result.evaluations) == ("zb-1p", 0)


def test_one_action_of_each_kind_leaves_no_moves():
    spec = PipelineSpec(num_ranks=1, num_microbatches=1, **TIMES)
    assert improve(spec, [build("zb", spec)], budget_ms=10_000).stopped_by == "no moves"


def test_overlapping_pairs_are_kept_as_they_are():
    spec = PipelineSpec(num_ranks=2, num_microbatches=8, overlap_factor=0.5, **TIMES)
    start = build("dualpipe-v", spec)
    assert start.overlaps.any()
    result = improve(spec, [start], evaluations=100)
    assert result.schedule == start
    assert result.value == pytest.approx(objective_value(spec, start, "makespan"))


def test_too_little_memory_for_every_start_is_said():
    start = build("gpipe", SMALL.with_(memory_limit=None))
    with pytest.raises(DoesNotFitError, match="more memory than there is"):
        improve(SMALL, [start], evaluations=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": []}, "a schedule to start from"),
        ({"evaluations": None}, "budget_ms or evaluations"),
        ({"objective": "mean"}, "durations go with"),
        ({"durations": noisy(0.1, 2, 0)}, "durations go with"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {"starts": [build("1f1b", SMALL)], "evaluations": 10, **change}
    with pytest.raises(ValueError, match=message):
        improve(SMALL, **arguments)
