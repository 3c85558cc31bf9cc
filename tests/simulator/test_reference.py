"""The kernels give the same floats as the slow reference."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import SCHEDULES, build
from conductor.simulator.program import encode
from conductor.simulator.reference import ready_first_reference, static_reference
from conductor.simulator.simulate import execute, simulate, timeline
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


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_runs_ready_first_within_its_own_memory(name):
    """Real shapes: several stages a rank, pairs, splits; durations far from the expected ones."""
    spec = PipelineSpec(
        num_ranks=4,
        num_microbatches=8,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        transfer_ms=0.4,
    )
    schedule = build(name, spec)
    drawn = timeline(spec, schedule)
    tight = drawn.spec.with_(memory_limit=tuple(drawn.peak_memory))
    program = encode(tight, schedule)
    for realised in durations(program.duration_ms, seed=0, draws=2):
        expected = ready_first_reference(tight, schedule, realised.tolist())
        ahead = timeline(tight, schedule, realised, execution="ready-first")
        assert ahead.end_ms.tolist() == expected.end_ms
        assert (ahead.peak_memory <= program.memory_limits * (1 + 1e-9)).all()


def test_results_are_the_same_at_any_thread_count():
    spec = PipelineSpec(
        num_ranks=4,
        num_microbatches=8,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        memory_limit=4.0,
    )
    schedule = build("zb-1p", spec)
    realised = durations(encode(spec, schedule).duration_ms, seed=1, draws=101)
    threads = numba.get_num_threads()
    for execution in REFERENCES:
        many = simulate(spec, schedule, realised, execution=execution)
        numba.set_num_threads(1)
        one = simulate(spec, schedule, realised, execution=execution)
        numba.set_num_threads(threads)
        assert many.makespan_ms.tolist() == one.makespan_ms.tolist()
        assert many.idle_ms.tolist() == one.idle_ms.tolist()
