"""Fits: what was put in is found again; the real traces; what cannot be fitted."""

from dataclasses import replace

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.straggler_trace import read_straggler_trace
from conductor.ir.trace import Operation, Trace
from conductor.variation import ForwardPauses, MarkovStragglers
from conductor.variation.fit import durations, fit


def made(table, steps=None):
    """A trace of durations by direction, stage, step, replica and micro-batch."""
    direction, stage, step, replica, microbatch = np.indices(table.shape).reshape(5, -1)
    numbers = np.arange(table.shape[2]) if steps is None else np.asarray(steps)
    return Trace(
        name="made",
        steps=numbers[step],
        dp_ranks=replica.astype(np.int32),
        ranks=stage.astype(np.int32),
        stages=stage.astype(np.int32),
        microbatches=microbatch.astype(np.int32),
        operations=np.where(direction == 0, Operation.FORWARD, Operation.BACKWARD).astype(np.int8),
        start_ms=np.zeros(table.size),
        duration_ms=table.ravel(),
    )


def known(steps=60, replicas=6, microbatches=16, seed=5):
    """A slow worker, micro-batches of 2 %, steps of 1 %, own noise of 0.5 %."""
    rng = np.random.default_rng(seed)
    shape = (2, 4, steps, replicas, microbatches)
    table = np.ones(shape) * np.array([10.0, 20.0]).reshape(2, 1, 1, 1, 1)
    table[:, 3] *= 1.5
    table[:, 1, :, 2] *= 2.5
    table *= np.exp(0.02 * rng.standard_normal((1, 1, steps, replicas, microbatches)))
    table *= np.exp(0.01 * rng.standard_normal((1, 1, steps, 1, 1)))
    return table * np.exp(0.005 * rng.standard_normal(shape))


def test_what_was_put_in_is_found():
    found = fit(made(known()))
    for direction in ("forward", "backward"):
        levels = found.levels[direction]
        assert levels["micro-batch"] == pytest.approx(0.02, rel=0.1)
        assert levels["own"] == pytest.approx(0.005, rel=0.15)
        assert levels["step"] == pytest.approx(0.01, rel=0.35)
        # One of 24 workers is 2.5 times its stage's median; one of four stages 1.5 times.
        assert levels["rank"] == pytest.approx(np.log(2.5) / np.sqrt(24), rel=0.02)
        assert levels["stage"] == pytest.approx(np.std(np.log([1, 1, 1, 1.5])), rel=0.02)
        assert sum(found.shares[direction].values()) == pytest.approx(1.0)
    _, replica, stage, factor = found.slowest
    assert (replica, stage) == (2, 1)
    assert factor == pytest.approx(2.5, rel=0.02)
    assert found.correlation_error < 0.05
    assert max(found.quantile_errors.values()) < 0.03


def test_chance_is_not_taken_for_a_factor():
    """Only own noise: ranks and steps differ by chance."""
    rng = np.random.default_rng(2)
    found = fit(made(10.0 * np.exp(0.1 * rng.standard_normal((2, 2, 40, 8, 8)))))
    for direction in ("forward", "backward"):
        assert found.levels[direction]["rank"] < 0.006
        assert found.levels[direction]["step"] < 0.006
        assert found.levels[direction]["stage"] < 0.01


def in_order(table):
    """Starts one after another on each worker: all forwards of a step, then all backwards."""
    trace = made(table)
    direction, _, _, _, microbatch = np.indices(table.shape).reshape(5, -1)
    return replace(trace, start_ms=(table.shape[-1] * direction + microbatch).astype(float))


def test_pauses_of_forwards_are_found_and_leave_the_rest_as_it_was():
    clean = known()
    rng = np.random.default_rng(3)
    held = rng.random(clean[0].shape) < 0.02
    table = clean.copy()
    table[0] += held * rng.uniform(20.0, 60.0, held.shape)
    found, without = fit(in_order(table)), fit(in_order(clean))
    assert isinstance(found.spells, ForwardPauses)
    assert found.spells.chance == pytest.approx(held.mean(), rel=0.02)
    assert found.spells.pause_ms == pytest.approx((20.0, 60.0), rel=0.05)
    assert found.variation.parts[-1] == found.spells
    for direction in ("forward", "backward"):
        assert found.levels[direction] == pytest.approx(
            without.levels[direction], rel=0.05, abs=2e-4
        )
    assert found.usual_share == pytest.approx(
        clean.mean(axis=(2, 3, 4)) / table.mean(axis=(2, 3, 4)), rel=0.002
    )
    assert without.spells is None
    assert (without.usual_share == 1.0).all()


