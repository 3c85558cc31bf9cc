"""What timelines show: makespan, spans, bubbles, idle time by cause, memory, critical path."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import InvalidScheduleError
from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.idle import IdleCause
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate, timeline
from conductor.simulator.timeline import Timeline
from tests.strategies import durations, problems

UNIT = {"forward_ms": 1.0, "backward_input_ms": 1.0, "backward_weight_ms": 1.0}


def hand_written(*rows: str, num_microbatches: int) -> Schedule:
    return Schedule.from_actions(
        [[Action.parse(text) for text in row.split()] for row in rows],
        name="hand-written",
        stage_ranks=range(len(rows)),
        num_microbatches=num_microbatches,
    )


def test_1f1b_on_uniform_stages_has_its_closed_form():
    ranks, microbatches = 4, 8
    spec = PipelineSpec(num_ranks=ranks, num_microbatches=microbatches, **UNIT)
    drawn = timeline(spec, build("1f1b", spec))
    fill = (ranks - 1) * 3
    assert drawn.makespan_ms == microbatches * 3 + fill
    assert drawn.stage_span_ms == drawn.makespan_ms
    assert drawn.bubble_ratio == pytest.approx(fill / (microbatches * 3 + fill))
    assert drawn.bubble_over_ideal == pytest.approx(fill / (microbatches * 3))
    assert drawn.busy_ms.tolist() == [microbatches * 3] * ranks
    assert drawn.peak_memory.tolist() == [4, 3, 2, 1]
    assert drawn.idle_ms[IdleCause.PREVIOUS_STAGE].tolist() == [0, 1, 2, 3]
    assert drawn.idle_ms[IdleCause.NEXT_STAGE].tolist() == [9, 6, 3, 0]
    assert drawn.idle_ms[IdleCause.MEMORY].tolist() == [0, 0, 0, 0]
    assert drawn.idle_ms[IdleCause.NOTHING_LEFT].tolist() == [0, 2, 4, 6]


def test_stage_span_leaves_the_start_skew_out():
    spec = PipelineSpec(num_ranks=2, num_microbatches=1, **UNIT)
    drawn = timeline(spec, hand_written("0F0 0I0 0W0", "1F0 1I0 1W0", num_microbatches=1))
    assert drawn.start_ms.tolist() == [0, 3, 4, 1, 2, 3]
    assert drawn.makespan_ms == 5
    assert drawn.stage_span_ms == 5
    late = Timeline.measured(
        spec, drawn.schedule, drawn.start_ms + [9, 7, 7, 9, 9, 9], drawn.end_ms + [9, 7, 7, 9, 9, 9]
    )
    assert late.makespan_ms == 13
    assert late.stage_span_ms == 3
    assert late.stage_span_bubble_ratio == pytest.approx(0.0)
    assert late.bubble_ratio == pytest.approx(1 - 3 / 13)


@pytest.mark.parametrize("execution", ["static", "ready-first"])
def test_a_forward_that_only_memory_holds_back_is_idle_for_memory(execution):
    """Rank 0 may hold one micro-batch: while 0F0 is away, 0F1 could run but for memory."""
    spec = PipelineSpec(num_ranks=2, num_microbatches=2, memory_limit=1.0, **UNIT)
    schedule = hand_written("0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1", num_microbatches=2)
    idle = timeline(spec, schedule, execution=execution).idle_ms
    assert idle[IdleCause.MEMORY].tolist() == [3, 0]
    assert idle[IdleCause.NEXT_STAGE].tolist() == [3, 0]  # no forward is left behind 0F1
    assert idle[IdleCause.PREVIOUS_STAGE].tolist() == [0, 4]
    free = timeline(spec.with_(memory_limit=None), schedule).idle_ms
    assert free[IdleCause.MEMORY].tolist() == [0, 0]
    assert free[IdleCause.NEXT_STAGE].tolist() == [6, 0]


def test_memory_counts_only_once_the_forward_has_its_input():
    """Rank 1 waits for 2B0 and has no room for 1F1, but 1F1's input is not there either."""
    spec = PipelineSpec(num_ranks=3, num_microbatches=2, memory_limit=1.0, **UNIT)
    schedule = hand_written(
        "0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1", "2F0 2B0 2F1 2B1", num_microbatches=2
    )
    drawn = timeline(spec, schedule)
    assert drawn.idle_ms[IdleCause.MEMORY].tolist() == [6, 0, 0]


def test_a_gap_in_a_v_counts_memory_that_later_forwards_of_the_plan_need():
    """Rank 0 holds stages 0 and 3: 0F1 before 3F0 would take the memory that 3F0 needs."""
    spec = PipelineSpec(
        num_ranks=2, num_microbatches=2, placement="v", stages_per_rank=2, memory_limit=(2.0, 9.0),
        **UNIT,
    )  # fmt: skip
    schedule = Schedule.from_actions(
        [
            [Action.parse(text) for text in row.split()]
            for row in ("0F0 3F0 3B0 0B0 0F1 3F1 3B1 0B1", "1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1")
        ],
        name="hand-written",
        stage_ranks=(0, 1, 1, 0),
        num_microbatches=2,
    )
    drawn = timeline(spec, schedule)
    assert drawn.start_ms[:4].tolist() == [0, 3, 4, 10]
    assert drawn.idle_ms[IdleCause.MEMORY, 0] == 2
    ahead = timeline(spec, schedule, execution="ready-first")
    assert ahead.start_ms[:5].tolist() == [0, 3, 4, 10, 6]


