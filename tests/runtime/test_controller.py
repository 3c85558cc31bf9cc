"""The controller: sees lasting changes, not noise; moves layers without a trace in the training."""

import numpy as np
import pytest

from conductor.cli.run import _replan
from conductor.problem.spec import PipelineSpec
from conductor.runtime.controller import ChangeDetector, Proposal
from conductor.runtime.gpt import GPTConfig
from conductor.runtime.layers import level_layers, with_layers
from conductor.runtime.pace import Emulation, Straggler
from conductor.runtime.train import TrainSettings, train
from conductor.schedules.registry import build
from tests.runtime.ranks import run_ranks


def spec_of(ranks=4, **changes):
    return PipelineSpec(
        num_ranks=ranks, num_microbatches=8,
        forward_ms=40.0, backward_input_ms=40.0, backward_weight_ms=40.0,
    ).with_(**changes)  # fmt: skip


def watch(steps, noise=0.02, factor=1.3, at=None, seed=0):
    """Steps after which a change is seen, on four ranks of 120 ms."""
    rng, detector, seen = np.random.default_rng(seed), ChangeDetector(), []
    expected = np.full(4, 120.0)
    for step in range(steps):
        measured = np.full(4, 120.0)
        if at is not None and step >= at:
            measured[2] *= factor
        change = detector.observe(measured * rng.normal(1.0, noise, 4), expected)
        if change:
            seen.append((step, *change))
            expected = measured
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_no_change(seed):
    assert watch(200, seed=seed) == []


@pytest.mark.parametrize("factor", [1.3, 0.7])
@pytest.mark.parametrize("seed", range(20))
def test_a_slow_or_fast_rank_is_seen_after_two_steps_and_once(factor, seed):
    ((step, rank, seen),) = watch(40, factor=factor, at=10, seed=seed)
    assert (step, rank) == (11, 2)
    assert seen == pytest.approx(factor, abs=0.06)


def test_one_slow_step_is_no_change():
    detector = ChangeDetector()
    expected = np.full(2, 10.0)
    for measured in ([10, 10], [10, 30], [10, 10], [10, 30], [10, 10]):
        assert detector.observe(np.array(measured, float), expected) is None


def test_layers_are_levelled_by_what_they_take():
    spec = spec_of(forward_ms=(40.0, 40.0, 80.0, 40.0)).with_(
        backward_input_ms=(40.0, 40.0, 80.0, 40.0), backward_weight_ms=(40.0, 40.0, 80.0, 40.0)
    )
    layers = level_layers(spec, (8, 8, 8, 8))
    assert sum(layers) == 32
    # Twice as slow a layer: 4 and a half layers are 9 of the others.
    assert sorted(layers) == [4, 9, 9, 10] or sorted(layers) == [5, 9, 9, 9]
    moved = with_layers(spec, (8, 8, 8, 8), layers)
    assert moved.duration_ms.max(axis=1)[0] < 60.0


def test_a_replan_for_a_slow_rank_saves_a_tenth():
    slow = (40.0, 40.0, 52.0, 40.0)
    spec = spec_of(forward_ms=slow, backward_input_ms=slow, backward_weight_ms=slow)
    before = build("zb-1p", spec_of())
    from conductor.simulator.simulate import timeline

    proposal = _replan(spec, (8, 8, 8, 8))
    gain = timeline(proposal.spec, proposal.plan).makespan_ms / timeline(spec, before).makespan_ms
    assert gain < 0.9
    assert proposal.layers[2] < 8


FAST = spec_of(2, forward_ms=1e-3, backward_input_ms=1e-3, backward_weight_ms=1e-3)


def propose(spec, layers):
    """Moves a layer to the second rank, and promises times that no rank can keep."""
    return Proposal(plan=build("1f1b", spec), spec=FAST, layers=(layers[0] - 1, layers[1] + 1))


def trained(rank, adapt):
    settings = TrainSettings(
        config=GPTConfig(num_layers=6, d_model=16, sequence=8),
        num_steps=6,
        replan=propose if adapt else None,
    )
    records, _ = train(settings, build("zb-1p", FAST), FAST)
    return [record.loss for record in records], [record.plan for record in records]


def test_training_goes_on_bit_for_bit_after_layers_and_plan_have_changed():
    plain, adapted = run_ranks(trained, 2, False), run_ranks(trained, 2, True)
    assert adapted[0][0] == plain[0][0]
    assert adapted[0][1] == ["zb-1p"] * 3 + ["1f1b"] * 3


def slow_from_ten(rank, spec, factor):
    settings = TrainSettings(
        config=GPTConfig(num_layers=32, d_model=16, sequence=8),
        num_steps=20,
        pace=Emulation(spec=spec, stragglers=(Straggler(rank=2, factor=factor, first=10),)),
        replan=_replan,
    )
    records, _ = train(settings, build("zb-1p", spec), spec)
    return [(record.plan, record.time_ms) for record in records]


@pytest.mark.timing
def test_a_new_plan_is_in_force_within_three_steps_of_a_slow_down():
    records = run_ranks(slow_from_ten, 4, spec_of(), 1.6)[0]
    plans = [plan for plan, _ in records]
    assert plans[:10] == ["zb-1p"] * 10
    assert plans[13] != "zb-1p"
    times = [time for _, time in records]
    assert np.median(times[13:]) < np.median(times[10:12])
