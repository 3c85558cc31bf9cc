"""Factors with numbers by stage, of steps, of replicas, of packed sequences, and pauses."""

import numpy as np
import pytest

from conductor.errors import FormatError, InvalidSpecError
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.variation import (
    ForwardPauses,
    LinkDelay,
    LognormalNoise,
    MarkovStragglers,
    MicrobatchFactor,
    Product,
    RankFactor,
    SequenceLengths,
    StageFactor,
    StepFactor,
    TracedMicrobatches,
    TracedReplicas,
    UniformNoise,
)
from conductor.variation.variation_file import VARIATIONS, load_variation, save_variation

SPEC = PipelineSpec(
    num_ranks=2, num_microbatches=4, forward_ms=10.0, backward_input_ms=10.0, backward_weight_ms=7.0
)
PROGRAM = encode(SPEC, build("zb-1p", SPEC))
V_PROGRAM = encode(SPEC, build("zb-v", SPEC))
BATCHES = TracedMicrobatches(
    quantiles=((-1.0, 0.0, 2.0), (-0.5, 0.0, 0.5)),
    forward=((0.1, 0.2), (0.0, 0.0)),
    backward=((0.1, 0.1), (0.0, 0.1)),
)
ALL = [
    UniformNoise(0.1),
    LognormalNoise(forward=0.02, backward=(0.01, 0.03)),
    MicrobatchFactor(),
    SequenceLengths(lengths=(100, 400, 3000), num_tokens=8192),
    RankFactor(),
    StageFactor(),
    StepFactor(forward=(0.01, -0.01), backward=0.02),
    MarkovStragglers(),
    ForwardPauses(),
    BATCHES,
    TracedReplicas(forward=((1.0, 2.0), (0.9, 1.1)), backward=((1.0, 3.0), (0.8, 1.2))),
]


def rng():
    return np.random.default_rng(11)


LINKS = LinkDelay(factor=(2.0,), extra_ms=0.5)


def test_the_list_is_whole():
    assert {type(model) for model in (*ALL, LINKS)} == set(VARIATIONS.values())


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_a_seed_gives_the_same_positive_durations_again(model):
    for program in (PROGRAM, V_PROGRAM):
        durations = model.sample(program, 30, rng())
        assert durations.shape == (30, program.num_actions)
        assert (durations > 0.0).all()
        assert np.array_equal(durations, model.sample(program, 30, rng()))


def test_a_file_holds_every_model(tmp_path):
    everything = Product((*ALL, LINKS))
    save_variation(everything, tmp_path / "v.toml")
    assert load_variation(tmp_path / "v.toml") == everything


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", FormatError, "holds \\[\\[variation\\]\\] tables"),
        ("x = [", FormatError, "not valid TOML"),
        ("[[variation]]\nkind = 'tea'", InvalidSpecError, "must be one of uniform, lognormal"),
        ("[[variation]]\nkind = 'step'\nx = 1", InvalidSpecError, "'step' has no key 'x'"),
        ("[[variation]]\nkind = 'step'\nforward = 'x'", InvalidSpecError, "'step'"),
        ("[[variation]]\nkind = 'lognormal'\nforward = -1", InvalidSpecError, "at least 0"),
        (
            "[[variation]]\nkind = 'traced-replicas'\nforward = [[1.0]]",
            InvalidSpecError,
            "backward",
        ),
        ("spec = 'a'\n[[variation]]\nkind = 'step'", FormatError, "unknown key 'spec'"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, text, error, message):
    (tmp_path / "v.toml").write_text(text)
    with pytest.raises(error, match=message) as caught:
        load_variation(tmp_path / "v.toml")
    assert str(caught.value).startswith(str(tmp_path / "v.toml"))


def test_lognormal_noise_has_mean_1_and_its_level_by_stage():
    factors = LognormalNoise(forward=0.1, backward=(0.0, 0.3)).factors(PROGRAM, 20_000, rng())
    assert factors.mean(axis=0) == pytest.approx(np.ones(PROGRAM.num_actions), abs=0.01)
    levels = np.log(factors).std(axis=0)
    forward = PROGRAM.kinds == Kind.F
    assert levels[forward] == pytest.approx(0.1, rel=0.03)
    assert levels[~forward & (PROGRAM.stages == 1)] == pytest.approx(0.3, rel=0.03)
    assert (factors[:, ~forward & (PROGRAM.stages == 0)] == 1.0).all()


def test_numbers_by_rank_serve_several_stages_a_rank():
    model = TracedReplicas(forward=((1.0, 2.0),), backward=((3.0, 4.0),))
    factors = model.factors(V_PROGRAM, 1, rng())[0]
    expected = np.where(V_PROGRAM.kinds == Kind.F, 1.0, 3.0) + V_PROGRAM.ranks
    assert factors.tolist() == expected.tolist()


