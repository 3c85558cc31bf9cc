"""The kernels give the same floats as the slow reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.simulator.program import encode
from conductor.simulator.reference import ready_first_reference, static_reference
from conductor.simulator.simulate import execute, timeline
from tests.strategies import durations, problems

REFERENCES = {"static": static_reference, "ready-first": ready_first_reference}


@pytest.mark.parametrize("execution", REFERENCES)
@settings(max_examples=150)
@given(problem=problems(fits=False), seed=st.integers(0, 2**32))
def test_kernel_equals_reference(execution, problem, seed):
    spec, schedule = problem
    program = encode(spec, schedule)
    realised = durations(program.duration_ms, seed)
    expected = REFERENCES[execution](spec, schedule, realised[0].tolist())
    starts, sequences = execute(program, program.busy_ms(realised), execution)
    assert starts[0].tolist() == expected.start_ms
    assert sequences[0].tolist() == expected.sequence
    drawn = timeline(spec, schedule, realised[0], execution=execution)
    assert drawn.end_ms.tolist() == expected.end_ms
    assert drawn.peak_memory.tolist() == expected.peak_memory


@given(problem=problems())
def test_expected_durations_are_the_specs(problem):
    spec, schedule = problem
    assert timeline(spec, schedule).end_ms.tolist() == static_reference(spec, schedule).end_ms


@given(problem=problems(max_ranks=6, max_microbatches=8), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("execution", REFERENCES)
def test_every_execution_keeps_dependencies_and_memory(execution, problem, seed):
    spec, schedule = problem
    program = encode(spec, schedule)
    realised = durations(program.duration_ms, seed)[0]
    drawn = timeline(spec, schedule, realised, execution=execution)
    second = np.flatnonzero(program.overlaps) + 1
    for slot in range(program.inputs.shape[1]):
        used = np.flatnonzero(program.inputs[:, slot] >= 0)
        used = np.setdiff1d(used, second)  # a pair starts together, when the first may
        arrival = drawn.end_ms[program.inputs[used, slot]] + program.input_lag_ms[used, slot]
        assert (drawn.start_ms[used] >= arrival).all()
    assert (drawn.peak_memory <= program.memory_limits * (1 + 1e-9)).all()
    assert sorted(drawn.sequence.tolist()) == list(range(program.num_actions))
    assert np.array_equal(program.ranks[drawn.sequence], program.ranks)