@pytest.mark.parametrize("execution", ["static", "ready-first"])
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_busy_and_idle_time_sum_to_the_makespan(execution, problem, seed):
    spec, schedule = problem
    realised = durations(encode(spec, schedule).duration_ms, seed)
    drawn = timeline(spec, schedule, realised[0], execution=execution)
    total = drawn.busy_ms + drawn.idle_ms.sum(axis=0)
    assert total == pytest.approx(np.full(spec.num_ranks, drawn.makespan_ms), abs=1e-9)
    assert (drawn.idle_ms >= 0).all()


@given(problem=problems(), seed=st.integers(0, 2**32))
def test_a_measured_timeline_sums_to_its_makespan_too(problem, seed):
    spec, schedule = problem
    drawn = timeline(spec, schedule)
    rng = np.random.default_rng(seed)
    late = rng.uniform(0.0, 0.3, len(drawn.start_ms))
    shifted = Timeline.measured(spec, schedule, drawn.start_ms + late, drawn.end_ms + late)
    total = shifted.busy_ms + shifted.idle_ms.sum(axis=0)
    assert total == pytest.approx(np.full(spec.num_ranks, shifted.makespan_ms), abs=1e-9)


@given(problem=problems())
def test_a_simulated_timeline_read_back_as_measured_is_the_same(problem):
    spec, schedule = problem
    drawn = timeline(spec, schedule)
    read = Timeline.measured(spec, schedule, drawn.start_ms, drawn.end_ms)
    assert read.makespan_ms == drawn.makespan_ms
    assert read.stage_span_ms == drawn.stage_span_ms
    assert read.busy_ms == pytest.approx(drawn.busy_ms)


@pytest.mark.parametrize("execution", ["static", "ready-first"])
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_the_critical_path_has_no_slack(execution, problem, seed):
    """It starts with the step, ends with it, and each action waits for nothing but the one before."""
    spec, schedule = problem
    program = encode(spec, schedule)
    drawn = timeline(spec, schedule, durations(program.duration_ms, seed)[0], execution=execution)
    path = drawn.critical_path.tolist()
    assert drawn.start_ms[path[0]] == 0.0
    assert drawn.end_ms[path[-1]] == drawn.makespan_ms
    for before, after in zip(path[:-1], path[1:], strict=True):
        lags = program.output_lag_ms[before][program.outputs[before] == after].tolist()
        if after > 0 and program.overlaps[after - 1]:
            lags += program.output_lag_ms[before][program.outputs[before] == after - 1].tolist()
        if program.ranks[before] == program.ranks[after]:
            lags.append(0.0)
        assert drawn.start_ms[after] in [drawn.end_ms[before] + lag for lag in lags]


@pytest.mark.parametrize("execution", ["static", "ready-first"])
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_a_simulation_is_its_timelines(execution, problem, seed):
    spec, schedule = problem
    realised = durations(encode(spec, schedule).duration_ms, seed, draws=3)
    many = simulate(spec, schedule, realised, execution=execution)
    each = [timeline(spec, schedule, row, execution=execution) for row in realised]
    assert many.makespan_ms.tolist() == [drawn.makespan_ms for drawn in each]
    assert many.stage_span_ms.tolist() == [drawn.stage_span_ms for drawn in each]
    assert many.idle_ms == pytest.approx(np.mean([drawn.idle_ms for drawn in each], axis=0))
    assert many.busy_ms == pytest.approx(np.mean([drawn.busy_ms for drawn in each], axis=0))
    assert many.peak_memory.tolist() == np.max([d.peak_memory for d in each], axis=0).tolist()


def test_an_overlapping_pair_runs_side_by_side():
    spec = PipelineSpec(num_ranks=1, num_microbatches=2, overlap_factor=0.75, **UNIT)
    schedule = hand_written("0F0 0F1 0B0 0B1", num_microbatches=2)
    paired = Schedule.from_arrays(
        name="paired",
        stage_ranks=(0,),
        num_microbatches=2,
        kinds=schedule.kinds,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        rank_offsets=schedule.rank_offsets,
        overlaps=[False, True, False, False],
    )
    drawn = timeline(spec, paired)
    assert drawn.start_ms.tolist() == [0, 1, 1, 3.25]
    assert drawn.end_ms.tolist() == [1, 3.25, 3.25, 5.25]
    assert drawn.busy_ms.tolist() == [5.25]


def test_measured_times_must_make_sense():
    spec = PipelineSpec(num_ranks=1, num_microbatches=1, **UNIT)
    schedule = hand_written("0F0 0B0", num_microbatches=1)
    with pytest.raises(InvalidScheduleError, match="0B0 ends before it starts"):
        Timeline.measured(spec, schedule, [0, 2], [1, 1])
    with pytest.raises(InvalidScheduleError, match="2 actions"):
        Timeline.measured(spec, schedule, [0], [1])


def test_durations_of_another_shape_are_refused():
    spec = PipelineSpec(num_ranks=1, num_microbatches=1, **UNIT)
    schedule = hand_written("0F0 0B0", num_microbatches=1)
    with pytest.raises(ValueError, match=r"\(draws, 2\)"):
        simulate(spec, schedule, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="one draw"):
        timeline(spec, schedule, np.ones((2, 2)))


@pytest.mark.parametrize("execution", ["static", "ready-first"])
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_the_gaps_before_the_actions_sum_to_the_idle_time(execution, problem, seed):
    spec, schedule = problem
    realised = durations(encode(spec, schedule).duration_ms, seed)
    drawn = timeline(spec, schedule, realised[0], execution=execution)
    gaps = np.zeros((len(IdleCause), schedule.num_ranks))
    np.add.at(gaps.T, drawn.program.ranks, drawn.idle_before_ms)
    gaps[IdleCause.NOTHING_LEFT] = drawn.idle_ms[IdleCause.NOTHING_LEFT]
    assert gaps == pytest.approx(drawn.idle_ms)
    assert not drawn.idle_before_ms[:, IdleCause.NOTHING_LEFT].any()