def test_ranks_that_turn_slow_for_a_while_are_found():
    clean = known()
    rng = np.random.default_rng(4)
    slow = np.zeros((4, 60, 6, 32), bool)  # by stage, step, replica and place in the rank's order
    for place in range(1, 32):
        chance = rng.random(slow.shape[:3])
        slow[..., place] = np.where(slow[..., place - 1], chance >= 0.25, chance < 0.02)
    table = clean * np.where(np.stack((slow[..., :16], slow[..., 16:])), 1.8, 1.0)
    found = fit(in_order(table))
    assert isinstance(found.spells, MarkovStragglers)
    assert found.spells.factor == pytest.approx(1.8, rel=0.02)
    assert found.spells.p_slow == pytest.approx(0.02, rel=0.15)
    assert found.spells.p_recover == pytest.approx(0.25, rel=0.15)
    assert found.levels["forward"]["own"] == pytest.approx(0.005, rel=0.3)


def test_slow_actions_that_do_not_follow_each_other_are_no_spell():
    table = known()
    table[np.random.default_rng(6).random(table.shape) < 0.02] *= 1.8
    assert fit(in_order(table)).spells is None


def test_a_job_without_variation():
    found = fit(made(np.full((2, 2, 3, 2, 4), 7.0)))
    assert all(value == pytest.approx(0.0, abs=1e-9) for value in found.levels["forward"].values())
    assert found.correlation_error == 0.0


def test_steps_that_are_not_whole_are_left_out():
    trace = made(known(steps=4, replicas=3, microbatches=3))
    lost = np.flatnonzero(trace.steps == 1)[0]
    table, steps = durations(trace.where(np.delete(np.arange(len(trace)), lost)))
    assert table.shape == (2, 4, 3, 3, 3)
    assert steps.tolist() == [0, 2, 3]
    with pytest.raises(FormatError, match="no step has every action"):
        durations(trace.where((trace.stages > 0) | (trace.microbatches > 0)))


def test_a_split_backward_counts_as_one():
    trace = made(np.full((2, 2, 2, 1, 2), 7.0))
    backward = trace.where(trace.operations == Operation.BACKWARD)
    from dataclasses import replace

    columns = {
        name: np.concatenate([getattr(trace, name), getattr(backward, name)])
        for name in (
            "steps",
            "dp_ranks",
            "ranks",
            "stages",
            "microbatches",
            "start_ms",
            "duration_ms",
        )
    }
    kinds = np.where(
        trace.operations == Operation.BACKWARD, Operation.BACKWARD_INPUT, trace.operations
    )
    weights = np.full(len(backward), Operation.BACKWARD_WEIGHT)
    both = replace(trace, **columns, operations=np.concatenate([kinds, weights]).astype(np.int8))
    assert (durations(both)[0][1] == 14.0).all()


@pytest.fixture(scope="module")
def real(shared_data):
    pytest.importorskip("pyarrow")
    return {
        name: fit(read_straggler_trace(shared_data / "straggler-traces" / f"trace-{name}.parquet"))
        for name in ("AR", "SE")
    }


def test_the_slowed_worker_is_found(real):
    direction, replica, stage, factor = real["AR"].slowest
    assert (direction, replica, stage) == ("forward", 0, 0)
    assert factor == pytest.approx(2.5, abs=0.05)


def test_the_real_traces_have_the_published_decomposition(real):
    levels = real["AR"].levels
    for direction in levels:
        assert 0.013 <= levels[direction]["micro-batch"] <= 0.022
        assert 0.004 <= levels[direction]["own"] <= 0.006
    levels = real["SE"].levels
    assert levels["forward"]["micro-batch"] == pytest.approx(0.18, abs=0.015)
    assert levels["backward"]["micro-batch"] == pytest.approx(0.28, abs=0.015)


@pytest.mark.parametrize("name", ["AR", "SE"])
def test_samples_are_like_the_real_traces(real, name):
    assert real[name].correlation_error < 0.05
    assert list(real[name].quantile_errors) == [0.5, 0.9, 0.99]
    assert max(real[name].quantile_errors.values()) < 0.03