def test_numbers_for_another_pipeline_are_refused():
    with pytest.raises(InvalidSpecError, match="numbers for 3 stages, but there are 2 stages on 2"):
        LognormalNoise(forward=(0.1, 0.1, 0.1)).factors(PROGRAM, 1, rng())


def test_a_step_is_slow_as_a_whole_and_remembers():
    factors = StepFactor(forward=0.02, backward=0.01, correlation=0.6).factors(
        PROGRAM, 40_000, rng()
    )
    logs = np.log(factors)
    forward = PROGRAM.kinds == Kind.F
    assert (logs[:, forward] == logs[:, forward][:, :1]).all()
    x, y = logs[:, forward][:, 0], logs[:, ~forward][:, 0]
    assert x.std() == pytest.approx(0.02, rel=0.05)
    assert np.corrcoef(x, y)[0, 1] == pytest.approx(1.0)
    assert np.corrcoef(x[1:], x[:-1])[0, 1] == pytest.approx(0.6, abs=0.02)


def test_a_traced_microbatch_is_felt_by_each_stage_by_its_load():
    factors = BATCHES.factors(PROGRAM, 20_000, rng())
    for microbatch in range(4):
        mine = PROGRAM.microbatches == microbatch
        first, last = (
            factors[:, mine & (PROGRAM.kinds == Kind.F) & (PROGRAM.stages == stage)][:, 0]
            for stage in (0, 1)
        )
        assert (last - 1.0) == pytest.approx(2.0 * (first - 1.0))
        # The median of x is its middle quantile.
        assert np.median(first) == pytest.approx(1.0, abs=0.005)
        assert first.min() >= 0.9
        assert first.max() <= 1.2


def test_packed_sequences_have_mean_1_and_long_ones_cost_more():
    lengths = (64,) * 50 + (8192,)
    model = SequenceLengths(lengths=lengths, num_tokens=32_768, attention_share=0.6)
    factors = model.factors(PROGRAM, 20_000, rng())
    assert factors.mean() == pytest.approx(1.0, abs=0.005)
    assert factors.min() >= 0.4
    assert factors.std() > 0.1
    same = PROGRAM.microbatches == 2
    assert (factors[:, same] == factors[:, same][:, :1]).all()


def test_sequences_of_one_length_do_not_vary():
    model = SequenceLengths(lengths=(1024,), num_tokens=8192)
    assert model.factors(PROGRAM, 5, rng()) == pytest.approx(1.0)


def test_pauses_hit_forwards_only():
    durations = ForwardPauses(chance=0.2, pause_ms=(100.0, 300.0)).sample(PROGRAM, 3_000, rng())
    added = durations - PROGRAM.duration_ms
    forward = PROGRAM.kinds == Kind.F
    assert (added[:, ~forward] == 0.0).all()
    held = added[:, forward] > 0.0
    assert held.mean() == pytest.approx(0.2, abs=0.01)
    pauses = added[:, forward][held]
    assert pauses.min() >= 100.0 - 1e-9
    assert pauses.max() <= 300.0 + 1e-9


def test_a_replica_is_drawn_whole():
    model = TracedReplicas(forward=((1.0, 2.0), (5.0, 6.0)), backward=((3.0, 4.0), (7.0, 8.0)))
    factors = model.factors(PROGRAM, 2_000, rng())
    first = (factors[:, :1] < 4.5) | (factors[:, :1] == 3.0)
    expected = np.where(PROGRAM.kinds == Kind.F, 1.0, 3.0) + PROGRAM.stages
    assert np.array_equal(factors, np.where(factors[:, :1] >= 5.0, expected + 4.0, expected))
    assert first.mean() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SequenceLengths(lengths=(), num_tokens=10),
        lambda: SequenceLengths(lengths=(5, 0), num_tokens=10),
        lambda: SequenceLengths(lengths=(5,), num_tokens=0),
        lambda: StepFactor(correlation=1.0),
        lambda: StepFactor(forward=float("nan")),
        lambda: LognormalNoise(backward=-0.1),
        lambda: ForwardPauses(chance=2.0),
        lambda: TracedReplicas(forward=((0.0,),), backward=((1.0,),)),
        lambda: TracedReplicas(forward=((1.0,),), backward=((1.0,), (1.0,))),
        lambda: TracedMicrobatches(quantiles=((2.0, 1.0),), forward=((0.1,),), backward=((0.1,),)),
        lambda: TracedMicrobatches(quantiles=((1.0, 2.0),), forward=(), backward=((0.1,),)),
    ],
)
def test_impossible_numbers_are_refused(make):
    with pytest.raises(InvalidSpecError, match=r"must be|must have"):
        make()
