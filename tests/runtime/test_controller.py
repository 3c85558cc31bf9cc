"""The controller: sees lasting changes, not noise; moves layers without a trace in the training."""

import threading

import numpy as np
import pytest

from conductor.cli.run import _replan
from conductor.problem.spec import PipelineSpec
from conductor.runtime.controller import ChangeDetector, Proposal
from conductor.runtime.gpt import GPTConfig
from conductor.runtime.layers import level_layers, with_layers
from conductor.runtime.pace import Emulation, Straggler
from conductor.runtime.train import Training, TrainSettings, train
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline
from conductor.variation import UniformNoise
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
            seen.append((step, change.rank, change.factor))
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


@pytest.mark.parametrize(("factor", "steps"), [(1.15, 5), (0.85, 5), (1.1, 9), (1.04, None)])
def test_small_changes_count_when_they_have_lasted(factor, steps):
    seen = watch(400, noise=0.0, factor=factor, at=10)
    assert [step for step, _, _ in seen] == ([] if steps is None else [9 + steps])


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


@pytest.mark.parametrize("faster", range(4))
def test_which_ranks_get_the_layers_left_over_does_not_depend_on_a_hundredth(faster):
    slow = np.array([40.0, 40.0, 52.0, 40.0])
    slow[faster] *= 0.99
    measured = spec_of().with_(forward_ms=slow, backward_input_ms=slow, backward_weight_ms=slow)
    best = _replan(measured, (10, 10, 10, 10))
    assert timeline(best.spec, best.plan).makespan_ms < 1.02 * 1100.0


def test_a_replan_for_a_slow_rank_saves_a_tenth():
    slow = (40.0, 40.0, 52.0, 40.0)
    spec = spec_of(forward_ms=slow, backward_input_ms=slow, backward_weight_ms=slow)
    before = build("zb-1p", spec_of())
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
        replan_in_background=False,
    )
    records, _ = train(settings, build("zb-1p", FAST), FAST)
    return [record.loss for record in records], [record.plan for record in records]


def test_training_goes_on_bit_for_bit_after_layers_and_plan_have_changed():
    plain, adapted = run_ranks(trained, 2, False), run_ranks(trained, 2, True)
    assert adapted[0][0] == plain[0][0]
    assert adapted[0][1] == ["zb-1p"] * 4 + ["1f1b"] * 2


MAY_END = threading.Event()


def propose_slowly(spec, layers):
    assert spec == FAST or MAY_END.wait(60.0), "the steps wait for the plan"
    return propose(spec, layers)


def trained_meanwhile(rank):
    """Steps until the plan has changed, and the decision."""
    settings = TrainSettings(
        config=GPTConfig(num_layers=6, d_model=16, sequence=8), replan=propose_slowly
    )
    training, steps = Training(settings, build("zb-1p", FAST), FAST), 0
    while not training.controller.decisions:
        training.step()
        steps += 1
        if steps == 10:
            MAY_END.set()
    (decision,) = training.controller.decisions
    record, _ = training.step()
    return steps, decision.step, decision.proposal.plan.name, record.plan


def test_nobody_waits_for_a_plan_and_all_switch_after_the_same_step():
    one, other = run_ranks(trained_meanwhile, 2)
    assert one == other
    steps, *rest = one
    # The change was seen after the third step, and planned for while steps went on.
    assert rest == [2, "1f1b", "1f1b"]
    assert steps > 10


def fails(spec, layers):
    if spec != FAST:
        raise ValueError("no plan today")
    return propose(spec, layers)


def trained_in_vain(rank):
    settings = TrainSettings(config=GPTConfig(num_layers=6, d_model=16, sequence=8), replan=fails)
    training = Training(settings, build("zb-1p", FAST), FAST)
    for _ in range(5000):
        training.step()


def test_a_planner_that_fails_ends_every_rank():
    message = "RankError: rank 0 cannot plan for new times: ValueError: no plan today"
    assert [str(error) for error in run_ranks(trained_in_vain, 2)] == [message] * 2


def steady(rank, spec):
    settings = TrainSettings(
        config=GPTConfig(num_layers=16, d_model=16, sequence=8),
        pace=Emulation(spec=spec, variation=UniformNoise(0.02)),
        replan=_replan,
    )
    best = _replan(spec, (8, 8)).plan
    training = Training(settings, best, spec)
    plans = {training.step()[0].plan for _ in range(200)}
    return plans == {best.name}, training.layers


@pytest.mark.timing
def test_two_hundred_real_steps_with_a_little_noise_change_nothing():
    spec = spec_of(2, num_microbatches=4).with_(
        forward_ms=10.0, backward_input_ms=10.0, backward_weight_ms=10.0
    )
    assert run_ranks(steady, 2, spec, timeout_s=300) == [(True, (8, 8))] * 2


def slow_from_ten(rank, spec, factor):
    settings = TrainSettings(
        config=GPTConfig(num_layers=40, d_model=16, sequence=8),
        num_steps=40,
        pace=Emulation(spec=spec, stragglers=(Straggler(rank=2, factor=factor, first=10),)),
        replan=_replan,
    )
    records, _ = train(settings, build("zb-1p", spec), spec)
    return [(record.plan, record.time_ms) for record in records]


@pytest.mark.timing
def test_a_new_plan_as_good_as_any_is_in_force_within_three_steps_of_a_slow_down():
    spec, slow = spec_of(), (40.0, 40.0, 52.0, 40.0)
    records = run_ranks(slow_from_ten, 4, spec, 1.3)[0]
    plans, times = zip(*records, strict=True)
    assert plans[:10] == ("zb-1p",) * 10
    assert plans[13] != "zb-1p"
    assert len(set(plans[13:])) == 1
    truth = spec.with_(forward_ms=slow, backward_input_ms=slow, backward_weight_ms=slow)
    best = _replan(truth, (10, 10, 10, 10))
    best_ms = timeline(best.spec, best.plan).makespan_ms
    print(f"median {np.median(times[13:]):.1f} ms, best plan {best_ms:.1f}, before {times[11]:.1f}")
    assert np.median(times[13:]) <= 1.02 * best_ms
