"""Specs as whole numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.ir.validate import validate
from conductor.optimal.instance import Instance, common_unit, serial_schedule, split_backwards
from conductor.problem.spec import PipelineSpec
from conductor.schedules.memory import peak_memory
from conductor.simulator.simulate import timeline
from tests.strategies import problems


@given(problems(max_splits=1))
def test_whole_numbers_give_the_simulated_value(problem):
    spec, schedule = problem
    assume(not schedule.overlaps.any())
    schedule = split_backwards(schedule)
    instance = Instance.of(spec)
    starts = instance.starts_of(schedule)
    run = timeline(spec, schedule)
    for value_ms, stage_span in ((run.makespan_ms, False), (run.stage_span_ms, True)):
        value = instance.to_ms(instance.value_of(starts, stage_span=stage_span))
        assert value == pytest.approx(value_ms, rel=1e-9, abs=1e-9)
    assert instance.schedule_of(starts) == schedule


@given(problems(max_splits=1))
def test_the_serial_schedule_needs_one_microbatch_of_every_stage(problem):
    spec, _ = problem
    serial = serial_schedule(spec)
    validate(serial)
    held = np.bincount(spec.stage_ranks, spec.per_stage("activation_memory"))
    assert peak_memory(spec, serial) == pytest.approx(held)


def test_backwards_that_a_full_backward_overtakes_go_first_once_split():
    row = [Action.parse(text) for text in ["0F0", "0F1", "0F2", "0B1", "0I0", "0B2", "0W0"]]
    split = split_backwards(
        Schedule.from_actions([row], name="test", stage_ranks=[0], num_microbatches=3)
    )
    expected = ["0F0", "0F1", "0F2", "0I0", "0W0", "0I1", "0I2", "0W1", "0W2"]
    assert [str(action) for action in split.rows[0]] == expected


def test_times_without_a_common_unit_are_rounded_down():
    spec = PipelineSpec(
        num_ranks=2, num_microbatches=2, forward_ms=np.pi, backward_input_ms=np.e,
        backward_weight_ms=2**0.5, transfer_ms=3**0.5 / 7,
    )  # fmt: skip
    instance = Instance.of(spec)
    real = instance.durations_ms[instance.kinds, instance.stages, instance.microbatches]
    assert (instance.busy <= real * instance.units_per_ms).all()
    assert (instance.busy >= real * instance.units_per_ms - 1).all()
    assert instance.busy.max() > 1_000_000


@given(st.lists(st.integers(1, 10**5), min_size=1), st.sampled_from([1, 2, 3, 10, 96, 1000]))
def test_the_common_unit_divides_every_value(numbers, denominator):
    unit = common_unit(number / denominator for number in numbers)
    scaled = np.array(numbers) / denominator * unit
    assert scaled == pytest.approx(np.rint(scaled), rel=1e-9)
    assert np.gcd.reduce(np.rint(scaled).astype(int)) == 1


def test_durations_of_another_shape_are_refused():
    spec = PipelineSpec(
        num_ranks=2, num_microbatches=2, forward_ms=1, backward_input_ms=1, backward_weight_ms=1
    )
    with pytest.raises(ValueError, match=r"shape \(3, 2, 2\), not \(4,\)"):
        Instance.of(spec, np.ones(4))
